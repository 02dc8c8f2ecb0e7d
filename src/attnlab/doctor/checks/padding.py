"""Whether padding changes what real positions give: by what stands there, or by how much of it there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.measures.declared import as_declared
from attnlab.doctor.measures.differences import Reach, deviation, difference, largest, size_of
from attnlab.doctor.measures.logits import HUGE_LOGIT, LARGE_LOGIT, enlarging
from attnlab.doctor.measures.padded import FILLED, Side, lengths_of, real_positions, telling
from attnlab.doctor.measures.samples import meeting
from attnlab.doctor.measures.steady import is_steady
from attnlab.inspection.tape.attentions import attentions
from attnlab.inspection.tape.tape import Change

_ID = "padding"
_LARGE = 100.0  # standard deviations of what stands at padded positions: a weight that is small, not zero, shows
_SOURCE = "pytorch/pytorch#90534 and huggingface/transformers#278: padding that changes the outputs of real tokens"
_LEFT_WORDS = re.compile(r"left[- ]pad|padd(ed|ing)[^.]{0,20} (on|at|to) the (left|start|front|beginning)")
_RIGHT_WORDS = re.compile(r"right[- ]pad|padd(ed|ing)[^.]{0,20} (on|at|to) the (right|end)|trailing pad")
_PAD_NAMES = ("pad_id", "pad_idx", "padding_idx", "pad_token_id", "pad_token", "pad_index")


def check_padding(exam: Examination) -> Iterator[Finding]:
    """Change what stands at padded positions, and how many there are, and look at the outputs of real ones."""
    yield from _judged(exam)
    if exam.of_memory is not None:
        yield from _judged(exam.of_memory)


def _judged(exam: Examination) -> Iterator[Finding]:
    """What is wrong with the padding of one input: of what asks, or of the memory."""
    if exam.usage.length <= FILLED + 1 or not is_steady(exam):
        return
    exam = as_declared(exam)
    if exam.usage.key_mask is not None:
        yield from _told_by_mask(exam, f"`{exam.usage.key_mask.parameter}`")
    elif exam.usage.takes == "tokens" and exam.usage.any_length:
        pad = _pad_token(exam)
        if pad is not None:
            yield from _finding(exam, list(_by_pad_tokens(exam, pad)), f"the padding token {pad}")


@dataclass(frozen=True)
class _Change:
    """Say what was done to the padding and how much real positions changed."""

    done: str
    ratio: float
    unit: str
    of_content: bool


# Padding told by a mask


def _told_by_mask(exam: Examination, told_by: str) -> Iterator[Finding]:
    """An error for padding that reaches real positions, on the left only where that side is meant too."""
    right = [*_by_content(exam, "right"), *_by_content_of_large_logits(exam, LARGE_LOGIT), *_by_amount(exam)]
    left = list(_by_content(exam, "left")) if _takes_left(exam) else []
    text = exam.patient.said.lower()
    if right and not left and _LEFT_WORDS.search(text) and _takes_left(exam):
        return
    if right:
        yield from _finding(exam, right + left, told_by)
    elif left and not exam.usage.pooled and not _RIGHT_WORDS.search(text):
        yield from _left_alone(exam, left, told_by)
    else:
        for finding in _finding(exam, list(_by_content_of_large_logits(exam, HUGE_LOGIT)), told_by):
            yield replace(finding, severity="warning")


def _takes_left(exam: Examination) -> bool:
    return exam.usage.key_mask is not None and exam.usage.key_mask.tells_left_padding


def _left_alone(exam: Examination, changes: list[_Change], told_by: str) -> Iterator[Finding]:
    """An error for an attention whose causal mask hides padding on the right alone.

    What carries a state along the sequence is meant for padding on the right, and gets a warning.
    """
    for finding in _finding(exam, changes, told_by):
        judged = bool(attentions(exam.usual_tape, exam.usage))
        yield finding if judged else replace(finding, severity="warning", nature="set-up")


def _by_content(exam: Examination, side: Side) -> Iterator[_Change]:
    """What happens when padded positions hold something else."""
    for scale in (1.0,) if exam.usage.takes == "tokens" else (1.0, _LARGE):
        real = real_positions(lengths_of(exam.usage.length, BATCH), exam.usage.length, side)
        ratio = _content_reach(exam, real, scale).ratio
        if ratio:
            size = "" if exam.usage.takes == "tokens" else f" of {scale:g} standard deviations"
            done = f"other content{size} at padded positions on the {side}"
            yield _Change(done, ratio, "of what other content everywhere changes", of_content=True)


def _content_reach(exam: Examination, real: Tensor, scale: float) -> Reach:
    """Compare what padded content changes with what all content changes, at real positions."""
    x, told = exam.inputs(), telling(exam, real)
    before, other = exam.run(x, **told), exam.change(x, slice(None))
    signal = _at_real(exam, difference(before, exam.run(other, **told)), real)
    moved = _where(real, x, other if exam.usage.takes == "tokens" else other * scale)
    leak = _at_real(exam, difference(before, exam.run(moved, **told)), real)
    return Reach(leak, signal, size_of(before), exam.tolerance)


def _by_content_of_large_logits(exam: Examination, size: float) -> Iterator[_Change]:
    """What padded content does where logits are large: a finite mask lets it in."""
    x = exam.inputs()
    real = real_positions(range(1, BATCH + 1), x.size(1))  # so few that others are let in if these have low logits
    if "padding" not in telling(exam, real):
        return
    for change in enlarging(exam, exam.tape(x, padding=real), real[:, None, :].expand(-1, x.size(1), -1), size=size):
        ratio = _changed_reach(exam, x, real, change).ratio
        if ratio:
            done = f"other content at padded positions once logits reach {size:.0e}"
            yield _Change(done, ratio, "of what other content everywhere changes", of_content=True)
            return


def _changed_reach(exam: Examination, x: Tensor, real: Tensor, change: Change) -> Reach:
    """Compare what padded content changes with what all content changes, with a change in the middle of the calls."""
    other = exam.change(x, slice(None))
    before, after, all_after = (
        exam.tape(each, padding=real, change=change).output for each in (x, _where(real, x, other), other)
    )
    leak, signal = (_at_real(exam, difference(before, moved), real) for moved in (after, all_after))
    return Reach(leak, signal, size_of(before), exam.tolerance)


def _where(kept: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """Return `x` where something is kept and `other` elsewhere."""
    return torch.where(kept.unsqueeze(-1) if x.dim() == 3 else kept, x, other)


def _at_real(exam: Examination, moved: Tensor, real: Tensor) -> float:
    """The largest of what real positions changed by; a pooled output is real."""
    return largest(moved if exam.usage.pooled else moved[real])


def _by_amount(exam: Examination) -> Iterator[_Change]:
    """What happens when there is more padding, or none because a sample stands alone."""
    if not exam.usage.any_length:
        return
    x = exam.inputs()
    short = x.size(1) - FILLED
    lengths = lengths_of(short, BATCH)
    filled = exam.run(x[:, :short].contiguous(), **telling(exam, real_positions(lengths, short)))
    more = exam.run(x, **telling(exam, real_positions(lengths, x.size(1))))
    apart = [_apart(exam, filled[row], more[row], size) for row, size in enumerate(lengths)]
    if max(apart):
        yield _Change(f"{FILLED} more padded positions", max(apart), "of the largest output", of_content=False)
    alone = []
    for row, size in enumerate(lengths):
        single = exam.run(x[row : row + 1, :size].contiguous(), **telling(exam, torch.ones(1, size, dtype=torch.bool)))[
            0
        ]
        alone.append(_apart(exam, single, filled[row], size))
    if max(alone) and not meeting(exam).ratio:  # where samples meet, how many there are counts, not the padding
        done = "a batch of one, without padding, instead of a filled batch"
        yield _Change(done, max(alone), "of the largest output", of_content=False)


def _apart(exam: Examination, one: Tensor, other: Tensor, length: int) -> float:
    """How far two outputs of one sample differ at its real positions."""
    return deviation(one, other) if exam.usage.pooled else deviation(one[:length], other[:length])


# Padding told by a token


def _pad_token(exam: Examination) -> int | None:
    """The token that means padding, if the patient has one."""
    vocab_size = exam.usage.vocab_size or 0
    embeddings = [part for part in exam.patient.module.modules() if isinstance(part, nn.Embedding)]
    of_tokens = [part.padding_idx for part in embeddings if part.num_embeddings >= vocab_size]
    said = [getattr(exam.patient.module, name, exam.patient.arguments.get(name)) for name in _PAD_NAMES]
    return next((pad for pad in (*of_tokens, *said) if type(pad) is int and 0 <= pad < vocab_size), None)


def _by_pad_tokens(exam: Examination, pad: int) -> Iterator[_Change]:
    """What happens when padding tokens are added at the end."""
    x = exam.inputs()
    x = torch.where(x == pad, (x + 1) % (exam.usage.vocab_size or 2), x)
    short = x.size(1) - FILLED
    plain, filled = exam.run(x[:, :short].contiguous()), x.clone()
    filled[:, short:] = pad
    output = exam.run(filled)
    apart = _apart(exam, plain, output, short) if exam.usage.pooled else deviation(plain, output[:, :short])
    if apart:
        yield _Change(f"{FILLED} padding tokens at the end", apart, "of the largest output", of_content=False)


# In words


def _finding(exam: Examination, changes: list[_Change], told_by: str) -> Iterator[Finding]:
    """Yield one error for all that was seen."""
    if not changes:
        return
    subject = "the pooled output" if exam.usage.pooled else "the outputs of real positions"
    subject = subject if exam.usage.slots is None else "the output"
    content = any(change.of_content for change in changes)
    verb = "depend" if not exam.usage.pooled else "depends"
    on = "what stands at padded positions" if content else "the amount of padding"
    yield Finding(
        _ID,
        "error",
        f"{subject} {verb} on {on}, although {told_by} tells what is padding.",
        "; ".join(f"{change.ratio:.2g} {change.unit} for {change.done}" for change in changes[:3]),
        _remedy(exam, content=content),
        _SOURCE,
    )


def _remedy(exam: Examination, *, content: bool) -> str:
    """What to do about it."""
    if exam.usage.pooled and exam.usage.slots is None:
        return "pool over real positions alone: `(h * real[..., None]).sum(1) / real.sum(1, keepdim=True)`"
    if content:
        return (
            "let padded keys weigh nothing in every layer: `scores.masked_fill(~real[:, None, None, :], float('-inf'))`"
            " before the softmax over keys, and zero padded positions before convolutions and sums over positions"
        )
    return "divide by the number of real positions, not by the length, and count positions from the first real one"
