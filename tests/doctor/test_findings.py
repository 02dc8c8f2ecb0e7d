"""A diagnosis: sorted by severity, judged by its gravest finding, whole as plain data."""

from __future__ import annotations

import json

import pytest

from attnlab.doctor.findings import SENTENCES, Diagnosis, Finding, worst_first

ERROR = Finding("scale", "error", "No scale.", "slope +0.5", "divide by sqrt(d_head)", "Vaswani 2017")
EFFECT = Finding("signal", "warning", "It shrinks.", "0.41 per block")
SET_UP = Finding("receptive-field", "warning", "It sees little.", "21 of 100 positions", nature="set-up")
FACT = Finding("cost", "info", "Quadratic.", "exponent 2.0")


def unfinished(*checks):
    return [Finding(check, "info", "could not be examined: the module raised.", "ValueError") for check in checks]


def diagnosis(*findings):
    return Diagnosis("mine.py:Mine", worst_first(findings), {"layout": "batch first"}, {"scale": 0.1234})


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        ((FACT, SET_UP, EFFECT, ERROR), "bug"),
        ((FACT, SET_UP, EFFECT), "known effect"),
        ((FACT, SET_UP), "set-up"),
        ((FACT,), "healthy"),
        ((), "healthy"),
        ((FACT, *unfinished("padding", "scale")), "healthy"),
        ((EFFECT, *unfinished("padding", "scale", "cache")), "not examined"),
        ((ERROR, *unfinished("padding", "scale", "cache")), "bug"),
    ],
)
def test_the_gravest_finding_makes_the_verdict(findings, verdict):
    assert diagnosis(*findings).verdict == verdict
    assert diagnosis(*findings).summary.startswith(SENTENCES[verdict])


def test_the_summary_names_the_checks_that_led_to_it():
    assert diagnosis(FACT, ERROR, EFFECT).summary.endswith("(scale)")


def test_findings_are_sorted_worst_first_and_otherwise_kept():
    second = Finding("signal", "warning", "It blows up.", "3 per block")
    assert worst_first([FACT, EFFECT, second, ERROR]) == (ERROR, EFFECT, second, FACT)


def test_plain_data_hold_everything_that_was_promised():
    data = json.loads(json.dumps(diagnosis(ERROR, SET_UP).to_json()))
    assert data["verdict"] == "bug"
    assert data["assumptions"] == {"layout": "batch first"}
    assert data["findings"][0] == {
        "check": "scale",
        "severity": "error",
        "message": "No scale.",
        "evidence": "slope +0.5",
        "remedy": "divide by sqrt(d_head)",
        "source": "Vaswani 2017",
        "accepted": False,
    }
    assert data["seconds"] == {"scale": 0.123}


def test_as_text_each_error_comes_with_evidence_remedy_and_source():
    text = str(diagnosis(ERROR, FACT))
    for part in ("mine.py:Mine: bug", "error: scale: No scale.", "slope +0.5", "divide by", "Vaswani", "info: cost"):
        assert part in text


def test_only_errors_are_errors():
    assert diagnosis(FACT, EFFECT, ERROR).errors == (ERROR,)


def test_the_summary_says_what_could_not_be_examined():
    left = Finding("cache", "info", "could not be examined: the module raised an exception in this check.", "")
    assert diagnosis(FACT, left).verdict == "healthy"
    assert diagnosis(FACT, left).summary.endswith("could not be examined: cache")
