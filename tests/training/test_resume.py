"""A run killed without warning goes on to the same bits, wherever the kill strikes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.training.tiny import TinyTask, recipe, tiny_model

from attnlab.training import load_model_weights, read_metrics, read_result, train

STEPS = 31
FIELDS = {"checkpoint_every": 4, "evaluate_every": 3, "average": {"last": 0.7, "points": 6}}

CHILD = (
    f"""
STEPS, FIELDS = {STEPS}, {FIELDS}
"""
    + """
import os, signal, sys
from attnlab.core import files as atomic
from attnlab.training.keeping import keeping
from attnlab.training.run import loop, trainer
from tests.training.tiny import TinyTask, recipe, tiny_model

where, count = sys.argv[2], int(sys.argv[3])
places = {
    "rename": (atomic.os, "rename"),
    "weights": (keeping, "write_checkpoint"),
    "best": (keeping, "replace_folder"),
    "log": (trainer.Course, "learning_rate"),
    "result": (keeping, "write_result"),
}
owner, name = places[where]
original, seen = getattr(owner, name), []

def killed(*arguments, **named):
    seen.append(1)
    if len(seen) == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **named)

setattr(owner, name, killed)
loop.train(tiny_model(), TinyTask(), recipe(STEPS, **FIELDS), seed=3, folder=sys.argv[1])
"""
)


def without_seconds(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    train(tiny_model(), TinyTask(), recipe(STEPS, **FIELDS), seed=3, folder=folder)
    return folder


@pytest.mark.parametrize(
    ("where", "count"),
    [("log", 19), ("rename", 1), ("rename", 4), ("rename", 5), ("weights", 3), ("best", 2), ("result", 1)],
)
def test_kill_and_go_on(tmp_path, unbroken, where, count):
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), where, str(count)],
        cwd=Path(__file__).parents[2],
        env=environment,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert read_result(tmp_path) is None
    saved_before = (tmp_path / "last").exists() or (tmp_path / "last.old").exists()
    model = tiny_model(seed=17) if saved_before else tiny_model()
    train(model, TinyTask(), recipe(STEPS, **FIELDS), seed=3, folder=tmp_path)
    found, expected = read_result(tmp_path), read_result(unbroken)
    assert (found.metrics, found.best, found.train_loss) == (expected.metrics, expected.best, expected.train_loss)
    assert without_seconds(read_metrics(tmp_path)) == without_seconds(read_metrics(unbroken))
    for which in ("last", "best"):
        mine, theirs = tiny_model(seed=5), tiny_model(seed=7)
        assert load_model_weights(mine, tmp_path, which=which) == load_model_weights(theirs, unbroken, which=which)
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
    names = {path.name for path in tmp_path.iterdir()}
    assert not {name for name in names if name.endswith((".new", ".old", ".tmp"))}
