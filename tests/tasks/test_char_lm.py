from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from torch import nn

from attnlab.core.build import build
from attnlab.core.contracts import Batch
from attnlab.core.errors import DataError, ModuleError, SpecError
from attnlab.tasks import TASKS
from attnlab.tasks.char_lm.char_lm import CharLM
from attnlab.tasks.char_lm.floors import BEST_KNOWN
from attnlab.tasks.datasets import TEXTS
from attnlab.text.characters import UNKNOWN

CONTEXT = 13


@pytest.fixture
def task(text_file) -> CharLM:
    return CharLM(text_file, CONTEXT, batch=7)


def logits_of(task: CharLM):
    """Return a predictor with a fixed distribution: characters later in the vocabulary are likelier."""
    row = torch.linspace(-1, 1, len(task.vocabulary))
    return lambda batch: row.expand(*batch.targets.shape, -1)


def write(tmp_path, content: str | bytes) -> str:
    path = tmp_path / "text.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_it_is_built_by_name(text_file):
    task = build({"name": "char-lm", "text": text_file, "context": 5, "batch": 3}, TASKS, axis="task")
    assert task.model_arguments() == {"vocab_size": 6, "max_length": 5}
    assert task.tokens_per_step == 15
    with pytest.raises(SpecError, match="did you mean 'context'"):
        build({"name": "char-lm", "text": text_file, "contxt": 5}, TASKS, axis="task")


@pytest.mark.parametrize("name", ["context", "batch"])
def test_sizes_must_be_positive(text_file, name):
    with pytest.raises(SpecError, match=f"{name} must be at least 1; got 0"):
        CharLM(text_file, **{name: 0})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"abc\xff", "must be UTF-8; got byte 0xff at offset 3"),
        ("x" * 14, r"too short: its training part \(90 % of 14 characters\).*got 12 for a context of 13"),
        ("x" * 16, None),
    ],
)
def test_an_unfit_text_is_refused(tmp_path, content, message):
    if message is None:
        CharLM(write(tmp_path, content), CONTEXT)
        return
    with pytest.raises(DataError, match=message):
        CharLM(write(tmp_path, content), CONTEXT)


def test_a_missing_text_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no file .*absent"):
        CharLM(str(tmp_path / "absent.txt"))


def test_every_held_out_part_must_have_something_to_predict(tmp_path):
    with pytest.raises(DataError, match="every held-out part needs at least 2 characters; got 1"):
        CharLM(write(tmp_path, "abcdefghij" * 2), 5, test=True)
    with pytest.raises(DataError, match="every held-out part needs at least 6 characters; got 5"):
        CharLM(write(tmp_path, "abcdefghij" * 5), 5, predict="last")


