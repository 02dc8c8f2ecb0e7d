"""A run killed without warning goes on to the same bits, wherever the kill strikes, as do runs trained together."""

from __future__ import annotations

import signal

import pytest
import torch
from tests.training.killed import exit_codes
from tests.training.test_together import DoubleTask, assert_same, one_by_one, tiny_makers, together
from tests.training.tiny import TinyTask, recipe, tiny_model

from attnlab.training import load_model_weights, read_metrics, read_result, train

STEPS = 31
FIELDS = {"checkpoint_every": 4, "evaluate_every": 3, "average": {"last": 0.7, "points": 6}}
KILLS = [("log", 19), ("rename", 1), ("rename", 4), ("rename", 5), ("weights", 3), ("best", 2), ("result", 1)]
"""Where it strikes, and at which time that the place is passed."""
TOGETHER_STEPS, TOGETHER_KILLS = 19, (1, 5, 15)
"""After so many saves: one, five, and the last of all. Some runs are then a checkpoint ahead of others, or done."""

CHILD = (
    f"""
STEPS, FIELDS, TOGETHER_STEPS = {STEPS}, {FIELDS}, {TOGETHER_STEPS}
"""
    + """
import os, signal
from attnlab.core import files as atomic
from attnlab.training.keeping import keeping
from attnlab.training.run import loop, trainer
from tests.training.test_together import DoubleTask, tiny_makers, together
from tests.training.tiny import TinyTask, recipe, tiny_model

places = {
    "rename": (atomic.os, "rename"),
    "weights": (keeping, "write_checkpoint"),
    "best": (keeping, "replace_folder"),
    "log": (trainer.Course, "learning_rate"),
    "result": (keeping, "write_result"),
}

def run(folder, where, count):
    if where == "together":
        return run_together(folder, count)
    owner, name = places[where]
    original, seen = getattr(owner, name), []

    def killed(*arguments, **named):
        seen.append(1)
        if len(seen) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    setattr(owner, name, killed)
    loop.train(tiny_model(), TinyTask(), recipe(STEPS, **FIELDS), seed=3, folder=folder)

def run_together(folder, saves):
    original, saved = keeping.save_checkpoint, []

    def save(*arguments, **named):
        original(*arguments, **named)
        saved.append(1)
        if len(saved) == saves:
            os.kill(os.getpid(), signal.SIGKILL)

    keeping.save_checkpoint = save
    recipes, folders = [recipe(TOGETHER_STEPS, checkpoint_every=4)] * 3, [f"{folder}/{number}" for number in range(3)]
    together(tiny_makers(), DoubleTask(), recipes, folders=folders)
"""
)


def without_seconds(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    train(tiny_model(), TinyTask(), recipe(STEPS, **FIELDS), seed=3, folder=folder)
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folders that killed runs have left, by where and when."""
    cases = [*KILLS, *(("together", saves) for saves in TOGETHER_KILLS)]
    folders = {case: tmp_path_factory.mktemp("killed") for case in cases}
    codes = exit_codes(CHILD, [(str(folder), *case) for case, folder in folders.items()])
    assert codes == [-signal.SIGKILL] * len(cases)
    return folders


@pytest.mark.parametrize("case", KILLS, ids=str)
def test_kill_and_go_on(killed, unbroken, case):
    folder = killed[case]
    assert read_result(folder) is None
    saved_before = (folder / "last").exists() or (folder / "last.old").exists()
    model = tiny_model(seed=17) if saved_before else tiny_model()
    train(model, TinyTask(), recipe(STEPS, **FIELDS), seed=3, folder=folder)
    found, expected = read_result(folder), read_result(unbroken)
    assert (found.metrics, found.best, found.train_loss) == (expected.metrics, expected.best, expected.train_loss)
    assert without_seconds(read_metrics(folder)) == without_seconds(read_metrics(unbroken))
    for which in ("last", "best"):
        mine, theirs = tiny_model(seed=5), tiny_model(seed=7)
        assert load_model_weights(mine, folder, which=which) == load_model_weights(theirs, unbroken, which=which)
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
    names = {path.name for path in folder.iterdir()}
    assert not {name for name in names if name.endswith((".new", ".old", ".tmp"))}


def test_runs_together_killed_at_different_steps_all_go_on(killed):
    recipes = [recipe(TOGETHER_STEPS, checkpoint_every=4)] * 3
    expected = one_by_one(tiny_makers(), DoubleTask(), recipes)
    resumed = {}
    for saves in TOGETHER_KILLS:
        folders = [killed["together", saves] / str(number) for number in range(3)]
        models, results = together(tiny_makers(), DoubleTask(), recipes, folders=folders)
        assert_same(models, results, *expected)
        resumed[saves] = [result.resumed_at for result in results]
    assert resumed[5] == [[8], [8], [4]]
