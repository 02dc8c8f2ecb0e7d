"""Positions inside attention: on queries and keys, or as a bias of the scores.

`attnlab.nn.axes.positions` has the table. Positions of queries and keys are aligned at the end, as in
`attnlab.nn.axes.masks`. A bias depends on how far a key lies behind a query, and on nothing else.
"""

# ruff: noqa: ARG002 -- entries of an axis share one signature; not every entry needs all of it

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.core.layouts import Queries, SharedKeys
from attnlab.core.sizes import check_positive

Rotated = tuple[Queries, SharedKeys]
"""Queries and keys that know where they stand."""

BASE = 10000.0  # source: Vaswani et al., 2017, section 3.5; rotary embeddings kept it


class AbstractScorePositions(nn.Module, ABC):
    """Put positions into the scores of one attention layer.

    Parameters
    ----------
    n_heads : int
        Number of heads.

    Raises
    ------
    SpecError
        If a size is not positive.
    """

    level: ClassVar[Literal["input", "scores"]] = "scores"

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def rotate(self, q: Queries, k: SharedKeys) -> Rotated:
        """Queries and keys that know where they stand."""

    @abstractmethod
    def bias(
        self, queries: slice, keys: slice, *, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "heads q_len k_len"] | None:
        """What is added to the scores, or None where nothing is."""


def offsets(queries: slice, keys: slice, device: torch.device) -> Int[Tensor, "q_len k_len"]:
    """How far each key lies behind each query; negative in the future."""
    q_positions = torch.arange(queries.start, queries.stop, device=device)
    return q_positions[:, None] - torch.arange(keys.start, keys.stop, device=device)


class AbstractBias(AbstractScorePositions):
    """Leave queries and keys as they are: positions enter as what is added to the scores."""

    def rotate(self, q: Queries, k: SharedKeys) -> Rotated:
        """Queries and keys as they are."""
        return q, k


@final
class NoPositions(AbstractBias):
    """Add nothing: without a causal mask the layer is equivariant to permutations.

    Notes
    -----
    A causal mask alone lets a stack find out positions [1]_.

    References
    ----------
    .. [1] Haviv et al., 2022, arXiv:2203.16634.
    """

    def bias(
        self, queries: slice, keys: slice, *, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "heads q_len k_len"] | None:
        """None."""
        return None


def angles_of(positions: Float[Tensor, " length"], width: int, base: float = BASE) -> Float[Tensor, "length pairs"]:
    """Position times frequency for every pair of features."""
    even = torch.arange(0, width, 2, device=positions.device, dtype=positions.dtype)
    return positions[:, None] * (-math.log(base) * even / width).exp()


@final
class RotaryPositions(AbstractScorePositions):
    """Turn queries and keys by angles that grow with their position.

    Parameters
    ----------
    d_head : int
        Width of one query and of one key; even.
    base : float
        Base of the wavelengths.
    factor : float
        How many times slower a stretched wavelength turns, for texts longer than those of training.
    trained_length : int, optional
        The length of training: wavelengths shorter than ``trained_length / high`` stay, those longer than
        ``trained_length / low`` are stretched by the factor, those between by something between [3]_. Unless given, all
        are stretched by the factor [2]_.
    low, high : float
        See `trained_length`.

    Raises
    ------
    SpecError
        If ``d_head`` is odd, the base is not above 1, the factor not at least 1, or `low` not below `high`.

    Notes
    -----
    Features 2i and 2i + 1 are turned by ``p * base^(-2i / d_head)``, so that the dot product depends on the
    distance of two positions only. No parameters; time O(heads * length * d_head). Neighbors form a pair, as
    in [1]_; many implementations pair feature i with i + d_head / 2, which is the same up to a permutation.

    References
    ----------
    .. [1] Su et al., 2021, arXiv:2104.09864, equations 14 to 16 and 34.
    .. [2] Chen et al., 2023, arXiv:2306.15595, equation 4 (position interpolation).
    .. [3] Grattafiori et al., 2024, arXiv:2407.21783, and the code released with it (Llama 3.1).
    """

    def __init__(
        self,
        d_head: int,
        *,
        base: float = BASE,
        factor: float = 1.0,
        trained_length: int | None = None,
        low: float = 1.0,
        high: float = 4.0,
    ) -> None:
        super().__init__()
        if d_head < 2 or d_head % 2:
            raise SpecError(f"rotary positions turn pairs of features: d_head must be even; got d_head={d_head}")
        if base <= 1 or factor < 1 or not 0 < low < high:
            raise SpecError(
                "rotary positions need base > 1, factor >= 1 and 0 < low < high; "
                f"got base={base}, factor={factor}, low={low}, high={high}"
            )
        self.d_head, self.base = d_head, base
        periods = [(trained_length or 0) * base ** (-even / d_head) / math.tau for even in range(0, d_head, 2)]
        kept = [min(max((one - low) / (high - low), 0.0), 1.0) for one in periods]  # share of its own frequency
        self.slowdown = None if factor == 1 else [one + (1 - one) / factor for one in kept]

    def rotate(self, q: Queries, k: SharedKeys) -> Rotated:
        """Turned queries and keys; the last query stands where the last key stands."""
        q_len, k_len = q.shape[-2], k.shape[-2]
        exact = torch.promote_types(q.dtype, torch.float32)
        first = min(0, k_len - q_len)
        angles = angles_of(torch.arange(first, k_len, device=q.device, dtype=exact), self.d_head, self.base)
        if self.slowdown is not None:
            angles = angles * torch.tensor(self.slowdown, device=q.device, dtype=exact)
        cos, sin = angles.cos(), angles.sin()
        turn = _turn_complex if q.is_cpu and not torch.compiler.is_compiling() else _turn
        return turn(q, cos[-q_len:], sin[-q_len:]), turn(k, cos[-k_len:], sin[-k_len:])

    def bias(
        self, queries: slice, keys: slice, *, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "heads q_len k_len"] | None:
        """None."""
        return None


