"""Points thinned to what a screen shows."""

from __future__ import annotations

import math

import pytest

from attnlab.viewer.curves import RecordsTail, thinned


@pytest.mark.parametrize("count", [0, 1, 2, 13, 14, 15, 97, 1009])
def test_the_extremes_and_both_ends_of_a_curve_stay(count):
    values = [math.sin(place * place) for place in range(count)]
    points = thinned(range(count), values, 7)
    assert len(points) <= 15
    assert points == sorted(points)
    if count:
        assert points[-1][0] == count - 1
        kept = [value for _, value in points]
        assert (min(kept), max(kept)) == pytest.approx((min(values), max(values)), rel=1e-4)


def test_only_finite_numbers_at_a_step_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [b'{"step": 1, "loss": 0.5, "name": "x", "bad": NaN, "worse": Infinity, "more": [1]}', b"", b"null", b"[1]"]
    lines += [b'{"loss": 1}', b'{"step": "2"}', b'{"step": 1.5}', b'{"step": -1}', b'{"step": %d}' % 2**60, b"\xff\xfe"]
    path.write_bytes(b"\n".join([*lines, b'{"step": 2, "loss": 1' + b"0" * 400 + b"}", b'{"step": 3}']))
    tail = RecordsTail(path)
    assert tail.read() == ([{"step": 1, "loss": 0.5}], False)
    assert tail.damaged == len(lines)
    assert RecordsTail(tmp_path / "none").read() == ([], False)
