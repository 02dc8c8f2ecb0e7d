"""The verdicts as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.studies.report import numbers, words

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from attnlab.studies.judge.results import StudyResults, VariantResults
    from attnlab.studies.judge.verdicts import Verdict

STYLES = {"better": "bold blue", "worse": "bold dark_orange3", "equivalent": "dim", "undecided": "italic"} | {
    "exploratory": "italic dim"
}
"""Rich styles of the verdicts: the same hues as in the report."""
NARROWEST = (12, 8, 11, 11)
"""Columns that a name, a mean, a difference and a verdict keep on a narrow terminal, where they are folded."""


def verdict_table(results: StudyResults) -> Table:
    """The verdicts of a study as a table for the terminal.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.

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
    for title, width in zip(titles, NARROWEST, strict=True):
        justify = "right" if title in titles[1:3] else "left"
        table.add_column(title, justify=justify, overflow="fold", min_width=width)
    for variant in sorted(results.variants, key=lambda one: one.name != results.baseline):
        for one in results.concluded(variant.name) or (None,):
            table.add_row(*_row(results, variant, one))
    return table


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
