"""Conditions of a call: batches filled up on one side, and a second sequence that is the first one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypedDict, final

import torch
from jaxtyping import Bool
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.strangers.calling.masking import BATCHED_SHAPES
from attnlab.strangers.calling.sources import OTHER_MEMORIES

Side = Literal["right", "left"]

FILLED = 3  # positions of padding, fewer than there are real ones
"""Padded positions that every sample of a batch has in common when padding is added."""


@final
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


def telling(exam: Examination, real: Bool[Tensor, "batch length"]) -> HowToPad:
    """How padding is told to a patient: by its own mask, or by one over pairs that says both."""
    if not _says_both(exam):
        return {"padding": real}
    length = real.size(1)
    own = torch.eye(length, dtype=torch.bool)
    return {"allowed": (torch.ones(length, length, dtype=torch.bool).tril() & real[:, None, :]) | own}


def telling_both(_exam: Examination, real: Bool[Tensor, "batch length"]) -> HowToPad:
    """The same, by its own mask and by another one over pairs."""
    return {"padding": real, "allowed": real[:, None, :] | torch.eye(real.size(1), dtype=torch.bool)}


def pairs_tell_too(exam: Examination) -> bool:
    """Whether padding can be told by a mask over pairs that is not the one that tells it."""
    keys, pairs = exam.convention.key_mask, exam.convention.pair_mask
    if keys is None or pairs is None or exam.convention.causal:
        return False
    return pairs.parameter != keys.parameter and pairs.shape in BATCHED_SHAPES


def _says_both(exam: Examination) -> bool:
    """Whether one mask over pairs of each sample says what is padding, and what comes later."""
    keys, pairs = exam.convention.key_mask, exam.convention.pair_mask
    if keys is None or not exam.convention.causal:
        return False
    shared = pairs is not None and pairs.parameter == keys.parameter and pairs.shape in BATCHED_SHAPES
    return keys.shape in BATCHED_SHAPES or (shared and exam.convention.causal_means == "mask")


def with_own_memory(exam: Examination) -> Iterator[Examination]:
    """The examination, and one in which the input is its own memory, where it takes a memory and that runs.

    So every question about positions can be asked of attention over a second sequence.
    """
    yield exam
    arguments = tuple(
        replace(one, source="x") if one.source in OTHER_MEMORIES else one for one in exam.convention.arguments
    )
    if arguments == exam.convention.arguments:
        return
    itself = exam.relying_on(replace(exam.convention, arguments=arguments))
    try:
        itself.run(itself.inputs())
    except ModuleError:  # a memory of another width, or of a fixed length
        return
    yield itself
