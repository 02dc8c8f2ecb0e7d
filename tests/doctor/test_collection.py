"""Every broken module gets an error of the right check, no right module gets one."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict

import pytest
from tests.doctor.collection import CASES, FOLDER, Case, Outcome, examine, score, thinned, told
from tests.scripts import loaded

make_doctor_table = loaded("docs/make_doctor_table.py")


def _id(case: Case) -> str:
    return case.target.replace(".py", "")


EXAMINED = thinned(CASES, map(_id, CASES), [(case.check, case.severity) for case in CASES])


@pytest.mark.parametrize("case", EXAMINED)
def test_the_doctor_says_what_it_must(case: Case) -> None:
    diagnosis = examine(case)
    errors = told(case, diagnosis)
    if case.expected:
        assert errors & case.expected, f"{case.target}: {case.why}; wanted {set(case.expected)}\n{diagnosis}"
    else:
        assert not errors, f"{case.target}: {case.why}\n{diagnosis}"


def test_targets_are_distinct_and_exist() -> None:
    assert max(Counter(case.target for case in CASES).values()) == 1
    named: dict[str, set[str]] = defaultdict(set)
    for case in CASES:
        file, name = case.target.split(":")
        named[file].add(name)
    for file, names in named.items():
        tree = ast.parse((FOLDER / file).read_text())
        assert names <= {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def test_each_error_check_has_at_least_two_broken_modules() -> None:
    counts = Counter(case.check for case in CASES if case.check)
    assert min(counts.values()) >= 2


def test_every_check_is_among_those_that_are_always_examined() -> None:
    always = [one.values[0] for one in EXAMINED if not one.marks]
    assert {case.check for case in always} == {case.check for case in CASES}


def test_patients_do_not_know_the_doctor() -> None:
    for file in FOLDER.glob("*/*.py"):
        tree = ast.parse(file.read_text())
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any("doctor" in (module or "") for module in modules), file


def test_a_score_counts_found_and_wrong() -> None:
    broken, right = Case("a.py:A", check="scale", also=frozenset({"x"})), Case("b.py:B")
    outcomes = [Outcome(broken, ("x",), 1.0), Outcome(broken, ("y",), 3.0), Outcome(right, ("y",), 2.0)]
    result = score(outcomes)
    assert result.found == {"scale": (1, 2)}
    assert (result.wrong, result.right, result.seconds) == (1, 1, (2.0, 3.0))


def test_the_table_shows_every_check_and_what_was_wrongly_reported() -> None:
    outcomes = [Outcome(Case("a.py:A", check="scale"), ("scale",), 1.0), Outcome(Case("b.py:B"), ("x", "y"), 3.0)]
    text = make_doctor_table.table(score(outcomes))
    assert "| `scale` | 1 | 1 |" in text
    assert "| all | 1 | 1 |" in text
    assert "Right modules: 1; errors reported in them: 2." in text


def test_the_table_goes_between_its_marks_and_nowhere_else() -> None:
    page = "before\n<!-- collection -->\nold\n<!-- /collection -->\nafter"
    assert make_doctor_table.insert(page, "new") == page.replace("old", "new")
    with pytest.raises(SystemExit, match="marks"):
        make_doctor_table.insert("no marks", "new")
