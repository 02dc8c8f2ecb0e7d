"""A cause: never believed, only tried, since what it explains is the difference that its removal makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

Nature = Literal["bug", "known effect", "own code", "set-up"]
"""Of a person's own code that a known part does better nothing says whether it is a bug, or what it is made for."""
Change = Mapping[str, Mapping[str, Any]]
"""What is merged over a set-up, by ``task``, ``model`` and ``training``."""
GAINS = ("small batch", "short context", "small model")
"""Causes without which nearly any model is better: tried last, and of no number that is too good or a difference."""
TOO_FEW_STEPS, OVERFITTING = "too few steps", "overfitting"
TINY_BATCH = "a tiny batch"
ANOTHER_SOURCE = "held-out items of another source"
LEAKING = "leaking split"
MAKES_UP = (TOO_FEW_STEPS, "no warm-up", "no limit of gradients", "constant rate")
"""Causes whose removal makes up for others, as another rate does."""
WHOLE = "the lab's attention is used instead"
OWN: Nature = "own code"
TITLES = {
    "scale": "wrong scale of the scores",
    "causality": "outputs that see ahead",
    "batch-independence": "the batch read as time",
    "normalization": "a softmax over another axis",
}
"""What these faults are called."""


@final
@dataclass(frozen=True)
class Cause:
    """Hold one thing that may have made a number what it is, and the same without it."""

    name: str  # what it is called; equal for all variants that have it
    nature: Nature  # what it would be, were it the cause
    removed: str  # what was done to remove it, in words
    changes: Mapping[str, Change]  # by variant what is merged over its set-up; variants without it are not there
    evidence: str = ""  # what else speaks for it; empty if nothing does
    source: str = ""  # where it is described
    remedy: str = ""  # what to do in a person's own code, in words; empty if nobody says
    tunes: bool = False  # whether the rate of each variant is searched instead
    costs: int = 1  # how many runs of the set-up one without it takes as long as
    grows: bool = False  # whether there may be more of it: it is removed again and again, as long as that helps
    began: bool = False  # whether it is a known effect that only training brought, as a rate may that is too high

    @property
    def whole(self) -> bool:
        """Whether a module is replaced as a whole, which removes more than what was found."""
        return self.removed == WHOLE

    @property
    def of_training(self) -> bool:
        """Whether nothing but settings of training is changed."""
        return all({*change} <= {"training"} for change in self.changes.values())


PHASES = 6
"""How many there are of what `phase_of` says."""


def phase_of(cause: Cause) -> int:
    """When a cause is removed: bugs, modules with one, effects and what was chosen, own code, rate and steps, gains.

    An effect that only training brought is removed beside the rate, which may have brought it. What is measured with a
    bug in it says little about what comes after, a module that is replaced as a whole little about the bug, and a
    longer run with another rate, which makes up for much, little about what it makes up for.
    """
    if cause.whole:
        return 1
    if cause.nature == "bug":
        return 0
    if cause.nature == OWN:
        return 3
    beside_rate = cause.tunes or cause.began or cause.name in MAKES_UP
    return 5 if cause.name in GAINS else 4 if beside_rate else 2
