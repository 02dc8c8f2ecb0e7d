"""Studies whose truth is known, in short: no cell of the long table of docs/verdicts.md may err more than it says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from attnlab.studies.define.looks import Seeds

STUDIES = 150
FOUR_SIGMA = 4 * (0.05 * 0.95 / STUDIES) ** 0.5


@pytest.fixture(scope="module")
def truth():
    place = importlib.util.spec_from_file_location("make_truth", Path(__file__).parents[2] / "docs" / "make_truth.py")
    module = sys.modules["make_truth"] = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seeds", [3, Seeds(at_least=3, at_most=10)], ids=["fixed", "until decided"])
@pytest.mark.parametrize("noise", ["normal", "normal, unequal spreads", "a tenth failing"])
def test_verdicts_err_no_more_often_than_is_said(truth, noise, seeds):
    found = truth.cell(noise, seeds, 3, studies=STUDIES)
    assert found.wrong_difference <= 0.05 + FOUR_SIGMA
    assert found.wrong_equivalence <= 0.05 + FOUR_SIGMA
    assert found.coverage >= 0.95 - FOUR_SIGMA
    assert found.wrong_sign <= 0.05


def test_stuck_runs_of_one_side_alone_are_not_foreseen(truth):
    """What the page admits: words about means that no run has shown yet, and never of equivalence."""
    found = truth.cell(truth.ALONE, 3, 1, studies=STUDIES)
    assert found.wrong_difference == pytest.approx(0.37, abs=4 * (0.37 * 0.63 / STUDIES) ** 0.5)
    assert found.wrong_equivalence <= 0.05


def test_real_studies_of_one_variant_under_two_names_differ_rarely(truth):
    studies, differing = truth.alike()
    assert studies == 40
    assert differing / studies <= 0.05 + 4 * (0.05 * 0.95 / studies) ** 0.5


def test_the_table_has_a_row_for_every_cell(truth):
    text = truth.table([truth.cell("normal", 3, 1, studies=2), truth.cell("lognormal", 5, 2, studies=2)])
    assert len(text.splitlines()) == 4
    assert "| lognormal | 5 | 2 |" in text


def test_what_misses_its_aim_is_bold(truth):
    kind = ("normal", 3, 1)
    fine, bad = truth.Cell(*kind, 0.051, 0.01, 0.951, 0.009, 10_000), truth.Cell(*kind, 0.06, 0.06, 0.93, 0.02, 10_000)
    wide = truth.Cell(*kind, 0.01, 0.01, 0.98, 0.0, 10_000)
    told = [line.split(" | ")[4:] for line in truth.table([fine, bad, wide]).splitlines()[2:]]
    assert told[0] == ["5.1%", "1.0%", "95.1%", "0.9% |"]
    assert told[1] == ["**6.0%**", "**6.0%**", "**93.0%**", "**2.0%** |"]
    assert told[2] == ["1.0%", "1.0%", "**98.0%**", "0.0% |"]


def test_a_study_that_is_begun_anew_is_a_second_chance_to_err(truth):
    found = [truth.begun_anew(seeds, studies=500) for seeds in (3, truth.DESIGNS[-1])]
    assert 0.05 < found[1] < found[0] < 0.1 + FOUR_SIGMA


def test_luck_in_tuning_leaves_more_undecided(truth, monkeypatch):
    monkeypatch.setattr(truth, "library_effects", lambda: [[(effect, 0.2) for effect in (0.6, 0.9, 1.3)]])
    alone, each = (truth.decided(truth.DESIGNS[-1], studies=15, each_tuned=tuned)[0] for tuned in (False, True))
    assert each < alone
