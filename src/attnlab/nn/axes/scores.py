"""Scores: how well a query fits a key.

Every entry maps q (batch, heads, q_len, d_head) and k (batch, heads, k_len, d_head) to scores (batch, heads,
q_len, k_len). One that can be written as a scaled dot product of transformed queries and keys says so in
`as_dot`, which opens the fused path. Masks and normalization are other axes.
"""

# ruff: noqa: ARG002 -- entries of an axis share one signature; not every entry needs all of it

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.core.layouts import Keys, Queries, Scores, SharedKeys
from attnlab.core.sizes import check_positive, require_not_negative

SHORTEST = 1e-12  # least length that a vector is divided by; torch's default for `normalize`

AsDot = tuple[Tensor, Tensor, float]
"""Queries, keys and a factor whose scaled dot product is the score."""


class AbstractScore(nn.Module, ABC):
    """Score every query-key pair, head by head.

    Parameters
    ----------
    d_head : int
        Width of one query and of one key.

    Attributes
    ----------
    numbers_per_pair : int
        How many numbers stand in memory for one pair at a time, on the way to its score.

    Raises
    ------
    SpecError
        If a size is not positive.
    """

    numbers_per_pair: int = 1

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, q: Queries, k: Keys) -> Scores:
        """One number per query-key pair."""

    @abstractmethod
    def as_dot(self, q: Queries, k: SharedKeys) -> AsDot | None:
        """Return ``q', k', scale`` with ``score = scale * q' . k'``, or None if there are none.

        The transformation of `k` must not differ between heads: `k` may have fewer heads than `q`.
        """


@final
class DotScore(AbstractScore):
    """Score a pair by the dot product, unscaled.

    Notes
    -----
    ``score = q . k``. Time O(heads * q_len * k_len * d_head). Its standard deviation grows with
    ``sqrt(d_head)``, which saturates a softmax.

    References
    ----------
    .. [1] Luong, Pham, Manning, 2015, arXiv:1508.04025, section 3.1, "dot".
    """

    def forward(self, q: Queries, k: Keys) -> Scores:
        """Return ``q . k``."""
        return q @ k.transpose(-2, -1)  # (batch, heads, q_len, k_len)

    def as_dot(self, q: Queries, k: SharedKeys) -> AsDot | None:
        """Queries and keys as they are, with factor 1."""
        return q, k, 1.0


@final
class ScaledDotScore(AbstractScore):
    """Score a pair by the dot product divided by the square root of its width, or by another power of it.

    Parameters
    ----------
    power : float
        Power of the width that divides: 0.5 is the root [1]_, 1 the width itself [2]_, 0 leaves the product as it is.

    Raises
    ------
    SpecError
        If the power is negative or not finite.

    Notes
    -----
    ``score = q . k / d_head^power``. Time O(heads * q_len * k_len * d_head). For queries and keys of independent
    numbers of variance 1, its standard deviation is ``d_head^(1/2 - power)``: only with 0.5 it is that of 1 at every
    width.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, equation 1.
    .. [2] Yang et al., 2022, arXiv:2203.03466, definition 4.1: queries and keys that training has aligned grow with the
       width, not with its root.
    """

    def __init__(self, d_head: int, *, power: float = 0.5) -> None:
        super().__init__()
        check_positive({"d_head": d_head})
        require_not_negative("power", power)
        self.scale = 1 / d_head**power

    def forward(self, q: Queries, k: Keys) -> Scores:
        """Return ``q . k / d_head^power``."""
        return (q * self.scale) @ k.transpose(-2, -1)  # (batch, heads, q_len, k_len)

    def as_dot(self, q: Queries, k: SharedKeys) -> AsDot | None:
        """Queries and keys as they are, with the factor."""
        return q, k, self.scale


