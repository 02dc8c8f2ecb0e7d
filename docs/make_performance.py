"""Put the results of ``attnlab bench`` into ``docs/performance.md`` and ``scale.md``, and the aims into the README.

Use: ``python docs/make_performance.py`` after ``attnlab bench NAME --out benchmarks/results``, or ``make bench``.

No number is typed by hand: each comes from a file of ``benchmarks/results/``. Where there is none, the page says that
it was not measured yet.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "benchmarks" / "results"
PAGES = (DOCS / "performance.md", DOCS / "scale.md", DOCS.parent / "README.md")
BLOCK = re.compile(r"<!-- bench: (?P<name>[\w -]+) -->\n.*?<!-- end -->", re.DOTALL)
NOT_MEASURED = "Not yet measured."
NOT_RUN = "not run"
MIB = 2**20
COUNTED = ("sentence",)
"""What a unit of ``ms a ...`` may count that is also told per second."""
ALL_SETTINGS = "in every setting"
"""How the title ends where ways to train many seeds were compared in every precision, compiled and not."""
LINEAR = 1.1  # a fitted exponent up to this is taken for linear growth

Found = dict[str, Any]
"""One file of results."""


class Results:
    """Look up results by the kind of device and the benchmark's name.

    Parameters
    ----------
    folder : Path
        Where the JSON files lie.
    """

    def __init__(self, folder: Path) -> None:
        self._found: dict[str, Found] = {}
        for path in sorted(folder.glob("*.json")):
            content = json.loads(path.read_text(encoding="utf-8"))
            device = "cpu" if content["results"][0]["environment"]["device"] == "cpu" else "gpu"
            self._found[" ".join(filter(None, (device, content["benchmark"], content["size"])))] = content

    def get(self, name: str) -> list[dict[str, Any]]:
        """Return the results named ``cpu train a`` or ``gpu loop``; none where it was not measured."""
        return self._found[name]["results"] if name in self._found else []


# ---- tables ----


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def comparison(result: dict[str, Any]) -> str:
    """Return what was measured in turn, with ratios to the reference."""
    columns = {
        "parameters": ("parameters", "{:,}"),
        "tokens_per_second": ("tokens/s", "{:,.0f}"),
        "utilization": ("of the matrix rate", "{:.0%}"),
        "communication": ("exchanging gradients", "{:.0%}"),  # of more than one device
        "peak_bytes": ("peak memory", "{:,}"),
    }
    known = [key for key in columns if any(key in row for row in result["rows"])]
    _, _, what = result["unit"].partition("ms a ")
    paced = [f"{what}s/s"] if what in COUNTED else []
    head = ["", result["unit"], *paced, *(columns[key][0] for key in known), "times faster (range)"]
    lines = []
    for row in result["rows"]:
        cells = [
            "" if key not in row else mebibytes(row[key]) if key == "peak_bytes" else columns[key][1].format(row[key])
            for key in known
        ]
        ratio = "reference" if row["name"] == result["reference"] else spread(row["times_faster"])
        pace = [number(1000 / row["median"]) for _ in paced]
        lines.append([row["name"], number(row["median"]), *pace, *cells, ratio])
    count = len(result["rows"][0]["values"])
    rounds = f"{count} round{'' if count == 1 else 's'} in turn"
    return titled(result, table(head, lines), rounds)


def growth(result: dict[str, Any]) -> str:
    """Return tables of a quantity against a size, with the fitted exponents."""
    return titled(result, "\n\n".join(growth_table(one) for one in result["tables"]))


def growth_table(result: dict[str, Any]) -> str:
    """Return one table of a quantity against a size."""
    sizes = sorted({int(size) for row in result["rows"] for size in (*row["medians"], *row["missing"])})
    expects = any(row["expected"] for row in result["rows"])
    head = ["", *(f"{result['size']} = {size}" for size in sizes), "growth", *(["expected"] if expects else [])]
    lines = []
    for row in result["rows"]:
        cells = [number(row["medians"].get(str(size))) for size in sizes]
        law = row["law"] or power(row["growth"], result["size"])
        lines.append([row["name"], *cells, law, *([row["expected"]] if expects else [])])
    missing = [
        f"{row['name']}, {result['size']} = {n}: {why}" for row in result["rows"] for n, why in row["missing"].items()
    ]
    return "\n\n".join(
        [f"{result['title']}:", table(head, lines), *([f"{NOT_RUN}: {'; '.join(missing)}."] if missing else [])]
    )


def attention(result: dict[str, Any]) -> str:
    """Return time, ratio and memory of attention layers against the length."""
    lengths = sorted({int(n) for row in result["rows"] for n in (*row["lengths"], *row["missing"])})
    head = [
        "mask or heads",
        "layer",
        *(f"n = {n}: ms (times faster)" for n in lengths),
        f"MiB at {lengths[-1]}",
        "time",
        "memory",
    ]
    lines = []
    for row in result["rows"]:
        cells = [attention_cell(row, str(length)) for length in lengths]
        memory = row["lengths"].get(str(lengths[-1]))
        lines.append(
            [
                row["group"],
                row["name"],
                *cells,
                number(memory["peak_bytes"] / MIB) if memory else NOT_RUN,
                power(row["time_growth"], "n"),
                power(row["memory_growth"], "n"),
            ]
        )
    reasons = [
        f"{row['group']}, {row['name']}, n = {n}: {why}" for row in result["rows"] for n, why in row["missing"].items()
    ]
    left_out = [f"{NOT_RUN}: {'; '.join(reasons)}."] if reasons else []
    return "\n\n".join([titled(result, table(head, lines), result["setting"]), *left_out])


def attention_cell(row: dict[str, Any], length: str) -> str:
    """Return one layer's time at one length, and how it compares."""
    measured = row["lengths"].get(length)
    if measured is None:
        return NOT_RUN
    ratio = "" if row["is_reference"] else f" ({measured['times_faster']['median']:.2f}x)"
    return f"{number(measured['median_ms'])}{ratio}"


