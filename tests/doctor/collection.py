"""Modules as people write them, broken and right, and how the doctor does on them.

The files under ``patients/broken`` and ``patients/right`` know nothing of the doctor: what is wrong with a module
stands in `broken_cases` and `right_cases` alone. The modules were written before the checks were seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.doctor.patients.broken_cases import BROKEN
from tests.doctor.patients.case import Case
from tests.doctor.patients.right_cases import RIGHT

from attnlab import doctor
from attnlab.doctor.findings import Diagnosis

FOLDER = Path(__file__).parent / "patients"
CASES: tuple[Case, ...] = BROKEN + RIGHT
EVERY = 12
"""Of one kind ``make test`` examines the first and one in so many after it; ``make test-all`` all."""


def thinned(cases: Sequence[Any], names: Iterable[str], kinds: Iterable[Hashable]) -> list[Any]:
    """Cases to parametrize a test by, most of them slow."""
    before: Counter[Hashable] = Counter()
    found = []
    for case, name, kind in zip(cases, names, kinds, strict=True):
        found.append(pytest.param(case, id=name, marks=[pytest.mark.slow] if before[kind] % EVERY else []))
        before[kind] += 1
    return found


def examine(case: Case) -> Diagnosis:
    """Return what the doctor says of one module."""
    return doctor(f"{FOLDER / case.target}", arguments=dict(case.arguments), causal=case.causal)


def told(case: Case, diagnosis: Diagnosis) -> set[str]:
    """Return the checks that report something as grave as what is wrong with a module."""
    return {one.check for one in diagnosis.findings if one.severity == case.severity and not one.accepted}


@dataclass(frozen=True)
class Outcome:
    """Hold what came of one examination.

    Parameters
    ----------
    case : Case
        What was examined.
    errors : tuple of str
        Ids of the checks that reported errors.
    seconds : float
        Wall time.
    """

    case: Case
    errors: tuple[str, ...]
    seconds: float

    @property
    def is_right(self) -> bool:
        """Return whether the doctor said what it must: an expected error, or none where none is due."""
        if self.case.check:
            return bool(self.case.expected.intersection(self.errors))
        return not self.errors


@dataclass(frozen=True)
class Score:
    """Hold how the doctor did on the whole collection.

    Parameters
    ----------
    found : dict
        Check id -> (broken modules found, broken modules written for it).
    wrong : int
        Errors reported in right modules.
    right : int
        Right modules.
    seconds : tuple of float
        Median and maximum wall time of an examination.
    """

    found: dict[str, tuple[int, int]]
    wrong: int
    right: int
    seconds: tuple[float, float]


def score(outcomes: Iterable[Outcome]) -> Score:
    """Return how many broken modules were found per check, and how many errors the right ones got."""
    outcomes = list(outcomes)
    found: dict[str, tuple[int, int]] = {}
    for outcome in outcomes:
        if check := outcome.case.check:
            hits, total = found.get(check, (0, 0))
            found[check] = (hits + outcome.is_right, total + 1)
    right = [outcome for outcome in outcomes if not outcome.case.check]
    seconds = [outcome.seconds for outcome in outcomes] or [0.0]
    return Score(found, sum(len(outcome.errors) for outcome in right), len(right), (median(seconds), max(seconds)))