@final
class BilinearScore(AbstractScore):
    """Score a pair through a learned matrix per head.

    Parameters
    ----------
    n_heads : int
        Number of heads, each with its own matrix.

    Notes
    -----
    ``score = q^T W k / sqrt(d_head)`` with W the identity at the start. ``n_heads * d_head^2`` weights, time
    O(heads * length * d_head^2) beside the dot product. Differs from [1]_ ("general"): scaled, so that it
    starts as `ScaledDotScore`. Behind learned projections of q and k, W adds no function that they could not
    express; it changes how they are learned.

    References
    ----------
    .. [1] Luong, Pham, Manning, 2015, arXiv:1508.04025, section 3.1, "general".
    """

    def __init__(self, d_head: int, *, n_heads: int) -> None:
        super().__init__()
        check_positive({"d_head": d_head, "n_heads": n_heads})
        self.weight = nn.Parameter(torch.eye(d_head).repeat(n_heads, 1, 1))  # (heads, d_head, d_head)
        self.scale = 1 / math.sqrt(d_head)

    def forward(self, q: Queries, k: Keys) -> Scores:
        """Return ``q^T W k / sqrt(d_head)``."""
        return (q @ self.weight * self.scale) @ k.transpose(-2, -1)  # (batch, heads, q_len, k_len)

    def as_dot(self, q: Queries, k: SharedKeys) -> AsDot | None:
        """Transformed queries, and keys as they are."""
        return q @ self.weight, k, self.scale


@final
class AdditiveScore(AbstractScore):
    """Score a query-key pair with a network of one hidden layer.

    Parameters
    ----------
    d_hidden : int, optional
        Width of the hidden layer, shared by all heads; ``d_head`` unless given.

    Notes
    -----
    ``score = w . tanh(A q + B k)``. Time and memory O(heads * q_len * k_len * d_hidden): no dot product, so
    no fused form. Differs from [1]_: applied per head, where the source has a single head.

    References
    ----------
    .. [1] Bahdanau, Cho, Bengio, 2015, arXiv:1409.0473, appendix A.1.2.
    """

    def __init__(self, d_head: int, *, d_hidden: int | None = None) -> None:
        super().__init__()
        d_hidden = d_head if d_hidden is None else d_hidden
        check_positive({"d_head": d_head, "d_hidden": d_hidden})
        self.numbers_per_pair = d_hidden
        self.from_q = nn.Linear(d_head, d_hidden)
        self.from_k = nn.Linear(d_head, d_hidden, bias=False)
        self.to_score = nn.Linear(d_hidden, 1, bias=False)

    def forward(self, q: Queries, k: Keys) -> Scores:
        """Return ``w . tanh(A q + B k)``."""
        hidden = self.from_q(q).unsqueeze(-2) + self.from_k(k).unsqueeze(-3)  # (batch, heads, q_len, k_len, d_hidden)
        hidden.tanh_()  # in place: no second tensor of this size
        return self.to_score(hidden).squeeze(-1)  # (batch, heads, q_len, k_len)

    def as_dot(self, q: Queries, k: SharedKeys) -> AsDot | None:
        """None: the hyperbolic tangent stands between query and key."""
        return None


@final
class CosineScore(AbstractScore):
    """Score a pair by the cosine of the angle between them, with a learned temperature per head.

    Parameters
    ----------
    n_heads : int
        Number of heads, each with its own temperature.

    Notes
    -----
    ``score = exp(t) * q . k / (|q| |k|)``, with ``exp(t) = 10`` at the start. Time O(heads * q_len * k_len *
    d_head). Scores cannot grow without bound while t does not. Differs from [1]_: the factor is kept
    positive by the exponential and starts at 10, where the source starts at a function of the length.

    References
    ----------
    .. [1] Henry et al., 2020, arXiv:2010.04245, section 2.
    """

    START = 10.0  # source: temperature 0.1 of Liu et al., 2022, arXiv:2111.09883, section 3.3, in their released code

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        check_positive({"n_heads": n_heads})
        self.log_factor = nn.Parameter(torch.full((n_heads, 1, 1), math.log(self.START)))

    def forward(self, q: Queries, k: Keys) -> Scores:
        """The cosine times the learned factor."""
        cosine = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        return cosine * self.log_factor.exp()  # (batch, heads, q_len, k_len)

    def as_dot(self, q: Queries, k: SharedKeys) -> AsDot | None:
        """Queries of the length of the factor, and keys of length 1."""
        return q * (_inverse_length(q) * self.log_factor.exp()), k * _inverse_length(k), 1.0


def _inverse_length(x: Tensor) -> Tensor:
    """1 over the length of vectors: what `normalize` divides by, as a factor, whose gradient costs half."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(SHORTEST).reciprocal()


SCORES: Mapping[str, Callable[..., AbstractScore]] = {
    "dot": DotScore,
    "scaled-dot": ScaledDotScore,
    "bilinear": BilinearScore,
    "additive": AdditiveScore,
    "cosine": CosineScore,
}