def table_1(result: dict[str, Any]) -> str:
    """Return Table 1 of the source beside what was measured."""
    head = list(result["summary"][0])
    return titled(result, table(head, [[line[name] for name in head] for line in result["summary"]]))


RENDERERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "comparison": comparison,
    "growth": growth,
    "attention": attention,
    "table-1": table_1,
}
"""How each kind of result becomes Markdown."""


def titled(result: dict[str, Any], body: str, *facts: str) -> str:
    """Return a table between its title and what must be known of it."""
    machine = result["environment"]
    where = machine["cpu"] if machine["device"] == "cpu" else f"{machine['device']} ({machine['cpu']})"
    known = [*facts, f"torch {machine['torch']}", f"{machine['threads']} threads", where, *result.get("notes", [])]
    return f"**{result['title']}**\n\n{body}\n\n{'; '.join(known)}."


def spread(ratio: dict[str, float]) -> str:
    """Return a ratio with the range it was seen in."""
    return f"{ratio['median']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})"


def number(value: float | None) -> str:
    """Return a number with three digits that count, or what stands for none."""
    if value is None:
        return NOT_RUN
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def mebibytes(value: float) -> str:
    """Return bytes as MiB."""
    return f"{number(value / MIB)} MiB"


def power(law: dict[str, Any] | None, size: str) -> str:
    """Return a fitted law of growth."""
    if law is None:
        return ""
    error = "" if law["standard_error"] is None else f" ± {law['standard_error']:.2f}"
    return f"{size}^{law['exponent']:.2f}{error}"


# ---- aims ----

Measured = tuple[str, bool] | None
"""What was measured, in words, and whether it is enough; None where it was not measured."""


class Aim(NamedTuple):
    """State what is to be reached.

    Parameters
    ----------
    text : str
        The aim in words.
    needed : str
        What is needed, in words.
    measure : callable
        From all results to what was measured.
    """

    text: str
    needed: str
    measure: Callable[[Results], Measured]


