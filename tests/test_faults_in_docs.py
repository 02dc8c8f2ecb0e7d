"""The page on what ran out of one machine shows what came of faults and of Ray: no number was changed by them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def faults(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("faults")


def test_the_page_shows_what_was_found(faults):
    found = json.loads(faults.RESULTS.read_text(encoding="utf-8"))
    assert faults.BEGIN + faults.table(found) + faults.END in faults.PAGE.read_text(encoding="utf-8")
    assert len(found["faults"]) >= 50
    assert found["equal"] == found["runs"] > 0


def test_a_whole_study_came_to_the_same_numbers_on_ray():
    found = json.loads((ROOT / "benchmarks" / "equal.json").read_text(encoding="utf-8"))["parts small"]
    page = " ".join((ROOT / "docs" / "scale.md").read_text(encoding="utf-8").split())
    assert found["equal"] == found["runs"]
    assert found["verdicts"]
    assert f"All {found['runs']} are equal to the bit" in page
