"""Modules by people who had not read the doctor: each broken one gets an error of the right check, no right one any.

They are kept as they were written, line by line; only `cases.json` says what is wrong with which.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.doctor.collection import thinned

from attnlab.doctor import doctor

FOLDER = Path(__file__).parent / "unseen"
CASES = [
    (part, case) for part in ("first", "second") for case in json.loads((FOLDER / part / "cases.json").read_text())
]


NAMES = [f"{part}/{case['target']}" for part, case in CASES]
KINDS = [(*case["expected"], case.get("question")) for _, case in CASES]


@pytest.mark.parametrize("seen", thinned(CASES, NAMES, KINDS))
def test_what_was_seen_for_the_first_time_is_judged_rightly(seen):
    part, case = seen
    diagnosis = doctor(f"{FOLDER / part / case['target']}", arguments=case["arguments"], causal=case["causal"])
    errors = {finding.check for finding in diagnosis.errors}
    if case.get("question"):  # nobody declares what is meant: it is asked, and not accused
        asked = {finding.check for finding in diagnosis.findings if finding.severity == "warning"}
        assert asked & set(case["expected"]), str(diagnosis)
    elif case["expected"]:
        assert errors & set(case["expected"]), f"{case['why']}\n{diagnosis}"
    else:
        assert not errors, str(diagnosis)
