"""Batches in epochs: every item once, in an order of the seed, then all again in another."""

from __future__ import annotations

import functools

import torch
from jaxtyping import Int
from torch import Tensor

from attnlab.core.generators import generator_for

PERMUTATIONS_KEPT = 64  # one per seed trained at the same time; 0.2 MB each of 25,000 items


@functools.lru_cache(maxsize=PERMUTATIONS_KEPT)
def _permutation(count: int, seed: int, epoch: int) -> Int[Tensor, " count"]:
    """The order of the items in one epoch."""
    return torch.randperm(count, generator=generator_for(seed, epoch))


def in_epochs(count: int, batch: int, step: int, seed: int) -> Int[Tensor, " batch"]:
    """The items of one training step: a pure function of step and seed."""
    begin, end = step * batch, (step + 1) * batch
    epochs = range(begin // count, (end - 1) // count + 1)
    order = torch.cat([_permutation(count, seed, epoch) for epoch in epochs])
    offset = begin - epochs.start * count
    return order[offset : offset + batch]