def _turn(x: Tensor, cos: Float[Tensor, "positions pairs"], sin: Float[Tensor, "positions pairs"]) -> Tensor:
    """Turn pairs of neighboring features; features stay together, since picking every other one is slow."""
    swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)  # (.., x_1, x_0, x_3, x_2, ..)
    signed = torch.stack((-sin, sin), dim=-1).flatten(-2)  # (positions, d_head)
    return (x * cos.repeat_interleave(2, dim=-1) + swapped * signed).to(x.dtype)


def _turn_complex(x: Tensor, cos: Float[Tensor, "positions pairs"], sin: Float[Tensor, "positions pairs"]) -> Tensor:
    """Turn pairs of neighboring features as complex numbers: on a CPU a third to a half of the time of real ones."""
    pairs = torch.view_as_complex(x.contiguous().to(cos.dtype).unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2).to(x.dtype)


@final
class LinearBias(AbstractBias):
    """Subtract from each score a multiple of the distance, another multiple for each head (ALiBi).

    Notes
    -----
    ``score - m_h |i - j|`` with ``m_h = 2^(-8 h / n_heads)`` for a power of two; else the slopes of the next
    lower power, then every other slope of the next higher one. No parameters. Differs from [1]_: also without
    a causal mask, where the distance counts in both directions alike.

    References
    ----------
    .. [1] Press, Smith, Lewis, 2022, arXiv:2108.12409, section 3.
    """

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        check_positive({"n_heads": n_heads})
        self.slopes = slopes(n_heads)

    def bias(
        self, queries: slice, keys: slice, *, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "heads q_len k_len"] | None:
        """Minus slope times distance."""
        slope = torch.tensor(self.slopes, device=device, dtype=dtype)
        return -slope[:, None, None] * offsets(queries, keys, device).abs().to(dtype)


def slopes(n_heads: int) -> list[float]:
    """The slopes of ALiBi.

    Examples
    --------
    >>> slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 2 ** int(math.log2(n_heads))
    first = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-4 * head / power) for head in range(1, 2 * power + 1, 2)]
    return first + between[: n_heads - power]


@final
class RelativeBias(AbstractBias):
    """Add to each score a learned number that depends on the head and on the distance (T5).

    Parameters
    ----------
    causal : bool
        Whether keys in the future are forbidden anyway, so that all buckets serve the past.
    n_buckets : int
        How many classes of distances there are: half exact, half growing logarithmically.
    max_distance : int
        From here on all distances share a bucket.

    Raises
    ------
    SpecError
        If a size is not positive, there are fewer than 4 buckets, or the distance is not larger than the buckets.

    Notes
    -----
    ``score + b_{h, bucket(i - j)}``; ``n_heads * n_buckets`` parameters, zero at the start. Differs from [1]_:
    every layer has a table of its own, where the source shares one among all layers and does not scale scores.

    References
    ----------
    .. [1] Raffel et al., 2020, arXiv:1910.10683, section 2.1.
    """

    def __init__(self, n_heads: int, *, causal: bool = False, n_buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__()
        check_positive({"n_heads": n_heads, "n_buckets": n_buckets, "max_distance": max_distance})
        if n_buckets < 4 or n_buckets % 2 or max_distance <= n_buckets:
            raise SpecError(
                "n_buckets must be even, at least 4 and less than max_distance; "
                f"got n_buckets={n_buckets}, max_distance={max_distance}"
            )
        self.causal, self.n_buckets, self.max_distance = causal, n_buckets, max_distance
        self.table = nn.Parameter(torch.zeros(n_heads, n_buckets))

    def bias(
        self, queries: slice, keys: slice, *, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "heads q_len k_len"] | None:
        """The table's entry for every distance."""
        behind = offsets(queries, keys, device)
        if self.causal:
            bucket = _bucket(behind.clamp(min=0), self.n_buckets, self.max_distance)
        else:
            half = self.n_buckets // 2
            bucket = _bucket(behind.abs(), half, self.max_distance) + half * (behind < 0)
        return self.table[:, bucket].to(dtype)  # (heads, q_len, k_len)


def _bucket(distance: Tensor, n_buckets: int, max_distance: int) -> Tensor:
    """The class of a distance: exact when small, logarithmic up to `max_distance`."""
    exact = n_buckets // 2
    ratio = (distance.clamp(min=exact) / exact).log() / math.log(max_distance / exact)
    large = exact + (ratio * (n_buckets - exact)).long()
    return torch.where(distance < exact, distance, large.clamp(max=n_buckets - 1))
