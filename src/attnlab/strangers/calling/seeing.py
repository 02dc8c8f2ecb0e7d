"""Which positions a position sees: earlier ones alone, all, or something else."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.trial import NOTHING, Trial
from attnlab.strangers.usage import Usage

Sight = Literal["past", "all", "itself", "unclear"]
"""Earlier positions (nearly) alone; both sides alike; no other position; anything else."""

_LEAK = 0.02  # of what an earlier position weighs: less is a leak in something meant to be causal
_ALIKE = 0.2  # of what earlier positions weigh: both sides are meant to be seen
_CLEARLY = 1e-3  # of the largest weight: what is seen on one side alone, and weighs less, may have decayed
_PROBED = 16  # positions up to which every one is replaced


def sight_of(trial: Trial, usage: Usage, *, causal: bool = False) -> Sight:
    """Which positions a position sees when nothing is hidden from it."""
    if usage.pooled or usage.length < 2:
        return "unclear"
    try:
        seen = influences(trial, usage, causal=causal)
    except ModuleError:
        return "unclear"
    seen = seen.nan_to_num(0.0)
    past, future = seen.tril(-1).max(), seen.triu(1).max()
    if max(past, future) <= NOTHING:
        return "itself"
    if future <= _LEAK * past:
        return "past"
    return "all" if _symmetric(seen) else "unclear"


def influences(trial: Trial, usage: Usage, *, causal: bool = False) -> Float[Tensor, "q_len k_len"]:
    """How much each position's output changes when another position's input is replaced."""
    length = usage.length
    step = max(1, length // _PROBED)
    seen = torch.full((length, length), float("nan"))
    x = trial.inputs(usage)
    for position in range(0, length, step):
        seen[:, position] = trial.reaction(usage, slice(position, position + 1), x=x, causal=causal).amax(0).float()
    return seen


def _symmetric(seen: Tensor) -> bool:
    """Whether both sides weigh alike, and nothing is seen at a distance on one side alone."""
    length = seen.size(0)
    before = torch.stack([seen.diagonal(-distance).mean() for distance in range(1, length)])
    after = torch.stack([seen.diagonal(distance).mean() for distance in range(1, length)])
    clearly = torch.maximum(before, after) > _CLEARLY * seen.max()
    one_sided = clearly & (torch.minimum(before, after) <= NOTHING)
    return not bool(one_sided.any()) and bool(after.sum() >= _ALIKE * before.sum())
