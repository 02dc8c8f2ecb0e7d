"""What the rivals of the Transformer gather from the source at each place of a translation."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def gather(
    scores: Float[Tensor, "batch t_len s_len"],
    states: Float[Tensor, "batch s_len d"],
    real: Bool[Tensor, "batch s_len"],
) -> Float[Tensor, "batch t_len d"]:
    """The mean of states, weighted by the softmax of scores at real tokens."""
    return scores.masked_fill(~real[:, None], torch.finfo(scores.dtype).min).softmax(dim=-1) @ states
