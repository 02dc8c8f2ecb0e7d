"""How a mask argument is given: which values keep, in which shape, and what is known about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.sources import ALL_OF_MEMORY, MEMORY_LENGTH, SOURCES, Situation

_FINITE_BLOCK = -1e9  # far below any score; for modules that multiply a mask, where -inf times 0 is NaN

ENCODINGS: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "bool, True = may attend": lambda allowed, _dtype: allowed,
    "bool, True = blocked": lambda allowed, _dtype: ~allowed,
    "float, 0 or -inf added to the scores": lambda allowed, dtype: _additive(allowed, dtype, float("-inf")),
    "int, 1 = may attend": lambda allowed, _dtype: allowed.long(),
    "int, 1 = blocked": lambda allowed, _dtype: (~allowed).long(),
    "float, 1 = may attend": lambda allowed, dtype: allowed.to(dtype),
    "float, 1 = blocked": lambda allowed, dtype: (~allowed).to(dtype),
    "float, 0 or -1e9 added to the scores": lambda allowed, dtype: _additive(allowed, dtype, _FINITE_BLOCK),
}
"""What a mask's values mean: from bool, True = may attend, to what the module understands."""

SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "(q_len, k_len)": lambda allowed: allowed[0],
    "(1, q_len, k_len)": lambda allowed: allowed[:1],
    "(1, 1, q_len, k_len)": lambda allowed: allowed[:1, None],
    "(batch, 1, q_len, k_len)": lambda allowed: allowed[:, None],
    "(batch, q_len, k_len)": lambda allowed: allowed,
    "(q_len, k_len, 1)": lambda allowed: allowed[0][..., None],
    "(q_len, k_len, batch)": lambda allowed: allowed.movedim(0, -1),
}
"""Shapes of a mask, from (batch, q_len, k_len)."""

KEYS_BEFORE_BATCH = "(k_len, batch)"
KEY_SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "(batch, k_len)": lambda real: real,
    "(batch, 1, k_len)": lambda real: real[:, None],
    "(batch, 1, 1, k_len)": lambda real: real[:, None, None],
    KEYS_BEFORE_BATCH: lambda real: real.T,
    "(batch, k_len, 1)": lambda real: real[:, :, None],
}
"""Shapes of a mask over keys alone, from (batch, k_len)."""

LENGTHS = "lengths, int: number of real positions"
"""Encoding of an argument that tells padding by one number per sample; it can tell padding at the end only."""

PAD_TOKEN = "tokens, one of them means padding"
"""Encoding of padding in the tokens themselves, for which there is no argument."""

ONE_LENGTH_EACH = "(batch)"
"""Usual shape of lengths."""

LENGTH_SHAPES = (ONE_LENGTH_EACH, "(batch, 1)")
"""Shapes of lengths."""

BATCHED_SHAPES = tuple(shape for shape in SHAPES if "batch" in shape)
"""Shapes of a mask over pairs that can tell padding too."""


@final
@dataclass(frozen=True)
class Masking:
    """Say how one mask argument is given, and what is known about its values."""

    parameter: str  # name of the argument; of the input where a token means padding
    over: Literal["pairs", "keys"]  # whether it says which query may see which key, or which positions are real
    encoding: str  # key of `ENCODINGS`, or `LENGTHS`, or `PAD_TOKEN`: what is passed
    shape: str
    """Key of `SHAPES` (pairs) or `KEY_SHAPES` (keys). A mask over keys has a shape over pairs where one argument says
    both."""
    declared: str | None = None
    """What name or docstring say its values mean, ``"True keeps"`` or ``"True blocks"``; None: nothing."""
    declared_by: str = ""  # where that is said: ``"docstring"``, ``"its name"``
    obeyed: bool = True  # whether, given so, a hidden position has (nearly) no influence
    required: bool = False  # whether it is given at every call, hiding nothing where nothing is to be hidden
    at_end: bool = False  # whether it can tell padding after the real positions alone

    @property
    def tells_left_padding(self) -> bool:
        """Whether padding before the real positions can be told."""
        return not self.at_end and self.encoding != LENGTHS

    @property
    def turned_round(self) -> Masking:
        """It with keeping and blocking exchanged; itself where its values are neither."""
        keeps, blocks = "= may attend", "= blocked"
        turned = (
            self.encoding.replace(keeps, blocks) if keeps in self.encoding else self.encoding.replace(blocks, keeps)
        )
        return replace(self, encoding=turned)

    @property
    def keeps(self) -> bool | None:
        """Whether, as it is given, True or 1 keeps a position; None where no such value is given."""
        if "1 = may" in self.encoding or "True = may" in self.encoding:
            return True
        return False if "blocked" in self.encoding else None


