"""The answer to a case as a page, as a document, and as a chart from seen to expected."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.core.files import write_bytes
from attnlab.explain.answer import Answer
from attnlab.explain.words import ended, how_sure, interval, paragraph, what_next
from attnlab.studies.report.html import rendered
from attnlab.studies.report.markdown import table
from attnlab.studies.report.style import FAINT, GRID, INK, MUTED, NORMAL, VERDICT_COLORS, Drawing, data_of, draw, label
from attnlab.studies.storage.mirror import deliver

COLORS = {
    "bug": VERDICT_COLORS["worse"],
    "known effect": VERDICT_COLORS["better"],
    "own code": "#cc79a7",
    "set-up": "#009e73",
    "noise": VERDICT_COLORS["equivalent"],
    "unexplained": FAINT,
    "beyond": GRID,
    "end": INK,
}
"""A color for each nature; what was seen and what was expected are ink."""
WIDTH, ROW = 520, 38
PAGE, DOCUMENT, PICTURE = "answer.html", "answer.md", "waterfall.png"


def write_answer(answer: Answer, folder: Path) -> Path:
    """Write an answer in all its forms.

    Parameters
    ----------
    answer : Answer
        What was found.
    folder : Path
        The case's folder.

    Returns
    -------
    Path
        The page.
    """
    drawing = draw(waterfall(answer), "waterfall") if answer.steps else None
    files = {DOCUMENT: document(answer, drawing).encode(), PAGE: page(answer, drawing).encode()}
    if drawing:
        files[PICTURE] = drawing.png
    target = deliver(folder, files)
    target.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_bytes(target / name, content)
    return target / PAGE


def waterfall(answer: Answer) -> Any:
    """The chart from what was seen to what was expected, a row for each thing that carries a part of it."""
    import altair as alt

    rows = waterfall_rows(answer)
    labels = {row["row"]: label(row["row"], most=2) for row in rows}
    ends = [value for row in rows for value in (row["from"], row["to"])]
    low, high = min(ends), max(ends)
    room = 0.12 * ((high - low) or abs(high) or 1.0)
    scale = alt.Scale(domain=[low - room, high + room], zero=False, nice=False)
    y = alt.Y("row:N", sort=None, title=None, axis=alt.Axis(
        labelExpr=f"split({json.dumps(labels)}[datum.label], '\\n')", labelLimit=280, labelColor=INK,
        labelFontSize=NORMAL, domain=False, ticks=False))  # fmt: skip
    base = alt.Chart(data_of(rows)).encode(y=y)
    color = alt.Color("color:N", scale=None)
    axis = alt.Axis(title=f"{answer.quantity}, {answer.unit}", grid=True, gridColor=GRID, tickCount=6)
    bars = base.transform_filter("datum.kind == 'step'").mark_bar(height=16).encode(
        x=alt.X("from:Q", scale=scale, axis=axis), x2="to:Q", color=color
    )  # fmt: skip
    points = base.transform_filter("datum.kind == 'end'").mark_tick(thickness=4, size=24).encode(
        x=alt.X("to:Q", scale=scale), color=color
    )  # fmt: skip
    links = base.transform_filter("datum.next != null").mark_rule(color=MUTED, strokeDash=[2, 3]).encode(
        x=alt.X("to:Q", scale=scale), y2=alt.Y2("next:N")
    )  # fmt: skip
    text = base.mark_text(align="left", fontSize=NORMAL).encode(x=alt.value(WIDTH + 14), text="text:N")
    return alt.layer(links, bars, points, text).properties(width=WIDTH, height=ROW * len(rows))


def waterfall_rows(answer: Answer) -> list[dict[str, Any]]:
    """The rows of the chart: the start, each step with where it begins and ends, and what was expected."""
    at = answer.seen if answer.usual or answer.start is None else answer.start.mean
    rows = [{"row": _begins(answer), "kind": "end", "from": at, "to": at, "nature": "end", "text": f"{at:.4g}"}]
    for name, nature, amount in answer.steps:
        part = answer.part(amount) if nature != "beyond" else ""
        told = f"{0.0 - amount:+.3g}" + (f"  ({part})" if part else "")
        row = name if name not in {one["row"] for one in rows} else f"{name} (rest)"
        rows.append({"row": row, "kind": "step", "from": at, "to": at - amount, "nature": nature, "text": told})
        at -= amount
    wanted = answer.expected
    end = {
        "row": "expected",
        "kind": "end",
        "from": wanted,
        "to": wanted,
        "nature": "end",
        "text": answer.expected_words,
    }
    rows.append(end)
    following = [row["row"] for row in rows[1:]] + [None]
    for row, after in zip(rows, following, strict=True):
        row |= {"color": COLORS[row["nature"]], "next": after}
    return rows


def _begins(answer: Answer) -> str:
    """With which number the way to what was expected begins, in a word."""
    return "seen" if answer.usual else "found"


def page(answer: Answer, drawing: Drawing | None) -> str:
    """The answer as an HTML page."""
    from markupsafe import Markup

    steps = "all of their steps" if answer.fraction == 1 else f"{answer.fraction:.2g} of their steps"
    took = f"{answer.seconds:.0f} s"
    values = {
        "answer": answer,
        "paragraph": paragraph(answer),
        "next": what_next(answer),
        "chart": Markup(drawing.svg) if drawing else "",
        "begins": _begins(answer),
        "natures": sorted({step[1] for step in answer.steps}),
        "colors": COLORS,
        "shares": _shares(answer),
        "again": _again(answer),
        "further_off": _further_off(answer),
        "facts": [f"verdict: {answer.verdict}", f"{answer.seeds} runs of every set-up, with {steps}", took],
    }
    return rendered("answer.html.j2", values, "attnlab.explain")


def _shares(answer: Answer) -> list[dict[str, str]]:
    """The table of causes, in the order in which they were removed."""
    return [
        {
            "name": share.name,
            "nature": share.nature,
            "removed": share.removed + (f" ({share.detail})" if share.detail else ""),
            "amount": f"{answer.carried(share.amount).mean:+.3g}{interval(answer.carried(share.amount))}",
            "part": answer.part(share.amount.mean * answer.counts),
            "alone": f"{answer.carried(share.alone).mean:+.3g}" if share.alone else "",
            "last": f"{answer.carried(share.last).mean:+.3g}" if share.last else "",
            "evidence": ended(share.evidence) if share.evidence else "",
            "source": share.source,
        }
        for share in answer.shares
    ]


def _again(answer: Answer) -> list[dict[str, str]]:
    """The table of what was seen beside what runs gave."""
    words = {True: "within their noise", False: "outside their noise", None: ""}
    return [
        {
            "variant": one.variant,
            "metric": one.metric,
            "seen": f"{one.seen:.4g}",
            "found": f"{one.found.mean:.4g}{interval(one.found)}",
            "within": words[one.within],
        }
        for one in itertools.chain(answer.again, answer.made)
    ]


def _further_off(answer: Answer) -> list[str]:
    """Causes without which runs came further off, and by how much."""
    off = {name: -answer.carried(one) for name, one in answer.worse.items()}
    return [f"{name} (by {by.mean:.3g}{how_sure(by)})" for name, by in off.items()]


def _effects(when: str, effects: Mapping[str, Mapping[str, str]]) -> str:
    """The known effects at work before or after training; empty where there are none."""
    told = [f"- {name}: {effect}: {text}" for name, row in effects.items() for effect, text in row.items()]
    return "\n".join([f"Known effects {when} training:", "", *told]) if told else ""


def document(answer: Answer, drawing: Drawing | None) -> str:
    """The answer as Markdown."""
    told = ("name", "nature", "amount", "part", "alone", "last")
    shares = [tuple(row[key] for key in told) for row in _shares(answer)]
    again = [tuple(row.values()) for row in _again(answer)]
    blocks = [
        f"# {answer.question}",
        f"**{answer.verdict}.** {paragraph(answer)}",
        f"Next: {what_next(answer)}",
        f"![from {_begins(answer)} to expected]({PICTURE})" if drawing else "",
        table(("removed", "nature", "carries", "part", "alone", "last"), shares) if shares else "",
        table(("variant", "metric", "seen", "found", ""), again) if again else "",
        _effects("before", answer.effects),
        _effects("after", answer.brought),
        f"Removed without effect: {', '.join(answer.without_effect)}." if answer.without_effect else "",
        f"Removed, and further from what was expected without: {', '.join(_further_off(answer))}."
        if answer.worse
        else "",
        f"Not decided: {', '.join(answer.undecided)}." if answer.undecided else "",
        f"Not tried: {', '.join(answer.not_tried)}." if answer.not_tried else "",
        "\n".join(f"- {note}" for note in answer.notes),
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"
