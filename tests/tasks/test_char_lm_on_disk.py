"""A text on disk is split, judged and counted like one in memory; where a sample must do, that is said."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch

from attnlab.core.errors import DataError
from attnlab.tasks.char_lm import data
from attnlab.tasks.char_lm.char_lm import CharLM
from attnlab.text import overlap, text_store

CONTEXT = 13


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr(text_store, "STRETCH", 401)
    monkeypatch.setattr(text_store, "SHARD", 211)
    monkeypatch.setattr(text_store, "call_apart", lambda function, *rest: function(*rest))
    monkeypatch.setattr(overlap, "SAMPLED", 4)


@pytest.fixture
def pair(text_file, monkeypatch):
    """Make the same task of a text in memory and on disk."""

    def made(**arguments):
        usual = CharLM(text_file, CONTEXT, batch=7, **arguments)
        with monkeypatch.context() as patch:
            patch.setattr(data, "IN_MEMORY", 100)
            return usual, CharLM(text_file, CONTEXT, batch=7, **arguments)

    return made


@pytest.fixture
def large(text_file, monkeypatch):
    """Make a task of a text too large to look at whole."""
    for name, size in {"IN_MEMORY": 100, "JUDGED": 160, "PIECE": 40, "COUNTED": 900, "GRAMS_PIECE": 30}.items():
        monkeypatch.setattr(data, name, size)
    monkeypatch.setattr(data, "BLOCK", 211)
    monkeypatch.setattr(data, "OPEN", 5)
    return lambda **arguments: CharLM(text_file, CONTEXT, batch=7, **arguments)


def logits_of(task: CharLM):
    row = torch.linspace(-1, 1, len(task.vocabulary))
    return lambda batch: row.expand(*batch.targets.shape, -1)


def whole(batch) -> np.ndarray:
    return torch.cat((batch.inputs[0], batch.targets[:, -1:]), 1).numpy()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"test": True},
        {"test": True, "data_seed": 3},
        {"split": "inside"},
        {"long_context": 31},
        {"predict": "last"},
    ],
)
def test_what_is_not_sampled_is_as_in_memory(pair, arguments):
    usual, stored = pair(**arguments)
    assert stored.vocabulary == usual.vocabulary
    assert stored.steps_per_epoch == usual.steps_per_epoch
    assert {part: stored.evaluate(logits_of(stored), part) for part in stored.parts} == {
        part: usual.evaluate(logits_of(usual), part) for part in usual.parts
    }
    assert stored.examples(logits_of(stored)) == usual.examples(logits_of(usual))
    assert [floor.value for floor in stored.floors()] == [floor.value for floor in usual.floors()]
    same = ("parts", "bytes", "vocab_size")
    assert [stored.describe()[name] for name in same] == [usual.describe()[name] for name in same]


def test_windows_are_pieces_of_the_training_part(large, words):
    task = large(data_seed=3)
    windows = [task.decode(torch.from_numpy(row)) for step in range(40) for row in whole(task.train_batch(step, 1))]
    held = task.decode(torch.from_numpy(task._data._parts["validation"].windows(np.array([0]), 401)[0]))
    train = words.replace(held, "")
    assert len(train) == 3600
    assert all(window in train for window in windows)


def test_a_batch_is_a_pure_function_of_step_and_seed(large):
    task, again = large(), large()
    expected = [whole(task.train_batch(step, 5)) for step in range(60)]
    for step in (59, 3, 31, 0):
        assert np.array_equal(whole(again.train_batch(step, 5)), expected[step])
        assert not np.array_equal(whole(again.train_batch(step, 6)), expected[step])


def test_windows_of_a_time_are_near_each_other_and_an_epoch_reaches_all(large, monkeypatch):
    task = large()
    starts = []
    read = task._data._train.windows
    monkeypatch.setattr(
        task._data._train, "windows", lambda places, length: (starts.append(places), read(places, length))[1]
    )
    places, turns = 17 * 211, 4  # 17 blocks, at most 5 at a time
    steps = places // (7 * (CONTEXT + 1) * turns)
    seen: list[set[int]] = []
    for turn in range(2 * turns):
        starts.clear()
        for step in range(turn * steps, (turn + 1) * steps):
            task.train_batch(step, 5)
        found = np.concatenate(starts)
        assert found.min() >= 0
        assert found.max() < places
        seen.append(set((found * 17 // places).tolist()))
        assert len(seen[-1]) <= 5
    for epoch in (seen[:turns], seen[turns:]):
        assert sum(map(len, epoch)) == len(set.union(*epoch)) == 17
    assert seen[0] != seen[turns]


def test_every_place_is_drawn_alike(large, monkeypatch):
    task, drawn = large(), []
    read = task._data.windows
    monkeypatch.setattr(
        task._data._train, "windows", lambda places, length: (drawn.append(places), np.zeros((1, 1), np.int32))[1]
    )
    for step in range(400):
        read(step, 5, count=997, length=CONTEXT + 1)
    counts = np.bincount(np.concatenate(drawn))
    assert len(counts) == 3600 - CONTEXT
    assert counts.min() > counts.mean() / 3
    assert counts.max() < counts.mean() * 3


def test_a_sample_is_said_wherever_it_matters(large):
    task = large(test=True)
    judged = task._data.held_out["validation"]
    assert judged.shape == (4, 40)
    sampled = task.describe()["sampled"]
    assert sampled["judged"] == {"validation": 160, "test": 160}
    assert sampled["n-grams"] == 900
    assert 10 < sampled["passages"]["validation"] < 100
    json.dumps(task.describe())
    (source,) = {floor.source for floor in task.floors() if floor.kind == "floor" and floor.metric == "val_loss"}
    assert source.endswith("on the training part: 900 characters of it sampled, judged on 160 sampled ones")
    assert not {floor.source for floor in task.floors() if floor.kind == "chance"} & {source}
    measured = []
    task.evaluate(
        lambda batch: (measured.append(int((batch.targets != -100).sum())), logits_of(task)(batch))[1], "test"
    )
    assert sum(measured) == 4 * 39


def test_copies_are_found_by_sampling(tmp_path, large, monkeypatch):
    monkeypatch.setattr(overlap, "SAMPLED", 1)
    draw = np.random.default_rng(0)
    text = "".join(draw.choice(list("abcdefghijkl"), 4000))
    path = tmp_path / "copied.txt"
    path.write_text(text[:3600] + text[1000:1200] + text[3800:])
    task = CharLM(str(path), CONTEXT)
    share = task.overlaps["validation"]
    assert 0.2 < share < 0.5
    (alarm,) = task.alarms()
    count = task.describe()["sampled"]["passages"]["validation"]
    assert alarm.startswith(
        f"{share:.1%} of the validation part's {count:,} sampled passages of 50 characters stand word"
    )


def test_a_split_that_needs_memory_keeps_it_or_is_refused(large, monkeypatch, text_file):
    assert large(split="windows").describe().get("sampled") is None
    monkeypatch.setattr(data, "LARGEST_WHOLE", 4000)
    for arguments in ({"split": "windows"}, {"drop_copies": True}):
        with pytest.raises(
            DataError, match=r"words.txt is too large: the split 'windows' and drop_copies need a text in"
        ):
            large(**arguments)


def test_files_of_objects_and_compressed_ones_make_one_text(tmp_path, words, large):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt.gz").write_bytes(gzip.compress(words[:2000].encode()))
    lines = [json.dumps({"body": words[2000:2500]}), json.dumps({"body": words[2500:]})]
    (tmp_path / "texts" / "b.jsonl").write_text("\n".join(lines), encoding="utf-8")
    task = CharLM(str(tmp_path / "texts"), CONTEXT, field="body", split="inside")
    assert sum(task.describe()["parts"].values()) - 401 == len(words) + 3
    stored = task._data._train
    text = task.decode(torch.from_numpy(stored.windows(np.array([0]), len(stored))[0]))
    assert text == f"{words[:2000]}\n{words[2000:2500]}\n{words[2500:]}\n"


def test_a_text_that_is_too_short_is_refused_on_disk_too(large):
    with pytest.raises(DataError, match=r"too short: its training part \(90 % of 4001 characters\)"):
        large().__class__(large().text.name, 5000)
