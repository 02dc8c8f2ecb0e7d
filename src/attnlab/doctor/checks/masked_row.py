"""What a row that may attend to nothing becomes: a number, or NaN in outputs and gradients."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.measures.padded import lengths_of, real_positions, telling
from attnlab.strangers.calling.masking import Masking

_ID = "masked-row"
_SOURCE = "pytorch/pytorch#41508: NaN where all keys of a row are masked"
_REMEDY = (
    "give such rows something finite before the softmax: `scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)`,"
    " or let each position see itself; `torch.where` or nan_to_num after the softmax can leave NaN in the gradient"
)
_EMPTY = re.compile(
    r"\b(rows?|quer(y|ies)|positions?|samples?)\b[^.]{0,60}\b(attend|see|allowed|keys?)\b[^.]{0,30}\b(nothing|none|no)\b"
    r"|\b(nothing|no keys?) (to attend|to see|is allowed|is visible)|\bempty rows?\b|\brows?\b[^.]{0,40}\bempty\b"
    r"|\b(no|without) (visible |allowed |real )?(keys?|positions?)\b"
    r"|\b(whole|entire) (row|mask|memory|context|sample)\b[^.]{0,60}\b(is|are|be) (true|masked|blocked|padd(ed|ing))\b"
    r"|\b(memory|context|sample|row)s? (may|can) be (empty|(wholly|entirely|completely) (empty|masked|padded))\b"
    r"|\b(fully|wholly|all|completely|entirely)[- ](masked|blocked|padded)\b"
)
_PROMISE = re.compile(r"\b(may|can|allow|zeros?|support|handle|safe|finite|instead|return|get|give|output)")
_REFUSAL = re.compile(r"\b(never|must not|may not|cannot|not supported|undefined|nan)\b")


def check_masked_row(exam: Examination) -> Iterator[Finding]:
    """Look for NaN without a mask, with padding on either side, with a wholly padded sample, and with an empty row."""
    yield from _judged(exam)
    if exam.of_memory is not None:
        yield from _judged(exam.of_memory, " (memory)")


def _judged(exam: Examination, where: str = "") -> Iterator[Finding]:
    """What is wrong with rows that are left with nothing of one input: of what asks, or of the memory."""
    ordinary = [trouble for trial in _ordinary(exam) if (trouble := _trouble(exam, trial, where))]
    if ordinary:
        yield _finding("error", "ordinary input gives NaN or infinity", ordinary)
        return
    documented = _promises_empty_rows(exam.patient.said)
    empty = [trouble for trial in _empty(exam) if (trouble := _trouble(exam, trial, where))]
    if empty and documented:
        yield _finding("error", "a row documented as allowed to attend to nothing gives NaN", empty)
    elif empty:
        yield _finding("warning", "a row that may attend to nothing gives NaN", empty)


def _promises_empty_rows(text: str) -> bool:
    """Whether a sentence says that a row may be empty, and none of its words takes that back."""
    sentences = re.split(r"[.:;!?]\s|\n\s*\n", " ".join(text.lower().replace("#", " ").split(" ")))
    about = [sentence for sentence in sentences if _EMPTY.search(sentence)]
    return any(_PROMISE.search(sentence) and not _REFUSAL.search(sentence) for sentence in about)


@dataclass(frozen=True)
class _Trial:
    """Hold one call, and which outputs a loss would read."""

    words: str
    x: Tensor
    how: dict[str, Any]
    read: Tensor | None = None


def _inputs(exam: Examination) -> Tensor:
    """Inputs in float32: the smallest number of float64 that some modules mask with is infinite there."""
    return exam.inputs(dtype=torch.float32)


def _ordinary(exam: Examination) -> Iterator[_Trial]:
    """Yield calls that every user makes."""
    x = _inputs(exam)
    yield _Trial("no mask", x, {})
    if exam.usage.any_length:
        yield _Trial("length 1", x[:, :1].contiguous(), {})
    mask = exam.usage.key_mask
    if mask is None:
        return
    for side in ("right", "left") if mask.tells_left_padding else ("right",):
        real = real_positions(lengths_of(x.size(1), BATCH), x.size(1), side)
        yield _Trial(f"padding on the {side}", x, {**telling(exam, real)}, real)


def _empty(exam: Examination) -> Iterator[_Trial]:
    """Yield calls in which something may attend to nothing."""
    x = _inputs(exam)
    if exam.usage.key_mask is not None and not _is_added(exam.usage.key_mask):
        real = real_positions([0, *lengths_of(x.size(1), BATCH - 1)], x.size(1))
        yield _Trial("a wholly padded sample", x, {"padding": real}, real)
    if exam.usage.pair_mask is not None and not _is_added(exam.usage.pair_mask):
        allowed = torch.ones(x.size(0), x.size(1), x.size(1), dtype=torch.bool)
        allowed = allowed.tril() if exam.usage.causal else allowed
        allowed[:, 2] = False
        read = torch.ones(x.shape[:2], dtype=torch.bool)
        read[:, 2] = False
        yield _Trial("a mask with an empty row", x, {"allowed": allowed}, read)


def _is_added(mask: Masking) -> bool:
    """Whether a mask is added as it is: minus infinity in every place of a row is the caller's doing."""
    return "added" in mask.encoding


def _trouble(exam: Examination, trial: _Trial, where: str) -> str:
    """Where a call gives NaN or infinity, or nothing."""
    module = exam.fresh(dtype=torch.float32)
    try:
        output = exam.run(trial.x, module=module, grad=True, **trial.how)
    except ModuleError:
        if not trial.how and trial.words == "no mask":
            raise
        return ""
    bad = ~output.isfinite().all(-1)
    words = f"{trial.words}{where}"
    if bad.any():
        return f"{words}: {_place(bad, trial.read)}"
    gradients = _bad_gradients(module, output, trial.read)
    return f"{words}: finite outputs, NaN in the gradient of {gradients}" if gradients else ""


def _place(bad: Tensor, read: Tensor | None) -> str:
    """Say which outputs are bad: all of them, or those of padded or empty rows, or others too."""
    words = f"{int(bad.sum())} of {bad.numel()} output rows"
    if read is None or read.shape != bad.shape:
        return words
    others = int((bad & read).sum())
    return f"{words}, {others} of them at real positions" if others else f"{words}, all at positions nobody reads"


def _bad_gradients(module: nn.Module, output: Tensor, read: Tensor | None) -> str:
    """The parameters whose gradient is not finite when a loss reads what is real."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not output.requires_grad or not named:
        return ""
    loss = (output if read is None or read.shape != output.shape[:-1] else output[read]).square().sum()
    gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    bad = [
        f"`{name}`" for (name, _), g in zip(named, gradients, strict=True) if g is not None and not g.isfinite().all()
    ]
    return ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")


def _finding(severity: Any, message: str, troubles: list[str]) -> Finding:
    """One finding for all calls that ended so."""
    return Finding(_ID, severity, f"{message}.", "; ".join(troubles), _REMEDY, _SOURCE)
