"""Feed-forward: what a block does at every position on its own, after positions were mixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.nn.dropout import Dropout
from attnlab.nn.gelu import gelu
from attnlab.nn.heads import check_positive

EXPANSION = 4  # hidden width over d_model; source: Vaswani et al., 2017, section 3.3


class NoFeedForward(nn.Module):
    """Do nothing; a block leaves the whole sublayer out.

    Notes
    -----
    ``y = x``. No parameters.
    """

    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
        """Return `x` as it is."""
        return x


class _TwoLayers(nn.Module):
    """What the feed-forwards of two linear maps share: all but what is between the maps."""

    def __init__(self, d_model: int, *, d_ff: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        d_ff = EXPANSION * d_model if d_ff is None else d_ff
        check_positive({"d_model": d_model, "d_ff": d_ff})
        self.widen = nn.Linear(d_model, d_ff)
        self.drop = Dropout(dropout)
        self.to_residual = nn.Linear(d_ff, d_model)

    def activation(self, hidden: Tensor) -> Tensor:
        """Bend every hidden feature."""
        raise NotImplementedError

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
        """Return the map of every position."""
        return self.to_residual(self.drop(self.activation(self.widen(x))))


class ReluFeedForward(_TwoLayers):
    """Widen, rectify, and narrow again.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    d_ff : int, optional
        Hidden width; ``4 d_model`` unless given.
    dropout : float
        Probability that a hidden feature is set to zero in training.

    Raises
    ------
    SpecError
        If a size is not positive, or the probability not in [0, 1).

    Notes
    -----
    ``W_2 relu(W_1 x + b_1) + b_2``; ``2 d_model d_ff`` weights.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, equation 2.
    """

    def activation(self, hidden: Tensor) -> Tensor:
        """Bend every hidden feature."""
        return F.relu(hidden)


class SquaredReluFeedForward(_TwoLayers):
    """Widen, rectify and square, and narrow again.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    d_ff : int, optional
        Hidden width; ``4 d_model`` unless given.
    dropout : float
        Probability that a hidden feature is set to zero in training.

    Raises
    ------
    SpecError
        If a size is not positive, or the probability not in [0, 1).

    Notes
    -----
    ``W_2 relu(W_1 x + b_1)^2 + b_2``; ``2 d_model d_ff`` weights.

    References
    ----------
    .. [1] So et al., 2021, arXiv:2109.08668 ("squaring ReLU activations").
    """

    def activation(self, hidden: Tensor) -> Tensor:
        """Bend every hidden feature."""
        return F.relu(hidden).square()


class GeluFeedForward(_TwoLayers):
    """Widen, bend smoothly, and narrow again.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    d_ff : int, optional
        Hidden width; ``4 d_model`` unless given.
    dropout : float
        Probability that a hidden feature is set to zero in training.

    Raises
    ------
    SpecError
        If a size is not positive, or the probability not in [0, 1).

    Notes
    -----
    ``W_2 gelu(W_1 x + b_1) + b_2`` with ``gelu(x) = x P(X <= x)``, X standard normal, exact rather than the
    approximation by tanh; ``2 d_model d_ff`` weights.

    References
    ----------
    .. [1] Hendrycks, Gimpel, 2016, arXiv:1606.08415, section 2.
    """

    def activation(self, hidden: Tensor) -> Tensor:
        """Bend every hidden feature."""
        return gelu(hidden)


class GatedFeedForward(nn.Module):
    """Widen twice, let one half gate the other, and narrow again.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    d_ff : int, optional
        Hidden width; unless given ``4 d_model * 2 // 3`` (rounded down), about as many weights as the others.
    dropout : float
        Probability that a hidden feature is set to zero in training.

    Raises
    ------
    SpecError
        If a size is not positive, or the probability not in [0, 1).

    Notes
    -----
    ``W_2 (silu(W_1 x + b_1) * (W_3 x + b_3)) + b_2``; ``3 d_model d_ff`` weights. Differs from [1]_ (SwiGLU):
    with biases, like the other entries.

    References
    ----------
    .. [1] Shazeer, 2020, arXiv:2002.05202, equation 6.
    """

    def __init__(self, d_model: int, *, d_ff: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        d_ff = EXPANSION * d_model * 2 // 3 if d_ff is None else d_ff
        check_positive({"d_model": d_model, "d_ff": d_ff})
        self.widen = nn.Linear(d_model, 2 * d_ff)
        self.drop = Dropout(dropout)
        self.to_residual = nn.Linear(d_ff, d_model)

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
        """Return the map of every position."""
        gate, value = self.widen(x).chunk(2, dim=-1)  # (batch, length, d_ff) each
        return self.to_residual(self.drop(F.silu(gate) * value))


FEEDFORWARDS: Mapping[str, Callable[..., nn.Module]] = {
    "none": NoFeedForward,
    "relu": ReluFeedForward,
    "squared-relu": SquaredReluFeedForward,
    "gelu": GeluFeedForward,
    "gated": GatedFeedForward,
}
