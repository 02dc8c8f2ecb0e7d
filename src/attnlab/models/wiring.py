"""Decide which part gets what: mixers per layer, positions by their level, arguments a block has use for."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, cast, final

from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.build import Spec, build, class_of, is_ready, name_of
from attnlab.core.constructors import signature_of
from attnlab.core.errors import SpecError
from attnlab.core.sizes import repeated
from attnlab.nn.axes.positions import POSITIONS, AbstractInputPositions
from attnlab.nn.block import BLOCKS
from attnlab.nn.mixers import MIXERS

NO_POSITIONS = "none"  # act nowhere, so it does not matter that no mixer takes them


def one_per_layer(mixer: Spec | Sequence[Spec], n_layers: int) -> list[Spec]:
    """One mixer specification for each layer."""
    if not isinstance(mixer, list | tuple):
        return repeated(cast(Spec, mixer), n_layers)
    if len(mixer) != n_layers:
        raise SpecError(f"a list of mixers needs one entry per layer; got {len(mixer)} for n_layers {n_layers}")
    return list(mixer)


def offer_positions(positions: Spec, mixers: Sequence[Spec]) -> dict[str, Spec]:
    """What mixers are to be offered of the positions: nothing, if those act on the input."""
    name = name_of(positions, POSITIONS, "positions")
    if name == NO_POSITIONS or _level(positions) == "input":
        return {}
    to_be_built = [class_of(mixer, MIXERS, "mixer") for mixer in mixers if not is_ready(mixer)]
    if not any("positions" in signature_of(mixer) for mixer in to_be_built):
        raise SpecError(f"positions '{name}' act on attention scores, but no mixer of this model takes positions")
    return {"positions": positions}


@final
class Unmarked(AbstractInputPositions):
    """Leave the input as it is: where a token stands acts on scores, or nowhere."""

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        start: int = 0,  # noqa: ARG002
    ) -> Float[Tensor, "batch length d_model"]:
        """Return `x`."""
        return x


def build_input_positions(positions: Spec, offered: Mapping[str, Any]) -> nn.Module:
    """The module that marks positions on the input, if that is where they act."""
    if _level(positions) == "input":
        return build(positions, POSITIONS, axis="positions", offered=offered)
    return Unmarked()


def _level(positions: Spec) -> str:
    """Where positions act: on the "input" or on the "scores"."""
    return class_of(positions, POSITIONS, "positions").level


def check_taken(given: Mapping[str, Any], block: Spec) -> None:
    """Refuse arguments that the block has no use for."""
    name = name_of(block, BLOCKS, "block")
    parameters = {} if is_ready(block) else signature_of(class_of(block, BLOCKS, "block"))
    unused = [argument for argument in given if argument not in parameters]
    if unused:
        raise SpecError(f"block '{name}' takes no {', '.join(unused)}; leave it out")


class AbstractTying(nn.Module, ABC):
    """Load weights of which some are one under several names; files keep the first alone."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As torch does; of tied weights one name is enough."""
        return super().load_state_dict(_with_tied(self, state_dict) if strict else state_dict, strict, assign)


def _with_tied(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state in which tied weights have each of their names, of which files keep the first alone."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    known = {name: state[one] for same in names.values() for one in same if one in state for name in same}
    return {**known, **state}
