"""The page on `explain` sums up what planted cases showed, row by row."""

from __future__ import annotations

import re

from tests.scripts import ROOT

DOCS = ROOT / "docs"

FIRST = re.compile(r"(\d+)(?:, and (\d+) by (?:its|their) part)?")


def rows_of(page):
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| \S+ \| \d", line)]


def test_the_last_row_and_the_summary_are_sums_of_all_rows():
    *rows, (name, culprits, first, *others) = rows_of("explain-cases.md")
    assert (name, len(rows)) == ("all", 24)
    found = [FIRST.fullmatch(row[2]).groups(default="0") for row in rows]
    by_name, by_part = (sum(int(one[place]) for one in found) for place in (0, 1))
    sums = [sum(int(row[place]) for row in rows) for place in (1, 3, 4, 5, 6)]
    assert FIRST.fullmatch(first).groups() == (str(by_name), str(by_part))
    assert [int(one) for one in (culprits, *others)] == sums
    assert by_name + by_part + sums[1] + sums[2] == sums[0]
    shown = [f"{count} ({count / sums[0]:.0%})".replace("%", " %") for count in (by_name, by_part, *sums[1:3])]
    summary = f"| {sums[0]} | {' | '.join(shown)} | {sums[3]} | {sums[4]} |"
    assert summary in (DOCS / "explain.md").read_text(encoding="utf-8")
