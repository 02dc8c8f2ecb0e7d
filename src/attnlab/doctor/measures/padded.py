"""Batches whose samples differ in length, filled up on one side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

import torch
from jaxtyping import Bool
from torch import Tensor

from attnlab.doctor.examination import Examination
from attnlab.strangers.calling.masking import BATCHED_SHAPES

Side = Literal["right", "left"]

FILLED = 3  # positions of padding, fewer than there are real ones
"""Padded positions that every sample of a batch has in common when padding is added."""


class HowToPad(TypedDict, total=False):
    """Name the arguments of `Examination.run` that tell padding.

    Attributes
    ----------
    padding : Tensor
        (batch, length), True = a real position.
    allowed : Tensor
        (batch, q_len, k_len), True = may attend.
    """

    padding: Bool[Tensor, "batch length"]
    allowed: Bool[Tensor, "batch q_len k_len"]


def lengths_of(length: int, batch: int) -> list[int]:
    """How many positions of each sample are real."""
    step = max(1, length // (batch + 1))
    return [max(1, length - sample * step) for sample in range(batch)]


def real_positions(lengths: Sequence[int], length: int, side: Side = "right") -> Bool[Tensor, "batch length"]:
    """Which positions are real."""
    real = torch.arange(length) < torch.tensor(lengths)[:, None]
    return real if side == "right" else real.flip(1)


def _says_both(exam: Examination) -> bool:
    """Whether one mask over pairs of each sample says what is padding, and what comes later."""
    keys, pairs = exam.usage.key_mask, exam.usage.pair_mask
    if keys is None or not exam.usage.causal:
        return False
    shared = pairs is not None and pairs.parameter == keys.parameter and pairs.shape in BATCHED_SHAPES
    return keys.shape in BATCHED_SHAPES or (shared and exam.usage.causal_means == "mask")


def telling(exam: Examination, real: Bool[Tensor, "batch length"]) -> HowToPad:
    """How padding is told to a patient."""
    if not _says_both(exam):
        return {"padding": real}
    length = real.size(1)
    own = torch.eye(length, dtype=torch.bool)
    return {"allowed": (torch.ones(length, length, dtype=torch.bool).tril() & real[:, None, :]) | own}
