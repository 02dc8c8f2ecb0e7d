"""Count the runs of two folders of one study that are equal to the bit: metrics, curves and weights.

Use: ``python benchmarks/equal.py runs/parts-small runs/parts-small-on-ray``; adds its counts to ``equal.json`` beside
this file, by the names of study and scale. Times are no part of a run's numbers, and are not compared.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from attnlab.core.files import write_json
from attnlab.core.machine import environment

RESULTS = Path(__file__).resolve().parent / "equal.json"
TIMES = ("second", "tokens_per", "time")
"""In the names of what differs between any two runs."""


def numbers(run: Path) -> tuple[Any, ...]:
    """What a run came to."""
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    curve = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    told = [{key: one for key, one in record.items() if not any(time in key for time in TIMES)} for record in curve]
    weights = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("model*.safetensors")}
    return [result[key] for key in ("metrics", "best", "steps", "train_loss")], told, weights


def main() -> None:
    """Compare two folders, say which runs differ, and write down the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs=2, type=Path)
    first, second = parser.parse_args().folders
    runs, others = ({path.parent.relative_to(one) for path in one.rglob("result.json")} for one in (first, second))
    equal = {run for run in runs & others if numbers(first / run) == numbers(second / run)}
    for run in sorted((runs | others) - equal):
        print(f"differs: {run}")
    reports = [json.loads((one / "report.json").read_text(encoding="utf-8")) for one in (first, second)]
    rules = reports[0]["rules"]
    found = {
        "runs": len(runs | others),
        "equal": len(equal),
        "verdicts": reports[0]["verdicts"] == reports[1]["verdicts"],
    }
    print(found)
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    name = f"{reports[0]['study']} {rules['scale'] or ''}".strip()
    write_json(RESULTS, {**known, name: {**found, "environment": environment()}})


if __name__ == "__main__":
    main()
