"""Put the reports of run folders into the docs, and their tables into the README.

Use: ``python docs/make_results.py runs/shapes``.

No number in a table is typed by hand: each comes from a ``report.json`` that lies beside it. What a command printed is
put there too: ``attnlab score runs/NAME/VARIANT/seed-0 | tee runs/NAME/score.txt`` first. Numbers of papers come from
``paper_tables.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parent
README = DOCS.parent / "README.md"
PAPER_TABLES = DOCS / "paper_tables.json"
ANSWERS = tuple(DOCS / f"answers{of}.md" for of in ("-parts", "-shapes", "-tables"))
"""Pages with a section for each study."""
PAGES = (README, DOCS / "answers.md", *ANSWERS, DOCS / "speedrun.md")
NOT_RUN = "Not run yet."
DECIMALS = {"seconds_to_target": 2, "test_f1": 2}
"""Decimals of a metric, where they are not four: the clock and percents tell no more."""
BESIDE = ("test_bleu", "val_bleu")
"""Metrics of which the first that was measured stands beside what a study judges: a lower loss may translate worse."""
OWN_FILE = re.compile(r"/(?:[\w.\\-]+/)+(?=\w+(?:\\_\w+)*\.py:)")
"""Folders of a machine before a file of own code, also where Markdown escapes it."""
BLOCK = re.compile(
    r"<!-- (?P<kind>results|beside the paper|systems|printed): (?P<name>[\w/.-]+) -->\n.*?<!-- end -->", re.DOTALL
)

OVERVIEW = re.compile(r"<!-- overview -->\n.*?<!-- end -->", re.DOTALL)
SHOWN = re.compile(r"^#{2,} (?P<title>.+)$|^<!-- results: (?P<name>[\w-]+) -->$", re.MULTILINE)


class Cost(NamedTuple):
    """Say how a table shows one cost of a variant."""

    name: str
    key: str
    unit: float
    form: str

    def of(self, variant: dict[str, Any]) -> str:
        """Return the cost of a variant as text; empty where it has none."""
        value = variant.get(self.key)
        return "" if value is None else format(value / self.unit, self.form)


COSTS = (
    Cost("parameters", "parameters", 1, ",.0f"),
    Cost("MFLOPs a token", "flops_per_token", 1e6, ".3g"),
    Cost("MiB a batch", "activation_bytes", 2**20, ".3g"),  # not in reports made before it was told there
    Cost("seconds a run", "seconds", 1, ".1f"),
    Cost("sentences a second", "written_per_second", 1, ".3g"),  # of what translates or parses
)


def copy_report(folder: Path) -> None:
    """Copy report.json, report.md, the charts and what commands printed from a run folder to ``docs/studies/``."""
    target = DOCS / "studies" / folder.name
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in ("report.json", "report.md")}
    shutil.rmtree(target, ignore_errors=True)
    (target / "charts").mkdir(parents=True)
    for name, text in texts.items():
        (target / name).write_text(OWN_FILE.sub("./", text), encoding="utf-8")
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
    costs = [cost for cost in COSTS if any(variant.get(cost.key) is not None for variant in report["variants"])]
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


def beside_paper(report: dict[str, Any], rows: dict[str, tuple[float, float]]) -> str:
    """Return what each row of a paper's table differs by from its first, beside what it differs by here.

    A paper's perplexities are compared by their logarithm, which is a loss in nats a token as here.
    """
    (base, (base_perplexity, _)), *_ = rows.items()
    verdicts = {one["variant"]: one for one in report["verdicts"] if (one.get("baseline") or base) == base}
    bleu = {one["name"]: one["metrics"]["val_bleu"]["mean"] for one in report["variants"]}
    lines = []
    for name, (perplexity, score) in rows.items():
        paper, ours = math.log(perplexity / base_perplexity), verdicts.get(name)
        theirs = [f"{perplexity:.2f}", f"{score:.1f}", "" if name == base else f"{paper:+.3f}"]
        found = [_difference(ours, 3), same_sign(paper, ours["low"], ours["high"])] if ours else ["", ""]
        lines.append([name, *theirs, found[0], f"{bleu[name]:.1f}", found[1]])
    names = ["row", "paper: perplexity", "BLEU", "nats from base", "here: nats from base [interval]", "BLEU", "sign"]
    return _lines(names, lines)


def beside_scores(report: dict[str, Any], rows: dict[str, float]) -> str:
    """Return what systems of a paper's table score above others, beside what is judged of them here."""
    lines = []
    for one in report["verdicts"]:
        ends = [one["variant"], one.get("baseline") or report["rules"]["baseline"]]
        if set(ends) <= rows.keys():
            above, below = (rows[end] for end in ends)
            sign = same_sign(above - below, one["low"], one["high"])
            lines.append([" against ".join(ends), f"{above:.1f} - {below:.1f} = {above - below:+.1f}", _difference(one, 1), sign])
    return _lines(["comparison", "paper", "here [interval]", "sign"], lines)


