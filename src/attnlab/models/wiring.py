"""Decide which part gets what: mixers per layer, positions by their level, arguments a block has use for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from attnlab.core.build import Spec, build, is_path, load_object, look_up, parse, signature_of
from attnlab.core.errors import SpecError
from attnlab.nn.axes.positions import POSITIONS
from attnlab.nn.block import BLOCKS
from attnlab.nn.mixers import MIXERS
from attnlab.nn.norms import NORMS

NO_POSITIONS = "none"  # act nowhere, so it does not matter that no mixer takes them


def one_per_layer(mixer: Spec | Sequence[Spec], n_layers: int) -> list[Spec]:
    """One mixer specification for each layer."""
    if isinstance(mixer, str | Mapping):
        return [mixer] * n_layers
    if len(mixer) != n_layers:
        raise SpecError(f"a list of mixers needs one entry per layer; got {len(mixer)} for n_layers {n_layers}")
    return list(mixer)


def offer_positions(positions: Spec, mixers: Sequence[Spec]) -> dict[str, Spec]:
    """What mixers are to be offered of the positions: nothing, if those act on the input."""
    name, _ = parse(positions, "positions")
    if name == NO_POSITIONS or _level(positions) == "input":
        return {}
    if not any("positions" in signature_of(_class_of(mixer, MIXERS, "mixer")) for mixer in mixers):
        raise SpecError(f"positions '{name}' act on attention scores, but no mixer of this model takes positions")
    return {"positions": positions}


def build_input_positions(positions: Spec, offered: Mapping[str, Any]) -> nn.Module:
    """The module that marks positions on the input: the identity, if they act on scores."""
    if _level(positions) == "input":
        return build(positions, POSITIONS, axis="positions", offered=offered)
    return nn.Identity()


def check_taken(given: Mapping[str, Any], block: Spec) -> None:
    """Refuse arguments that the block has no use for."""
    name, _ = parse(block, "block")
    parameters = signature_of(_class_of(block, BLOCKS, "block"))
    unused = [argument for argument in given if argument not in parameters]
    if unused:
        raise SpecError(f"block '{name}' takes no {', '.join(unused)}; leave it out")


def final_norm(block: Spec, given: Mapping[str, Any], d_model: int) -> nn.Module:
    """The norm after the last block: a pre-norm transformer's own kind, else the identity."""
    name, arguments = parse(block, "block")
    defaults = {key: p.default for key, p in signature_of(_class_of(block, BLOCKS, "block")).items()}
    chosen = defaults | dict(given) | arguments
    if name != "transformer" or chosen["norm"] != "pre":
        return nn.Identity()
    return build(chosen["norm_kind"], NORMS, axis="norm", offered={"d_model": d_model})


def _class_of(spec: Spec, table: Mapping[str, Any], axis: str) -> Any:
    """The class that a specification names."""
    name, _ = parse(spec, axis)
    return load_object(name) if is_path(name) else look_up(name, table, axis)


def _level(positions: Spec) -> str:
    """Where positions act: on the "input" or on the "scores"."""
    return _class_of(positions, POSITIONS, "positions").level
