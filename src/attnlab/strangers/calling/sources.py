"""What the arguments of a ``forward`` are given: the input, and everything a module wants beside it.

All of it is made from the input alone (its sizes, dtype and device), the same for every sample, so that
samples stay comparable and nothing random is in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from attnlab.strangers.calling.layouts import IMAGES, LAYOUTS, SPLIT

MEMORY_LENGTH = 7  # of a sequence to look at beside the input; unlike the usual batch and length
_SPECIAL_TOKENS = 3  # which often are padding, the beginning and the end
_BASE = 10000.0  # of rotary angles, Su et al. 2021, arXiv:2104.09864, section 3.4.2
NUMBERS = "x without features"
"""The input as one number per position, (batch, length)."""
SEVERAL = "x several times"
"""A tuple with the input in every place, as of queries, keys and values."""
PACKED = "x packed"
"""The input several times in one tensor, as queries, keys and values of one projection."""
ONE_MORE = "x and one more"
"""The input with another position at its end, of nothing or of token 0."""
TURNED = "x turned"
"""The input with its last two axes exchanged, as keys whose features come before their positions."""
NO_OPTIONS = "no options"
AS_LONG = "another sequence"
"""A fixed sequence as long as the input, the same for every sample."""
ALL_OF_MEMORY = "all of the memory"
"""A mask over the memory that hides nothing."""
HANDED_ON = "handed on"
"""What a larger module gave, with the input in it."""
_APART, _PERIOD = 1021, 65521  # primes: how far rows of pairs lie apart, and after how many numbers they come again
_STEP = 2.399963  # golden angle in radians: its multiples modulo 2 pi are spread evenly, so sines of them look random


@final
@dataclass(frozen=True)
class Packed:
    """Say how queries, keys and values lie in one tensor."""

    number: int  # how many there are
    axis: int  # which they lie along
    stacked: bool  # whether the axis is theirs alone


@final
@dataclass(frozen=True)
class Argument:
    """Say what one argument of ``forward`` is given."""

    parameter: str  # its name
    source: str  # key of `SOURCES`
    by_name: bool = True  # whether it is passed by name
    value: Any = None  # what the source needs to know: a constant, a width, a number of tokens

    @property
    def encoding(self) -> str:
        """What the values of a mask mean; nothing where it is none."""
        return self.value[0] if self.source == ALL_OF_MEMORY else ""

    @property
    def in_words(self) -> str:
        """Its name, and what it is given where that is not the input."""
        own = f"{self.value}" if not isinstance(self.value, nn.Module) else f"{type(self.value).__name__}"
        value = own if self.source == "constant" else IN_WORDS.get(self.source, "")
        return f"{self.parameter or 'x'}={value}" if value else self.parameter or "x"


@final
@dataclass(frozen=True)
class Situation:
    """Hold what is known when a call is made."""

    x: Tensor  # the input, (batch, length, d_in) or (batch, length) tokens
    layout: str  # key of `layouts.LAYOUTS`
    dtype: torch.dtype  # floating dtype of what is made for the call
    memory: Tensor | None = None  # another sequence to look at, batch first
    training: bool = False  # whether the module is in training mode
    padded_see_themselves: bool = False  # whether padded positions are left to see themselves

    @property
    def length(self) -> int:
        """The number of positions."""
        return self.x.size(1)

    @cached_property
    def given(self) -> Tensor:
        """The input in its layout: one tensor, whatever arguments it is given to."""
        return laid_out(self.x, self.layout)

    @property
    def looked_at(self) -> Tensor:
        """The other sequence, or the input itself where there is none."""
        return self.x if self.memory is None else self.memory

    @property
    def k_len(self) -> int:
        """The number of positions that are looked at."""
        return self.looked_at.size(1)


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same."""
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


@final
@dataclass(frozen=True, eq=False)
class Kept:
    """Hold what a larger module handed on for one argument, in which another input can stand.

    Its tensors are the same for every sample, as everything else that is given beside the input.
    """

    value: Any  # a tensor, anything that holds tensors, or anything else
    x: Tensor  # the input that was handed on
    batch: int  # the number of samples in it

    def with_input(self, at: Situation) -> Any:
        """What is given with another input."""
        return tree_map(lambda leaf: self._leaf(leaf, at), self.value)

    def _leaf(self, leaf: Any, at: Situation) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if is_same(leaf, self.x):
            return at.given
        leaf = leaf.to(at.x.device, at.dtype if leaf.is_floating_point() else leaf.dtype, copy=True)
        if self.batch not in leaf.shape:
            return leaf
        axis = leaf.shape.index(self.batch)
        return leaf.narrow(axis, 0, 1).repeat_interleave(at.x.size(0), axis)