def times_faster(own: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the median over rounds of the other's number over one's own."""
    return statistics.median(b / a for a, b in zip(own["values"], other["values"], strict=True))


def training_ratio(results: Results, *, name: str, number_of_result: int, others: str, least: float) -> Measured:
    """Return how many times faster attnlab trains than the reference, or than the fastest of the others.

    Parameters
    ----------
    results : Results
        All results.
    name : str
        Which ones.
    number_of_result : int
        0 in float32, 1 at the best settings.
    others : {"reference", "packages", "all"}
        The reference alone; all but the loop by hand; all.
    least : float
        The ratio that is enough.
    """
    found = results.get(name)
    if not found:
        return None
    rows, reference = found[number_of_result]["rows"], found[number_of_result]["reference"]
    (ours,) = (row for row in rows if row["name"].startswith("attnlab"))
    rivals = [row for row in rows if row is not ours]
    if others == "reference":
        rivals = [row for row in rivals if row["name"] == reference]
    elif others == "packages":
        rivals = [row for row in rivals if not row["name"].startswith("plain loop")]
    if not rivals:
        return None
    best = min(rivals, key=lambda row: row["median"])
    ratio = times_faster(ours, best)
    return f"{ratio:.2f}x ({ours['name']}; {best['name']})", ratio >= least


def best_seeds(results: Results, *, name: str, share: float, count: int | None = None) -> Measured:
    """Return how many times faster the best way to train n seeds is than one after another.

    Parameters
    ----------
    results : Results
        All results.
    name : str
        Which ones.
    share : float
        The part of the time of one after another that is enough.
    count : int, optional
        How many seeds; every number above 1 that was measured unless given.
    """
    ratios = {}
    for result in results.get(name):
        seeds = result["rows"][0]["seeds"]
        if not result["title"].endswith(ALL_SETTINGS) and (seeds == count or (count is None and seeds > 1)):
            ratios[seeds] = max(row["times_faster"]["median"] for row in result["rows"])
    if not ratios:
        return None
    words = ", ".join(f"{ratio:.2f}x for {seeds}" for seeds, ratio in ratios.items())
    return words, min(ratios.values()) >= 1.0 / share


def seeds_at_best(results: Results, *, name: str, others: str, share: float) -> Measured:
    """Return how many times faster the best way and setting is than training one after another.

    Parameters
    ----------
    results : Results
        All results.
    name : str
        Which ones.
    others : {"float32", "all"}
        The setting of one after another: plain float32, or whichever of all is fastest.
    share : float
        The part of the time of one after another that is enough.
    """
    found = [one for one in results.get(name) if one["title"].endswith(ALL_SETTINGS)]
    if not found:
        return None
    (rows,) = (one["rows"] for one in found)
    alone = [row for row in rows if row["name"].startswith("one after another")]
    if others == "float32":
        alone = [row for row in alone if row["name"].endswith(", float32")]
    best = min((row for row in rows if row not in alone), key=lambda row: row["median"])
    other = min(alone, key=lambda row: row["median"])
    ratio = times_faster(best, other)
    return f"{ratio:.2f}x for {best['seeds']} ({best['name']}; {other['name']})", ratio >= 1.0 / share


def slowest_layer(results: Results, *, least: float) -> Measured:
    """Return how attnlab's layer compares with the call by hand at the length where it does so worst."""
    found = [one for one in results.get("cpu attention") if one["title"].startswith("attention layer, ")]
    if not found:
        return None
    ratios = [row["times_faster"]["median"] for one in found for row in one["rows"] if row["name"] == "attnlab"]
    return f"{min(ratios):.2f}x to {max(ratios):.2f}x", min(ratios) >= least


def window_ratio(results: Results, *, least: float) -> Measured:
    """Return how many times faster attention to a window is than the call by hand with a mask."""
    found = [one for one in results.get("cpu attention") if one["title"].startswith("attention to a window")]
    if not found:
        return None
    (ratio,) = (row["times_faster"]["median"] for row in found[0]["rows"] if row["name"].startswith("attnlab"))
    return f"{ratio:.1f}x", ratio >= least


def translating_ratio(results: Results, *, others: str, least: float) -> Measured:
    """Return how many times faster attnlab translates with everything kept and in batches."""
    rows = [row for one in results.get("cpu translate") for row in one["rows"]]
    (ours,) = [row for row in rows if row["name"].startswith("attnlab, kept, batches")] or [None]
    (other,) = [row for row in rows if others in row["name"] and row is not ours] or [None]
    if ours is None or other is None:
        return None
    ratio = times_faster(ours, other)
    return f"{ratio:.1f}x ({1e3 / ours['median']:.0f} sentences a second)", ratio >= least


def corpus_seconds(results: Results, *, row: str, lines: int, most: float) -> Measured:
    """Return the seconds that one phase takes with a corpus of so many lines."""
    found = [one for result in results.get("cpu corpus") for one in result["tables"][0]["rows"]]
    seconds = [one["medians"].get(str(lines)) for one in found if one["name"].startswith(row)]
    value = next(filter(None, seconds), None)
    return None if value is None else (f"{number(value)} s", value <= most)


def corpus_memory(results: Results, *, most: float) -> Measured:
    """Return how the peak memory of tokenizing grows with the lines."""
    return exponent([result["tables"][1]["rows"][0]["growth"] for result in results.get("cpu corpus")], most)


def window_growth(results: Results, *, quantity: str, most: float) -> Measured:
    """Return the exponent of growth of attention to a window."""
    found = [one for one in results.get("cpu attention") if one["kind"] == "attention"]
    rows = [row for one in found for row in one["rows"] if row["group"] == "window 128" and not row["is_reference"]]
    return exponent([row[quantity] for row in rows], most)


def additive_growth(results: Results, *, most: float) -> Measured:
    """Return the exponent of growth of the memory of the additive score."""
    found = [one for one in results.get("cpu attention") if one["kind"] == "growth"]
    rows = [row for one in found for each in one["tables"] for row in each["rows"] if row["name"] == "path auto"]
    return exponent([row["growth"] for row in rows], most)


def exponent(laws: Sequence[dict[str, Any] | None], most: float) -> Measured:
    """Return the first fitted law, if there is one."""
    law = next(filter(None, laws), None)
    return None if law is None else (power(law, "n"), law["exponent"] <= most)


def training_aims() -> list[Aim]:
    """Return the aims of ``bench train``."""
    aims = []
    for size, least in (("a", 1.3), ("b", 3.0), ("c", 3.0)):
        for text, need, number_of_result, others in (
            (f"({size}), same model in float32: beside the plain loop", 1.0, 0, "reference"),
            (f"({size}), same model in float32: beside the fastest package", 1.0, 0, "packages"),
            (f"({size}), at best: beside the plain float32 loop", least, 1, "reference"),
            (f"({size}), at best: beside the best of all others at its best", 1.6, 1, "all"),
        ):
            measure = partial(
                training_ratio, name=f"cpu train {size}", number_of_result=number_of_result, others=others, least=need
            )
            aims.append(Aim(text, f">= {need}x", measure))
    return aims


SEEDS = ("shapes-cnn", "shapes-attention", "a", "b")
AIMS = [
    *training_aims(),
    *(
        Aim(
            f"n seeds of {name} on a CPU: beside one after another in the same setting",
            ">= 1.67x (0.6 n)",
            partial(best_seeds, name=f"cpu seeds {name}", share=0.6),
        )
        for name in SEEDS
    ),
    *(
        Aim(
            f"seeds of {name} on a CPU, in the best setting: beside one after another {words}",
            ">= 1.67x (0.6 n)",
            partial(seeds_at_best, name=f"cpu seeds {name}", others=others, share=0.6),
        )
        for name in SEEDS
        for others, words in (("float32", "in float32"), ("all", "in its own best setting"))
    ),
    Aim(
        "16 seeds of (a) on a GPU: beside one after another",
        ">= 8x (twice the time of one)",
        partial(best_seeds, name="gpu seeds a", share=2 / 16, count=16),
    ),
    Aim(
        "attention layer beside fused attention by hand, n = 128 ... 8192",
        ">= 0.95x",
        partial(slowest_layer, least=0.95),
    ),
    Aim(
        "translating with beam 5: beside the same search without kept keys and values and without batches",
        ">= 5x",
        partial(translating_ratio, others="nothing kept, one at a time", least=5.0),
    ),
    Aim(
        "translating with beam 5: beside transformers' Marian",
        ">= 1.0x",
        partial(translating_ratio, others="Marian", least=1.0),
    ),
    Aim(
        "parallel corpus of a million lines, tokenized: a new process to its first training step",
        "<= 60 s",
        partial(corpus_seconds, row="afterwards", lines=1_000_000, most=60.0),
    ),
    Aim(
        "tokenizing a parallel corpus of n lines: growth of memory",
        "n^0 (at most n^0.2)",
        partial(corpus_memory, most=0.2),
    ),
    Aim("window of 128 at n = 8192: beside masked fused attention", ">= 5x", partial(window_ratio, least=5.0)),
    Aim("window of 128: growth of time", "n^1", partial(window_growth, quantity="time_growth", most=LINEAR)),
    Aim("window of 128: growth of memory", "n^1", partial(window_growth, quantity="memory_growth", most=LINEAR)),
    Aim("additive score, forward and backward: growth of memory", "n^1", partial(additive_growth, most=LINEAR)),
]


def aims(results: Results) -> str:
    """Return every aim with what was measured and whether it is met."""
    lines = []
    for aim in AIMS:
        measured = aim.measure(results)
        words, verdict = (NOT_MEASURED, "") if measured is None else (measured[0], "yes" if measured[1] else "no")
        lines.append([aim.text, aim.needed, words, verdict])
    return table(["aim", "needed", "measured", "met"], lines)


def summary(results: Results) -> str:
    """Return training speed at each size, attnlab's and that of the others, each at its best."""
    lines = []
    for size in ("a", "b", "c"):
        found = results.get(f"cpu train {size}")
        if not found:
            continue
        rows, reference = found[1]["rows"], found[1]["reference"]
        for row in sorted(rows, key=lambda row: row["median"]):
            ratio = "reference" if row["name"] == reference else spread(row["times_faster"])
            lines.append([f"({size})", row["name"], f"{row['tokens_per_second']:,.0f}", ratio])
    return (
        table(["size", "each at its best setting", "tokens/s", "times faster (range)"], lines)
        if lines
        else NOT_MEASURED
    )


# ---- pages ----


def filled(page: str, results: Results) -> str:
    """Return a page with every block of results filled."""

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        if name in SPECIAL:
            text = SPECIAL[name](results)
        else:
            found = results.get(name)
            text = "\n\n".join(RENDERERS[one["kind"]](one) for one in found) or NOT_MEASURED
        return f"<!-- bench: {name} -->\n{text}\n<!-- end -->"

    return BLOCK.sub(fill, page)


SPECIAL: dict[str, Callable[[Results], str]] = {"aims": aims, "summary": summary}
"""Blocks that draw on several files."""


def main() -> None:
    """Fill the pages from all results."""
    results = Results(RESULTS)
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
