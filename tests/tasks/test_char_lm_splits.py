"""How `char-lm` splits a text: as it should be, and in the two ways that leak on purpose."""

from __future__ import annotations

import json
import random

import pytest
import torch

from attnlab.core.build import build
from attnlab.core.contracts import Batch
from attnlab.core.errors import DataError, SpecError
from attnlab.tasks import TASKS
from attnlab.tasks.char_lm.char_lm import CharLM
from attnlab.tasks.char_lm.floors import BEST_KNOWN

CONTEXT = 61  # longer than the passages that are compared
LENGTH = 4001
STRIDES = (1, 7, 40, 59, 61, 67)


@pytest.fixture(scope="module")
def text() -> str:
    """Return letters in random order: each window stands in one place only."""
    return "".join(random.Random(11).choices("abcdefghijklmnopqrstuvwxyz", k=LENGTH))


@pytest.fixture(scope="module")
def random_file(text, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("text") / "random.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def held_out(task: CharLM, part: str, text: str) -> set[int]:
    """Find where the windows begin that a part is judged on."""
    found: list[int] = []

    def record(batch: Batch) -> torch.Tensor:
        assert (batch.targets != -100).all()
        found.extend(starts(task, batch, text))
        return torch.zeros(*batch.targets.shape, len(task.vocabulary))

    task.evaluate(record, part)
    assert len(found) == len(set(found))
    return set(found)


def starts(task: CharLM, batch: Batch, text: str) -> list[int]:
    """Find where the windows of a batch begin in the text."""
    windows = torch.cat((batch.inputs[0], batch.targets[:, -1:]), dim=1)
    return [text.index(task.decode(row)) for row in windows]


def drawn(task: CharLM, text: str) -> set[int]:
    """Find where the windows begin that training draws, all of them."""
    rows = {tuple(row) for step in range(60) for row in joined(task.train_batch(step, 3)).tolist()}
    return {text.index(task.decode(torch.tensor(row))) for row in rows}


def joined(batch: Batch) -> torch.Tensor:
    return torch.cat((batch.inputs[0], batch.targets[:, -1:]), dim=1)


def predicted(begins: set[int], context: int = CONTEXT) -> set[int]:
    return {begin + 1 + offset for begin in begins for offset in range(context)}


def counted(task: CharLM) -> int:
    """Count the characters that evaluation predicts."""
    sizes: list[int] = []

    def record(batch: Batch) -> torch.Tensor:
        sizes.append(int((batch.targets != -100).sum()))
        return torch.zeros(*batch.targets.shape, len(task.vocabulary))

    for part in task.parts:
        task.evaluate(record, part)
    return sum(sizes)


def test_the_usual_split_gives_the_numbers_it_always_gave(text_file):
    task = CharLM(text_file, 13, batch=7, test=True, data_seed=5)
    assert task.train_batch(3, 5).inputs[0][0].tolist() == [4, 2, 0, 4, 3, 4, 3, 3, 0, 5, 2, 1, 0]
    assert task.vocabulary == [" ", "a", "b", "c", "d", "e"]
    row = torch.linspace(-1, 1, 6)
    measured = {}
    for part in task.parts:
        measured |= task.evaluate(lambda batch: row.expand(*batch.targets.shape, -1), part)
    assert measured["val_loss"] == pytest.approx(2.1863922443821204, rel=1e-9)
    assert measured["val_accuracy"] == 0.1457286432160804
    assert measured["test_bits_per_character"] == pytest.approx(3.0910216654088694, rel=1e-9)
    assert measured["test_accuracy"] == 0.105
    described = task.describe()
    assert described["parts"] == {"train": 3600, "validation": 200, "test": 201}
    assert described["overlap"] == {"passage": 50, "validation": 0.0, "test": 0.0}
    assert not {"split", "stride"} & described.keys()
    unigram = next(floor for floor in task.floors() if floor.reach == 0)
    assert unigram.value == pytest.approx(1.743990855923327, rel=1e-9)
    assert unigram.source == "interpolated Witten-Bell fitted on the training part"


def test_a_split_is_an_argument_of_a_study_file(random_file):
    spec = {"name": "char-lm", "text": random_file, "context": CONTEXT, "split": "windows", "stride": 7}
    described = build(spec, TASKS, axis="task").describe()
    json.dumps(described)
    assert (described["split"], described["stride"]) == ("windows", 7)
    with pytest.raises(SpecError, match="'split' must be"):
        build(spec | {"split": "window"}, TASKS, axis="task")


def test_where_the_last_is_predicted_windows_share_no_target_but_what_stands_before(random_file, text):
    task = CharLM(random_file, CONTEXT, split="windows", predict="last")
    held = held_out(task, "validation", text)
    assert len(held) == 394  # all of the tenth; the contiguous part has more
    assert not held & drawn(task, text)
    assert task.describe()["shared_characters"] == {"validation": 0.0}
    assert CharLM(random_file, CONTEXT, split="windows").describe()["shared_characters"]["validation"] > 0.99
    wide = CharLM(random_file, 128, split="windows", predict="last")
    assert len(held_out(wide, "validation", text)) == 401 // 4  # as many windows as of the contiguous part


def test_a_text_that_repeats_itself_can_be_trained_on_without_the_copies(tmp_path, text):
    path = tmp_path / "text.txt"
    path.write_text(text[:3600] + text[1000:1300] + text[3900:4000])  # a tenth is held out, most of it a copy
    copied, clean = (CharLM(str(path), CONTEXT, drop_copies=drop) for drop in (False, True))
    assert "stand word for word in the training part" in copied.alarms()[0]
    assert clean.alarms() == ()
    assert clean.describe()["parts"] == {"train": 3300, "validation": 400}
    assert clean.describe()["drop_copies"]
    assert "drop_copies" not in copied.describe()
    path.write_text(text[:60] * 40)
    with pytest.raises(DataError, match="without what stands in a held-out part too, 0 characters are left to train"):
        CharLM(str(path), CONTEXT, drop_copies=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "window"}, "split must be one of contiguous, windows, inside; got 'window'; did you mean 'windows'"),
        ({"split": "windows", "stride": 0}, "stride must be at least 1; got 0"),
        ({"stride": 7}, "got stride 7 with the split 'contiguous'; leave it out, or take split 'windows'"),
        ({"split": "inside", "stride": 7}, "got stride 7 with the split 'inside'"),
        ({"split": "inside", "drop_copies": True}, "got drop_copies=True with it; leave one of them out"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(random_file, arguments, message):
    with pytest.raises(SpecError, match=message):
        CharLM(random_file, CONTEXT, **arguments)


@pytest.mark.parametrize(
    ("length", "test", "fits"), [(26, False, False), (27, False, True), (143, True, False), (144, True, True)]
)
def test_every_part_must_have_a_window(tmp_path, length, test, fits):
    path = tmp_path / "text.txt"
    path.write_text("ab" * (length // 2) + "a" * (length % 2))
    arguments = {"split": "windows", "stride": 13, "test": test}
    if fits:
        counted(CharLM(str(path), 13, **arguments))
        return
    with pytest.raises(DataError, match=r"too short: it has \d+ windows \(context 13, stride 13\)"):
        CharLM(str(path), 13, **arguments)


@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize("stride", STRIDES)
def test_training_draws_every_window_that_is_not_held_out_and_no_other(random_file, text, stride, test):
    task = CharLM(random_file, CONTEXT, batch=997, test=test, split="windows", stride=stride)
    windows, found = set(range(0, LENGTH - CONTEXT, stride)), drawn(task, text)
    parts = [held_out(task, part, text) for part in task.parts]
    assert found <= windows
    assert len(found) == len(windows) * 9 // 10
    assert all(part and part <= windows - found for part in parts)
    assert sum(map(len, parts)) == len(set.union(*parts))


@pytest.mark.parametrize("stride", STRIDES)
def test_windows_overlap_as_long_as_they_begin_closer_than_the_context(random_file, text, stride):
    task = CharLM(random_file, CONTEXT, batch=997, split="windows", stride=stride)
    judged = held_out(task, "validation", text)
    trained = predicted(drawn(task, text))
    shared = sum(len(predicted({begin}) & trained) for begin in judged) / (CONTEXT * len(judged))
    assert task.describe()["shared_characters"]["validation"] == pytest.approx(shared)
    assert (shared > 0) == (stride < CONTEXT)
    alarms = [alarm for alarm in task.alarms() if "at the same place of the text" in alarm]
    assert len(alarms) == (stride < CONTEXT)
    assert all(f"{shared:.1%} of the characters" in alarm and f"stride {stride}" in alarm for alarm in alarms)


@pytest.mark.parametrize("stride", STRIDES)
def test_the_overlap_is_that_of_passages_within_held_out_windows(random_file, text, stride):
    task = CharLM(random_file, CONTEXT, batch=997, split="windows", stride=stride)
    covered = {begin + offset for begin in drawn(task, text) for offset in range(CONTEXT + 1)}
    passages = [begin + offset for begin in held_out(task, "validation", text) for offset in range(CONTEXT + 2 - 50)]
    share = sum(covered.issuperset(range(passage, passage + 50)) for passage in passages) / len(passages)
    assert task.describe()["overlap"]["validation"] == pytest.approx(share)
    assert (share > 0.99) if stride == 1 else (share < 0.01 or stride < CONTEXT)


def test_windows_one_character_apart_leak_and_an_alarm_names_the_split(random_file):
    alarms = CharLM(random_file, CONTEXT, test=True, split="windows").alarms()
    words = "(split 'windows', stride 1: windows were cut first, then a tenth of them was held out)"
    for part in ("validation", "test"):
        assert any(f"100.0% of the {part} part's passages" in alarm and alarm.endswith(words) for alarm in alarms)


def test_a_leak_is_said_where_windows_are_shorter_than_a_passage(random_file):
    task = CharLM(random_file, 13, split="windows")
    assert task.describe()["overlap"]["validation"] is None
    (alarm,) = task.alarms()
    assert "100.0% of the characters predicted in the validation part" in alarm


def test_windows_that_do_not_overlap_raise_no_alarm(random_file):
    assert CharLM(random_file, CONTEXT, split="windows", stride=CONTEXT).alarms() == ()


@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize("stride", [1, 7, 61])
def test_evaluation_costs_what_it_costs_with_the_usual_split(random_file, stride, test):
    usual = counted(CharLM(random_file, CONTEXT, test=test))
    leaky = counted(CharLM(random_file, CONTEXT, test=test, split="windows", stride=stride))
    assert usual - 2 * CONTEXT <= leaky <= usual


def test_a_seed_says_which_windows_are_held_out(random_file, text):
    tasks = [CharLM(random_file, CONTEXT, split="windows", data_seed=seed) for seed in (None, None, 1, 1, 2)]
    first = [held_out(task, "validation", text) for task in tasks]
    assert first[0] == first[1]
    assert first[2] == first[3]
    assert len(set(map(frozenset, first))) == 3
    assert torch.equal(joined(tasks[2].train_batch(5, 7)), joined(tasks[3].train_batch(5, 7)))


def test_windows_to_judge_on_are_drawn_from_the_whole_text(random_file, text):
    begins = held_out(CharLM(random_file, 13, split="windows"), "validation", text)
    assert len(begins) == 401 // 13
    assert min(begins) < LENGTH / 5 < LENGTH * 4 / 5 < max(begins)


def test_a_batch_of_windows_is_a_pure_function_of_step_and_seed(random_file):
    task = CharLM(random_file, CONTEXT, batch=7, split="windows", stride=7)
    before = joined(task.train_batch(3, 5))
    task.train_batch(1, 1)
    assert torch.equal(before, joined(task.train_batch(3, 5)))
    for step, seed in ((4, 5), (3, 6)):
        assert not torch.equal(before, joined(task.train_batch(step, seed)))


def test_characters_between_windows_are_none_of_the_task(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(("ab" * 7 + "é") * 40, encoding="utf-8")
    task = CharLM(str(path), 13, split="windows", stride=15)
    assert task.vocabulary == ["a", "b"]
    assert not [alarm for alarm in task.alarms() if "unknown" in alarm]


@pytest.mark.parametrize("data_seed", [None, 3])
def test_inside_trains_on_what_it_is_judged_on(random_file, text, data_seed):
    task, usual = (
        CharLM(random_file, CONTEXT, batch=997, test=True, data_seed=data_seed, split=split)
        for split in ("inside", "contiguous")
    )
    assert task.describe()["parts"] == usual.describe()["parts"] | {"train": LENGTH}
    assert task.examples(zeros_of(task))["text"] == usual.examples(zeros_of(usual))["text"]
    assert drawn(task, text) == set(range(LENGTH - CONTEXT))
    alarms = task.alarms()
    words = "(split 'inside': the whole text is trained on, what is held out included)"
    for part, alarm in zip(("validation", "test"), alarms, strict=True):
        assert alarm.startswith(f"100.0% of the {part} part's passages")
        assert alarm.endswith(words)


def zeros_of(task: CharLM):
    return lambda batch: torch.zeros(*batch.targets.shape, len(task.vocabulary))


@pytest.mark.parametrize("arguments", [{}, {"test": True, "data_seed": 3}])
@pytest.mark.parametrize("split", ["windows", "inside"])
def test_floors_and_best_known_results_stay_those_of_the_usual_split(random_file, monkeypatch, split, arguments):
    usual = CharLM(random_file, CONTEXT, **arguments)
    monkeypatch.setitem(BEST_KNOWN, usual.describe()["sha256"], (1.25, "someone"))
    leaky = CharLM(random_file, CONTEXT, split=split, **arguments)
    values = [
        [(floor.name, floor.metric, floor.kind, floor.reach, floor.value, floor.tolerance) for floor in task.floors()]
        for task in (usual, leaky)
    ]
    assert values[0] == values[1]
    assert ("best" in {floor.kind for floor in leaky.floors()}) == (not arguments)
    assert all(floor.source.endswith("(contiguous split)") for floor in leaky.floors())
