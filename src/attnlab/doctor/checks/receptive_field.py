"""Check `receptive-field`: how much of a long input one output position sees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding, Severity
from attnlab.errors import ModuleError

ID = "receptive-field"
_LONG = 100  # more than any stack of a few small convolutions sees
_HIGH = 2  # batch
_NEARLY_ALL = 0.9  # strides leave out some at the end
_DECLARED = re.compile(
    r"window|\blocal|sliding|\bband(ed)?\b|sparse|dilat|neighbou?r|receptive|block.?wise|chunk|segment|stride|bucket"
    r"|token.?shift|time.?shift|short.?conv|nearby|truncat",
    re.IGNORECASE,
)
_POINTWISE = re.compile(
    r"feed.?forward|\bmlp\b|\bffn?\b|position.?wise|point.?wise|no.?mix|\bidentity\b|\bnorm", re.IGNORECASE
)
_LUO = "Luo 2016, arXiv:1701.04128: receptive field of a stack of convolutions, 1 + layers * (width - 1)"


@dataclass(frozen=True)
class _Sight:
    """What one output position sees of an input of some length."""

    length: int
    position: int
    seen: Bool[Tensor, " length"]

    @property
    def count(self) -> int:
        return int(self.seen.sum())

    @property
    def back(self) -> int:
        """Return how far back it sees."""
        places = self.seen.nonzero()
        return max(0, self.position - int(places.min())) if len(places) else 0

    @property
    def ahead(self) -> int:
        """Return how far ahead it sees."""
        places = self.seen.nonzero()
        return max(0, int(places.max()) - self.position) if len(places) else 0


def check_receptive_field(exam: Examination) -> Iterator[Finding]:
    """Find out how much of a long input an output in the middle and at the end depends on.

    Parameters
    ----------
    exam : Examination
        The examination.

    Yields
    ------
    Finding
        A warning about the set-up where a stack sees only part of the input and says nothing of a window; a fact
        otherwise.
    """
    sights = _sights(exam)
    if not sights:
        return
    middle, last = sights[0], sights[-1]
    sees_ahead = middle.ahead > 0
    if any(argument.source.startswith("memory") for argument in exam.usage.arguments) and last.count <= 1:
        return  # it looks at something else
    whole = last.count >= _NEARLY_ALL * last.length and (middle.count >= _NEARLY_ALL * middle.length or not sees_ahead)
    if whole:
        yield _all(exam, last, sees_ahead=sees_ahead)
    else:
        yield _part(exam, middle if sees_ahead and not exam.usage.pooled else last)


def _sights(exam: Examination) -> list[_Sight]:
    """Return what an output in the middle and the last one see, at a long length if the patient takes it."""
    usage = exam.usage
    longest = min(_LONG, usage.longest or _LONG) if usage.any_length else usage.length
    for length in dict.fromkeys((longest, usage.length)):
        try:
            return list(_sights_at(exam, length))
        except (ModuleError, RuntimeError):  # too long, or its backward pass raises
            continue
    return []


def _sights_at(exam: Examination, length: int) -> Iterator[_Sight]:
    """Yield what outputs see, by the gradient and, where it is exactly zero for most, by changing positions too."""
    x = exam.inputs(batch=_HIGH, length=length, seed=50)
    output, leaf = exam.run_from_embeddings(x)
    if not output.requires_grad:
        return
    generator = torch.Generator().manual_seed(51)
    weights = torch.randn(output.shape[-1], generator=generator, dtype=torch.float64).to(output.dtype)
    for position in (length // 2, length - 1):
        picked = output[0] if exam.usage.pooled else output[0, position]
        gradient = torch.autograd.grad((picked * weights).sum(), leaf, retain_graph=True)[0]
        yield _Sight(length, position, _by_position(gradient, exam, length))


def _by_position(gradient: Tensor, exam: Examination, length: int) -> Bool[Tensor, " length"]:
    """Return at which positions of sample 0 a gradient is not zero; the leaf may be sequence first."""
    moved = (gradient.detach().abs().sum(-1) > 0) if gradient.dim() == 3 else gradient != 0
    moved = moved.T if moved.shape[0] == length and moved.shape[1] != length else moved
    del exam
    return moved[0]


def _all(exam: Examination, last: _Sight, *, sees_ahead: bool) -> Finding:
    what = "the output" if exam.usage.pooled else "every position"
    words = "the whole input" if sees_ahead or exam.usage.pooled else "itself and everything before it"
    return Finding(
        ID,
        "info",
        f"{what} sees {words}.",
        f"the last position sees {last.count} of {last.length} positions (gradient not zero)",
    )


def _part(exam: Examination, sight: _Sight) -> Finding:
    """Return what it means to see only part of the input."""
    text = f"{type(exam.patient.module).__name__} {exam.patient.text}"
    alone = sight.count <= 1
    declared = bool((_POINTWISE if alone else _DECLARED).search(text))
    severity: Severity = "info" if declared or _is_single_layer(exam) else "warning"
    what = "the output" if exam.usage.pooled else "an output position"
    message = f"{what} sees {sight.count} of {sight.length} positions"
    message += ": no position sees another, so it cannot use context." if alone and not exam.usage.pooled else "."
    if not declared and not alone:
        message = f"{message[:-1]}: whatever lies farther away cannot be learned, however long it is trained."
    remedy = "use a layer that mixes positions" if alone else _remedy(sight)
    return Finding(
        ID,
        severity,
        message,
        f"position {sight.position} of an input of length {sight.length} depends on {sight.back} positions before and"
        f" {sight.ahead} after it (gradient not zero)",
        "" if severity == "info" else remedy,
        _LUO,
        "set-up" if severity == "warning" else None,
    )


def _remedy(sight: _Sight) -> str:
    return (
        f"compare it only on tasks that need no more than {sight.count} positions, or let it see all: more or wider or"
        " dilated convolutions, or attention; if a window is meant, say so in the docstring"
    )


def _is_single_layer(exam: Examination) -> bool:
    """Return whether it is one layer of a mixer that is local by nature: a single convolution."""
    wide = [
        part
        for part in exam.patient.module.modules()
        if isinstance(part, nn.Conv1d | nn.Conv2d) and max(part.kernel_size) > 1
    ]
    return exam.usage.kind == "layer" and len(wide) == 1
