"""Masks: which key a query may attend to; bool, True = may attend.

A mask is a rule over the positions of a query and a key (`AbstractMask.at`); how far it reaches lets a layer leave
out what cannot be seen. In a matrix positions are aligned at the end: query ``i`` of ``q_len`` stands at position
``i + k_len - q_len`` of the keys, as it does when a model continues a text. Masks combine with ``&``, ``|`` and ``~``
and print as a small matrix.
Padding is known at run time only and is passed to the layer's ``forward``; `Padding` makes a mask of it.
"""

# ruff: noqa: ARG002 -- masks share one signature; not every mask needs both positions

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.core.layouts import Real, RealKeys
from attnlab.core.sizes import check_positive

MAY, MAY_NOT = "■", "·"
DRAWN_LENGTH = 8  # positions of a printed matrix: enough to see a pattern, small enough for a terminal

Device = torch.device | str | None

Reach = tuple[int | None, int | None]
"""How many positions a query sees back and ahead at most, its own left out; None = no limit."""

Positions = Int[Tensor, "*blocks queries keys"]
"""Positions as integers, one axis for queries and one for keys; either of them, or both, longer than 1."""

Allowed = Bool[Tensor, "*more queries keys"]
"""True where a query may attend to a key."""


class AbstractMask(ABC):
    """Say which positions may attend to which.

    Attributes
    ----------
    kind : {"full", "causal", "other"}
        Whether everything, exactly the past, or something else is allowed: the first two need no matrix.
    blocks_future : bool
        Whether no query may attend to a later position.
    fixed_length : int or None
        The number of keys, where the mask fits one number only.
    reach : tuple of (int or None, int or None)
        How many positions a query sees back and ahead at most, its own left out; None where there is no limit.

    Raises
    ------
    SpecError
        If a size is not positive.
    """

    kind: Literal["full", "causal", "other"] = "other"
    blocks_future: bool = False
    fixed_length: int | None = None

    @property
    def reach(self) -> Reach:
        """No limits."""
        return None, None

    @abstractmethod
    def at(self, q_positions: Positions, k_positions: Positions) -> Allowed:
        """True where the query at a position may attend to the key at a position."""

    def allowed(self, q_len: int, k_len: int, *, device: Device = None) -> Bool[Tensor, "*more q_len k_len"]:
        """The matrix: True where the query of the row may attend to the key of the column."""
        self.check_keys(k_len)
        q_positions = torch.arange(k_len - q_len, k_len, device=device)[:, None]
        may = self.at(q_positions, torch.arange(k_len, device=device)[None])
        return may.expand(*may.shape[:-2], q_len, k_len)

    def check_keys(self, k_len: int) -> None:
        """Raise a `ModuleError` if the mask fits another number of keys."""
        if self.fixed_length not in (None, k_len):
            raise ModuleError(f"padding has {self.fixed_length} positions; got {k_len} keys")

    def __and__(self, other: AbstractMask) -> AbstractMask:
        """Allow what both allow."""
        return And(self, other)

    def __or__(self, other: AbstractMask) -> AbstractMask:
        """Allow what either allows."""
        return Or(self, other)

    def __invert__(self) -> AbstractMask:
        """Allow what this forbids."""
        return Not(self)

    def __str__(self) -> str:
        length = self.fixed_length or DRAWN_LENGTH
        return draw(self.allowed(length, length))


def draw(allowed: Bool[Tensor, "*more q_len k_len"]) -> str:
    """A mask as text, one row per query.

    Examples
    --------
    >>> print(draw(Causal().allowed(3, 3)))
    ■ · ·
    ■ ■ ·
    ■ ■ ■
    """
    matrices = allowed.reshape(-1, *allowed.shape[-2:]).tolist()
    return "\n\n".join(
        "\n".join(" ".join(MAY if cell else MAY_NOT for cell in row) for row in matrix) for matrix in matrices
    )


@final
@dataclass(frozen=True)
class Full(AbstractMask):
    """Let every query attend to every key."""

    kind = "full"

    def at(self, q_positions: Positions, k_positions: Positions) -> Allowed:
        """True everywhere."""
        return torch.ones_like(q_positions - k_positions, dtype=torch.bool)


@final
@dataclass(frozen=True)
class Causal(AbstractMask):
    """Let a query attend to its own position and to earlier ones.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 3.2.3.

    Examples
    --------
    >>> print(draw((Causal() & Window(2)).allowed(3, 3)))
    ■ · ·
    ■ ■ ·
    · ■ ■
    """

    kind = "causal"
    blocks_future = True

    @property
    def reach(self) -> Reach:
        """A limit ahead."""
        return None, 0

    def at(self, q_positions: Positions, k_positions: Positions) -> Allowed:
        """True on and below the diagonal."""
        return q_positions >= k_positions


@final
@dataclass(frozen=True)
class Window(AbstractMask):
    """Let a query attend to positions less than `width` away, on both sides.

    Parameters
    ----------
    width : int
        1 allows the own position only; ``Causal() & Window(w)`` sees w positions.

    References
    ----------
    .. [1] Beltagy, Peters, Cohan, 2020, arXiv:2004.05150, section 3.1.
    """

    width: int

    def __post_init__(self) -> None:
        check_positive({"width": self.width})

    @property
    def reach(self) -> Reach:
        """The same distance for both sides."""
        return self.width - 1, self.width - 1

    def at(self, q_positions: Positions, k_positions: Positions) -> Allowed:
        """True on a band around the diagonal."""
        return (q_positions - k_positions).abs() < self.width