def systems(asked: dict[str, Any]) -> str:
    """Return the systems of a paper's table, with scores and cost of training there and here, by pair of languages.

    Reports made before costs were told there have the tokens of a run beside their name, and what learns from what it
    writes, which is in no token.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, study in asked["studies"].items():
        path = DOCS / "studies" / name / "report.json"
        for one in json.loads(path.read_text(encoding="utf-8"))["variants"] if path.exists() else ():
            flops = one.get("training_flops")
            if flops is None and "tokens" in study and one["name"] not in study.get("writes", ()):
                flops = one["flops_per_token"] * study["tokens"]
            found.setdefault(study["pair"], {}).setdefault(one["name"], {**one, "training_flops": flops})
    pairs = list(dict.fromkeys(study["pair"] for study in asked["studies"].values()))
    lines = [
        [name, *(cell for pair in pairs for cell in (*paper(row.get(pair)), *here(found.get(pair, {}).get(name))))]
        for name, row in asked["rows"].items()
    ]
    of = ("paper: {} BLEU", "FLOPs", "here: {} BLEU, mean ± sd (seeds)", "FLOPs", "seconds")
    return _lines(["system", *(title.format(pair) for pair in pairs for title in of)], lines)


def paper(printed: list[float | None] | None) -> list[str]:
    """Return score and FLOPs of training as a paper printed them; empty where it did not."""
    score, flops = printed or (None, None)
    return ["" if score is None else f"{score:g}", "" if flops is None else f"{flops:.1e}"]


def here(variant: dict[str, Any] | None) -> list[str]:
    """Return score, FLOPs and seconds of training of a variant; empty where none ran."""
    if variant is None:
        return [""] * 3
    seeds = _finished(variant, "test_bleu")
    score = f"{_pair(variant['metrics']['test_bleu'], 1)} ({seeds})"
    flops = variant["training_flops"]
    return [score, "" if flops is None else f"{flops:.1e}", f"{variant['seconds']:.0f}"]


def same_sign(paper: float, low: float | None, high: float | None) -> str:
    """Return whether an interval lies on the side of zero on which a paper's difference lies."""
    if low is None or high is None or low <= 0 <= high:
        return "open"
    if paper == 0:
        return "none in the paper"
    return "the same" if (paper > 0) == (low > 0) else "the other"


def overview(pages: dict[str, str]) -> str:
    """Return a row for each study whose comparisons pages show: what was decided, and the largest of it."""
    rows, counts, title = [], [0, 0], ""
    for name, match in ((name, match) for name, page in pages.items() for match in SHOWN.finditer(page)):
        title = match["title"] or title
        path = DOCS / "studies" / (match["name"] or "") / "report.json"
        if match["name"] is None or not path.is_file():
            continue
        report = json.loads(path.read_text(encoding="utf-8"))
        judged = [one for one in report["verdicts"] if one["verdict"] != "exploratory"]
        decided = [one for one in judged if one["verdict"] != "undecided"]
        if judged:
            anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            link = f"[{match['name']}]({name}#{anchor})"
            rows.append([link, report["question"], f"{len(decided)} of {len(judged)}", _largest(report, decided)])
            counts = [counts[0] + len(decided), counts[1] + len(judged)]
    rows.append(["all", "", f"{counts[0]} of {counts[1]}", ""])
    return _lines(["study", "question", "decided", "largest difference that is sure"], rows)


def _largest(report: dict[str, Any], decided: list[dict[str, Any]]) -> str:
    """Return the difference whose interval keeps farthest from zero; where there is none, what is equivalent."""
    differ = [one for one in decided if one["verdict"] != "equivalent"]
    if not differ:
        return "; ".join(f"{_title(report, one)}: equivalent" for one in decided)
    one = max(differ, key=_at_least)
    return f"{_title(report, one)}: {one['verdict']}, by {_at_least(one):.3g} or more ({one['metric']})"


def _at_least(verdict: dict[str, Any]) -> float:
    return float(min(abs(verdict["low"]), abs(verdict["high"])))


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
        kind, name = match["kind"], match["name"]
        if kind == "systems":
            found = systems(json.loads(PAPER_TABLES.read_text(encoding="utf-8"))[name])
        else:
            path = DOCS / "studies" / name / ("" if kind == "printed" else "report.json")
            found = _block(kind, name, path.read_text(encoding="utf-8")) if path.exists() else NOT_RUN
        return f"<!-- {kind}: {name} -->\n{found}\n<!-- end -->"

    def fill_overview(_: re.Match[str]) -> str:
        return f"<!-- overview -->\n{overview({one.name: one.read_text(encoding='utf-8') for one in ANSWERS})}\n<!-- end -->"

    return OVERVIEW.sub(fill_overview, BLOCK.sub(fill, page))


def _block(kind: str, name: str, text: str) -> str:
    """Return what a block shows of a file."""
    if kind == "printed":
        return f"```text\n{text.strip()}\n```"
    if kind == "results":
        return table(json.loads(text))
    rows = json.loads(PAPER_TABLES.read_text(encoding="utf-8"))[name]["rows"]
    scores = all(isinstance(row, float) for row in rows.values())
    return (beside_scores if scores else beside_paper)(json.loads(text), rows)


def main() -> None:
    """Copy the reports of all folders given, then fill the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    for folder in parser.parse_args().folders:
        copy_report(folder)
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
