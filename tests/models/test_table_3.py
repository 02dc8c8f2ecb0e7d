"""Parameter counts of the rows of Table 3, beside those of the paper."""

from __future__ import annotations

import functools

import pytest
import torch

from attnlab.core.build import build
from attnlab.inspection import count_parameters
from attnlab.models import MODELS
from attnlab.nn.attention import Attention
from attnlab.nn.kernels.dropout import Dropout
from attnlab.studies.define.study import load_study

WIDE = {"(C) d_model 1024": 2.3, "big": 3.2}
STUDY = load_study("vaswani-table-3")
PAPER = STUDY.published.parameters


@functools.cache
def millions(variant):
    with torch.device("meta"):
        model = build(STUDY.model_spec(variant), MODELS, axis="model", offered={"max_length": 128, "pad": 0})
    return count_parameters(model) / 1e6


def test_base_by_hand():
    d, d_ff, tokens = 512, 2048, 37_000
    attention, norm, feedforward = 4 * (d * d + d), 2 * d, 2 * d * d_ff + d_ff + d
    layers = 6 * (attention + feedforward + 2 * norm) + 6 * (2 * attention + feedforward + 3 * norm)
    assert millions("base") == (tokens * d + layers) / 1e6


@pytest.mark.parametrize("variant", PAPER)
def test_rows_differ_from_base_as_in_the_paper(variant):
    """Within a million, to which the paper rounds; wide rows within more: no vocabulary size fits all of its rows."""
    ours, theirs = millions(variant) - millions("base"), (PAPER[variant] - PAPER["base"]) / 1e6
    assert abs(ours - theirs) <= WIDE.get(variant, 1)


@pytest.mark.parametrize("variant", [name for name in STUDY.variants if name.startswith(("(A)", "(D)"))])
def test_rows_that_have_the_parameters_of_base(variant):
    assert millions(variant) == millions("base")


@pytest.mark.parametrize(("preset", "row"), [("transformer-base", "base"), ("transformer-big", "big")])
def test_presets_are_the_rows_of_the_table(preset, row):
    offered = {"source_vocab_size": 37_000, "target_vocab_size": 37_000, "max_length": 128}
    with torch.device("meta"):
        model = build({"name": preset}, MODELS, axis="model", offered=offered)
    assert count_parameters(model) / 1e6 == millions(row)
    attention = model.decoder.blocks[0].cross
    assert attention.heads.n_heads == {"base": 8, "big": 16}[row]


@pytest.mark.parametrize(
    ("spec", "rate"),
    [
        ({"name": "transformer-base"}, 0.1),
        ({"name": "transformer-big"}, 0.3),
        (STUDY.model_spec("base"), 0.1),
        (STUDY.model_spec("(D) dropout 0.2"), 0.2),
        (STUDY.model_spec("big"), 0.3),
    ],
)
def test_dropout_acts_where_the_paper_has_it(spec, rate):
    """On the sums of embedding and position and on every sublayer: section 5.4 names nothing else."""
    offered = {"source_vocab_size": 37_000, "target_vocab_size": 37_000, "max_length": 128}
    with torch.device("meta"):
        model = build(spec, MODELS, axis="model", offered=offered)
    attention = [module for module in model.modules() if isinstance(module, Attention)]
    inside = [module.feedforward.drop for module in model.modules() if hasattr(module, "feedforward")]
    outside = [module for module in model.modules() if isinstance(module, Dropout) and module not in inside]
    assert (len(attention), len(inside), len(outside)) == (18, 12, 2 + 12 + 18)
    assert {module.dropout for module in attention} == {module.p for module in inside} == {0.0}
    assert {module.p for module in outside} == {rate}
