"""The page on devices shows how far models came apart on several: by rounding, or it says why."""

from __future__ import annotations

import json

import pytest

from attnlab.models import MODELS
from tests.scripts import loaded


@pytest.fixture(scope="module")
def devices():
    return loaded("benchmarks/devices.py")


@pytest.fixture(scope="module")
def found(devices):
    return json.loads(devices.RESULTS.read_text(encoding="utf-8"))


def test_the_page_shows_what_was_found(devices, found):
    assert devices.BEGIN + devices.table(found["rows"]) + devices.END in devices.PAGE.read_text(encoding="utf-8")
    assert found["steps"] == 200


def test_every_model_can_be_tried_but_of_tables_and_what_is_made_of_other_models(devices):
    assert set(devices.CASES) == set(MODELS) - {"token-encoder", "mended", "pretrained"}


def test_every_model_that_can_be_tried_was(devices, found):
    assert list(dict.fromkeys(row["model"] for row in found["rows"])) == list(devices.CASES)


def test_differences_are_rounding_where_random_numbers_are_the_same(devices, found):
    for row in found["rows"]:
        counts = [row[str(count)] for count in devices.COUNTS[1:]]
        assert row["draws differ"] or not any(devices.is_far(one) for one in counts), row