def test_windows_are_pieces_of_the_training_part_shifted_by_one(task, words):
    batch = task.train_batch(3, 5)
    (inputs,) = batch.inputs
    assert inputs.shape == batch.targets.shape == (7, CONTEXT)
    assert inputs.dtype == batch.targets.dtype == torch.int64
    train = words[: len(words) * 9 // 10]
    for row, target in zip(inputs, batch.targets, strict=True):
        assert torch.equal(row[1:], target[:-1])
        assert task.decode(row) + task.decode(target[-1:]) in train


def test_a_batch_is_a_pure_function_of_step_and_seed(task, text_file):
    first = task.train_batch(3, 5)
    task.train_batch(1, 1)
    again = CharLM(text_file, CONTEXT, batch=7).train_batch(3, 5)
    assert torch.equal(first.inputs[0], again.inputs[0])
    for step, seed in ((4, 5), (3, 6)):
        assert not torch.equal(first.inputs[0], task.train_batch(step, seed).inputs[0])


def test_first_and_last_window_can_be_drawn(tmp_path):
    task = CharLM(write(tmp_path, "abcdefghijklmnopqrst"), 16, batch=31)  # 18 characters to train on: two windows
    starts = set(task.train_batch(0, 0).inputs[0][:, 0].tolist())
    assert starts == set(task.encode("ab").tolist())


def test_a_training_batch_may_be_changed_in_place(task):
    before = task.train_batch(0, 0).targets.clone()
    task.train_batch(0, 0).inputs[0].zero_()
    assert torch.equal(task.train_batch(0, 0).targets, before)


@pytest.mark.parametrize("test", [False, True])
def test_every_held_out_character_but_the_first_is_predicted_once(text_file, words, test):
    task = CharLM(text_file, CONTEXT, batch=7, test=test)
    assert task.parts == (("validation", "test") if test else ("validation",))
    for part in task.parts:
        seen: list[str] = []

        def record(batch: Batch, seen: list[str] = seen) -> torch.Tensor:
            for row, target in zip(batch.inputs[0], batch.targets, strict=True):
                kept = target != -100
                assert torch.equal(row[kept][1:], target[kept][:-1])
                seen.append(task.decode(target[kept]))
            return torch.zeros(*batch.targets.shape, len(task.vocabulary))

        task.evaluate(record, part)
        begin, end = {"validation": (0.9, 0.95 if test else 1), "test": (0.95, 1)}[part]
        assert "".join(seen) == words[int(len(words) * begin) : int(len(words) * end)][1:]


@pytest.mark.parametrize("batch", [1, 7, 101])
def test_evaluation_does_not_depend_on_the_batch_and_is_the_mean(text_file, words, batch):
    task = CharLM(text_file, CONTEXT, batch=batch)
    measured = task.evaluate(logits_of(task), "validation")
    held_out = task.encode(words[len(words) * 9 // 10 :])[1:]
    log_probabilities = torch.linspace(-1, 1, len(task.vocabulary), dtype=torch.float64).log_softmax(0)
    loss = -log_probabilities[held_out].mean().item()
    assert measured["val_loss"] == pytest.approx(loss, rel=1e-6)
    assert measured["val_bits_per_character"] == pytest.approx(loss / math.log(2), rel=1e-6)
    assert measured["val_accuracy"] == (held_out == len(task.vocabulary) - 1).double().mean().item()


def test_metrics_and_parts_agree(text_file):
    task = CharLM(text_file, CONTEXT, test=True)
    measured = {name for part in task.parts for name in task.evaluate(logits_of(task), part)}
    assert measured == {metric.name for metric in task.metrics}
    assert task.metrics[0].name == "val_loss"
    assert {metric.name for metric in task.metrics if metric.better == "higher"} == {"val_accuracy", "test_accuracy"}
    assert {floor.metric for floor in task.floors()} == measured
    with pytest.raises(SpecError, match="did you mean 'test'"):
        task.evaluate(logits_of(task), "tests")


def test_the_loss_is_cross_entropy_and_smoothing_is_in_the_loss_alone(task):
    batch = task.train_batch(0, 0)
    logits = logits_of(task)(batch)
    plain = task.loss(logits, batch).item()
    expected = -logits.log_softmax(-1).gather(-1, batch.targets[..., None]).mean().item()
    assert plain == pytest.approx(expected, rel=1e-6)
    uniform = -logits.log_softmax(-1).mean().item()
    assert task.loss(logits, batch, 0.25).item() == pytest.approx(0.75 * expected + 0.25 * uniform, rel=1e-6)


def test_outputs_of_another_shape_are_refused(task):
    batch = task.train_batch(0, 0)
    with pytest.raises(
        ModuleError, match=r"must have shape \(7, 13, 6\) \(batch, length, vocab_size\); got \(7, 13, 5"
    ):
        task.loss(torch.zeros(7, 13, 5), batch)
    with pytest.raises(ModuleError, match=r"got \(3,\)"):
        task.evaluate(lambda batch: torch.zeros(3), "validation")


def test_low_precision_outputs_are_judged_in_float32(task):
    full = task.evaluate(logits_of(task), "validation")["val_loss"]
    low = task.evaluate(lambda batch: logits_of(task)(batch).bfloat16(), "validation")["val_loss"]
    assert low == pytest.approx(full, rel=0.01)


def test_examples_show_the_beginning_of_the_held_out_part(task, words):
    shown = task.examples(logits_of(task))
    json.dumps(shown)
    begin = len(words) * 9 // 10
    assert shown["kind"] == "text"
    assert shown["text"] == words[begin + 1 : begin + 1 + CONTEXT]
    assert shown["predicted"] == [task.vocabulary[-1]] * CONTEXT
    assert len(shown["loss"]) == CONTEXT


def test_examples_of_a_part_shorter_than_the_context(text_file, words):
    shown = CharLM(text_file, 1009).examples(lambda batch: torch.zeros(*batch.targets.shape, 6))
    assert len(shown["text"]) == len(shown["loss"]) == len(shown["predicted"]) == 120
    shown = CharLM(text_file, 1009, test=True).examples(lambda batch: torch.zeros(*batch.targets.shape, 6))
    assert shown["text"] == words[len(words) * 9 // 10 + 1 :][:120]


def test_only_the_last_is_predicted_each_from_a_whole_window(text_file, words):
    task = CharLM(text_file, 97, batch=7, predict="last")
    batch = task.train_batch(0, 1)
    assert (batch.inputs[0].shape, batch.targets.shape) == ((7, 97), (7, 1))
    window = torch.cat((batch.inputs[0], batch.targets), 1)[0]
    assert task.decode(window) in words[: len(words) * 9 // 10]
    assert task.describe()["predict"] == "last"
    predicted = []

    def record(batch: Batch) -> torch.Tensor:
        predicted.extend(task.decode(torch.cat((some, wanted))) for some, wanted in zip(batch.inputs[0], batch.targets))
        return torch.zeros(*batch.inputs[0].shape, len(task.vocabulary))

    task.evaluate(record, "validation")
    held_out = words[len(words) * 9 // 10 :]
    assert predicted == [held_out[start : start + 98] for start in range(0, len(held_out) - 97, 3)]


def test_one_answer_for_a_window_is_judged_as_the_last_of_many(text_file):
    task = CharLM(text_file, CONTEXT, batch=7, predict="last")
    batch, vocab = task.train_batch(0, 1), len(task.vocabulary)
    outputs = torch.randn(7, CONTEXT, vocab)
    expected = nn.functional.cross_entropy(outputs[:, -1], batch.targets[:, 0])
    for shaped in (outputs, outputs[:, -1:], outputs[:, -1]):
        torch.testing.assert_close(task.loss(shaped, batch), expected)
    with pytest.raises(ModuleError, match=r"must have shape \(7, 1, 6\)"):
        task.loss(outputs[:, -1, :5], batch)
    shown = task.examples(lambda batch: outputs[:1].expand(len(batch.targets), -1, -1))
    assert len(shown["text"]) == len(shown["loss"]) == 120
    with pytest.raises(SpecError, match="predict must be one of each, last; got 'first'"):
        CharLM(text_file, CONTEXT, predict="first")


def test_longer_windows_predict_the_same_characters_from_more(text_file, words):
    task, plain = CharLM(text_file, 5, batch=7, long_context=17), CharLM(text_file, 5, batch=7)
    assert task.model_arguments()["max_length"] == 17
    assert torch.equal(task.train_batch(2, 0).inputs[0], plain.train_batch(2, 0).inputs[0])
    seen = {5: [], 17: []}

    def record(batch: Batch) -> torch.Tensor:
        kept = batch.targets != -100
        length = batch.targets.shape[1]
        assert batch.targets.numel() <= task.tokens_per_step
        seen[length].append(task.decode(batch.targets[kept]))
        assert torch.equal(batch.inputs[0][:, 1:][kept[:, 1:]], batch.targets[:, :-1][kept[:, 1:]])
        return torch.zeros(*batch.targets.shape, len(task.vocabulary))

    task.evaluate(record, "validation")
    assert "".join(seen[5]) == "".join(seen[17]) == words[len(words) * 9 // 10 :][1:]


def test_the_loss_of_longer_windows_is_theirs_alone(text_file, words):
    task, plain = CharLM(text_file, 5, test=True, long_context=17), CharLM(text_file, 5, test=True)
    row = torch.linspace(-1, 1, len(task.vocabulary), dtype=torch.float64)

    def lost_beyond(batch: Batch) -> torch.Tensor:
        """Return the unigram as far as training reaches, and nothing known beyond."""
        known = (torch.arange(batch.targets.shape[1]) < 5).float()
        return (known[:, None] * row).expand(*batch.targets.shape, -1)

    count = len(words)
    for part, prefix, begin, end in (("validation", "val", 0.9, 0.95), ("test", "test", 0.95, 1)):
        measured = task.evaluate(lost_beyond, part)
        assert measured.items() > plain.evaluate(lost_beyond, part).items()
        targets = task.encode(words[int(count * begin) : int(count * end)])[1:]
        near = torch.arange(len(targets)) % 17 < 5
        losses = torch.where(near, -row.log_softmax(0)[targets], math.log(len(task.vocabulary)))
        assert measured[f"{prefix}_loss_long"] == pytest.approx(losses.mean().item(), rel=1e-6)
    assert {metric.name for metric in task.metrics} - {metric.name for metric in plain.metrics} == {
        "val_loss_long",
        "test_loss_long",
    }


@pytest.mark.parametrize("split", ["contiguous", "inside"])
def test_floors_of_longer_windows_are_those_of_the_same_characters(text_file, split):
    floors = CharLM(text_file, 3, long_context=17, split=split).floors()
    usual = CharLM(text_file, 3, split=split).floors()
    assert [floor for floor in floors if floor.metric != "val_loss_long"] == list(usual)
    longer = [floor for floor in floors if floor.metric == "val_loss_long"]
    # a window of training has 3 characters: whether a model sees more is not known, and floors of more say nothing
    expected = [floor for floor in usual if floor.metric == "val_loss" and (floor.reach or 0) < 3]
    assert [dataclasses.replace(floor, metric="val_loss") for floor in longer] == expected
    assert [floor.reach for floor in longer] == [None, 0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"long_context": CONTEXT}, "long_context must be larger than context=13; got 13"),
        ({"long_context": 50, "split": "windows"}, "have one length; got long_context=50 with split 'windows'"),
        ({"long_context": 50, "predict": "last"}, "and predict 'last'; leave long_context out"),
    ],
)
def test_windows_that_cannot_be_longer_are_refused(text_file, arguments, message):
    with pytest.raises(SpecError, match=message):
        CharLM(text_file, CONTEXT, **arguments)


def test_an_epoch_predicts_each_character_once(text_file):
    trained = 3600
    assert CharLM(text_file, CONTEXT, batch=7).steps_per_epoch == trained / CONTEXT / 7
    assert CharLM(text_file, CONTEXT, batch=7, predict="last").steps_per_epoch == (trained - CONTEXT) / 7


def test_the_bigram_lies_above_what_a_model_of_one_character_can_learn(task, words):
    """A table of train frequencies sees one character and must not be called impossible."""
    tokens = task.encode(words[: len(words) * 9 // 10])
    size = len(task.vocabulary)
    counts = torch.bincount(tokens[:-1] * size + tokens[1:], minlength=size * size).view(size, size) + 0.1
    table = (counts / counts.sum(1, keepdim=True)).log()
    measured = task.evaluate(lambda batch: table[batch.inputs[0]], "validation")
    for floor in task.floors():
        if floor.reach == 1 and floor.metric == "val_loss":
            assert abs(measured["val_loss"] - floor.value) < floor.tolerance


def test_a_clean_text_raises_no_alarm_and_a_leaking_one_does(tmp_path):
    draw = torch.Generator().manual_seed(0)
    clean = "".join(chr(97 + number) for number in torch.randint(26, (2003,), generator=draw).tolist())
    assert CharLM(write(tmp_path, clean), CONTEXT).alarms() == ()
    (alarm,) = CharLM(write(tmp_path, clean + clean[:503]), CONTEXT).alarms()
    assert "100.0% of the validation part's passages of 50 characters stand word for word" in alarm


def test_characters_that_training_lacks_are_said(tmp_path):
    task = CharLM(write(tmp_path, "ab" * 90 + "abcéabbaabbaabbaabab"), CONTEXT)
    assert task.vocabulary == ["a", "b", UNKNOWN]
    (alarm,) = (alarm for alarm in task.alarms() if "unknown" in alarm)
    assert alarm == "2 characters occur in held-out parts only and became one unknown token: 'c' 'é'"
    assert math.isfinite(task.floors()[3].value)
    assert task.decode(task.encode("abz")) == f"ab{UNKNOWN}"


def test_the_description_identifies_the_text(task, text_file, words):
    described = task.describe()
    json.dumps(described)
    assert described["text"] == text_file
    assert described["parts"] == {"train": 3600, "validation": 401}
    assert described["bytes"] == len(words)
    assert described["vocab_size"] == 6
    assert len(described["sha256"]) == 64
    assert 0 <= described["overlap"]["validation"] <= 1
    assert "long_context" not in described
    assert CharLM(text_file, CONTEXT, long_context=50).describe()["long_context"] == 50


def test_best_known_results_are_for_the_usual_split_of_that_text(task, text_file, monkeypatch):
    assert {floor.kind for floor in task.floors()} == {"chance", "floor"}
    monkeypatch.setitem(BEST_KNOWN, task.describe()["sha256"], (1.25, "someone"))
    best = {floor.metric: floor.value for floor in task.floors() if floor.kind == "best"}
    assert best == {"val_loss": 1.25, "val_bits_per_character": 1.25 / math.log(2)}
    for other in ({"test": True}, {"data_seed": 0}):
        assert "best" not in {floor.kind for floor in CharLM(text_file, CONTEXT, **other).floors()}


def test_a_data_seed_says_which_tenth_is_held_out(tmp_path):
    text = "".join(f"{number:04d}" for number in range(400))
    tasks = [CharLM(write(tmp_path, text), CONTEXT, data_seed=seed) for seed in (0, 0, 1, 2)]
    held_out = [task.examples(logits_of(task))["text"] for task in tasks]
    assert held_out[0] == held_out[1]
    assert len(set(held_out)) == 3
    assert [task.describe()["data_seed"] for task in tasks] == [0, 0, 1, 2]


@pytest.mark.data
def test_the_real_text(tinyshakespeare):
    task = CharLM(tinyshakespeare)
    assert len(task.vocabulary) == 65
    assert sum(task.describe()["parts"].values()) == task.describe()["bytes"] == TEXTS[tinyshakespeare].size_bytes
    assert task.alarms() == ()
    assert {floor.metric for floor in task.floors() if floor.kind == "best"} == {"val_loss", "val_bits_per_character"}
