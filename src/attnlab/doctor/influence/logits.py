"""Make the logits of an attention large in the middle of a call, to see whether a mask still holds then."""

from __future__ import annotations

import functools

import torch
from jaxtyping import Bool
from torch import Tensor

from attnlab.doctor.examination import Examination
from attnlab.inspection.tape.attentions import TapedAttention, attentions
from attnlab.inspection.tape.tape import Change, Tape

LARGE_LOGIT = 4e3
"""Size of logits at which any mask must hold: inputs of 30 standard deviations come near it without any training."""

HUGE_LOGIT = 2e4
"""Size that logits reached in training that went wrong.

Dehghani 2023, arXiv:2302.05442, section 2.1, saw 5e4. A constant of -1e4, which well-known models have, is too small
then; -65504, the smallest number of fp16, still holds.
"""

_OUT_OF_REACH = -1e6  # hidden scores below this stay hidden at all these sizes


def enlarging(
    exam: Examination, tape: Tape, allowed: Bool[Tensor, "#batch q_len k_len"], *, size: float
) -> tuple[Change, ...]:
    """Changes that make the visible logits of the first attention large whose mask might not hold then."""
    found = attentions(tape, exam.convention)
    return next((changes for each in found if (changes := _enlarged(each, allowed, size))), ())


def _enlarged(attention: TapedAttention, allowed: Tensor, wanted: float) -> tuple[Change, ...]:
    scores, index = attention.scores, attention.products_index
    if scores is None or index is None or attention.normalizer != "softmax" or scores.shape[-2:] != allowed.shape[-2:]:
        return ()
    visible = allowed[:, None].expand(scores.shape)
    if bool((scores[~visible] < _OUT_OF_REACH).all()):
        return ()
    sizes = scores.masked_fill(~scores.isfinite() | ~visible, 0.0).abs()
    size = float(sizes.masked_fill(sizes > HUGE_LOGIT, 0.0).max())  # larger ones are masked by some other rule
    factors = (wanted / size, -wanted / size) if size > 0 else ()
    return tuple((index, functools.partial(torch.mul, factor)) for factor in factors)
