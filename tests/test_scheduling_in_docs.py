"""The page about clusters says what was measured of handing out cells, and that it was enough."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_says_what_was_measured():
    found = json.loads((ROOT / "benchmarks" / "scheduling.json").read_text(encoding="utf-8"))
    page = " ".join((ROOT / "docs" / "clusters.md").read_text(encoding="utf-8").split())
    assert f"with {found['cells']:,} cells queued" in page
    for rounds in found["rounds"].values():
        pace, most = (median(one[key] for one in rounds) for key in ("cells_per_s", "most_bytes"))
        assert f"{pace:,.0f} " in page
        assert f"with {most / 1e6:.0f} MB" in page
        assert pace >= 200
        assert most < 1e9
