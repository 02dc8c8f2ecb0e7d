"""Sequences end as an earlier place went on; what can be known of them is known to the ideal predictor alone."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from attnlab.core.build import build
from attnlab.core.errors import ModuleError, SpecError
from attnlab.core.generators import generator_for
from attnlab.tasks import TASKS
from attnlab.tasks.repeated_tokens import RepeatedTokens, ideal_losses, repeated_sequences

VOCAB, CONTEXT, SHORTEST, LONGEST = 11, 18, 3, 7
DRAWN = {"vocab_size": VOCAB, "shortest": SHORTEST, "longest": LONGEST}


@pytest.fixture(scope="module")
def task() -> RepeatedTokens:
    return RepeatedTokens(VOCAB, CONTEXT, shortest=SHORTEST, longest=LONGEST, batch=5)


def uniform(batch):
    return torch.zeros(*batch.targets.shape, VOCAB)


def test_it_is_built_by_name_and_sizes_are_checked():
    task = build({"name": "repeated-tokens", "vocab_size": 5, "context": 8, "shortest": 2}, TASKS, axis="task")
    assert task.describe()["longest"] == 4
    with pytest.raises(SpecError, match=r"vocab_size must be at most \d+, the letters that there are; got 1000000"):
        RepeatedTokens(10**6)
    with pytest.raises(SpecError, match="vocab_size must be at least 1; got 0"):
        RepeatedTokens(0)
    for wrong in ({"shortest": 1}, {"shortest": 5, "longest": 4}, {"context": 12, "longest": 7}):
        with pytest.raises(SpecError, match="so that it fits in twice; got shortest="):
            RepeatedTokens(**wrong)


def test_the_last_tokens_are_those_of_an_earlier_place_of_any_length_and_distance():
    tokens, repeated = repeated_sequences(400, CONTEXT + 1, **DRAWN, generator=generator_for(0))
    assert sorted(repeated.unique().tolist()) == list(range(SHORTEST, LONGEST + 1))
    distances = set()
    for row, length in zip(tokens, repeated[:, 0].tolist(), strict=True):
        begin = len(row) - length
        found = [
            back for back in range(length, begin + 1) if torch.equal(row[begin:], row[begin - back : len(row) - back])
        ]
        assert found
        distances.add(found[0])
    assert {SHORTEST, CONTEXT + 1 - SHORTEST} < distances


def test_training_sequences_are_new_in_every_step_and_the_same_for_a_seed(task):
    batch = task.train_batch(3, 1)
    assert batch.inputs[0].shape == batch.targets.shape == (5, CONTEXT)
    assert torch.equal(batch.inputs[0][:, 1:], batch.targets[:, :-1])
    assert torch.equal(batch.targets, task.train_batch(3, 1).targets)
    assert not torch.equal(batch.targets, task.train_batch(4, 1).targets)
    assert not torch.equal(batch.targets, task.train_batch(3, 2).targets)


def test_who_copies_is_right_on_what_repeats_and_only_there(task):
    def copying(batch):
        (tokens,) = batch.inputs
        logits = torch.zeros(*tokens.shape, VOCAB)
        for row, query in itertools.product(range(len(tokens)), range(1, CONTEXT)):
            pair = tokens[row, query - 1 : query + 1]
            earlier = [key for key in range(1, query) if torch.equal(tokens[row, key - 1 : key + 1], pair)]
            if earlier:
                logits[row, query, tokens[row, earlier[-1] + 1]] = 5.0
        return logits

    found, guessed = task.evaluate(copying, "validation"), task.evaluate(uniform, "validation")
    assert guessed == pytest.approx(
        {**dict.fromkeys(guessed, math.log(VOCAB)), "val_accuracy_repeated": 1 / VOCAB}, abs=0.02
    )
    assert found["val_accuracy_repeated"] > 0.5
    assert found["val_loss_repeated"] < guessed["val_loss_repeated"] - 0.5
    assert found["val_loss_first"] > guessed["val_loss_first"]
    assert set(found) == {metric.name for metric in task.metrics}
    with pytest.raises(SpecError, match="part must be"):
        task.evaluate(uniform, "test")


def test_the_ideal_predictor_is_bayes_rule():
    sizes = {"vocab_size": 3, "shortest": 2, "longest": 3}
    length, weights = 6, {}
    for repeated in (2, 3):
        backs = range(repeated, length - repeated + 1)
        for back in backs:
            for start in itertools.product(range(3), repeat=length - repeated):
                row = list(start)
                while len(row) < length:
                    row.append(row[-back])
                weights[tuple(row)] = weights.get(tuple(row), 0) + 1 / (2 * len(backs) * 3 ** (length - repeated))
    for row in ((0, 1, 2, 0, 1, 2), (0, 1, 1, 1, 0, 1), (2, 2, 2, 2, 2, 2)):
        likely = [sum(weight for one, weight in weights.items() if one[:end] == row[:end]) for end in range(length + 1)]
        wanted = [math.log(before / after) for before, after in itertools.pairwise(likely)]
        assert ideal_losses(torch.tensor([row]), **sizes)[0].tolist() == pytest.approx(wanted, abs=1e-9)


def test_chance_is_a_limit_of_what_repeats_nothing_and_the_ideal_of_all(task):
    floors = {(floor.name, floor.metric): floor for floor in task.floors()}
    ideal = floors["ideal predictor", "val_loss"]
    assert ideal.kind == "floor"
    assert ideal.value < floors["chance", "val_loss"].value == pytest.approx(math.log(VOCAB))
    assert floors["ideal predictor", "val_loss_repeated"].value < 1 < floors["new tokens", "val_loss_first"].value
    assert floors["one token (sees 1 token)", "val_loss_repeated"].reach == 1


def test_logits_of_another_shape_are_refused(task):
    with pytest.raises(ModuleError, match=r"must have shape \(5, 18, 11\)"):
        task.loss(torch.zeros(5, CONTEXT, 3), task.train_batch(0, 0))


def test_the_example_is_a_text_that_its_codec_reads(task):
    shown = task.examples(uniform)
    assert len(shown["text"]) == len(shown["loss"]) == len(shown["predicted"]) == CONTEXT
    assert task.codec.vocabulary.decode(task.codec.vocabulary.encode(shown["text"])) == shown["text"]
    assert shown["labels"][0][1:] == list(shown["text"])[:-1]
    assert not task.alarms()
