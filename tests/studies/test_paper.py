"""What a paper shows of a study: charts that need no page around them, and a table that LaTeX takes as it is meant."""

from __future__ import annotations

import dataclasses
import re
from xml.etree import ElementTree

import pytest
from tests.studies.example_results import parts, shapes

from attnlab.core.errors import RunError
from attnlab.studies.report import write_figures
from attnlab.studies.report.figures import figures
from attnlab.studies.report.latex import ALARMED, NOTE, SPELLED, spelled, verdict_table_latex

NAME = r"[50%] of a_b & c\d {#1} $x^2$ ~ <`--it's--`>"


def renamed(results, name):
    first, *rest = results.variants
    contrasts = tuple((variant.name, name) for variant in rest)
    variants = (dataclasses.replace(first, name=name), *rest)
    return dataclasses.replace(results, variants=variants, baseline=name, contrasts=contrasts, alarms=())


def read_back(latex: str) -> str:
    """What LaTeX shows of text without commands of its own: every escape is one character again."""
    marks = {command: mark for mark, command in reversed(SPELLED.items())}
    pattern = "|".join(map(re.escape, sorted(marks, key=len, reverse=True)))
    return re.sub(pattern, lambda found: marks[found[0]], latex)


def test_charts_are_svg_and_pdf_of_their_own(tmp_path):
    results = shapes()
    written = write_figures(results, tmp_path / "figures")
    names = {figure.drawing.name for figure in figures(results)}
    assert {path.name for path in written} == {f"{name}.{kind}" for name in names for kind in ("svg", "pdf")} | {
        "verdicts.tex"
    }
    assert all(path.is_file() for path in written)
    for path in written:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().get("width")
            assert "var(--" not in path.read_text(encoding="utf-8")
        elif path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF-")


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file"):
        write_figures(shapes(), tmp_path / "file")


@pytest.mark.parametrize("text", [NAME, r"\\", "*a", "[b]", "---", "%", "&&", "ä λ"])
def test_names_are_shown_as_they_are_written(text):
    written = spelled(text)
    assert read_back(written) == text
    bare = re.sub(r"\\[A-Za-z]+\{\}|\\.|\{.\}|\$[^$]+\$", "", written)
    assert not set(bare) & set("\\{}$&#_%~^[]*-`'\"<>|")


def test_every_verdict_is_a_row_with_as_many_cells_as_the_head():
    results = renamed(parts(), NAME)
    lines = verdict_table_latex(results).splitlines()
    first, last = lines.index(r"\midrule"), lines.index(r"\bottomrule")
    rows = [re.split(r"(?<!\\)&", line.removesuffix(r" \\")) for line in lines[first - 1 : last] if line[-2:] == r"\\"]
    assert len(rows) == 1 + 1 + len(results.verdicts) + len(results.exploratory)
    assert len({len(row) for row in rows}) == 1
    begins = next(line for line in lines if line.startswith(r"\begin{tabular}"))
    assert len(rows[0]) == len(re.search(r"\{([lr]+)\}$", begins)[1])
    assert spelled(NAME) in [row[0].strip() for row in rows]
    assert [word for word in ("toprule", "midrule", "bottomrule") if f"\\{word}" in lines] == [
        *("toprule", "midrule", "bottomrule")
    ]
    shown = {row[5].strip() for row in rows}
    assert {one.verdict for one in results.verdicts} <= shown


def test_a_number_with_an_alarm_is_marked():
    results = parts()
    marked = [line for line in verdict_table_latex(results).splitlines() if ALARMED in line]
    names = {alarm.variant for alarm in results.alarms if alarm.variant and alarm.check != "failed"}
    assert {line.partition(ALARMED)[0] for line in marked[:-1]} == {spelled(name) for name in names}
    assert marked[-1] == NOTE
    assert NOTE not in verdict_table_latex(dataclasses.replace(results, alarms=()))


def test_what_stands_above_the_table_is_a_comment_whatever_the_question():
    results = dataclasses.replace(parts(), question="Is it\n\\input{this}?")
    head = verdict_table_latex(results).partition(r"\begin{tabular}")[0].splitlines()
    assert all(line.startswith("%") for line in head)
