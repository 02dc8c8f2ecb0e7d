"""Combiners: from what the heads found back to the width of the model.

Every entry maps head outputs (batch, heads, length, d_v) to (batch, length, d_model). One that lets heads speak
with each other before that also mixes scores and weights over the axis of heads.
"""

# ruff: noqa: ARG002 -- entries of an axis share one signature; not every entry needs all of it

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.core.layouts import Activations, HeadOutputs, Real, Scores
from attnlab.core.sizes import check_positive, share_of


class AbstractCombiner(nn.Module, ABC):
    """Make one sequence out of the outputs of all heads.

    Parameters
    ----------
    d_model : int
        Width of the result.
    n_heads : int
        Number of heads.
    d_v : int
        Width of one head's output.
    bias : bool
        Whether a learned vector is added.

    Attributes
    ----------
    mixes_heads : bool
        Whether `mix_scores` or `mix_weights` do anything, so that the layer has no fused form.
    mixes_positions : bool
        Whether an output depends on head outputs at other positions, so that a text cannot be continued without them.
    adds_heads : bool
        Whether it is `to_residual` of the heads side by side and nothing else, so that ranks can share the heads.

    Raises
    ------
    SpecError
        If a size is not positive.
    """

    mixes_heads: ClassVar[bool] = False
    mixes_positions: ClassVar[bool] = False
    adds_heads: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def mix_scores(self, scores: Scores) -> Scores:
        """Scores mixed over heads, before they are normalized."""

    @abstractmethod
    def mix_weights(self, weights: Scores) -> Scores:
        """Weights mixed over heads."""

    @abstractmethod
    def forward(self, head_outputs: HeadOutputs, padding: Real | None = None) -> Activations:
        """The combined outputs; `padding` is True at real positions of the outputs."""


class AbstractSeparateHeads(AbstractCombiner):
    """Leave scores and weights of every head to itself."""

    def mix_scores(self, scores: Scores) -> Scores:
        """The scores as they are."""
        return scores

    def mix_weights(self, weights: Scores) -> Scores:
        """The weights as they are."""
        return weights


def concatenate(head_outputs: HeadOutputs) -> Float[Tensor, "batch length width"]:
    """Put the outputs of all heads side by side."""
    return head_outputs.transpose(1, 2).flatten(-2)


@final
class Project(AbstractSeparateHeads):
    """Concatenate the heads and map them to the width of the model.

    Notes
    -----
    ``[o_1; ...; o_h] W_o + b``; ``n_heads * d_v * d_model`` weights. The same as a sum of one map per head.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 3.2.2.
    """

    adds_heads = True

    def __init__(self, d_model: int, *, n_heads: int, d_v: int, bias: bool = True) -> None:
        super().__init__()
        check_positive({"d_model": d_model, "n_heads": n_heads, "d_v": d_v})
        self.to_residual = nn.Linear(n_heads * d_v, d_model, bias=bias)

    def forward(self, head_outputs: HeadOutputs, padding: Real | None = None) -> Activations:
        """The projected concatenation."""
        return self.to_residual(concatenate(head_outputs))


@final
class Concatenate(AbstractSeparateHeads):
    """Concatenate the heads, without a map of their own.

    Raises
    ------
    SpecError
        If the heads side by side are not as wide as the model.

    Notes
    -----
    ``[o_1; ...; o_h]``; no parameters. Attention written by hand with one head often stops here.
    """

    def __init__(self, d_model: int, *, n_heads: int, d_v: int) -> None:
        super().__init__()
        if n_heads * d_v != d_model:
            raise SpecError(
                "heads side by side must be as wide as the model: n_heads * d_v must be d_model; "
                f"got n_heads={n_heads}, d_v={d_v}, d_model={d_model}"
            )

    def forward(self, head_outputs: HeadOutputs, padding: Real | None = None) -> Activations:
        """The concatenation."""
        return concatenate(head_outputs)


@final
class Sum(AbstractSeparateHeads):
    """Add up the heads and map the sum to the width of the model.

    Notes
    -----
    ``(o_1 + ... + o_h) W_o + b``; ``d_v * d_model`` weights. `Project` with the same map for every head.
    """

    def __init__(self, d_model: int, *, d_v: int, bias: bool = True) -> None:
        super().__init__()
        check_positive({"d_model": d_model, "d_v": d_v})
        self.to_residual = nn.Linear(d_v, d_model, bias=bias)

    def forward(self, head_outputs: HeadOutputs, padding: Real | None = None) -> Activations:
        """The projected sum."""
        return self.to_residual(head_outputs.sum(dim=1))


