from __future__ import annotations

import math

import pytest

from attnlab.tasks.char_lm.char_lm import character_metrics
from attnlab.tasks.char_lm.floors import BEST_KNOWN, best_known, character_floors
from attnlab.text.ngrams import Rung

RUNGS = [Rung(0, 3.0, 0.2, 2.995, 0.2, 0.00001), Rung(1, 2.0, 0.3, 1.5, 0.4, 0.001), Rung(2, 1.5, 0.5, 0.5, 0.9, 0.5)]


@pytest.fixture
def floors():
    return {(floor.metric, floor.reach): floor for floor in character_floors(character_metrics("val"), RUNGS, 29)}


def test_chance_is_the_uniform_guess(floors):
    assert floors["val_loss", None].value == math.log(29)
    assert floors["val_bits_per_character", None].value == math.log2(29)
    assert floors["val_accuracy", None].value == 1 / 29
    assert {floors[metric.name, None].kind for metric in character_metrics("val")} == {"chance"}


def test_a_rung_limits_the_reach_it_has(floors):
    for rung in RUNGS:
        floor = floors["val_loss", rung.order]
        assert (floor.kind, floor.value, floor.reach) == ("floor", rung.loss, rung.order)
    assert floors["val_loss", 1].name == "bigram (sees 1 character)"
    assert floors["val_loss", 2].name == "trigram (sees 2 characters)"


def test_bits_are_nats_in_another_unit(floors):
    nats, bits = floors["val_loss", 1], floors["val_bits_per_character", 1]
    assert bits.value * math.log(2) == pytest.approx(nats.value)
    assert bits.tolerance * math.log(2) == pytest.approx(nats.tolerance)


def test_tolerance_is_tight_where_text_is_plenty_and_never_far_beyond_the_limit(floors):
    assert floors["val_loss", 0].tolerance == pytest.approx(0.02, abs=0.001)
    assert floors["val_loss", 1].tolerance == pytest.approx(0.03)
    assert floors["val_loss", 2].tolerance == pytest.approx(0.02 + 1.0)
    assert floors["val_accuracy", 1].tolerance == pytest.approx(0.11)


def test_the_best_known_result_belongs_to_one_text():
    (sha256,) = BEST_KNOWN
    nats, bits = best_known(sha256)
    assert (nats.metric, nats.value, nats.kind) == ("val_loss", 1.4697, "best")
    assert bits.value == pytest.approx(1.4697 / math.log(2))
    assert "nanoGPT" in nats.source
    assert best_known("0" * 64) == ()