@final
@dataclass(frozen=True)
class Dilated(AbstractMask):
    """Let a query attend to every `dilation`-th position, `width` of them on either side, itself included.

    Parameters
    ----------
    width : int
        Positions seen on either side, the own one included.
    dilation : int
        Distance between neighbors that are seen; 1 gives `Window`.

    References
    ----------
    .. [1] Beltagy, Peters, Cohan, 2020, arXiv:2004.05150, section 3.1, "dilated sliding window".
    """

    width: int
    dilation: int

    def __post_init__(self) -> None:
        check_positive({"width": self.width, "dilation": self.dilation})

    @property
    def reach(self) -> Reach:
        """The same distance for both sides."""
        farthest = (self.width - 1) * self.dilation
        return farthest, farthest

    def at(self, q_positions: Positions, k_positions: Positions) -> Allowed:
        """True on every `dilation`-th diagonal of a band."""
        behind = q_positions - k_positions
        return (behind.abs() < self.width * self.dilation) & (behind % self.dilation == 0)


def _nearer(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _farther(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


class AbstractPair(AbstractMask):
    """Combine what two masks say.

    Parameters
    ----------
    left : AbstractMask
        A mask.
    right : AbstractMask
        Another one.
    """

    sign: ClassVar[str]

    def __init__(self, left: AbstractMask, right: AbstractMask) -> None:
        self.left, self.right = left, right
        self.fixed_length = left.fixed_length or right.fixed_length

    def __repr__(self) -> str:
        return f"({self.left!r} {self.sign} {self.right!r})"


@final
class And(AbstractPair):
    """Allow what two masks both allow."""

    sign = "&"

    def __init__(self, left: AbstractMask, right: AbstractMask) -> None:
        super().__init__(left, right)
        kinds = {left.kind, right.kind} - {"full"}
        self.kind = "full" if not kinds else "causal" if kinds == {"causal"} else "other"
        self.blocks_future = left.blocks_future or right.blocks_future

    def at(self, q_positions: Positions, k_positions: Positions) -> Allowed:
        """True where both are True."""
        return self.left.at(q_positions, k_positions) & self.right.at(q_positions, k_positions)

    @property
    def reach(self) -> Reach:
        """The nearer limits."""
        one, other = self.left.reach, self.right.reach
        return _nearer(one[0], other[0]), _nearer(one[1], other[1])


@final
class Or(AbstractPair):
    """Allow what at least one of two masks allows."""

    sign = "|"

    def __init__(self, left: AbstractMask, right: AbstractMask) -> None:
        super().__init__(left, right)
        self.kind = "full" if "full" in (left.kind, right.kind) else "other"
        self.blocks_future = left.blocks_future and right.blocks_future

    def at(self, q_positions: Positions, k_positions: Positions) -> Allowed:
        """True where either is True."""
        return self.left.at(q_positions, k_positions) | self.right.at(q_positions, k_positions)

    @property
    def reach(self) -> Reach:
        """The farther limits."""
        one, other = self.left.reach, self.right.reach
        return _farther(one[0], other[0]), _farther(one[1], other[1])


@final
class Not(AbstractMask):
    """Allow what a mask forbids.

    Parameters
    ----------
    mask : AbstractMask
        A mask.
    """

    def __init__(self, mask: AbstractMask) -> None:
        self.mask = mask
        self.fixed_length = mask.fixed_length

    def at(self, q_positions: Positions, k_positions: Positions) -> Allowed:
        """True where the mask is False."""
        return ~self.mask.at(q_positions, k_positions)

    def __repr__(self) -> str:
        return f"~{self.mask!r}"


@final
class Padding(AbstractMask):
    """Let no query attend to a padded position.

    Parameters
    ----------
    real : Tensor
        True at real positions, one row per sequence.

    Raises
    ------
    ModuleError
        If it holds anything but booleans: 0 may be added to a score as well as mean that a position is hidden.
    """

    def __init__(self, real: Real) -> None:
        if real.dtype != torch.bool:
            raise ModuleError(f"padding must hold booleans, True at real positions; got {real.dtype}")
        self.real = real
        self.fixed_length = real.shape[-1]

    def at(self, q_positions: Positions, k_positions: Positions) -> Allowed:
        """One row per sequence, (batch, 1, ..., 1, k_len), on the device of the positions."""
        real = self.real.to(k_positions.device)[:, None]  # (batch, 1, length)
        return real[..., k_positions]

    def __repr__(self) -> str:
        return f"Padding({self.real.sum(-1).tolist()} of {self.real.shape[-1]})"


def all_of(masks: Sequence[AbstractMask], *, causal: bool) -> AbstractMask:
    """One mask that allows what all of some allow, and if it is causal nothing later."""
    parts = [mask for mask in masks if mask.kind != "full"]
    if causal:
        parts = [Causal(), *(mask for mask in parts if mask.kind != "causal")]
    return functools.reduce(operator.and_, parts) if parts else Full()


def padded(mask: AbstractMask, real: RealKeys | None) -> AbstractMask:
    """A mask of one call, in which padded positions cannot be seen."""
    if real is None:
        return mask
    return Padding(real) if mask.kind == "full" else mask & Padding(real)


MASKS: Mapping[str, Callable[..., AbstractMask]] = {
    "none": Full,
    "causal": Causal,
    "window": Window,
    "dilated": Dilated,
}
