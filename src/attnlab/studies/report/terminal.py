"""The verdicts as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.studies.judge.results import StudyResults, VariantResults
from attnlab.studies.judge.verdicts import Verdict
from attnlab.studies.report import numbers, words

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

STYLES = {"better": "bold blue", "worse": "bold dark_orange3", "equivalent": "dim", "undecided": "italic"} | {
    "exploratory": "italic dim"
}
"""Rich styles of the verdicts: the same hues as in the report."""
NARROWEST = (12, 8, 11, 11)
"""Columns that a name, a mean, a difference and a verdict keep on a narrow terminal, where they are folded."""
KEPT = ((0, 1, 2, 3), (0, 2, 3), (0, 3))
"""What is shown of them: all that there is room for, a name and a verdict in any case."""


def verdict_table(results: StudyResults, width: int | None = None) -> Table:
    """The verdicts of a study as a table for the terminal.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.
    width : int, optional
        Columns of the terminal: where they are few, means are left out, then differences.

    Returns
    -------
    rich.table.Table
        The baseline first, then one row per comparison in the order of the study.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    metric = results.metric
    table = Table(
        title=f"{results.study}: {words.metric_title(metric)} ({metric.unit}, {words.direction(metric)})",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    titles = ("variant, its cost", "mean ± sd", "difference, interval", "verdict")
    fitting = [kept for kept in KEPT if width is None or _room(kept) <= width]
    kept = fitting[0] if fitting else KEPT[-1]
    for i in kept:
        least = NARROWEST[i] if fitting else None
        table.add_column(titles[i], justify="right" if i in (1, 2) else "left", overflow="fold", min_width=least)
    for variant in sorted(results.variants, key=lambda one: one.name != results.baseline):
        for one in results.concluded(variant.name) or (None,):
            row = _row(results, variant, one)
            table.add_row(*(row[i] for i in kept))
    return table


def _room(columns: tuple[int, ...]) -> int:
    """How wide a table of some columns is at the least, with its padding, lines and edges."""
    return sum(NARROWEST[i] for i in columns) + 2 * len(columns) + 1


def _row(results: StudyResults, variant: VariantResults, one: Verdict | None) -> tuple[str | Text, ...]:
    """One row: without a verdict for what others are compared with."""
    from rich.text import Text

    name = Text(words.title(results, one) if one else variant.name)
    seconds = numbers.duration(words.mean_seconds(variant))
    name.append(f"\n{_short(variant.parameters)} params, {seconds}", style="dim")
    reached = numbers.spread(list(variant.values(results.metric.name).values()))
    if one is None:
        return (name, reached, "", Text(words.not_judged(results, variant)[0], style="bold"))
    difference = Text(words.difference(one.comparison))
    difference.append(f"\n{words.interval(one.comparison)}", style="dim")
    return (name, reached, difference, _verdict_text(one, untuned=variant.untuned))


def _verdict_text(one: Verdict, *, untuned: bool) -> Text:
    """The verdict in its color, with what would decide an undecided one."""
    from rich.text import Text

    text = Text(one.verdict, style=STYLES[one.verdict])
    if untuned:
        text.append("\nuntuned", style="not italic dim")
    elif one.seeds_needed:
        text.append(f"\n{one.seeds_needed} seeds needed", style="not italic dim")
    return text


def _short(count: int) -> str:
    """A count with as few digits as a comparison needs."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if count >= 10 * size:
            return f"{count / size:.0f}{unit}"
    return f"{count:,}"
