"""Cases of a size of seconds: a text in which each character follows from the one two before, and small models."""

from __future__ import annotations

import copy
import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from attnlab.explain import explaining
from attnlab.explain.causes.cause import Cause
from attnlab.explain.stages import knowing, suspecting
from attnlab.explain.stages.pacing import Pacing

OWN = Path(__file__).parent / "own.py"
LETTERS = "abcdefgh"


def chain(length: int, *, follows: float = 0.85, seed: int = 0) -> str:
    """A text in which every character follows from the one two before it, mostly; one alone says nothing."""
    draw = random.Random(seed)
    after = dict(zip(LETTERS, draw.sample(LETTERS, len(LETTERS)), strict=True))
    text = list("ab")
    while len(text) < length:
        text.append(after[text[-2]] if draw.random() < follows else draw.choice(LETTERS))
    return "".join(text)


def here(function, *arguments, **_):
    """As `call_apart`, in this process: what a process of its own is for is tested elsewhere."""
    return json.loads(json.dumps(function(*json.loads(json.dumps(arguments)))))


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A folder with a long text, one short enough to be learned by heart, and such a one that repeats itself."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "chain.txt").write_text(chain(6000))
    (folder / "random.txt").write_text("".join(random.Random(1).choices(LETTERS, k=150)))
    (folder / "repeating.txt").write_text("".join(random.Random(1).choices(LETTERS, k=120)) * 5)
    return folder


@pytest.fixture
def said(texts, monkeypatch) -> Any:
    """A function that gives a case as a file would say it: the one in which nothing is wrong, with changes."""
    monkeypatch.setattr(knowing, "HEART_S", 0.3)
    for module in ("explain.overfit", "explain.causes.own_code", "explain.causes.signatures", "studies.plan.plan"):
        monkeypatch.setattr(importlib.import_module(f"attnlab.{module}"), "call_apart", here)
    plain = {
        "question": "Why?",
        "task": {"name": "char-lm", "text": str(texts / "chain.txt"), "context": 12, "batch": 16},
        "model": {"name": "decoder", "n_layers": 1, "d_model": 24},
        "variants": {"mine": {}},
        "training": {"lr": 1e-2, "budget": {"steps": 60}},
        "saw": {"val_loss": 1.0},
        "expected": {"val_loss": 0.8},
    }

    def with_changes(**changes: Any) -> dict[str, Any]:
        return copy.deepcopy(plain) | copy.deepcopy(changes)

    return with_changes


def own(name: str) -> dict[str, Any]:
    """A variant with a module of the file of own modules."""
    return {"mine": {"mixer": f"{OWN}:{name}"}}


@pytest.fixture
def long_runs(monkeypatch):
    """Runs are planned to take minutes, whatever the machine, and take none of those that are left."""
    monkeypatch.setattr(Pacing, "_takes", lambda *_: 200.0)
    monkeypatch.setattr(explaining.Runs, "seconds_of", lambda *_: 0.0)


@pytest.fixture
def shortened(monkeypatch, long_runs):
    """Runs are shortened after one with all steps, as where that shows that there is no time for more of them."""

    def one_run(_, measuring, known):
        measuring.runs.of([one.setup for one in known.values()], measuring.seeds[:1])
        return False

    monkeypatch.setattr(Pacing, "leaves_time", one_run)
    monkeypatch.setattr(Pacing, "affords_after", lambda *_: None)
    monkeypatch.setattr(suspecting, "suspects", lambda *_: [Cause("nothing", "set-up", "", {}, costs=20)])