def laid_out(value: Tensor, layout: str) -> Tensor:
    """A batch-first tensor in a layout; what has no features has no channels to come first."""
    if value.dim() < 3 and layout in ("channels-first", *SPLIT, *IMAGES):
        return value
    return LAYOUTS[layout].laid_out(value)


def _memory(at: Situation, width: int | None) -> Tensor:
    """Embeddings to look at that have nothing to do with the input."""
    width = width or at.x.size(-1)
    phases = torch.arange(MEMORY_LENGTH * width, device=at.x.device, dtype=torch.float64) ** 2 * _STEP
    memory = (phases.sin() * 2**0.5).to(at.dtype).view(1, MEMORY_LENGTH, width)  # of variance 1
    return laid_out(memory.expand(at.x.size(0), -1, -1), "batch-first" if at.layout in IMAGES else at.layout)


def _memory_tokens(at: Situation, vocab_size: int | None) -> Tensor:
    tokens = (torch.arange(MEMORY_LENGTH, device=at.x.device) + _SPECIAL_TOKENS) % (vocab_size or 2)
    return laid_out(tokens.expand(at.x.size(0), -1), at.layout)


def _positions(at: Situation, first: int | None) -> Tensor:
    return torch.arange(at.length, device=at.x.device) + (first or 0)


def _positions_of_each(at: Situation, first: int | None) -> Tensor:
    return laid_out(_positions(at, first).expand(at.x.size(0), -1), at.layout)


def _position_vectors(at: Situation, width: int | None) -> Tensor:
    """A vector for every place, (batch, length, d_model): sines that look random."""
    width = width or at.x.size(-1)
    phases = torch.arange(at.length * width, device=at.x.device, dtype=torch.float64) ** 2 * _STEP
    places = (phases.sin() * 2**0.5).to(at.dtype).view(1, at.length, width)
    return laid_out(places.expand(at.x.size(0), -1, -1), at.layout)


def _offset_vectors(at: Situation, width: int | None) -> Tensor:
    """A vector for every distance between two places, from -(length - 1) on, (1, 2 length - 1, d_model)."""
    width = width or at.x.size(-1)
    offsets = torch.arange(1 - at.length, at.length, device=at.x.device, dtype=torch.float64)
    phases = (offsets[:, None] * width + torch.arange(width, device=at.x.device)) ** 2 * _STEP
    return laid_out((phases.sin() * 2**0.5).to(at.dtype)[None], at.layout)


def _vectors_of_pairs(at: Situation, width: int | None) -> Tensor:
    """A vector for every pair of places, (batch, length, length, d_model); the batch is third where length is first."""
    width = width or at.x.size(-1)
    places = torch.arange(at.length, device=at.x.device)
    pairs = (places[:, None] * _APART + places)[..., None] * width + torch.arange(width, device=at.x.device)
    phases = (pairs % _PERIOD).double() ** 2 * _STEP  # the same for a pair at every length
    pairs = (phases.sin() * 2**0.5).to(at.dtype).expand(at.x.size(0), -1, -1, -1)
    return pairs.movedim(0, 2) if at.layout == "sequence-first" else pairs


def _vectors_of_distances(at: Situation, width: int | None) -> Tensor:
    """A vector for every pair of places that hangs on their distance alone, (length, length, d_model)."""
    width, places = width or at.x.size(-1), torch.arange(at.length, device=at.x.device)
    distances = places - places[:, None] + _APART
    phases = ((distances[..., None] * width + torch.arange(width, device=at.x.device)) % _PERIOD).double() ** 2 * _STEP
    return (phases.sin() * 2**0.5).to(at.dtype)


def _kinds_of_pairs(at: Situation) -> Tensor:
    """The kinds 0 and 1 in turn, (length, length): of one kind alone, what is looked up for keys is alike for all."""
    places = torch.arange(at.length, device=at.x.device)
    return (places[:, None] + places) % 2


def _packed(at: Situation, way: Packed) -> Tensor:
    """The input in every place of one tensor."""
    join = torch.stack if way.stacked else torch.cat
    return join([at.given] * way.number, dim=way.axis)


