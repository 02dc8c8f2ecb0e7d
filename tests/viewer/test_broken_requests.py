"""The short form of the campaign of broken requests at the viewer's server, and what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.scripts import loaded

from attnlab.viewer.guard import MOST_BYTES
from attnlab.viewer.server import application

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def fuzzer():
    return loaded("benchmarks/page_fuzzer.py")


def test_broken_requests_are_answered_or_refused(fuzzer, runs):
    found = fuzzer.campaign(150, 7, runs)
    assert [one for one in found if one["kind"] not in ("answered", "refused")] == []
    assert {one["kind"] for one in found} == {"answered", "refused"}


@pytest.mark.parametrize("length", ["1e3", "x", "-1", "+5", "\u0663", "9" * 5000])
def test_a_length_that_is_no_number_of_bytes(fuzzer, runs, length):
    status, _, body = fuzzer.Asking(application(runs)).ask("GET", "/", headers={"content-length": length})
    assert status == (413 if length.startswith("9") else 400)
    assert json.loads(body)["error"]


@pytest.mark.parametrize("body", [b"[" * 60_000, b"9" * 60_000, b"\xff"])
def test_a_body_that_python_does_not_read(fuzzer, runs, body):
    asking = fuzzer.Asking(application(runs))
    status, _, text = asking.ask("POST", "/run/tiny/plain/seed-0/look", body=body)
    assert status == 422
    assert json.loads(text)["error"].startswith("the body of a request must be ")


def test_a_body_that_nobody_reads_ends_a_stream(fuzzer, runs):
    status, _, _ = fuzzer.Asking(application(runs)).ask("GET", "/events/tiny", body=b"0" * (MOST_BYTES + 1))
    assert status == 200
