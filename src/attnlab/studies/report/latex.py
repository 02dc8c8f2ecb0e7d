"""The verdicts of a study as a table of LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.studies.judge.results import StudyResults
from attnlab.studies.report import numbers, tables, words

COLUMNS = ("name", "reached", "difference", "interval", "seeds", "verdict", "parameters")
"""What of a row of the verdict table a paper shows."""
ALARMED = r"\textsuperscript{!}"
NOTE = rf"\multicolumn{{{len(COLUMNS)}}}{{l}}{{{ALARMED} there is an alarm: see the report}} \\"
SPELLED = {
    **{mark: f"\\{mark}" for mark in "{}$&#_%"},
    **{mark: f"{{{mark}}}" for mark in "[]*-"},  # behind the end of a row the first ask for something; -- is a dash
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    '"': r"\textquotedbl{}",
    "\u2212": "$-$",
    "\u00b1": r"$\pm$",
    "\u00d7": r"$\times$",
    "\u2192": r"$\rightarrow$",
    "\u2013": "--",
    numbers.ABSENT: "--",
}
"""How LaTeX writes what it would take as a command, or lacks."""


def verdict_table_latex(results: StudyResults) -> str:
    """The verdicts of a study as a ``tabular`` of LaTeX, for the package booktabs.

    Notes
    -----
    Names of variants are shown as they are written; letters that pdfLaTeX lacks need LuaLaTeX or XeLaTeX.
    """
    metric = results.metric
    reached = f"{words.metric_title(metric)} ({metric.unit})" if metric.unit else words.metric_title(metric)
    header = ("variant", reached, "difference", "interval", "seeds", "verdict", "parameters")
    rows = tables.verdicts(results)
    sure = numbers.percent(results.confidence)
    return "\n".join(
        [
            f"% {' '.join(results.question.split())}",
            rf"% Needs \usepackage{{booktabs}} and \usepackage[T1]{{fontenc}}. {words.direction(metric).capitalize()};",
            f"% mean and standard deviation over seeds; intervals hold together with {sure} confidence.",
            r"\begin{tabular}{lrrrrlr}",
            r"\toprule",
            _line(header),
            r"\midrule",
            *(_line([row[column] for column in COLUMNS], ALARMED if row["alarmed"] else "") for row in rows),
            r"\bottomrule",
            *([NOTE] if any(row["alarmed"] for row in rows) else []),
            r"\end{tabular}",
            "",
        ]
    )


def _line(cells: Sequence[str], mark: str = "") -> str:
    """A row, with a mark behind its name."""
    first, *rest = map(spelled, cells)
    return " & ".join([first + mark, *rest]) + r" \\"


def spelled(text: str) -> str:
    r"""A text as LaTeX shows it as it is, on one line.

    Examples
    --------
    >>> print(spelled("50% [more_heads]"))
    50\% {[}more\_heads{]}
    """
    return "".join(SPELLED.get(mark, mark) for mark in " ".join(text.split()))
