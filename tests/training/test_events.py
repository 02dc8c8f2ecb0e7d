"""Steps are told now and then, with rate and time left."""

from __future__ import annotations

from attnlab.training.run.events import Pace


def test_steps_are_throttled():
    pace = Pace(0.0)
    assert pace.is_due()
    assert not pace.is_due()


def test_rate_and_time_left():
    pace = Pace(0.5)
    assert pace.rate() == 0.0
    assert pace.seconds_left(0.5) is None
    pace.add(10, 2.0)
    assert pace.rate() == 5.0
    assert pace.seconds_left(0.75) >= 0.0
    assert pace.seconds_left(1.0) == 0.0
