from __future__ import annotations

from dataclasses import replace

from attnlab.benchmarks import loop


def test_the_loop_is_compared_with_a_bare_one(monkeypatch):
    monkeypatch.setattr(loop, "SIZES", {"a": replace(loop.SIZES["a"], batch=2)})
    result = loop.bench_loop(steps=1, rounds=1)
    assert [len(times) for times in result.rows.values()] == [1, 1]
    assert result.rows["attnlab train"][0] > 0.0
    assert result.reference.startswith("bare")
    assert "0.8" in result.title
