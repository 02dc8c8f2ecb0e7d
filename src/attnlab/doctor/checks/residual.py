"""Check `residual`: a block adds what it computes to its input, once, and lets nothing but a norm act on the sum."""

from __future__ import annotations

from collections.abc import Iterator

from attnlab.core.constructors import named
from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding, Severity
from attnlab.doctor.measures.blocks import BENDS, TracedBlock, blocks
from attnlab.doctor.measures.identity import INPUT, Route, follow, is_carried_on, left_behind

ID = "residual"
_HE = "He 2016, 'Identity mappings in deep residual networks', arXiv:1603.05027, section 3; Dong 2021, arXiv:2103.03404"
_XIONG = "Xiong 2020, arXiv:2002.04745, figure 1"
_CLEARLY = 0.5  # of the identity: no path gives about 0, a clean one 1
_WORDS = {
    "addmm": "a linear layer",
    "mm": "a linear layer",
    "bmm": "a matrix product",
    "baddbmm": "a matrix product",
    "convolution": "a convolution",
    "_softmax": "a softmax",
}


def check_residual(exam: Examination) -> Iterator[Finding]:
    """Find blocks without an identity path from input to output, or with two of them."""
    for block in blocks(exam):
        route = follow(block.tape, block.start)
        if not route.output.alive:
            yield from _missing(block, route, widths_apart=_has_two_widths(exam))
        elif route.output.doubled is not None:
            yield _doubled(block, route, route.output.doubled)
        elif route.output.early and INPUT not in route.output.shares:
            yield _behind_norm(block, route)
        elif (at := left_behind(block.tape, route)) is not None:
            yield _started_anew(block, at)


def _missing(block: TracedBlock, route: Route, *, widths_apart: bool) -> Iterator[Finding]:
    """The error of a block whose input does not arrive; two signs must say so, and that one width is meant."""
    share = block.share()
    if route.ends is None or widths_apart:
        return
    event = block.tape.events[route.ends]
    if event.output.shape[-1:] != block.start.shape[-1:] and is_carried_on(block.tape, route.ends):
        return  # it is mapped to another width, in which there is a path
    bent = event.call.rstrip("_") in BENDS  # relu(x + f): half of the derivative remains, the negative half is lost
    if abs(share) > _CLEARLY and not bent:
        return
    what = _WORDS.get(event.call, event.call.strip("_"))
    where = f" in '{event.where}'" if event.where else ""
    summed = any(trail.alive and trail.sums for trail in route.trails)
    how = f"the sum with its input goes through {what}{where} before it leaves"
    if not summed:
        how = f"its input goes into {what}{where} and is added to nothing behind it"
    severity: Severity = "warning" if bent and _is_convolutional(block) else "error"
    yield Finding(
        ID,
        severity,
        f"{block.title} has no identity path from input to output: {how}.",
        f"mean derivative of an output by the input in the same place: {_two_digits(share)} (1 with a clean skip, 0"
        " without)",
        "add the input last, behind all layers of a sublayer: x = x + dropout(linear(f(norm(x)))); a sum under a linear"
        " layer or a non-linearity, relu(linear(x + a)), is no residual connection",
        _HE,
    )


def _has_two_widths(exam: Examination) -> bool:
    """Whether the constructor asks for the width that comes in beside another: what changes it has no such path."""
    names = named("d_model", exam.patient.arguments)
    return len(names) > 1 and any("in" in name.lower().split("_") for name in names)


def _two_digits(share: float) -> str:
    return f"{round(share, 2) + 0.0:.2f}"  # + 0.0: no minus before a zero


def _is_convolutional(block: TracedBlock) -> bool:
    """Whether it is a residual block of a convolutional network, where a rectifier behind the sum is usual."""
    calls = {event.call for event in block.tape.events}
    return "convolution" in calls and not calls & {"_softmax", "_safe_softmax", "bmm"}


def _doubled(block: TracedBlock, route: Route, at: int) -> Finding:
    where = block.tape.events[at].where
    factor = max(route.output.shares.values(), default=2.0)
    return Finding(
        ID,
        "error",
        f"{block.title} adds its input twice{f' (in {where})' if where else ''}: the stream grows by its own copy in"
        " every block.",
        f"factor of the input in the output: {factor:.3g} along the skip; mean derivative of an output by the input in"
        f" the same place: {_two_digits(block.share())}",
        "keep one of the two sums: either the sublayer adds its input, or the block around it",
        _HE,
    )


def _started_anew(block: TracedBlock, at: int) -> Finding:
    where = block.tape.events[at].where
    return Finding(
        ID,
        "warning",
        f"{block.title} adds an attention to its input{f' (in {where})' if where else ''}, and a later sum starts from"
        " the input again: what was attended to is lost on the way.",
        "no sum carries the first one on; the output hangs on it through other layers alone",
        "add each sublayer to the sum before it: y = x + attention(x); y = y + cross_attention(y, memory)",
        _HE,
    )


def _behind_norm(block: TracedBlock, route: Route) -> Finding:
    norm = block.tape.events[route.output.early[0]].where
    return Finding(
        ID,
        "warning",
        f"the skip of {block.title} starts behind the norm{f' ({norm})' if norm else ''}, not at its input:"
        " x = norm(x), x = x + f(x) has no clean identity path.",
        f"mean derivative of an output by the input in the same place: {_two_digits(block.share())}",
        "normalize only what the sublayer reads: x = x + f(norm(x))",
        _XIONG,
    )