@final
class Convolution(AbstractSeparateHeads):
    """Run a convolution of its own over each head's output, then concatenate.

    Parameters
    ----------
    n_heads : int
        Number of heads; divides ``d_model``, as each head ends with ``d_model / n_heads`` channels.
    kernel_size : int
        Positions that a convolution sees.
    causal : bool
        Whether it sees its own and earlier positions only, rather than both sides.

    Raises
    ------
    SpecError
        If the heads do not divide ``d_model``, or a size is not positive.

    Notes
    -----
    ``[conv_1(o_1); ...; conv_h(o_h)]``; ``kernel_size * d_v * d_model`` weights. A way to bring wide heads
    back to the width of the model without one large matrix. Outputs at padded positions count as zero.
    """

    mixes_positions = True

    def __init__(self, d_model: int, *, n_heads: int, d_v: int, kernel_size: int = 3, causal: bool = False) -> None:
        super().__init__()
        check_positive({"d_v": d_v, "kernel_size": kernel_size})
        share_of(d_model, n_heads)
        self.convolutions = nn.Conv1d(n_heads * d_v, d_model, kernel_size, groups=n_heads)
        before = kernel_size - 1 if causal else (kernel_size - 1) // 2
        self.pad = (before, kernel_size - 1 - before)

    def forward(self, head_outputs: HeadOutputs, padding: Real | None = None) -> Activations:
        """The convolved heads side by side."""
        x = concatenate(head_outputs)
        if padding is not None:
            x = x.masked_fill(~padding.unsqueeze(-1), 0)
        x = F.pad(x.transpose(1, 2), self.pad)  # (batch, channels, length + kernel_size - 1)
        return self.convolutions(x).transpose(1, 2)


@final
class TalkingHeads(AbstractCombiner):
    """Let heads mix their scores and their weights, then concatenate and project.

    Notes
    -----
    ``weights = P_w normalize(P_s scores)``, both matrices over heads. ``2 n_heads^2`` parameters beside those of
    `Project`, time O(heads^2 * q_len * k_len), no fused form. Differs from [1]_: as many heads before, between
    and after the maps, which start as the identity, so that training starts at plain attention.

    References
    ----------
    .. [1] Shazeer et al., 2020, arXiv:2003.02436, section 3.
    """

    mixes_heads = True

    def __init__(self, d_model: int, *, n_heads: int, d_v: int, bias: bool = True) -> None:
        super().__init__()
        check_positive({"d_model": d_model, "n_heads": n_heads, "d_v": d_v})
        self.score_mixing = nn.Parameter(torch.eye(n_heads))
        self.weight_mixing = nn.Parameter(torch.eye(n_heads))
        self.to_residual = nn.Linear(n_heads * d_v, d_model, bias=bias)

    def mix_scores(self, scores: Scores) -> Scores:
        """Linear combinations of the heads' scores."""
        return torch.einsum("gh,bhqk->bgqk", self.score_mixing, scores)

    def mix_weights(self, weights: Scores) -> Scores:
        """Linear combinations of the heads' weights."""
        return torch.einsum("gh,bhqk->bgqk", self.weight_mixing, weights)

    def forward(self, head_outputs: HeadOutputs, padding: Real | None = None) -> Activations:
        """The projected concatenation."""
        return self.to_residual(concatenate(head_outputs))


@final
class AttentionOverHeads(AbstractSeparateHeads):
    """Let every position attend over its own heads, then concatenate and project.

    Notes
    -----
    ``a = softmax_h(u_h . o_h / sqrt(d_v))`` and ``n_heads * (W_1 a_1 o_1 + ... + W_h a_h o_h) + b``: a second round of
    attention, whose keys are the heads' outputs, whose values are what `Project` adds up, and whose query is learned,
    as in [1]_. ``n_heads * d_v`` parameters beside those of `Project`, time O(heads * length * d_v) beside it. The
    queries start at zero, so that all heads weigh the same and training starts at `Project`. The view of heads as
    experts to be mixed is that of [2]_, where a network over the whole sequence says how.

    References
    ----------
    .. [1] Yang et al., 2016, "Hierarchical Attention Networks for Document Classification", NAACL, section 2.2.
    .. [2] Peng et al., 2020, arXiv:2005.06537, section 2.
    """

    def __init__(self, d_model: int, *, n_heads: int, d_v: int, bias: bool = True) -> None:
        super().__init__()
        check_positive({"d_model": d_model, "n_heads": n_heads, "d_v": d_v})
        self.queries = nn.Parameter(torch.zeros(n_heads, d_v))
        self.scale = d_v**-0.5
        self.to_residual = nn.Linear(n_heads * d_v, d_model, bias=bias)

    def weights(self, head_outputs: HeadOutputs) -> Float[Tensor, "batch heads length 1"]:
        """How much of each head a position takes; 1 in sum over heads."""
        scores = self.scale * (head_outputs @ self.queries.unsqueeze(-1))  # (batch, heads, length, 1)
        return scores.softmax(dim=1)

    def forward(self, head_outputs: HeadOutputs, padding: Real | None = None) -> Activations:
        """The projected concatenation of the weighted heads."""
        weights = len(self.queries) * self.weights(head_outputs)  # 1 where all heads weigh the same
        return self.to_residual(concatenate(weights * head_outputs))


COMBINERS: Mapping[str, Callable[..., AbstractCombiner]] = {
    "project": Project,
    "concatenate": Concatenate,
    "sum": Sum,
    "convolution": Convolution,
    "talking-heads": TalkingHeads,
    "attention": AttentionOverHeads,
}