def mask_values(
    masks: Sequence[Masking], at: Situation, *, padding: Tensor | None, allowed: Tensor | None
) -> dict[str, Any]:
    """The mask arguments of one call."""
    _insist_on(masks, padding, allowed)
    values: dict[str, Any] = {}
    for parameter in dict.fromkeys(mask.parameter for mask in masks if mask.encoding != PAD_TOKEN):
        own: dict[str, Masking] = {mask.over: mask for mask in masks if mask.parameter == parameter}
        value = _value(own, at, padding if "keys" in own else None, allowed if "pairs" in own else None)
        if value is not None:
            values[parameter] = value
    return values


def _value(own: dict[str, Masking], at: Situation, padding: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    """The value of one argument, which may speak of keys, of pairs, or of both."""
    keys, pairs = own.get("keys"), own.get("pairs")
    if keys is not None and keys.shape not in SHAPES and allowed is None and (padding is not None or pairs is None):
        return _over_keys(keys, at, padding)
    mask = pairs or keys
    return None if mask is None else _over_pairs(mask, at, padding, allowed)


def _insist_on(masks: Sequence[Masking], padding: Tensor | None, allowed: Tensor | None) -> None:
    """Refuse a call that would silently hide nothing."""
    if allowed is not None and not any(mask.shape in SHAPES for mask in masks):
        raise ModuleError("it has no mask argument over pairs of positions")
    if padding is not None and not any(mask.over == "keys" for mask in masks):
        raise ModuleError("it has no mask argument that tells padding")


def _over_pairs(mask: Masking, at: Situation, padding: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    """A mask over pairs in the form the module understands, None where it may be left out."""
    if allowed is None and padding is None and not mask.required:
        return None
    if allowed is None:
        allowed = torch.ones(1, at.length, at.k_len, dtype=torch.bool, device=at.x.device)
    if padding is not None:
        allowed = allowed & padding[:, None, :]  # (batch, q_len, k_len)
        if at.padded_see_themselves and at.memory is None:
            allowed = allowed | torch.eye(at.length, dtype=torch.bool, device=at.x.device)
    allowed = allowed.expand(at.x.size(0), -1, -1)
    unknown = allowed.is_meta or torch.compiler.is_exporting()  # no numbers that could be looked at
    if "batch" not in mask.shape and not unknown and not bool((allowed == allowed[:1]).all()):
        raise ModuleError(f"its mask '{mask.parameter}' has no batch axis, so samples cannot differ in it")
    return ENCODINGS[mask.encoding](SHAPES[mask.shape](allowed), at.dtype)


def _over_keys(mask: Masking, at: Situation, padding: Tensor | None) -> Tensor | None:
    """A mask over keys in the form the module understands, None where it may be left out."""
    if padding is None and not mask.required:
        return None
    if padding is None:
        padding = torch.ones(at.x.size(0), at.k_len, dtype=torch.bool, device=at.x.device)
    if mask.encoding == LENGTHS:
        return _lengths(mask, padding)
    return ENCODINGS[mask.encoding](KEY_SHAPES[mask.shape](padding), at.dtype)


def _lengths(mask: Masking, padding: Tensor) -> Tensor:
    """How many positions of each sample are real."""
    lengths = padding.sum(1)
    ordered = torch.arange(padding.size(1), device=padding.device) < lengths[:, None]
    if not padding.is_meta and not torch.equal(ordered, padding):
        raise ModuleError(f"its '{mask.parameter}' can tell padding at the end only")
    return lengths if mask.shape == ONE_LENGTH_EACH else lengths[:, None]


def _additive(allowed: Tensor, dtype: torch.dtype, blocked: float) -> Tensor:
    """0 where a position may attend and `blocked` elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, blocked)


def _all_of_memory(at: Situation, form: tuple[str, str]) -> Tensor:
    """A mask over another sequence that hides nothing of it, by encoding and shape."""
    encoding, shape = form
    of_pairs = shape in SHAPES
    sizes = (at.x.size(0), *([at.length] if of_pairs else []), MEMORY_LENGTH)
    seen = torch.ones(sizes, dtype=torch.bool, device=at.x.device)
    return ENCODINGS[encoding]((SHAPES if of_pairs else KEY_SHAPES)[shape](seen), at.dtype)


SOURCES[ALL_OF_MEMORY] = _all_of_memory  # told here, as what masks are made of is above sources
