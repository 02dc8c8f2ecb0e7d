"""Masks: which key a query may attend to; bool, True = may attend.

Positions are aligned at the end: query ``i`` of ``q_len`` stands at position ``i + k_len - q_len`` of the keys,
as it does when a model continues a text. Masks combine with ``&``, ``|`` and ``~`` and print as a small matrix.
Padding is known at run time only and is passed to the layer's ``forward``; `Padding` makes a mask of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnlab.errors import ModuleError
from attnlab.nn.heads import check_positive

MAY, MAY_NOT = "■", "·"
DRAWN_LENGTH = 8  # positions of a printed matrix: enough to see a pattern, small enough for a terminal

Device = torch.device | str | None


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
    """

    kind: Literal["full", "causal", "other"] = "other"
    blocks_future: bool = False
    fixed_length: int | None = None

    @abstractmethod
    def allowed(self, q_len: int, k_len: int, *, device: Device = None) -> Bool[Tensor, "*more q_len k_len"]:
        """Return the matrix: True where the query of the row may attend to the key of the column."""

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
    """Return a mask as text, one row per query.

    Parameters
    ----------
    allowed : Tensor
        The mask; several are drawn below each other.

    Returns
    -------
    str
        ``■`` where the query may attend, ``·`` where it may not.

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


def offsets(q_len: int, k_len: int, device: Device) -> Int[Tensor, "q_len k_len"]:
    """Return how far each key lies behind each query; negative in the future.

    Parameters
    ----------
    q_len : int
        Number of queries; the last one stands where the last key stands.
    k_len : int
        Number of keys.
    device : torch.device, optional
        Where to make the matrix.

    Returns
    -------
    Tensor
        Position of the row's query minus position of the column's key.
    """
    q_position = torch.arange(q_len, device=device) + (k_len - q_len)
    return q_position[:, None] - torch.arange(k_len, device=device)


@dataclass(frozen=True)
class Full(AbstractMask):
    """Let every query attend to every key."""

    kind = "full"

    def allowed(self, q_len: int, k_len: int, *, device: Device = None) -> Bool[Tensor, "*more q_len k_len"]:
        """Return True everywhere."""
        return torch.ones(q_len, k_len, dtype=torch.bool, device=device)


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

    def allowed(self, q_len: int, k_len: int, *, device: Device = None) -> Bool[Tensor, "*more q_len k_len"]:
        """Return True on and below the diagonal."""
        return offsets(q_len, k_len, device) >= 0


@dataclass(frozen=True)
class Window(AbstractMask):
    """Let a query attend to positions less than `width` away, on both sides.

    Parameters
    ----------
    width : int
        1 allows the own position only; ``Causal() & Window(w)`` sees w positions.

    Raises
    ------
    SpecError
        If the width is not positive.

    References
    ----------
    .. [1] Beltagy, Peters, Cohan, 2020, arXiv:2004.05150, section 3.1.
    """

    width: int

    def __post_init__(self) -> None:
        check_positive({"width": self.width})

    def allowed(self, q_len: int, k_len: int, *, device: Device = None) -> Bool[Tensor, "*more q_len k_len"]:
        """Return True on a band around the diagonal."""
        return offsets(q_len, k_len, device).abs() < self.width


@dataclass(frozen=True)
class Dilated(AbstractMask):
    """Let a query attend to every `dilation`-th position, `width` of them on either side, itself included.

    Parameters
    ----------
    width : int
        Positions seen on either side, the own one included.
    dilation : int
        Distance between neighbors that are seen; 1 gives `Window`.

    Raises
    ------
    SpecError
        If an argument is not positive.

    References
    ----------
    .. [1] Beltagy, Peters, Cohan, 2020, arXiv:2004.05150, section 3.1, "dilated sliding window".
    """

    width: int
    dilation: int

    def __post_init__(self) -> None:
        check_positive({"width": self.width, "dilation": self.dilation})

    def allowed(self, q_len: int, k_len: int, *, device: Device = None) -> Bool[Tensor, "*more q_len k_len"]:
        """Return True on every `dilation`-th diagonal of a band."""
        behind = offsets(q_len, k_len, device)
        return (behind.abs() < self.width * self.dilation) & (behind % self.dilation == 0)


class And(AbstractMask):
    """Allow what two masks both allow.

    Parameters
    ----------
    left : AbstractMask
        A mask.
    right : AbstractMask
        Another one.
    """

    def __init__(self, left: AbstractMask, right: AbstractMask) -> None:
        self.left, self.right = left, right
        kinds = {left.kind, right.kind} - {"full"}
        self.kind = "full" if not kinds else "causal" if kinds == {"causal"} else "other"
        self.blocks_future = left.blocks_future or right.blocks_future
        self.fixed_length = left.fixed_length or right.fixed_length

    def allowed(self, q_len: int, k_len: int, *, device: Device = None) -> Bool[Tensor, "*more q_len k_len"]:
        """Return True where both are True."""
        return self.left.allowed(q_len, k_len, device=device) & self.right.allowed(q_len, k_len, device=device)

    def __repr__(self) -> str:
        return f"({self.left!r} & {self.right!r})"


class Or(AbstractMask):
    """Allow what at least one of two masks allows.

    Parameters
    ----------
    left : AbstractMask
        A mask.
    right : AbstractMask
        Another one.
    """

    def __init__(self, left: AbstractMask, right: AbstractMask) -> None:
        self.left, self.right = left, right
        self.kind = "full" if "full" in (left.kind, right.kind) else "other"
        self.blocks_future = left.blocks_future and right.blocks_future
        self.fixed_length = left.fixed_length or right.fixed_length

    def allowed(self, q_len: int, k_len: int, *, device: Device = None) -> Bool[Tensor, "*more q_len k_len"]:
        """Return True where either is True."""
        return self.left.allowed(q_len, k_len, device=device) | self.right.allowed(q_len, k_len, device=device)

    def __repr__(self) -> str:
        return f"({self.left!r} | {self.right!r})"


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

    def allowed(self, q_len: int, k_len: int, *, device: Device = None) -> Bool[Tensor, "*more q_len k_len"]:
        """Return True where the mask is False."""
        return ~self.mask.allowed(q_len, k_len, device=device)

    def __repr__(self) -> str:
        return f"~{self.mask!r}"


class Padding(AbstractMask):
    """Let no query attend to a padded position.

    Parameters
    ----------
    real : Tensor
        True at real positions, one row per sequence.
    """

    def __init__(self, real: Bool[Tensor, "batch length"]) -> None:
        self.real = real
        self.fixed_length = real.shape[-1]

    def allowed(self, q_len: int, k_len: int, *, device: Device = None) -> Bool[Tensor, "*more q_len k_len"]:
        """Return one matrix per sequence, (batch, 1, q_len, k_len), on the device of the padding.

        Raises
        ------
        ModuleError
            If there are not as many keys as the padding has positions.
        """
        batch, length = self.real.shape
        if k_len != length:
            raise ModuleError(f"padding has {length} positions; got {k_len} keys")
        real = self.real if device is None else self.real.to(device)
        return real[:, None, None, :].expand(batch, 1, q_len, k_len)

    def __repr__(self) -> str:
        return f"Padding({self.real.sum(-1).tolist()} of {self.real.shape[-1]})"


MASKS: Mapping[str, Callable[..., AbstractMask]] = {
    "none": Full,
    "causal": Causal,
    "window": Window,
    "dilated": Dilated,
}
