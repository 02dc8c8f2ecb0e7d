"""Dropout that costs little on a CPU, where torch draws every element's number on one thread."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import SpecError

LEVELS = 2**16
"""One random number of 64 bits decides four elements, 16 bits each; probabilities are rounded to 1 / 65536."""
PER_NUMBER = 4
SMALLEST, LARGEST = -(2**63), 2**63 - 1


def dropout(x: Float[Tensor, "*axes"], p: float, training: bool = True) -> Float[Tensor, "*axes"]:
    """Set elements to zero at random, and scale the others so that the mean stays.

    Notes
    -----
    On a CPU forward and backward take a third to a half of the time of torch's own, compiled two thirds; elsewhere
    this is torch's own.

    References
    ----------
    .. [1] Srivastava et al., 2014, JMLR 15.
    """
    if not training or p == 0:
        return x
    dropped = round(p * LEVELS)  # of so many values of 16 bits
    if not x.is_cpu or not 0 < dropped < LEVELS:
        return F.dropout(x, p)
    numbers = torch.randint(SMALLEST, LARGEST, (-(-x.numel() // PER_NUMBER),), dtype=torch.int64)
    values = numbers.view(torch.int16)[: x.numel()].view(x.shape)
    keep = (values >= dropped - LEVELS // 2).to(x.dtype)
    return x * keep.mul_(LEVELS / (LEVELS - dropped))


def check_probability(name: str, value: float) -> float:
    """A probability that is fit for dropout."""
    if not 0 <= value < 1:
        raise SpecError(f"{name} must be a probability in [0, 1); got {value}")
    return value


@final
class Dropout(nn.Dropout):
    """Set elements to zero at random while training; see `dropout`.

    Parameters
    ----------
    p : float
        Probability that an element is set to zero.

    Raises
    ------
    SpecError
        If it is not in [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__(check_probability("dropout", p))

    def forward(self, input: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:  # noqa: A002 torch's name
        """Return `input` with elements set to zero, in evaluation as it is."""
        return dropout(input, self.p, self.training)