def _vector(at: Situation, width: int | None) -> Tensor:
    """One vector per sequence, the same for all: a condition, (batch, d_model)."""
    phases = torch.arange(width or at.x.size(-1), device=at.x.device, dtype=torch.float64) ** 2 * _STEP
    return (phases.sin() * 2**0.5).to(at.dtype).expand(at.x.size(0), -1)


def _all_of(at: Situation, kind: int) -> Tensor:
    return laid_out(torch.full(at.x.shape[:2], kind, device=at.x.device), at.layout)


def _angles(at: Situation, d_head: int) -> Tensor:
    """Rotary angles, (length, d_head / 2)."""
    rates = _BASE ** (-torch.arange(0, d_head, 2, device=at.x.device, dtype=torch.float64) / d_head)
    return torch.arange(at.length, device=at.x.device, dtype=torch.float64)[:, None] * rates


def _cos(at: Situation, d_head: int) -> Tensor:
    return torch.cat([_angles(at, d_head)] * 2, -1).cos().to(at.dtype)


def _sin(at: Situation, d_head: int) -> Tensor:
    return torch.cat([_angles(at, d_head)] * 2, -1).sin().to(at.dtype)


def _cos_and_sin(at: Situation, d_head: int) -> tuple[Tensor, Tensor]:
    return _cos(at, d_head)[None], _sin(at, d_head)[None]  # (1, length, d_head)


def _tables(at: Situation, d_head: int) -> tuple[Tensor, Tensor]:
    return _cos(at, d_head), _sin(at, d_head)  # (length, d_head)


def _turns(at: Situation, d_head: int) -> Tensor:
    """Rotary angles as complex numbers of size 1, (length, d_head / 2)."""
    angles = _angles(at, d_head)
    wide = at.dtype == torch.float64
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex128 if wide else torch.complex64)


SOURCES: dict[str, Callable[[Situation, Any], Any]] = {
    "x": lambda at, _value: at.given,
    SEVERAL: lambda at, number: (at.given,) * number,
    PACKED: _packed,
    ONE_MORE: lambda at, _value: laid_out(torch.cat([at.x, torch.zeros_like(at.x[:, :1])], 1), at.layout),
    TURNED: lambda at, _value: at.given.mT.contiguous(),
    NO_OPTIONS: lambda _at, _value: {},
    NUMBERS: lambda at, _value: laid_out(at.x.squeeze(-1), at.layout),
    "memory or x": lambda at, _value: laid_out(at.looked_at, at.layout),
    "memory if given": lambda at, _value: laid_out(at.looked_at, at.layout),
    "memory": _memory,
    "memory tokens": _memory_tokens,
    "another memory": lambda at, width: -_memory(at, width).roll(1, -1),
    "other memory tokens": lambda at, vocab_size: (_memory_tokens(at, vocab_size) + 1) % (vocab_size or 2),
    "vector": _vector,
    "sequence of one": lambda at, width: laid_out(_vector(at, width)[:, None], at.layout),
    "state": lambda at, width: _vector(at, width)[None],
    "pair of states": lambda at, width: (_vector(at, width)[None],) * 2,
    "positions": _positions,
    "positions of each": _positions_of_each,
    "position vectors": _position_vectors,
    AS_LONG: _position_vectors,
    "points": lambda at, width: _position_vectors(replace(at, layout="batch-first"), width),
    "offset vectors": _offset_vectors,
    "segments": _all_of,
    "one number each": lambda at, _value: torch.zeros(at.x.size(0), device=at.x.device, dtype=torch.long),
    "the length each": lambda at, _value: torch.full((at.x.size(0),), at.length, device=at.x.device),
    "one number": lambda at, _value: laid_out(torch.zeros(at.x.size(0), 1, device=at.x.device).long(), at.layout),
    "one pair of numbers": lambda at, _value: (math.isqrt(at.length),) * 2,
    "numbers": lambda at, _value: _position_vectors(at, 1).reshape(at.x.size(0), -1),
    "numbers of pairs": lambda at, _value: _vectors_of_pairs(at, 1).squeeze(-1),
    "vectors of pairs": _vectors_of_pairs,
    "vectors of distances": _vectors_of_distances,
    "kinds of pairs": lambda at, _value: _kinds_of_pairs(at),
    "zeros of pairs": lambda at, of: torch.zeros_like(SOURCES[of[0]](at, of[1])),
    "kinds of pairs of each": lambda at, _value: _kinds_of_pairs(at).expand(at.x.size(0), -1, -1),
    "half cos": lambda at, d_head: _angles(at, d_head).cos().to(at.dtype),
    "half sin": lambda at, d_head: _angles(at, d_head).sin().to(at.dtype),
    "cos": _cos,
    "sin": _sin,
    "cos and sin": _cos_and_sin,
    "tables of cos and sin": _tables,
    "turns": _turns,
    "length": lambda at, _value: at.length,
    "side": lambda at, _value: math.isqrt(at.length),
    "mode": lambda at, _value: at.training,
    "constant": lambda _at, value: value,
    HANDED_ON: lambda at, kept: kept.with_input(at),
}
"""What an argument can be given, from the situation of a call and the argument's own value."""


