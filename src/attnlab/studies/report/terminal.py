"""The verdicts as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.studies.report import numbers, words
from attnlab.studies.verdicts import judge

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from attnlab.studies.results import StudyResults, VariantResults
    from attnlab.studies.verdicts import Verdict

STYLES = {"better": "bold blue", "worse": "bold dark_orange3", "equivalent": "dim", "undecided": "italic"}
"""Rich styles of the verdicts: the same hues as in the report."""


def verdict_table(results: StudyResults) -> Table:
    """Return the verdicts of a study as a table for the terminal.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.

    Returns
    -------
    rich.table.Table
        The baseline first, then one row per variant in the order of the study.
    """
    from rich.table import Table

    metric = results.metric
    table = Table(
        title=f"{results.study}: {words.metric_title(metric)} in {metric.unit}, {words.direction(metric)}",
        title_justify="left",
    )
    table.add_column("variant", overflow="fold")
    for column in ("mean ± sd", "difference", "interval", "p (Holm)", "parameters", "time a seed"):
        table.add_column(column, justify="right", no_wrap=column != "interval")
    table.add_column("verdict", overflow="fold")
    found = {one.variant: one for one in judge(results)}
    for variant in sorted(results.variants, key=lambda one: one.name != results.baseline):
        table.add_row(*_row(variant, found.get(variant.name), metric.name))
    return table


def _row(variant: VariantResults, one: Verdict | None, metric: str) -> tuple[str | Text, ...]:
    """Return one row: the baseline's where there is no verdict."""
    from rich.text import Text

    reached = numbers.spread(list(variant.values(metric).values()))
    cost = (numbers.number(variant.parameters, 12), numbers.duration(words.mean_seconds(variant)))
    if one is None:
        return (Text(variant.name), reached, "", "", "", *cost, Text("baseline", style="bold"))
    measured = (words.difference(one.comparison), words.interval(one.comparison), numbers.number(one.p_adjusted, 2))
    return (Text(variant.name), reached, *measured, *cost, _verdict_text(one))


def _verdict_text(one: Verdict) -> Text:
    """Return the verdict in its color, with what would decide an undecided one."""
    from rich.text import Text

    text = Text(one.verdict, style=STYLES[one.verdict])
    if one.verdict == "undecided":
        text.append(f": {one.reason}", style="not italic dim")
    return text
