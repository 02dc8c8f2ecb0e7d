"""Norms: how activations are brought back to one scale, position by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch
from torch import nn

from attnlab.core.sizes import check_positive, require_not_negative

EPSILON = 1e-5  # torch's default for layer norm, used for both so that they differ in one thing only


@final
class LayerNorm(nn.LayerNorm):
    """Subtract the mean of the features, divide by their standard deviation, scale and shift.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    gain : bool
        Whether each feature is scaled by a learned number.
    bias : bool
        Whether a learned number is added to each feature.
    eps : float
        What is added to the variance.

    Raises
    ------
    SpecError
        If ``d_model`` is not positive, or ``eps`` is negative.

    Notes
    -----
    ``g * (x - mean(x)) / sqrt(var(x) + eps) + b``; gain and bias are learned, ``2 d_model`` numbers. Without both it
    is "LayerNorm-simple" of [2]_. Where only linear maps with bias follow, as behind a pre-norm, they express gain and
    bias as well.

    References
    ----------
    .. [1] Ba, Kiros, Hinton, 2016, arXiv:1607.06450, equation 4.
    .. [2] Xu et al., 2019, arXiv:1911.07013, section 3.1.
    """

    def __init__(self, d_model: int, *, gain: bool = True, bias: bool = True, eps: float = EPSILON) -> None:
        check_positive({"d_model": d_model})
        require_not_negative("eps", eps)
        super().__init__(d_model, eps=eps, elementwise_affine=gain, bias=bias)
        if bias and not gain:  # which torch leaves out together
            self.bias = nn.Parameter(torch.zeros(d_model))


@final
class RmsNorm(nn.RMSNorm):
    """Divide by the root of the mean square of the features, and scale.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    gain : bool
        Whether each feature is scaled by a learned number.
    eps : float
        What is added to the mean square.

    Raises
    ------
    SpecError
        If ``d_model`` is not positive, or ``eps`` is negative.

    Notes
    -----
    ``g * x / sqrt(mean(x^2) + eps)``; the gain is learned. Layer norm without mean and bias.

    References
    ----------
    .. [1] Zhang, Sennrich, 2019, arXiv:1910.07467, equation 4.
    """

    def __init__(self, d_model: int, *, gain: bool = True, eps: float = EPSILON) -> None:
        check_positive({"d_model": d_model})
        require_not_negative("eps", eps)
        super().__init__(d_model, eps=eps, elementwise_affine=gain)


NORMS: Mapping[str, Callable[..., nn.Module]] = {
    "layer": LayerNorm,
    "rms": RmsNorm,
}
