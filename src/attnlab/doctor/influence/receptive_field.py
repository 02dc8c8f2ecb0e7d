"""Check `receptive-field`: how much of a long input one output position sees."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from torch import nn

from attnlab.doctor.examination import Examination, accepted_by
from attnlab.doctor.findings import Finding, FindingText
from attnlab.doctor.influence.influence import Field, fields
from attnlab.strangers.calling.sources import AS_LONG
from attnlab.strangers.said.topics import declared

ID = "receptive-field"
_NEARLY_ALL = 0.9  # strides leave out some at the end
_LOOKED_AT = ("memory", "memory tokens", AS_LONG, "points")
_LUO = "Luo 2016, arXiv:1701.04128: receptive field of a stack of convolutions, 1 + layers * (width - 1)"
_SEES = "{what} sees {count} of {length} positions"
_ALONE = f"{_SEES}: no position sees another, so it cannot use context."
_MIX = (
    "use a layer that mixes positions; a model of such layers that beats a bigram all the same has another part that"
    " mixes, or a split that leaks"
)

TEXTS: Mapping[str, FindingText] = {
    "all": FindingText("info", "{what} sees the whole input."),
    "all before": FindingText(
        "info",
        "{what} sees itself and everything before it, and nothing after it: a test loss that is too good to be true"
        " does not come from it, look at the split.",
    ),
    "part": FindingText(
        "warning",
        f"{_SEES}: whatever lies farther away cannot be learned, however long it is trained.",
        "compare it only on tasks that need no more than {count} positions, or let it see all: more, wider or dilated"
        " convolutions (dilation=2**i), or attention; if a window is meant, say so in the docstring",
        _LUO,
        "set-up",
    ),
    "part of a single layer": FindingText(
        "info", f"{_SEES}: whatever lies farther away cannot be learned, however long it is trained.", "", _LUO
    ),
    "alone": FindingText("warning", _ALONE, _MIX, _LUO, "set-up"),
    "alone in a single layer": FindingText("info", _ALONE, "", _LUO),
    "alone when pooled": FindingText("warning", f"{_SEES}.", _MIX, _LUO, "set-up"),
}
"""What -> its text; braces are filled with what was measured."""


def check_receptive_field(exam: Examination) -> Iterator[Finding]:
    """Find out how much of a long input an output in the middle and at the end depends on."""
    found = fields(exam)
    if not found or found[-1].length < 2 or _leaks(exam, found):
        return
    middle, last = found[0], found[-1]
    sees_ahead = middle.ahead > 0
    if last.count <= 1 and any(one.source in _LOOKED_AT for one in exam.convention.arguments):
        return  # it looks at something else
    if last.count <= 1 and last.meets_others:
        return  # the batch is read as time: what it sees lies in other samples, and `batch-independence` says so
    at_end, amid = (field.count >= _NEARLY_ALL * field.length for field in (last, middle))
    if amid and not at_end:
        return  # no window: by its end a decoder may have nothing left to choose from
    whole = at_end and (amid or not sees_ahead)
    if whole:
        yield _all(exam, last, sees_ahead=sees_ahead)
    else:
        yield _part(exam, middle if sees_ahead and not exam.convention.pooled else last)


def _leaks(exam: Examination, found: list[Field]) -> bool:
    """Whether what is seen is a fault of the mask, of which `causality` speaks: it is no window.

    Part of the future is seen beside all of the past, anything of it in what is causal, or all of the past but not the
    position itself.
    """
    if exam.convention.pooled:
        return False
    middle, last = found[0], found[-1]
    blind = last.position > 0 and last.count >= last.length - 1 and not bool(last.seen[last.position])
    return blind or middle.is_open_ahead or bool(exam.convention.causal and middle.ahead)


def _all(exam: Examination, last: Field, *, sees_ahead: bool) -> Finding:
    """The fact that all is seen, or all that came before."""
    one_way = not sees_ahead and not exam.convention.pooled
    evidence = f"the last position sees {last.count} of {last.length} positions (gradient not zero)"
    what = "the output" if exam.convention.pooled else "every position"
    return TEXTS["all before" if one_way else "all"].finding(ID, evidence, {"what": what})


def _part(exam: Examination, field: Field) -> Finding:
    """What it means to see only part of the input."""
    alone = field.count <= 1
    kind = "alone" if alone and not exam.convention.pooled else "part"
    if _is_single_layer(exam):
        kind = "alone in a single layer" if kind == "alone" else "part of a single layer"
    elif alone and exam.convention.pooled:
        kind = "alone when pooled"
    evidence = (
        f"position {field.position} of an input of length {field.length} depends on {field.back} positions before and"
        f" {field.ahead} after it{', with gaps' if field.has_gaps else ''} (gradient not zero, or changed by them)"
    )
    what = "the output" if exam.convention.pooled else "an output position"
    found = TEXTS[kind].finding(ID, evidence, {"what": what, "count": field.count, "length": field.length})
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(exam.patient.module).__name__)
    words = declared(f"{name}.\n{exam.patient.said}", "no mixing" if alone else "a window")
    return next(accepted_by([found], words))


def _is_single_layer(exam: Examination) -> bool:
    """Whether it is one layer of a mixer that is local by nature: a single convolution."""
    wide = [
        part
        for part in exam.patient.module.modules()
        if isinstance(part, nn.Conv1d | nn.Conv2d) and max(part.kernel_size) > 1
    ]
    return exam.convention.kind == "layer" and len(wide) == 1
