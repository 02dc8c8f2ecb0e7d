"""What the doctor answers the two people whose questions began all this: a forum question and a blog post.

The first asks of five modules: is this behaviour normal, is my implementation wrong, is my set-up not suitable? The
second compares a convolution network, one with attention, and an LSTM, and concludes from that.
"""

from __future__ import annotations

import functools
import re

import pytest
from tests.doctor.collection import FOLDER

from attnlab.doctor import Diagnosis, doctor

SIZES = {"emb_size": 64, "head_size": 64}
WITH_SUM = ["ResidualAttention", "LayNormResAttention", "TorchMhAttention"]
WITH_ATTENTION = ["SimpleAttention", *WITH_SUM]


@functools.cache
def forum(name: str) -> Diagnosis:
    folder = "right" if name == "NoAttentionAttention" else "broken"
    return doctor(f"{FOLDER}/{folder}/forum.py:{name}", arguments=SIZES)


@functools.cache
def blog(name: str) -> Diagnosis:
    return doctor(f"{FOLDER}/blog.py:{name}")


def said(diagnosis: Diagnosis, check: str, severity: str) -> str:
    """Return messages, evidence and remedies of a check, in one text."""
    found = [one for one in diagnosis.findings if (one.check, one.severity) == (check, severity)]
    return "\n".join(f"{one.message} {one.evidence} {one.remedy}" for one in found)


# The forum question


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_the_verdict_is_a_bug(name):
    assert forum(name).verdict == "bug"


@pytest.mark.parametrize("name", WITH_SUM)
def test_my_implementation_is_wrong_the_residual_is_none(name):
    text = said(forum(name), "residual", "error")
    assert "no identity path" in text
    assert "the sum with its input goes through a linear layer in 'linear'" in text
    assert "x = x + dropout(linear(f(norm(x))))" in text


def test_attention_without_residual_is_worse_than_none_because_the_signal_dies():
    text = said(forum("SimpleAttention"), "signal", "warning")
    assert "shrinks the signal" in text
    assert "makes all positions alike" in text
    assert "loses the gradient" in said(forum("SimpleAttention"), "gradient", "warning")
    assert "stays on the CPU" in said(forum("SimpleAttention"), "dtype-device", "error")


@pytest.mark.parametrize("name", ["SimpleAttention", "ResidualAttention"])
def test_the_signal_shrinks_by_a_number_per_block(name):
    factor = re.search(r"shrinks the signal to (0\.\d\d) of its size per", said(forum(name), "signal", "warning"))
    assert factor
    assert 0.35 < float(factor[1]) < 0.5  # a rectified linear layer under its usual start: 6 ** -0.5 = 0.41


@pytest.mark.parametrize("name", ["LayNormResAttention", "TorchMhAttention"])
def test_layer_norm_looks_crucial_because_it_makes_up_for_the_shrinking(name):
    assert "keeps the size of its signal" in said(forum(name), "signal", "info")
    assert not said(forum(name), "signal", "warning")


@pytest.mark.parametrize("name", ["SimpleAttention", "ResidualAttention", "LayNormResAttention"])
def test_the_scale_is_right_for_one_head_only(name):
    assert "right for one head only" in said(forum(name), "scale", "info")


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_a_loss_too_good_to_be_true_does_not_come_from_the_module(name):
    errors = {one.check for one in forum(name).errors}
    assert not errors & {"causality", "batch-independence", "padding"}
    text = said(forum(name), "receptive-field", "info")
    assert "nothing after it" in text
    assert "look at the split" in text


def test_without_attention_no_position_sees_another_so_a_loss_below_a_bigram_is_not_its_own():
    text = said(forum("NoAttentionAttention"), "receptive-field", "warning")
    assert "sees 1 of 100 positions" in text
    assert "beats a bigram" in text
    assert forum("NoAttentionAttention").verdict == "set-up"


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_order_is_known_from_the_mask_alone(name):
    assert "but for the causal mask" in said(forum(name), "positions", "info")


# The blog post


def test_the_network_of_convolutions_fails_by_what_it_can_see():
    diagnosis = blog("convolutions")
    assert "sees 21 of 100 positions" in said(diagnosis, "receptive-field", "warning")
    assert "dilated convolutions" in said(diagnosis, "receptive-field", "warning")
    assert (diagnosis.verdict, diagnosis.summary[-17:]) == ("set-up", "(receptive-field)")


@pytest.mark.parametrize("name", ["convolutions", "convolutions_and_attention", "LSTM"])
def test_whole_networks_are_not_stacked_on_themselves(name):
    assert not [one for one in blog(name).findings if one.check in {"signal", "gradient"}]


def test_one_attention_layer_lets_the_network_see_everything():
    assert "sees the whole input" in said(blog("convolutions_and_attention"), "receptive-field", "info")


def test_the_logits_of_its_attention_are_not_scaled():
    sizes = {"in_channels": 64, "out_channels": 64, "key_channels": 96}
    text = said(doctor(f"{FOLDER}/blog.py:AttentionLayer", arguments=sizes), "scale", "error")
    assert "the scores are not scaled: the logits grow with the size of a head" in text


def test_the_lstm_reads_the_batch_as_time_so_nothing_follows_about_lstms():
    diagnosis = blog("LSTM")
    assert "reads the batch as time" in said(diagnosis, "batch-independence", "error")
    assert "batch_first" in said(diagnosis, "batch-independence", "error")
    assert "earlier call until reset() is called" in said(diagnosis, "determinism", "warning")
