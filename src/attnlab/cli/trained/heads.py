"""``attnlab heads``: what each head, sublayer and layer of trained models is worth."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attnlab.cli.words import Whole

if TYPE_CHECKING:
    from attnlab.studies.judge.worth import PartsJudged, Worth

COLUMNS = ("part", "worth", "interval", "looks at, beyond untrained heads")
MOST_KINDS = 2  # of a head in the table; all of them are in the JSON


def heads(
    runs: list[Path],
    /,
    *,
    how: str = "zero",
    part: str = "",
    tokens: Whole = 20_000,
    tolerance: float = 0.01,
    weights: str = "last",
    json: bool = False,
) -> int:
    """Measure what trained models lose without each head, sublayer and layer, over all seeds of a variant.

    Parameters
    ----------
    runs : list of Path
        Folders of runs, of variants, or of studies: all finished runs in them.
    how : str
        What stands in the place of a head or sublayer: ``zero``, ``mean`` (over the batch) or ``resample`` (that of the
        next sequence of the batch). A layer is skipped.
    part : str
        Held-out part; the first of the task by default.
    tokens : int
        Positions of it to measure on.
    tolerance : float
        Loss that may be lost by switching heads off together, in the loss's unit.
    weights : str
        ``last``, which the study judged, or ``best`` (those of the best evaluation).
    json : bool
        Print what was found as JSON.

    Returns
    -------
    int
        0.
    """
    from dataclasses import asdict

    from attnlab.cli.run import own_prints_to_stderr, print_json
    from attnlab.studies.judge.worth import judged_parts
    from attnlab.studies.using.parts import finished_runs, measure_parts

    console = Console(stderr=json)
    variants, judged = finished_runs(runs), []
    for variant, folders in variants.items():
        with own_prints_to_stderr(json), console.status(f"measuring {escape(variant)}"):
            measured = [
                measure_parts(folder, how=how, part=part, tokens=tokens, which=weights)  # pyrefly: ignore
                for folder in folders
            ]
        judged.append(judged_parts(variant, measured, tolerance=tolerance))
        _print(console, judged[-1])
    if json:
        print_json([asdict(one) for one in judged])
    return 0


def _print(console: Console, one: PartsJudged) -> None:
    seeds = f"{one.runs} runs" if one.runs > 1 else "one run: intervals are over its sequences, not over seeds"
    console.print(
        f"\n[bold]{escape(one.variant)}[/]  loss {one.loss:.4g} {escape(one.unit)}  ({seeds})", highlight=False
    )
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        right, last = column in COLUMNS[1:3], column == COLUMNS[-1]
        table.add_column(column, justify="right" if right else "left", no_wrap=not last)
    for kind in ("layer", "sublayer", "head"):
        rows = [row for row in one.parts if row.kind == kind]
        for row in sorted(rows, key=lambda row: -statistics.fmean(row.worths)):
            table.add_row(*_row(row), style=None if row.decided else "dim")
    console.print(table)
    for line in _lines(one):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _row(row: Worth) -> tuple[str, str, str, str]:
    found = row.comparison
    interval = "" if found.low is None else f"[{found.low:+.4f}, {found.high:+.4f}]"
    kinds = ", ".join(f"{kind} +{excess:.2f}" for kind, excess in list(row.kinds.items())[:MOST_KINDS])
    return escape(row.place), f"{statistics.fmean(row.worths):+.4f}", escape(interval), kinds


def _lines(one: PartsJudged) -> list[str]:
    """What the table does not say."""
    undecided = sum(not row.decided for row in one.parts)
    lines = [
        f"worth: loss without the part minus loss with it, {one.unit}; intervals hold together for all "
        f"{len(one.parts)} parts, and {undecided} leave open whether it helps"
    ]
    counts = " to ".join(str(count) for count in dict.fromkeys((min(one.removable), max(one.removable))))
    if one.heads:
        lines.append(
            f"{counts} of {one.heads} heads, the least valuable first, can be off at once for at most "
            f"{one.tolerance:g} more loss"
        )
    if one.agreement is not None:
        lines.append(
            f"heads of other seeds that behave most alike agree to {one.agreement:.2f} (1: the same; paired at random "
            f"{one.chance:.2f}); a head's row is that of its partners"
        )
    return lines
