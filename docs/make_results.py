"""Put the reports of run folders into the docs, and their tables into the README.

Use: ``python docs/make_results.py runs/shapes``.

No number in the docs is typed by hand: each comes from a ``report.json`` that lies beside it.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
README = DOCS.parent / "README.md"
PAGES = (README, DOCS / "answers.md", DOCS / "speedrun.md")
NOT_RUN = "Not run yet."
DECIMALS = {"seconds_to_target": 2}
"""Decimals of a metric, where they are not four: the clock tells no more."""
BLOCK = re.compile(r"<!-- results: (?P<name>[\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def copy_report(folder: Path) -> None:
    """Copy report.json, report.md and the charts of a run folder to ``docs/studies/``."""
    target = DOCS / "studies" / folder.name
    shutil.rmtree(target, ignore_errors=True)
    (target / "charts").mkdir(parents=True)
    for name in ("report.json", "report.md"):
        shutil.copy(folder / name, target / name)
    for chart in sorted((folder / "charts").glob("*.png")):
        shutil.copy(chart, target / "charts" / chart.name)


def table(report: dict[str, Any]) -> str:
    """Return the verdicts of a report as a Markdown table."""
    metric = report["rules"]["metric"]
    places = DECIMALS.get(metric, 4)
    verdicts = {verdict["variant"]: verdict for verdict in report["verdicts"]}
    lines = [
        f"| variant | {metric}, mean ± sd | difference [interval] | verdict | parameters | seconds a run |",
        "|---|---|---|---|---|---|",
    ]
    for variant in report["variants"]:
        verdict = verdicts.get(variant["name"])
        measured = variant["metrics"].get(metric, {})
        lines.append(
            f"| {variant['name']} | {_pair(measured, places)} | {_difference(verdict, places)} | "
            f"{verdict['verdict'] if verdict else 'baseline'} | {variant['parameters']:,} | {_seconds(variant)} |"
        )
    return "\n".join(lines)


def _pair(measured: dict[str, Any], places: int) -> str:
    if not measured or measured["mean"] is None:
        return ""
    spread = "" if measured["std"] is None else f" ± {measured['std']:.{places}f}"
    return f"{measured['mean']:.{places}f}{spread}"


def _difference(verdict: dict[str, Any] | None, places: int) -> str:
    if verdict is None or verdict["difference"] is None:
        return ""
    interval = "" if verdict["low"] is None else f" [{verdict['low']:+.{places}f}, {verdict['high']:+.{places}f}]"
    return f"{verdict['difference']:+.{places}f}{interval}"


def _seconds(variant: dict[str, Any]) -> str:
    return "" if variant["seconds"] is None else f"{variant['seconds']:.1f}"


def filled(page: str) -> str:
    """Return a page with every results block filled from ``docs/studies/``."""

    def fill(match: re.Match[str]) -> str:
        path = DOCS / "studies" / match["name"] / "report.json"
        found = table(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else NOT_RUN
        return f"<!-- results: {match['name']} -->\n{found}\n<!-- end -->"

    return BLOCK.sub(fill, page)


def main(folders: list[str]) -> None:
    """Copy the reports of all folders given, then fill the pages."""
    for folder in folders:
        copy_report(Path(folder))
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
