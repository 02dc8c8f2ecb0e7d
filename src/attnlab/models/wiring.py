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
    """Return one mixer specification for each layer.

    Parameters
    ----------
    mixer : Spec or list of Spec
        One for all layers, or one per layer.
    n_layers : int
        Number of layers.

    Returns
    -------
    list of Spec
        As many as there are layers.

    Raises
    ------
    SpecError
        If a list has another number of entries than there are layers.
    """
    if isinstance(mixer, str | Mapping):
        return [mixer] * n_layers
    if len(mixer) != n_layers:
        raise SpecError(f"a list of mixers needs one entry per layer; got {len(mixer)} for n_layers {n_layers}")
    return list(mixer)


def offer_positions(positions: Spec, mixers: Sequence[Spec]) -> dict[str, Spec]:
    """Return what mixers are to be offered of the positions: nothing, if those act on the input.

    Parameters
    ----------
    positions : Spec
        The model's positions.
    mixers : sequence of Spec
        The model's mixers.

    Returns
    -------
    dict of str to Spec
        Empty, or the positions by the name under which a mixer takes them.

    Raises
    ------
    SpecError
        If the positions act on attention scores and no mixer has any.
    """
    name, _ = parse(positions, "positions")
    if name == NO_POSITIONS or _level(positions) == "input":
        return {}
    if not any("positions" in signature_of(_class_of(mixer, MIXERS, "mixer")) for mixer in mixers):
        raise SpecError(f"positions '{name}' act on attention scores, but no mixer of this model takes positions")
    return {"positions": positions}


def build_input_positions(positions: Spec, offered: Mapping[str, Any]) -> nn.Module:
    """Return the module that marks positions on the input: the identity, if they act on scores.

    Parameters
    ----------
    positions : Spec
        The model's positions.
    offered : mapping
        What the surroundings know: ``d_model``, ``max_length``, ``causal``.

    Returns
    -------
    Module
        From (batch, length, d_model) to the same shape.
    """
    if _level(positions) == "input":
        return build(positions, POSITIONS, axis="positions", offered=offered)
    return nn.Identity()


def check_taken(given: Mapping[str, Any], block: Spec) -> None:
    """Refuse arguments that the block has no use for.

    Parameters
    ----------
    given : mapping
        Arguments that were set on purpose.
    block : Spec
        The block they are meant for.

    Raises
    ------
    SpecError
        If the block has no parameter of such a name.
    """
    name, _ = parse(block, "block")
    parameters = signature_of(_class_of(block, BLOCKS, "block"))
    unused = [argument for argument in given if argument not in parameters]
    if unused:
        raise SpecError(f"block '{name}' takes no {', '.join(unused)}; leave it out")


def final_norm(block: Spec, given: Mapping[str, Any], d_model: int) -> nn.Module:
    """Return the norm after the last block: a pre-norm transformer's own kind, else the identity.

    Parameters
    ----------
    block : Spec
        The block; what it sets itself wins.
    given : mapping
        Arguments the model gives it.
    d_model : int
        Width of the residual stream.

    Returns
    -------
    Module
        From (batch, length, d_model) to the same shape.
    """
    name, arguments = parse(block, "block")
    defaults = {key: p.default for key, p in signature_of(_class_of(block, BLOCKS, "block")).items()}
    chosen = defaults | dict(given) | arguments
    if name != "transformer" or chosen["norm"] != "pre":
        return nn.Identity()
    return build(chosen["norm_kind"], NORMS, axis="norm", offered={"d_model": d_model})


def _class_of(spec: Spec, table: Mapping[str, Any], axis: str) -> Any:
    """Return the class that a specification names."""
    name, _ = parse(spec, axis)
    return load_object(name) if is_path(name) else look_up(name, table, axis)


def _level(positions: Spec) -> str:
    """Return where positions act: on the "input" or on the "scores"."""
    return _class_of(positions, POSITIONS, "positions").level
