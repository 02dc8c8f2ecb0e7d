"""What predictors without any idea reach on pairs of sequences: a constant, a linear map."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

TrainPairs = tuple[Float[Tensor, "count d_in"], Float[Tensor, "count d_out"]]
HeldOutPairs = tuple[Float[Tensor, "held_out d_in"], Float[Tensor, "held_out d_out"]]


def constant_error(train: TrainPairs, held_out: HeldOutPairs) -> float:
    """The error of the best constant at each position."""
    return (held_out[1].double() - train[1].double().mean(dim=0)).square().mean().item()


def linear_error(train: TrainPairs, held_out: HeldOutPairs) -> float:
    """The error of the best linear map with an intercept.

    Notes
    -----
    No ridge. With fewer sequences than inputs the map of least norm is taken. Time O(count d_in^2).
    """
    inputs, targets = (tensor.double() for tensor in train)
    center_in, center_out = inputs.mean(dim=0), targets.mean(dim=0)
    weights = torch.linalg.lstsq(inputs - center_in, targets - center_out, driver="gelsd").solution
    predicted = (held_out[0].double() - center_in) @ weights + center_out
    return (held_out[1].double() - predicted).square().mean().item()
