"""How active attention and rectifiers are: entropy of weights, size of scores, dead features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnlab.core.layouts import Scores
from attnlab.inspection.watch import open_recorders
from attnlab.nn.changed_calls import RECTIFIERS

HIDDEN = -5e3  # scores below are masked: the smallest number that masks add is -1e4
UNDERFLOW = 80.0  # a score so far below the largest of its row may have a weight of exactly zero in float32


def visible_pairs(scores: Scores, weights: Scores) -> Bool[Tensor, "batch heads q_len k_len"]:
    """Which keys a query may see: those that some head of the layer weights, or gives too low a score to weight."""
    largest = scores.masked_fill(weights == 0, -math.inf).amax(-1, keepdim=True)
    some = (weights > 0) | ((scores < largest - UNDERFLOW) & (scores > HIDDEN))
    return some.any(1, keepdim=True).expand_as(scores)


def relative_entropy(weights: Float[Tensor, "*q_len k_len"], visible: Bool[Tensor, "*q_len k_len"]) -> Tensor:
    """The entropy of each query's weights, as a part of that of equal weights on what it may see; NaN for one key."""
    equal = visible.sum(-1).log()  # (*q_len)
    return (torch.special.entr(weights).sum(-1) / equal).masked_fill(equal <= 0, math.nan)


def spread(scores: Scores, visible: Bool[Tensor, "batch heads q_len k_len"]) -> Float[Tensor, " heads"]:
    """The standard deviation of a head's scores where keys may be seen."""
    shown = scores.masked_fill(~visible, math.nan)
    mean = shown.nanmean((0, 2, 3), keepdim=True)
    return (shown - mean).square().nanmean((0, 2, 3)).sqrt()


def dead_share(rectified: Float[Tensor, "*positions features"]) -> Float[Tensor, ""]:
    """The share of features that are zero at every position."""
    return (rectified == 0).flatten(0, -2).all(0).float().mean()


@final
class WatchRectifiers(TorchFunctionMode):
    """Count, by module, the features that a rectifier leaves at zero at every position; open within `capture`.

    Attributes
    ----------
    dead : dict
        Share of the features, by name of the module that rectifies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dead: dict[str, Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch."""
        result = func(*args, **(kwargs or {}))
        if func in RECTIFIERS | {F.relu6} and result.ndim > 1:
            self.dead[open_recorders()[-1].running] = dead_share(result)
        return result
