"""The benchmark of very many runs: its studies are such as the lab writes, and its table is that of the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.scripts import loaded

from attnlab.studies import read_results

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench():
    return loaded("benchmarks/many_runs.py")


def test_its_studies_are_read_as_any_other(bench, tmp_path):
    out = tmp_path / "2-3"
    bench.fill(out, 2, 3)
    results = read_results(out)
    assert results.complete
    assert [len(variant.done) for variant in results.variants] == [3, 3]
    assert len({*results.variants[1].values("test_mse").values()}) == 3
    bench.go_on(out)
    bench.view(out)


def test_the_page_has_what_was_measured(bench):
    found = json.loads(bench.RESULTS.read_text(encoding="utf-8"))["found"]
    page = bench.PAGE.read_text(encoding="utf-8")
    assert page.partition(bench.BEGIN)[2].partition(bench.END)[0] == bench.table(found)
    assert {"read", "report", "run", "view"} == {one["command"] for one in found if one["indexed"]}