def without_pairs(one: Argument) -> Argument:
    """An argument with zeros in place of what it holds for pairs of positions."""
    return replace(one, source="zeros of pairs", value=(one.source, one.value)) if one.source in OF_PAIRS else one


def given_to(one: Argument, at: Situation) -> Any:
    """What one argument is given; each number of it by itself, as a module may write into it."""
    value = SOURCES[one.source](at, one.value)
    return value.contiguous() if isinstance(value, Tensor) and 0 in value.stride() else value


UNNAMED = (
    NO_OPTIONS,
    "one number each",
    "numbers",
    "numbers of pairs",
    "vectors of pairs",
    "vectors of distances",
    "kinds of pairs",
    "kinds of pairs of each",
    "one pair of numbers",
    AS_LONG,
    "points",
)
"""Sources that no name of a parameter tells."""

WHERE_GIVEN = ("memory or x", "memory if given")
"""Sources that are another sequence where a call has one."""

OF_PAIRS = ("numbers of pairs", "vectors of pairs", "kinds of pairs of each")
"""Sources that hold something for every pair of positions of each sample."""

OTHER_MEMORIES = {"memory": "another memory", "memory tokens": "other memory tokens"}
"""Sources of a second sequence, and those that give other numbers in its place."""

IN_WORDS: dict[str, str] = {
    HANDED_ON: "as the larger module hands it on",
    SEVERAL: "a tuple with the input in every place",
    PACKED: "the input as queries, keys and values in one tensor",
    ONE_MORE: "the input and one more position, of which it takes no output",
    TURNED: "the input, features before positions",
    NO_OPTIONS: "no options",
    ALL_OF_MEMORY: "all of the memory",
    NUMBERS: "one number per position, (batch, length)",
    "memory": "a fixed memory of length 7",
    "memory tokens": "fixed memory tokens of length 7",
    "positions": "positions (length)",
    "positions of each": "positions (batch, length)",
    AS_LONG: "a fixed sequence of its own width and as long as the input",
    "position vectors": "a vector for every position, (batch, length, d_model)",
    "points": "a vector for every position, of its own width, (batch, length, width)",
    "offset vectors": "a vector for every distance, (1, 2 length - 1, d_model)",
    "segments": "the same segment everywhere, (batch, length)",
    "one number each": "the number 0 for every sequence, (batch)",
    "the length each": "the length for every sequence, (batch)",
    "one number": "the number 0 for every sequence, (batch, 1)",
    "one pair of numbers": "the height and width of a square",
    "numbers": "fixed numbers, (batch, length)",
    "numbers of pairs": "fixed numbers for all pairs of positions, (batch, length, length)",
    "vectors of pairs": "fixed vectors for all pairs of positions, (batch, length, length, d_model)",
    "vectors of distances": "a vector for the distance of every pair of positions, (length, length, d_model)",
    "kinds of pairs": "the kinds 0 and 1 for pairs of positions, (length, length)",
    "kinds of pairs of each": "the kinds 0 and 1 for pairs of positions, (batch, length, length)",
    "cos and sin": "cosines and sines of rotary angles",
    "tables of cos and sin": "cosines and sines of rotary angles, (length, d_head)",
    "cos": "cosines of rotary angles",
    "sin": "sines of rotary angles",
    "half cos": "cosines of rotary angles",
    "half sin": "sines of rotary angles",
    "turns": "rotary angles as complex numbers",
    "length": "the length",
    "mode": "whether it is in training mode",
    "side": "the side of a square",
    "vector": "one fixed vector per sequence, (batch, d_model)",
    "state": "one fixed state per sequence, (1, batch, d_model)",
    "pair of states": "two fixed states per sequence, (1, batch, d_model) each",
    "sequence of one": "a fixed sequence of one vector, (batch, 1, d_model)",
}
"""How a source is called when a call is described."""
