"""The page about the scale of dot products shows what is measured, and what is measured is the Jacobian."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.scripts import loaded

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(scope="module")
def scale():
    return loaded("docs/make_why_scaled.py")


@pytest.mark.parametrize("d_k", [4, 64])
def test_the_page_shows_what_is_measured(scale, d_k):
    rows = [line for line in (DOCS / "why-scaled.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    numbers = {cells[0]: cells[1:] for cells in ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)}
    assert list(numbers)[1:] == [str(width) for width in scale.WIDTHS]
    assert [float(value) for value in numbers[str(d_k)]] == pytest.approx(scale.row(d_k), rel=0.06)  # of two digits


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_what_is_measured_is_the_jacobian(scale, power):
    generator = torch.Generator().manual_seed(5)
    query, keys = torch.randn(1, 1, 5, generator=generator)[0, 0], torch.randn(1, scale.KEYS, 5, generator=generator)[0]
    by_scores = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), keys @ query / 5**power)
    by_query = torch.autograd.functional.jacobian(lambda q: (keys @ q / 5**power).softmax(-1), query)
    expected = (by_scores.norm().item(), by_query.norm().item(), by_query.norm().item())
    assert tuple(scale.measured(5, power, queries=1)) == pytest.approx(expected, rel=1e-5)


def test_only_the_root_keeps_gradients_at_every_width(scale):
    narrow, wide = (
        {name: scale.measured(d_k, power, queries=256) for name, power in scale.POWERS.items()} for d_k in (16, 256)
    )
    assert wide["sqrt(d_k)"] == pytest.approx(narrow["sqrt(d_k)"], rel=0.1)
    assert wide["d_k"].to_query < narrow["d_k"].to_query / 3
    assert wide["1"].to_scores < narrow["1"].to_scores / 2
    assert wide["1"].to_middle_query < narrow["1"].to_middle_query / 2 < wide["1"].to_query
