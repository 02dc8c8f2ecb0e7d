"""Normalizers: from the scores of a query to the weights of the values.

Every entry maps scores (batch, heads, q_len, k_len) and what is allowed to weights of the same shape, zero where
nothing may be attended to. A row that may attend to nothing gives zeros and zero gradients, never NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, final

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from attnlab.core.layouts import Scores


class AbstractNormalizer(nn.Module, ABC):
    """Turn scores into weights.

    Attributes
    ----------
    sinks : int or None
        How many extra keys of score 0 and value 0 make this a plain softmax; None if no number does, so
        that there is no fused form.
    """

    sinks: ClassVar[int | None] = None

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, scores: Scores, allowed: Bool[Tensor, "*more q_len k_len"] | None) -> Scores:
        """The weights; `allowed` broadcasts to the scores, None allows everything."""


def fill_forbidden(scores: Tensor, allowed: Tensor | None, value: float) -> Tensor:
    """Scores with a finite value where nothing may be attended to."""
    return scores if allowed is None else scores.masked_fill(~allowed, value)


@final
class Softmax(AbstractNormalizer):
    """Weigh by the exponential of the score, divided by the sum over all keys.

    Notes
    -----
    ``w_j = exp(s_j) / sum_i exp(s_i)``. Time O(heads * q_len * k_len). Forbidden scores are replaced by the
    lowest finite number rather than by minus infinity, which would make empty rows NaN; their weights are
    zero exactly.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, equation 1.
    """

    sinks = 0

    def forward(self, scores: Scores, allowed: Bool[Tensor, "*more q_len k_len"] | None) -> Scores:
        """Weights that sum to one in every row that may attend to something."""
        lowest = torch.finfo(scores.dtype).min
        weights = fill_forbidden(scores, allowed, lowest).softmax(dim=-1)
        return fill_forbidden(weights, allowed, 0.0)


@final
class SoftmaxPlusOne(AbstractNormalizer):
    """Weigh like softmax, with one more key of score 0 and no value, so that a query may attend to nothing.

    Notes
    -----
    ``w_j = exp(s_j) / (1 + sum_i exp(s_i))``. Time O(heads * q_len * k_len). The same as a zero key and value
    appended to every sequence (``add_zero_attn`` of torch's ``nn.MultiheadAttention``).

    References
    ----------
    .. [1] Miller, 2023, "Attention is off by one", https://www.evanmiller.org/attention-is-off-by-one.html.
    """

    sinks = 1

    def forward(self, scores: Scores, allowed: Bool[Tensor, "*more q_len k_len"] | None) -> Scores:
        """Weights whose sum is less than one."""
        scores = fill_forbidden(scores, allowed, torch.finfo(scores.dtype).min)
        peak = scores.detach().amax(dim=-1, keepdim=True).clamp(min=0)
        powers = fill_forbidden((scores - peak).exp(), allowed, 0.0)
        return powers / ((-peak).exp() + powers.sum(dim=-1, keepdim=True))


@final
class Sparsemax(AbstractNormalizer):
    """Weigh by the nearest point of the simplex, which gives most keys exactly nothing.

    Notes
    -----
    ``w = argmin_{p in simplex} |p - s|^2 = max(s - tau(s), 0)``. Time O(heads * q_len * k_len * log k_len) for
    the sort. Computed in float32 at least.

    References
    ----------
    .. [1] Martins, Astudillo, 2016, arXiv:1602.02068, algorithm 1.
    """

    OUTSIDE = -2.0  # scores are shifted to a maximum of 0, so that tau >= -1 and -2 is never in the support

    def forward(self, scores: Scores, allowed: Bool[Tensor, "*more q_len k_len"] | None) -> Scores:
        """Weights that sum to one in every row that may attend to something."""
        exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
        lowest = torch.finfo(exact.dtype).min
        peak = fill_forbidden(exact, allowed, lowest).detach().amax(dim=-1, keepdim=True)
        shifted = fill_forbidden(exact - peak, allowed, self.OUTSIDE)
        weights = (shifted - _threshold(shifted)).clamp(min=0)
        return fill_forbidden(weights, allowed, 0.0).to(scores.dtype)


def _threshold(shifted: Tensor) -> Tensor:
    """Tau, the number that is subtracted from every score: algorithm 1, steps 1 to 3."""
    falling = shifted.sort(dim=-1, descending=True).values  # (batch, heads, q_len, k_len)
    rank = torch.arange(1, shifted.shape[-1] + 1, device=shifted.device, dtype=shifted.dtype)
    inside = (1 + rank * falling) > falling.cumsum(dim=-1)
    support = inside.sum(dim=-1, keepdim=True)
    return (falling.masked_fill(~inside, 0).sum(dim=-1, keepdim=True) - 1) / support  # (batch, heads, q_len, 1)


@final
class Hardmax(AbstractNormalizer):
    """Weigh the key of the highest score by one and all others by nothing: a lookup.

    Notes
    -----
    ``w_j = 1`` where j is the first key of the highest score, else 0. Time O(heads * q_len * k_len). As a function of
    the scores it is a step, without a gradient to learn from. So it is given the gradient of softmax at the same scores
    (straight-through [1]_), also for keys that were not looked up; their values get none. Differs from [1]_, where
    a unit is a sigmoid on its own and the gradient passes a step as if it were the identity.

    References
    ----------
    .. [1] Bengio, Leonard, Courville, 2013, arXiv:1308.3432, section 4.
    """

    def forward(self, scores: Scores, allowed: Bool[Tensor, "*more q_len k_len"] | None) -> Scores:
        """One weight of one in every row that may attend to something."""
        scores = fill_forbidden(scores, allowed, torch.finfo(scores.dtype).min)
        keys = torch.arange(scores.shape[-1], device=scores.device)
        highest = (keys == scores.argmax(dim=-1, keepdim=True)).to(scores.dtype)
        soft = scores.softmax(dim=-1)
        return fill_forbidden(highest + (soft - soft.detach()), allowed, 0.0)  # the difference is exactly zero


@final
class UniformWeights(AbstractNormalizer):
    """Weigh all keys alike, whatever their scores: attention that does not choose.

    Notes
    -----
    ``w_j = 1 / n``, n the number of keys the query may attend to. Time O(heads * q_len * k_len). Scores get gradients
    of zero: what computes them is not learned. Where a model does as well with these weights as with learned ones, what
    it looks at explains nothing of what it answers [1]_.

    References
    ----------
    .. [1] Wiegreffe, Pinter, 2019, arXiv:1908.04626, section 3.2 (uniform weights as the adversary).
    """

    def forward(self, scores: Scores, allowed: Bool[Tensor, "*more q_len k_len"] | None) -> Scores:
        """Equal weights that sum to one in every row that may attend to something."""
        alike = fill_forbidden(torch.zeros_like(scores), allowed, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return fill_forbidden(alike + 0 * fill_forbidden(scores, allowed, 0.0), allowed, 0.0)


@final
class Sigmoid(AbstractNormalizer):
    """Weigh every key on its own, without competition among keys.

    Notes
    -----
    ``w_j = sigmoid(s_j - log n)``, n the number of keys the query may attend to. Time O(heads * q_len * k_len).
    Differs from [1]_: n counts the allowed keys of the row instead of the length of the sequence, so that
    padding changes nothing.

    References
    ----------
    .. [1] Ramapuram et al., 2024, arXiv:2409.04431, section 3.1 (bias ``b = -log n``).
    """

    def forward(self, scores: Scores, allowed: Bool[Tensor, "*more q_len k_len"] | None) -> Scores:
        """Weights between 0 and 1 that need not sum to one."""
        everything = scores.new_ones(scores.shape[-2:], dtype=torch.bool) if allowed is None else allowed
        keys = everything.sum(dim=-1, keepdim=True).clamp(min=1)
        return fill_forbidden(torch.sigmoid(scores - keys.to(scores.dtype).log()), allowed, 0.0)


@final
class LinearWeights(AbstractNormalizer):
    """Take the scores themselves as weights: attention without a normalizer.

    Notes
    -----
    ``w_j = s_j``. Weights may be negative, and outputs grow with the number of keys. In the causal case this
    is a linear recurrence with a matrix as its state [1]_.

    References
    ----------
    .. [1] Schlag, Irie, Schmidhuber, 2021, arXiv:2102.11174, section 2.
    """

    def forward(self, scores: Scores, allowed: Bool[Tensor, "*more q_len k_len"] | None) -> Scores:
        """The scores, zero where nothing may be attended to."""
        return fill_forbidden(scores, allowed, 0.0)


NORMALIZERS: Mapping[str, Callable[..., AbstractNormalizer]] = {
    "softmax": Softmax,
    "softmax-plus-one": SoftmaxPlusOne,
    "sparsemax": Sparsemax,
    "hardmax": Hardmax,
    "uniform": UniformWeights,
    "sigmoid": Sigmoid,
    "linear": LinearWeights,
}
