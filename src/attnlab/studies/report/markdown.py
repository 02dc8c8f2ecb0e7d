"""The report as Markdown: the same answer, tables and charts, for a repository or a mail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from attnlab.studies.judge.results import StudyResults
from attnlab.studies.report import heads, tables, words
from attnlab.studies.report.figures import Figure

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|])")
"""Characters that Markdown, or the HTML inside it, would take as markup."""
MEDIAN = (
    "The median is that of the differences, and the chance to be better the share of all pairs of a run of the variant "
    "and one of what it is compared with in which the variant's is better, ties as half."
)
"""How to read the column of the verdict table beside the mean difference."""

RANKED = ("variant", "width of a head", "rank of scores", "rank of weights", "of the largest possible")


def markdown(results: StudyResults, figures: Sequence[Figure]) -> str:
    """The report of a study as Markdown."""
    blocks = [
        f"# {escape(results.question)}",
        *(emphasized(sentence) for sentence in words.sentences(results)),
        " · ".join(map(escape, tables.facts(results))),
        *_alarms(results),
        *_failures(results),
        *_charts(figures, ("effects",)),
        "## Verdicts",
        _verdicts(results),
        *([MEDIAN] if results.verdicts or results.exploratory else []),
        *_charts(figures, ("curves", "watched", "cost", "surface", "predictions")),
        *_charts(figures, ("heads",)),
        *_heads(results),
        *_background(results),
    ]
    return "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    """A text of the user's so that Markdown shows it as it is, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def emphasized(text: str) -> str:
    """A sentence escaped, with the names of variants in bold."""
    return escape(text).replace(words.OPEN, "**").replace(words.CLOSE, "**")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; its cells are escaped."""
    lines = [header, ["---"] * len(header), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _alarms(results: StudyResults) -> list[str]:
    """The alarms, first thing after the answer."""
    told = [
        f"- **{escape(alarm.check)}**{f' ({escape(alarm.variant)})' if alarm.variant else ''}: {escape(alarm.message)}"
        for alarm in words.alarms(results)
    ]
    return ["## Alarms", "\n".join(told)] if told else []


def _failures(results: StudyResults) -> list[str]:
    rows = [(name, str(seed), error) for name, seed, error in tables.failed_runs(results)]
    return ["## Runs that failed", table(("variant", "seed", "error"), rows)] if rows else []


def _charts(figures: Sequence[Figure], names: Sequence[str]) -> list[str]:
    blocks = []
    for figure in figures:
        if figure.drawing.name in names:
            picture = f"![{escape(figure.title)}](charts/{figure.drawing.name}.png)"
            blocks += [f"## {escape(figure.title)}", picture, emphasized(figure.caption)]
    return blocks


def _heads(results: StudyResults) -> list[str]:
    """What the heads of each variant say together, and what each part is worth."""
    return [
        block
        for one in heads.sections(results)
        for block in (
            f"### {escape(one['name'])}",
            "\n".join(f"- {escape(line)}" for line in one["lines"]),
            table(heads.COLUMNS, one["rows"]),
            *([table(heads.SYNTAX_COLUMNS, one["syntax"])] if one["syntax"] else []),
        )
    ]


def _verdicts(results: StudyResults) -> str:
    metric = f"{words.metric_title(results.metric)} ({results.metric.unit}, {words.direction(results.metric)})"
    header = ("", "variant", "verdict", "difference", "interval", "median / chance to be better", "p, adjusted", metric)
    header = (*header, "seeds", "parameters", "FLOPs/token", "time a seed", "why")
    keys = ("number", "name", "verdict", "difference", "interval", "typical", "p", "reached")
    keys = (*keys, "seeds", "parameters", "flops", "seconds", "reason")
    rows = [
        row | {"typical": " / ".join(filter(None, (row["median"], row["chance"])))} for row in tables.verdicts(results)
    ]
    return table(header, ([str(row[key]) for key in keys] for row in rows))


def _background(results: StudyResults) -> list[str]:
    """Everything that says how the answer was obtained."""
    tuned = [
        (
            row["name"],
            row["setting"],
            ", ".join(f"{value}: {reached}" for value, reached in row["tried"]),
            row["chosen"],
        )
        for row in tables.tuning(results)
    ]
    seeds = [(name, ", ".join(values)) for name, values in tables.seeds(results)]
    floors = tables.floors(results)
    measured, rows = tables.measures(results)
    measures = table(("variant", *measured), ((name, *values) for name, values in rows))
    ranks = tables.ranks(results)
    sections = (
        ("Answer on record", escape(results.answer or "")),
        ("Reference values", table(("name", "value", "metric", "source"), floors) if floors else ""),
        ("Rules, fixed beforehand", table(("rule", "value"), words.flat(results.rules))),
        ("Tuning", table(("variant", "setting", "tried", "chosen"), tuned) if tuned else ""),
        ("Specifications", _specifications(results)),
        ("Seeds", table(("variant", f"{results.metric.name} by seed"), seeds)),
        ("Everything measured", measures if measured else ""),
        ("Rank of attention", f"{table(RANKED, ranks)}\n\n{tables.RANKS}" if ranks else ""),
        ("Data", table(("", "value"), words.flat(results.task))),
        ("Versions and hardware", table(("", "value"), words.flat(results.environment))),
    )
    return [block for title, body in sections if body for block in (f"## {title}", body)]


def _specifications(results: StudyResults) -> str:
    """All that was set of the baseline, and where each other variant differs from it."""
    baseline, *others = tables.specifications(results)
    rows = [(f"{baseline.name} (baseline)", *row) for row in baseline.rows]
    rows += [(other.name, *row) for other in others for row in other.rows]
    notes = [f"- {escape(one.name)}: {escape(note)}" for one in (baseline, *others) for note in one.notes]
    return "\n\n".join([table(("variant", "setting", "value"), rows), *(["\n".join(notes)] if notes else [])])
