from __future__ import annotations

import json

import pytest

from attnlab.benchmarks.measuring.turns import measure_in_turn


def recorder(order, name, values):
    series = iter(values)

    def measure():
        order.append(name)
        return next(series)

    return measure


def test_things_are_measured_in_turn_and_ratios_are_taken_round_by_round():
    order = []
    numbers = {"a": [9, 2, 4, 6], "b": [9, 1, 2, 12], "c": [9, 2, 4, 6]}
    things = {name: recorder(order, name, values) for name, values in numbers.items()}
    result = measure_in_turn("t", things, reference="a", unit="ms", rounds=3, notes=["d is not installed"])
    assert order == ["a", "b", "c"] * 4
    assert result.rows["a"] == (2, 4, 6)  # the first round warms up
    assert result.ratios("b") == [2.0, 2.0, 0.5]
    printed = str(result)
    assert "2.00x (0.50 to 2.00)" in printed
    assert "reference" in printed
    assert "d is not installed" in printed
    assert "3 rounds" in printed


def test_what_has_warmed_up_is_counted_from_the_first_round():
    order = []
    things = {"a": recorder(order, "a", [1, 2]), "b": recorder(order, "b", [3, 4])}
    result = measure_in_turn("t", things, reference="a", unit="ms", rounds=2, warm_up=False)
    assert result.rows == {"a": (1, 2), "b": (3, 4)}


def test_json_has_every_number_and_what_is_known_of_each_thing():
    things = {"a": recorder([], "a", [2, 4]), "b": recorder([], "b", [1, 1])}
    details = {"b": {"parameters": 1234, "tokens_per_second": 5678.9, "utilization": 0.25}}
    result = measure_in_turn("t", things, reference="a", unit="ms", rounds=2, warm_up=False, details=details)
    content = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert content["kind"] == "comparison"
    assert {"title", "unit", "reference", "notes", "environment"} < content.keys()
    first, second = content["rows"]
    assert first == {
        "name": "a",
        "median": 3,
        "values": [2, 4],
        "times_faster": {"median": 1.0, "low": 1.0, "high": 1.0},
    }
    assert second["times_faster"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert second["parameters"] == 1234
    assert {"torch", "threads", "cpu", "device"} <= content["environment"].keys()
    assert "1,234 parameters, 5,679 tokens/s, 25% of the matrix rate" in str(result)


def test_an_unknown_reference_is_an_error():
    with pytest.raises(KeyError):
        str(measure_in_turn("t", {"a": lambda: 1.0}, reference="b", unit="ms", rounds=1))
