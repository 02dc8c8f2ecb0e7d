"""What translators write by themselves for a batch, how good that is, and that they learn from it."""

from __future__ import annotations

import pytest
import torch
import yaml

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.files import read_json
from attnlab.core.generators import generator_for
from attnlab.models import AdditiveRnn, EncoderDecoder
from attnlab.studies.using.attempting import attempts_of
from attnlab.tasks.next_tokens import IGNORED
from attnlab.tasks.repeated_tokens import RepeatedTokens
from attnlab.tasks.translation.translation import Translation
from attnlab.text.scores import gleu
from attnlab.text.tokenizers import END_TOKEN
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.loop import train
from attnlab.training.run.step import sequence_log_probabilities

WORDS = ["a", "dog", "runs", "over", "the", "green", "meadow"]
COUNT = 3


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A corpus whose translation is the sentence in capitals."""
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mine"
    folder.mkdir()
    for part, count in (("train", 60), ("val", 10)):
        lines = [
            " ".join(WORDS[(number * 3 + place) % 7] for place in range(number % 5 + 1)) for number in range(count)
        ]
        lines = [f"{line} {WORDS[number // 7 % 7]}" for number, line in enumerate(lines)]
        (folder / f"{part}.en").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / f"{part}.de").write_text("\n".join(lines).upper() + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def task(corpus):
    return Translation(str(corpus), tokenizer="words", batch_tokens=64, max_length=12)


def model_for(task, kind=EncoderDecoder):
    torch.manual_seed(0)
    size = task.data.tokenizer.size
    if kind is AdditiveRnn:
        return AdditiveRnn(size, size, d_model=12, hidden=12, dropout=0.3)
    return EncoderDecoder(
        size, size, 12, d_model=16, n_layers=1, mixer={"name": "attention", "n_heads": 2}, dropout=0.3
    )


@pytest.mark.parametrize("kind", [EncoderDecoder, AdditiveRnn])
def test_attempts_are_sentences_of_the_model_with_what_they_are_worth(task, kind):
    model, batch = model_for(task, kind).eval(), task.train_batch(0, 0)
    found = attempts_of(task)(model, batch, COUNT, generator_for(0, 1))
    again = attempts_of(task)(model, batch, COUNT, generator_for(0, 1))
    other = attempts_of(task)(model, batch, COUNT, generator_for(0, 2))
    assert torch.equal(found.batch.targets, again.batch.targets)
    assert not torch.equal(found.rewards, other.rewards)
    rows = len(batch.targets)
    assert found.rewards.shape == (rows, 1 + COUNT)
    assert (found.rewards[:, 0] == 1).all()
    written = [row[row != IGNORED].tolist() for row in found.batch.targets]
    for number, row in enumerate(written):
        right = written[number % rows]
        assert found.rewards[number % rows, number // rows] == pytest.approx(gleu(without_end(row), without_end(right)))
    assert torch.equal(found.batch.inputs[0], batch.inputs[0].repeat(1 + COUNT, 1))


def without_end(row):
    return [token for token in row if token != END_TOKEN]


def test_log_probabilities_are_those_of_whole_sequences(task):
    model, batch = model_for(task).eval(), task.train_batch(0, 0)
    found = attempts_of(task)(model, batch, COUNT, generator_for(0, 1))
    outputs = model(*found.batch.inputs)
    sums = sequence_log_probabilities(outputs, found.batch, 1 + COUNT)
    rows, logs = len(batch.targets), outputs.log_softmax(-1)
    for number, attempt in ((0, 0), (1, COUNT)):
        row = attempt * rows + number
        wanted = [(place, token) for place, token in enumerate(found.batch.targets[row].tolist()) if token != IGNORED]
        assert sums[number, attempt].item() == pytest.approx(sum(logs[row, p, t].item() for p, t in wanted), rel=1e-5)


def test_a_sentence_that_was_cut_is_not_held_to_have_ended(task):
    class Endless(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(()))

        def forward(self, source, target):
            logits = torch.zeros(*target.shape, task.data.tokenizer.size)
            logits[..., 5] = 50.0
            return logits + self.bias

    batch = task.train_batch(0, 0)
    found = attempts_of(task)(Endless(), batch, 2, generator_for(0)).batch
    assert (found.targets[len(batch.targets) :] != END_TOKEN).all()
    assert ((found.targets[: len(batch.targets)] == END_TOKEN).sum(1) == 1).all()


def test_tasks_without_sentences_have_no_attempts():
    assert attempts_of(RepeatedTokens()) is None


@pytest.mark.parametrize("name", ["expected-reward", "minimum-risk"])
def test_what_is_written_becomes_better(task, name):
    sharp = {"sharpness": 0.5} if name == "minimum-risk" else {}
    objective = {"name": name, "samples": 6, "likelihood": 0.0, "after": 0.6, **sharp}
    means = {}
    for what, steps in (("likelihood", 90), (objective, 150)):  # the first 90 are those of the likelihood
        model = model_for(task)
        recipe = Recipe.parse({"budget": {"steps": steps}, "lr": 1e-2, "schedule": "constant", "objective": what})
        result = train(model, task, recipe, attempt=attempts_of(task))
        model.eval()
        attempts = [attempts_of(task)(model, task.train_batch(step, 9), 8, generator_for(step)) for step in range(6)]
        means[str(what)] = torch.cat([one.rewards[:, 1:].flatten() for one in attempts]).mean().item()
        assert result.metrics["val_loss"] > 0
    assert means[str(objective)] > means["likelihood"] + 0.02


def test_until_then_training_is_that_of_the_likelihood_and_a_stop_changes_nothing(task, tmp_path):
    curves = {}
    for what in ("likelihood", {"name": "expected-reward", "samples": 2, "after": 0.5}):
        recipe = Recipe.parse({"budget": {"steps": 20}, "evaluate_every": 5, "checkpoint_every": 5, "objective": what})
        result = train(model_for(task), task, recipe, attempt=attempts_of(task))
        curves[str(what)] = [line["val_loss"] for line in result.curve if "val_loss" in line]
    alike, other = curves.values()
    assert alike[:2] == other[:2]
    assert alike[2:] != other[2:]

    class Stopped(Exception):
        pass

    def stop(event):
        if event["kind"] == "evaluation" and event["step"] == 15:
            raise Stopped

    with pytest.raises(Stopped):
        train(model_for(task), task, recipe, attempt=attempts_of(task), folder=tmp_path / "run", on_event=stop)
    gone_on = train(model_for(task), task, recipe, attempt=attempts_of(task), folder=tmp_path / "run")
    assert gone_on.resumed_at
    assert gone_on.metrics["val_loss"] == other[-1]


STUDY = {
    "question": "Does a reward help?",
    "model": {"name": "encoder-decoder", "d_model": 16, "n_layers": 1, "mixer": {"name": "attention", "n_heads": 2}},
    "baseline": "likelihood",
    "variants": {
        "likelihood": {},
        "reward": {"training": {"objective": {"name": "expected-reward", "samples": 2, "after": 0.5}}},
    },
    "rules": {"budget": {"steps": 4}, "seeds": 1, "smallest_effect": 0.1},
}


def test_a_study_compares_objectives(corpus, tmp_path, capsys):
    translating = {"name": "translation", "corpus": str(corpus), "tokenizer": "words", "max_length": 12, "beam": None}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({**STUDY, "task": translating}))
    assert call(["plan", str(tmp_path / "one.yaml")]) == FINE
    assert "what it writes by itself after 50% of its budget is not in its FLOPs" in " ".join(
        capsys.readouterr().out.split()
    )
    assert call(["run", str(tmp_path / "one.yaml"), "--out", str(tmp_path / "out"), "--jobs", "1"]) == FINE
    losses = [read_json(tmp_path / "out" / name / "seed-0" / "result.json")["metrics"] for name in STUDY["variants"]]
    assert losses[0]["val_loss"] != losses[1]["val_loss"]
    costs = {one["name"]: one["training_flops"] for one in read_json(tmp_path / "out" / "report.json")["variants"]}
    assert [name for name, flops in costs.items() if flops is None] == ["reward"]
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({**STUDY, "task": {"name": "shapes"}, "model": {"name": "cnn"}}))
    assert call(["plan", str(tmp_path / "two.yaml")]) == WRONG_USE
    assert "learns from sentences that the model writes" in " ".join(capsys.readouterr().err.split())
