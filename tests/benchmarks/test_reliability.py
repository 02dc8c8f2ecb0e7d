"""The short form of the campaign of faults, and its table in the documentation."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has torch")
def test_studies_end_as_if_nothing_had_been(tmp_path):
    kinds = ["kills", "damaged files", "processes on one folder", "study files"]
    words = ["--share", "0.002", "--seed", "3", "--out", str(tmp_path), "--no-write", "--kinds", *kinds]
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "reliability.py"), *words], check=True, capture_output=True
    )
    tried = [json.loads(line) for line in (tmp_path / "tried.jsonl").read_text().splitlines()]
    assert {one["kind"] for one in tried} == {*kinds}
    assert [one for one in tried if one["became"] not in ("done", "one clear line", "killed")] == []


@pytest.fixture
def reliability(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("reliability")


def test_what_is_damaged_is_noticed_by_the_campaign(reliability, tmp_path):
    assert reliability.outcome(None, "") == "hang"
    assert reliability.outcome(1, "Traceback (most recent call last):\n") == "traceback"
    assert reliability.outcome(1, "1/4 plain\n1 run failed\n") == "without a reason"
    assert reliability.outcome(-9, "1/4 plain\n") == "killed"
    done, begun = (tmp_path / "plain" / f"seed-{seed}" for seed in range(2))
    (begun / "last").mkdir(parents=True)
    (begun / "last" / "state.json").write_text('{"step": 6}')
    done.mkdir()
    (done / "result.json").write_text('{"resumed_at": []}')
    before = reliability.kept(tmp_path)
    assert reliability.lost(before, tmp_path) == []
    (done / "result.json").write_text('{"resumed_at": [4]}')
    (begun / "result.json").write_text('{"resumed_at": [4]}')
    assert reliability.lost(before, tmp_path) == ["plain/seed-0", "plain/seed-1"]
    (begun / "result.json").write_text('{"resumed_at": [4, 6]}')
    assert reliability.lost(before, tmp_path) == ["plain/seed-0"]


def test_the_page_shows_what_was_found(reliability):
    found = [json.loads(line) for line in reliability.RESULTS.read_text(encoding="utf-8").splitlines()]
    assert reliability.BEGIN + reliability.table(found) + reliability.END in reliability.PAGE.read_text(
        encoding="utf-8"
    )
