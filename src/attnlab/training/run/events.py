"""What a run tells while it goes on: plain mappings handed to one function of the caller.

==============  ===========================================================================================
``kind``        further keys
==============  ===========================================================================================
every           step, steps (None with a budget in seconds)
``preparing``   doing (what is done before the first step or after the last, in words)
``start``       setting, reason (why that one), resumed (bool), division (among devices and pieces; empty if none)
``step``        progress, loss, lr, rate (tokens a second), seconds_left (None at first); at most five a second
``evaluation``  progress, part, metrics, best (bool: the best so far)
``watch``       seen (what the recipe wants to be watched, see below)
``stopping``    a person asked the run to stop; it saves and ends
``done``        metrics, best, seconds
==============  ===========================================================================================

What is seen in a look inside the model, by layer; the run's records have the same under ``watch``:

=================  ========================================================================================
``entropy``        of attention weights, by head; 1: all keys that a query may see have equal weights, 0: one has all
``logit_max``      the largest score before the normalizer, by head
``logit_std``      standard deviation of these scores, by head
``gradient_norm``  Euclidean norm of the gradient, before clipping
``update_ratio``   norm of the step's update over that of the weights before
``dead_share``     share of the features of a rectifier that are zero at every position looked at
``note``           why something of this could not be seen; absent where all was
=================  ========================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, final

OnEvent = Callable[[Mapping[str, Any]], None]
"""What a caller gives to be told."""

STEP_INTERVAL_S = 0.2  # five a second: smooth to the eye, nothing beside a step of milliseconds


def ignore_event(event: Mapping[str, Any]) -> None:
    """Do nothing with an event.

    Parameters
    ----------
    event : mapping
        Any event.
    """
    del event


@final
class Pace:
    """Measure how fast a run goes, and say when the next step is worth telling.

    Parameters
    ----------
    progress : float
        Progress of the budget now, where this process begins.
    """

    def __init__(self, progress: float) -> None:
        self.started = time.perf_counter()
        self.start_progress = progress
        self.told = 0.0
        self.tokens = 0
        self.seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count one training step."""
        self.tokens += tokens
        self.seconds += seconds

    def is_due(self) -> bool:
        """Whether enough time has gone by since a step was told, and count it as told."""
        now = time.perf_counter()
        if now - self.told < STEP_INTERVAL_S:
            return False
        self.told = now
        return True

    def rate(self) -> float:
        """Training positions per second of training steps."""
        return self.tokens / self.seconds if self.seconds > 0.0 else 0.0

    def seconds_left(self, progress: float) -> float | None:
        """The wall time left, evaluation included, if the run goes on as it did; None before the first step."""
        gained = progress - self.start_progress
        if gained <= 0.0:
            return None
        return (time.perf_counter() - self.started) / gained * max(0.0, 1.0 - progress)
