"""The short form of the campaign of hostile modules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_hostile_modules_get_a_line_and_change_nothing(tmp_path):
    words = [
        "--count",
        "6",
        "--seed",
        "2",
        "--out",
        str(tmp_path),
        "--commands",
        "plan",
        "doctor",
        "view",
        "--no-write",
    ]
    command = [sys.executable, str(ROOT / "benchmarks" / "hostile.py"), *words]
    subprocess.run(command, check=True, capture_output=True)
    tried = [json.loads(line) for line in (tmp_path / "tried.jsonl").read_text().splitlines()]
    assert len(tried) == 6
    assert [one for one in tried if one["kind"] not in ("done", "one clear line")] == []
    assert {one["kind"] for one in tried} == {"done", "one clear line"}
