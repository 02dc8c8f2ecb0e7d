from __future__ import annotations

import pytest

from attnlab.benchmarks import BENCHMARKS
from attnlab.benchmarks.loop import bench_loop
from attnlab.benchmarks.pairs import measure_in_turn


def test_pairs_are_measured_in_turn_and_the_ratio_is_that_of_pairs():
    order = []

    def thing(name, values):
        series = iter(values)

        def measure():
            order.append(name)
            return next(series)

        return name, measure

    result = measure_in_turn("t", thing("a", [9, 2, 4, 6]), thing("b", [9, 1, 4, 2]), unit="ms", rounds=3)
    assert order == ["a", "b"] * 4
    assert result.times == ((2, 4, 6), (1, 4, 2))  # the first round warms up
    content = result.to_json()
    assert content["ratio"] == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert "ratio 2.000 (from 1.000 to 3.000 in 3 rounds)" in str(result)


def test_the_loop_is_compared_with_a_bare_one():
    result = bench_loop(steps=1, rounds=1)
    assert [len(times) for times in result.times] == [1, 1]
    assert result.times[0][0] > 0
    assert result.names[1].startswith("bare")
    assert "0.8" in result.title


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_it_is(name):
    assert BENCHMARKS[name].__doc__
