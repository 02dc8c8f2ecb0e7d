"""Put the reports of run folders into the docs, and their tables into the README.

Use: ``python docs/make_results.py runs/shapes``.

No number in a table is typed by hand: each comes from a ``report.json`` that lies beside it. What a command printed is
put there too: ``attnlab score runs/NAME/VARIANT/seed-0 | tee runs/NAME/score.txt`` first.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parent
README = DOCS.parent / "README.md"
PAGES = (README, DOCS / "answers.md", DOCS / "speedrun.md")
NOT_RUN = "Not run yet."
DECIMALS = {"seconds_to_target": 2}
"""Decimals of a metric, where they are not four: the clock tells no more."""
BESIDE = ("test_bleu", "val_bleu")
"""Metrics of which the first that was measured stands beside what a study judges: a lower loss may translate worse."""
BLOCK = re.compile(r"<!-- results: (?P<name>[\w-]+) -->\n.*?<!-- end -->", re.DOTALL)
PRINTED = re.compile(r"<!-- printed: (?P<name>[\w-]+/[\w-]+\.txt) -->\n.*?<!-- end -->", re.DOTALL)


class Cost(NamedTuple):
    """Say how a table shows one cost of a variant."""

    name: str
    key: str
    unit: float
    form: str

    def of(self, variant: dict[str, Any]) -> str:
        """Return the cost of a variant as text; empty where it has none."""
        return "" if variant[self.key] is None else format(variant[self.key] / self.unit, self.form)


COSTS = (
    Cost("parameters", "parameters", 1, ",.0f"),
    Cost("MFLOPs a token", "flops_per_token", 1e6, ".3g"),
    Cost("MiB a batch", "activation_bytes", 2**20, ".3g"),  # not in reports made before it was told there
    Cost("seconds a run", "seconds", 1, ".1f"),
)


def copy_report(folder: Path) -> None:
    """Copy report.json, report.md, the charts and what commands printed from a run folder to ``docs/studies/``."""
    target = DOCS / "studies" / folder.name
    shutil.rmtree(target, ignore_errors=True)
    (target / "charts").mkdir(parents=True)
    for name in ("report.json", "report.md"):
        shutil.copy(folder / name, target / name)
    for printed in sorted(folder.glob("*.txt")):
        shutil.copy(printed, target / printed.name)
    for chart in sorted((folder / "charts").glob("*.png")):
        shutil.copy(chart, target / "charts" / chart.name)


def table(report: dict[str, Any]) -> str:
    """Return what a report concludes and what it measured as two Markdown tables.

    Costs are those of one token, one batch and one run.
    """
    metric = report["rules"]["metric"]
    places = DECIMALS.get(metric, 4)
    concluded = [
        [_title(report, one), _difference(one, places), str(_seeds(report, one)), one["verdict"]]
        for one in report["verdicts"]
    ]
    costs = [cost for cost in COSTS if all(cost.key in variant for variant in report["variants"])]
    measures = report["variants"][0]["metrics"]
    beside = [name for name in BESIDE if name in measures and metric not in BESIDE][:1]
    measured = [
        [
            variant["name"],
            _pair(variant["metrics"].get(metric, {}), places),
            str(_finished(variant, metric)),
            *(_pair(variant["metrics"][name], 1) for name in beside),
            *(cost.of(variant) for cost in costs),
        ]
        for variant in report["variants"]
    ]
    shown = [f"{name}, mean ± sd" for name in (metric, *beside)]
    names = ["variant", shown[0], "seeds", *shown[1:], *(cost.name for cost in costs)]
    found = [_lines(["comparison", "difference [interval]", "seeds", "verdict"], concluded)] if concluded else []
    return "\n\n".join([*found, _lines(names, measured)])


def _lines(names: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *rows))


def _title(report: dict[str, Any], verdict: dict[str, Any]) -> str:
    """Return what is compared with what."""
    return f"{verdict['variant']} against {verdict.get('baseline') or report['rules']['baseline']}"


def _seeds(report: dict[str, Any], verdict: dict[str, Any]) -> int:
    """Return after how many seeds a comparison was judged; in reports of earlier versions all of them."""
    variant = next(one for one in report["variants"] if one["name"] == verdict["variant"])
    return verdict.get("look") or _finished(variant, verdict["metric"])


def _finished(variant: dict[str, Any], metric: str) -> int:
    return sum(value is not None for value in variant["metrics"].get(metric, {}).get("values", []))


def _pair(measured: dict[str, Any], places: int) -> str:
    if not measured or measured["mean"] is None:
        return ""
    spread = "" if measured["std"] is None else f" ± {measured['std']:.{places}f}"
    return f"{measured['mean']:.{places}f}{spread}"


def _difference(verdict: dict[str, Any], places: int) -> str:
    if verdict["difference"] is None:
        return ""
    interval = "" if verdict["low"] is None else f" [{verdict['low']:+.{places}f}, {verdict['high']:+.{places}f}]"
    return f"{verdict['difference']:+.{places}f}{interval}"


def filled(page: str) -> str:
    """Return a page with every block filled from ``docs/studies/``."""

    def fill(match: re.Match[str]) -> str:
        path = DOCS / "studies" / match["name"] / "report.json"
        found = table(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else NOT_RUN
        return f"<!-- results: {match['name']} -->\n{found}\n<!-- end -->"

    def fill_printed(match: re.Match[str]) -> str:
        path = DOCS / "studies" / match["name"]
        found = f"```text\n{path.read_text(encoding='utf-8').strip()}\n```" if path.exists() else NOT_RUN
        return f"<!-- printed: {match['name']} -->\n{found}\n<!-- end -->"

    return PRINTED.sub(fill_printed, BLOCK.sub(fill, page))


def main(folders: list[str]) -> None:
    """Copy the reports of all folders given, then fill the pages."""
    for folder in folders:
        copy_report(Path(folder))
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
