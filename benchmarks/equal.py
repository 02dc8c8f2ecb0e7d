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


def numbers_of(folder: Path) -> dict[str, Any]:
    """By run its final numbers, and its curve without the times."""
    found = {}
    for result in sorted(folder.rglob("result.json")):
        records = [json.loads(line) for line in result.with_name("metrics.jsonl").read_text().splitlines()]
        curve = [{k: v for k, v in record.items() if "seconds" not in k and k != "watch"} for record in records]
        found[str(result.parent.relative_to(folder))] = {
            "metrics": json.loads(result.read_text())["metrics"],
            "curve": curve,
        }
    return found


def weights_of(run: Path) -> dict[str, bytes]:
    """The files that hold a run's weights."""
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("model*.safetensors")}


def main() -> None:
    """Compare two folders, say which runs differ, and write down the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs=2, type=Path)
    first, second = parser.parse_args().folders
    runs, others = (numbers_of(one) for one in (first, second))
    alike = {run for run in runs.keys() & others.keys() if runs[run] == others[run]}
    equal = {run for run in alike if weights_of(first / run) == weights_of(second / run)}
    for run in sorted((runs | others).keys() - equal):
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
