"""Each part gets what it has use for, and what has no effect is refused."""

from __future__ import annotations

import pytest
from torch import nn

from attnlab.core.errors import SpecError
from attnlab.models.wiring import Unmarked, build_input_positions, check_taken, offer_positions, one_per_layer
from attnlab.nn.block import Block, LiteralBlock
from attnlab.nn.norms import RmsNorm

WIDTH = 7


def test_one_mixer_serves_all_layers() -> None:
    assert one_per_layer("none", 3) == ["none"] * 3
    assert one_per_layer({"name": "lstm"}, 2) == [{"name": "lstm"}] * 2


def test_a_list_must_fit() -> None:
    assert one_per_layer(["none", "lstm"], 2) == ["none", "lstm"]
    with pytest.raises(SpecError, match="needs one entry per layer; got 2 for n_layers 3"):
        one_per_layer(["none", "lstm"], 3)


def test_positions_go_where_they_act() -> None:
    offered = {"d_model": WIDTH, "max_length": 11}
    assert offer_positions("learned", ["none"]) == {}
    assert type(build_input_positions("learned", offered)) is not Unmarked
    assert offer_positions("rotary", ["none", "attention"]) == {"positions": "rotary"}
    assert type(build_input_positions("rotary", offered)) is Unmarked
    assert offer_positions("none", []) == {}


def test_positions_without_effect_are_refused() -> None:
    with pytest.raises(SpecError, match="positions 'rotary' act on attention scores, but no mixer"):
        offer_positions({"name": "rotary"}, ["lstm", "none"])


def test_arguments_without_effect_are_refused() -> None:
    check_taken({"feedforward": "relu"}, "transformer")
    with pytest.raises(SpecError, match="block 'literal' takes no feedforward; leave it out"):
        check_taken({"feedforward": "relu", "norm": "none"}, {"name": "literal"})


def test_the_final_norm_is_of_the_blocks_kind() -> None:
    assert type(Block(WIDTH, "none", norm_kind="rms").last_norm()) is RmsNorm
    assert type(Block(WIDTH, "none", norm="post").last_norm()) is nn.Identity
    assert type(LiteralBlock(WIDTH, "none", norm="pre").last_norm()) is nn.Identity
