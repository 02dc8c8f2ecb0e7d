"""The text of the measurement is what it is said to be; a small one is trained from; the page shows what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.scripts import loaded

from attnlab import Decoder, Recipe, train
from attnlab.tasks.char_lm import data
from attnlab.tasks.char_lm.char_lm import CharLM
from attnlab.text import text_store

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def script(monkeypatch):
    module = loaded("benchmarks/corpus_10gb.py")
    monkeypatch.setattr(module, "WALKS", 128)
    return module


@pytest.mark.parametrize("source", ["one two three two one three one\ntwo four five six. seven eight nine\n" * 3])
def test_a_small_text_is_read_by_processes_and_trained_from(script, tmp_path, monkeypatch, source):
    path = tmp_path / "text.txt"
    script.write_corpus(path, 3_000_000, source)
    assert set(path.read_text().split()) == set(source.split())
    for name, size in {"IN_MEMORY": 1000, "JUDGED": 20_000, "COUNTED": 20_000, "BLOCK": 2**14, "OPEN": 4}.items():
        monkeypatch.setattr(data, name, size)
    monkeypatch.setattr(text_store, "STRETCH", 2**20)
    monkeypatch.setattr(text_store, "CALLS", 1)
    task = CharLM(str(path), 16, batch=8)
    assert sum(task.describe()["parts"].values()) == path.stat().st_size == task.describe()["bytes"]
    found = train(Decoder(**task.model_arguments(), d_model=8, n_layers=1), task, Recipe(budget={"steps": 20}, lr=1e-2))
    chance = next(floor.value for floor in task.floors() if floor.kind == "chance" and floor.metric == "val_loss")
    assert found.metrics["val_loss"] < chance


def test_the_page_shows_what_was_found(script):
    found = json.loads(script.RESULTS.read_text(encoding="utf-8"))
    assert script.BEGIN + script.table(found) + script.END in script.PAGE.read_text(encoding="utf-8")
    assert found["bytes"] >= 10**10
    assert max(phase["peak_anonymous_bytes"] for phase in found["phases"].values()) < 1.5 * 2**30
