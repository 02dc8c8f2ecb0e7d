from __future__ import annotations

import json
import math
import random

import pytest

from attnlab.benchmarks.measuring.growth import GrowthReport, GrowthRow, GrowthTable, fit_growth, name_law
from attnlab.core.errors import AttnlabError


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5, 1.0, 2.0, 3.0])
def test_the_exponent_of_a_power_is_found(exponent):
    growth = fit_growth({size: [7 * size**exponent] for size in (3, 5, 11, 23, 47)})
    assert growth.exponent == pytest.approx(exponent)
    assert growth.error == pytest.approx(0, abs=1e-7)


def test_only_the_longer_half_of_the_sizes_counts():
    measured = {size: [1000 + size**2] for size in (1, 2, 4)} | {size: [size**2] for size in (1024, 2048, 4096)}
    growth = fit_growth(measured)
    assert growth.sizes == (1024, 2048, 4096)
    assert growth.exponent == pytest.approx(2)


def test_the_middle_of_an_odd_number_of_sizes_counts_to_the_longer_half():
    assert fit_growth({1: [1], 2: [2], 4: [4]}).sizes == (2, 4)


def test_the_standard_error_covers_the_truth_as_often_as_it_should():
    noise = random.Random(0)
    inside = 0
    for _ in range(300):
        measured = {size: [size**1.5 * math.exp(noise.gauss(0, 0.2)) for _ in range(9)] for size in (64, 128, 256)}
        growth = fit_growth(measured)
        inside += abs(growth.exponent - 1.5) < growth.error
    assert 0.58 < inside / 300 < 0.78  # one standard error: 68 %


def test_a_line_through_two_numbers_has_no_error():
    growth = fit_growth({8: [2.0], 16: [4.0]})
    assert growth.error is None
    assert growth.power_of("n") == "n^1.00"


@pytest.mark.parametrize("measured", [{}, {8: [1.0]}, {8: [1.0], 16: []}])
def test_too_little_has_no_growth(measured):
    assert fit_growth(measured) is None


def test_zero_has_no_law_of_growth():
    with pytest.raises(AttnlabError, match="positive"):
        fit_growth({8: [1.0], 16: [0.0]})


@pytest.mark.parametrize(
    ("counts", "law"),
    [
        ({8: 3, 64: 3, 512: 3}, "constant"),
        ({3: 1, 9: 2, 27: 3, 81: 4}, "log_3.0 n"),
        ({8: 4, 16: 8, 32: 16, 64: 32}, ""),
        ({4: 2, 16: 4, 64: 8, 256: 16}, ""),
    ],
)
def test_laws_of_counts_are_told_apart(counts, law):
    assert name_law(counts, "n") == law


def table():
    rows = (
        GrowthRow("fast", {8: (1.0, 4.0, 2.0), 16: (4.0,)}, expected="n"),
        GrowthRow("slow", {8: (1000.0,)}, {16: "would take 40 s", 32: "would take 160 s"}),
        GrowthRow("silent", {8: (1.0,)}, {16: ""}),
    )
    return GrowthTable("Milliseconds", "n", rows)


def test_a_table_shows_medians_laws_and_reasons():
    title, head, fast, slow, silent, *reasons = str(table()).splitlines()
    assert title == "Milliseconds"
    assert head.split() == ["n", "=", "8", "n", "=", "16", "n", "=", "32", "growth", "expected"]
    assert fast.split() == ["fast", "2.00", "4.00", "not", "run", "n^1.00", "±", "1.15", "n"]
    assert slow.split() == ["slow", "1,000.00", "not", "run", "not", "run"]
    assert silent.split()[:2] == ["silent", "1.00"]
    assert reasons == ["  not run: slow from n = 16 on: would take 40 s"]


def test_a_report_is_written_as_json_and_as_text():
    report = GrowthReport(
        "additive", (table(),), ("measured once",), {"torch": "2", "threads": 1, "cpu": "c", "device": "cpu"}
    )
    content = json.loads(json.dumps(report.to_json()))
    assert content["kind"] == "growth"
    fast, slow, _ = content["tables"][0]["rows"]
    assert fast["medians"] == {"8": 2.0, "16": 4.0}
    assert fast["growth"]["sizes"] == [8, 16]
    assert slow["missing"] == {"16": "would take 40 s", "32": "would take 160 s"}
    assert slow["growth"] is None
    printed = str(report)
    assert (
        printed.index("additive")
        < printed.index("Milliseconds")
        < printed.index("measured once")
        < printed.index("torch 2")
    )
