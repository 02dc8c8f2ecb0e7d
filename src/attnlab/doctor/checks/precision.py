"""Whether its numbers stay finite and right: large inputs in float32, ordinary and large ones in the half formats.

Every attempt runs forward and backward. What float32 cannot do either on ordinary inputs is no matter of
precision, unless an operation other than the softmax makes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding, FindingText
from attnlab.doctor.influence.differences import relative_change
from attnlab.doctor.measures.formats import Attempt, Outcome
from attnlab.inspection.tape.tape import Event

CHECK = "precision"
LARGE = 10.0  # standard deviations that every format must bear: residual streams of trained models reach them
HALVES = (torch.bfloat16, torch.float16)
DEVIATION = 0.25  # of the output's size; bfloat16 rounds by 0.004, a few dozen operations in a row by some percent
STEADY = 1e-5  # of the output's size: rounding of two calls in float32, far below what chance makes
LONG = 128  # positions: enough for a product of a decay per position to leave float16
MANY = 600  # operations of an ordinary call: beyond, it loops over pairs of positions and would take seconds
EMPTY = 1  # position whose input is all zero, as an embedding's padding index gives it

_SOFTMAXES = frozenset({"_softmax", "_safe_softmax", "_log_softmax"})
_SUMS = frozenset({"bmm", "mm", "addmm", "baddbmm", "sum", "mean", "var", "cumsum", "prod", "linalg_vector_norm"})
_REMEDIES: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"exp", "exp_"}), "subtract the row's maximum before exp, or use torch.softmax, which does"),
    (
        _SOFTMAXES,
        "a row has nothing left to attend to: mask once, with torch.finfo(scores.dtype).min, not by adding masks",
    ),
    (
        _SUMS | {"mul", "mul_", "pow", "square"},
        "scale q before the product, not the scores after it; compute squares and long sums in float32",
    ),
    (
        frozenset({"sqrt", "rsqrt", "log", "div", "div_", "reciprocal"}),
        "keep roots, logarithms and divisors away from zero with an epsilon the format holds (1e-6 or more)",
    ),
    (
        frozenset({"add", "add_", "sub", "masked_fill", "masked_fill_", "where"}),
        "mask with torch.finfo(scores.dtype).min or masked_fill(..., float('-inf')), not with a fixed number",
    ),
)
"""What helps against operations that leave the range."""

_SOURCE = "Micikevicius et al. 2018, arXiv:1710.03740, section 3; torch.finfo"
_SILENT = "In {format} {what} without any exception, where float32 on ordinary inputs has none."
_CANNOT = "It cannot run in {format}: "
_RANGE = f"{_CANNOT}a constant in it does not fit the format."
_FINFO = "use torch.finfo(scores.dtype).min or a bool mask with float('-inf') instead of a fixed number"
_WIDER = "Given {format} it returns {returned}."
_CAST_BACK = "make constants with dtype=x.dtype, or cast back to x.dtype at the end"
_PROMOTION = "PyTorch documentation, Type Promotion"

TEXTS: Mapping[str, FindingText] = {
    "never finite": FindingText("error", "{what} on ordinary inputs, in float32 already.", "{remedy}", _SOURCE),
    "silent": FindingText("error", _SILENT, "{remedy}", _SOURCE),
    "silent in float16": FindingText("warning", _SILENT, "{remedy}", _SOURCE, "set-up"),
    "limit": FindingText(
        "warning",
        "On large inputs {what} in float16, whose largest number is 65504: a limit of that format that ordinary "
        "inputs do not reach, nor large ones in float32 and bfloat16.",
        "train in bfloat16; or {remedy}",
        _SOURCE,
    ),
    "kernel": FindingText("info", "could not be examined in {format}: torch has no such operation on this processor."),
    "range": FindingText("warning", _RANGE, _FINFO, _SOURCE),
    "range of bfloat16": FindingText("error", _RANGE, _FINFO, _SOURCE),
    "mixed": FindingText(
        "warning",
        f"{_CANNOT}formats are mixed: something in it stays float32.",
        "make constants with dtype=x.dtype, register tables as buffers, cast back after steps in float32",
        _SOURCE,
    ),
    "unsupported": FindingText(
        "warning",
        f"{_CANNOT}an operation in it does not exist in that format.",
        "cast to float32 around that operation and back: op(x.float()).to(x.dtype)",
        _SOURCE,
    ),
    "other": FindingText(
        "warning",
        f"{_CANNOT}the call raises, where float32 works.",
        "run it once in that format and follow the exception",
        _SOURCE,
    ),
    "wider": FindingText("warning", _WIDER, _CAST_BACK, _PROMOTION),
    "wider logits": FindingText("info", _WIDER, _CAST_BACK, _PROMOTION),
    "drift": FindingText(
        "warning",
        "In bfloat16 it computes something else than in float32, beyond what rounding explains.",
        "compute positions, angles, norms and long sums in float32 and cast back",
        _SOURCE,
    ),
    "empty": FindingText(
        "warning",
        "With a position whose input is all zero, as a padding index gives it, {what}.",
        "{remedy}",
        _SOURCE,
        "known effect",
    ),
}
"""What, or why a format is refused -> its text; braces are filled with what was measured."""


def check_precision(exam: Examination) -> Iterator[Finding]:
    """What overflows, fails or drifts in float32, bfloat16 and float16."""
    ordinary = Attempt(torch.float32).run(exam)
    if ordinary.raised:
        raise ModuleError(ordinary.raised)
    if not ordinary.finite:
        event = _first_bad(exam, ordinary.attempt)
        if event is None or event.call not in _SOFTMAXES:  # else a softmax over an empty row, a matter of masks
            yield _bad("never finite", [ordinary], event)
        return
    outcomes = {dtype: list(_half_outcomes(exam, dtype)) for dtype in HALVES}
    large = [attempt.run(exam) for attempt in (Attempt(torch.float32, LARGE), *_long(exam, torch.float32))]
    yield from _silent(exam, [*large, *outcomes[torch.bfloat16], *outcomes[torch.float16]])
    yield from _refused(exam, [found[-1] for found in outcomes.values()])
    finite = [found[0] for found in outcomes.values() if found[0].finite]
    yield from _promoted(exam, finite)
    yield from _drift(exam, finite)
    yield from _empty_input(exam)


def _half_outcomes(exam: Examination, dtype: torch.dtype) -> Iterator[Outcome]:
    """The outcomes of rising demands, up to the first that is not met."""
    attempts = [Attempt(dtype), *_long(exam, dtype), Attempt(dtype, LARGE)]
    if exam.convention.key_mask is not None:
        attempts += [Attempt(dtype, LARGE, side) for side in ("right", "left")]
    for attempt in attempts:
        if attempt.padded and not replace(attempt, dtype=torch.float32).run(exam).finite:
            continue  # padding is the trouble, not the format
        outcome = attempt.run(exam)
        yield outcome
        if not outcome.finite:
            return


def _long(exam: Examination, dtype: torch.dtype) -> list[Attempt]:
    """The trial with a long input, where powers and sums over positions grow."""
    length = min(LONG, exam.convention.longest or LONG)
    fits = exam.convention.any_length and length > exam.convention.length and len(exam.usual_tape.events) <= MANY
    return [Attempt(dtype, length=length)] if fits else []


# NaN and infinity


def _silent(exam: Examination, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
    """One error over all attempts that ended in NaN or infinity without an exception.

    A warning where float16 alone is left, whose range is narrow: to leave that of the others it takes an exponential,
    or a division by nearly zero.
    """
    bad = [outcome for outcome in outcomes if outcome.silently_bad]
    if bad:
        large = (one.attempt.scale > 1 and not one.attempt.padded for one in bad)  # padding alone is a matter of masks
        narrow = {one.attempt.dtype for one in bad} == {torch.float16}
        text = "silent" if not narrow else "limit" if all(large) else "silent in float16"
        yield _bad(text, bad, _first_bad(exam, bad[0].attempt))


def _empty_input(exam: Examination) -> Iterator[Finding]:
    """A warning if a position that is all zero gives NaN."""
    if exam.convention.takes == "tokens" or exam.convention.length <= EMPTY:
        return
    outcomes = [Attempt(dtype, empty=EMPTY).run(exam) for dtype in (torch.float32, torch.float16)]
    for outcome in [outcome for outcome in outcomes if outcome.silently_bad][:1]:
        yield _bad("empty", [outcome], _first_bad(exam, outcome.attempt))


def _bad(text: str, outcomes: Sequence[Outcome], event: Event | None) -> Finding:
    """The finding about numbers that are not finite, the first of which an operation made."""
    call = "" if event is None else event.call
    place = (
        "" if event is None else f"; the first comes from `{call.strip('_')}` in {event.where or 'the module itself'}"
    )
    what = "outputs are NaN or infinite" if outcomes[0].bad_output else "gradients are NaN or infinite"
    usual = "compute that step in float32 and cast back, and keep divisors and roots away from zero"
    remedy = next((remedy for calls, remedy in _REMEDIES if call in calls), usual)
    formats = " and ".join(dict.fromkeys(outcome.attempt.format for outcome in outcomes))
    words = {"what": what, "remedy": remedy, "format": formats}
    return TEXTS[text].finding(CHECK, "; ".join(map(_how, outcomes)) + place, words)


def _how(outcome: Outcome) -> str:
    """How it was called and what came of it."""
    if outcome.bad_output:
        return f"{_called(outcome.attempt)}: {outcome.bad_output:.1%} of the output numbers"
    names = ", ".join(outcome.bad_gradients[:3]) + (", ..." if len(outcome.bad_gradients) > 3 else "")
    return f"{_called(outcome.attempt)}: outputs finite, gradients of {names} not"


def _called(attempt: Attempt) -> str:
    empty = "" if attempt.empty is None else f"position {attempt.empty} all zero, "
    padded = " with padding" if attempt.padded else ""
    length = "" if attempt.length is None else f" and length {attempt.length}"
    return f"{empty}{attempt.format}{padded}, inputs of {attempt.scale:g} standard deviations{length}"


def _first_bad(exam: Examination, attempt: Attempt) -> Event | None:
    """The first operation of the forward pass that makes NaN or infinity from finite numbers."""
    tape = exam.tape(attempt.inputs(exam), module=attempt.module(exam), padding=attempt.padding(exam))
    for event in tape.events:
        if _overflows(event, event.output) and not any(_overflows(event, value) for value in event.inputs):
            return event
    return None


def _overflows(event: Event, value: Tensor) -> bool:
    """Whether a tensor holds NaN or infinity; minus infinity only where no mask is meant."""
    if not value.is_floating_point():
        return False
    return bool(value.isnan().any() or value.isposinf().any() or (event.call in _SUMS and value.isinf().any()))


# Formats that are refused, widened or too coarse


def _refused(exam: Examination, last: Sequence[Outcome]) -> Iterator[Finding]:
    """What formats it refuses: an error for a number that fits not even bfloat16; else autocast is the way."""
    given_by_doctor = any("-1e9" in mask.encoding for mask in exam.convention.masks)  # which float16 cannot hold
    seen: set[str] = set()
    for outcome in last:
        kind, dtype = outcome.refusal, outcome.attempt.dtype
        if kind is None or kind in seen or (dtype == torch.float16 and given_by_doctor):
            continue
        seen |= {kind} if kind != "range" else set()
        text = "range of bfloat16" if (kind, dtype) == ("range", torch.bfloat16) else kind
        evidence = outcome.raised if kind == "kernel" else f"{_called(outcome.attempt)}: {outcome.raised}"
        yield TEXTS[text].finding(CHECK, evidence, {"format": outcome.attempt.format})


def _promoted(exam: Examination, finite: Sequence[Outcome]) -> Iterator[Finding]:
    """A warning if half precision comes back in a wider format; a model's logits may."""
    for outcome in finite[:1]:
        if outcome.output is not None and outcome.output.dtype != outcome.attempt.dtype:
            returned = str(outcome.output.dtype).removeprefix("torch.")
            yield TEXTS["wider logits" if exam.convention.kind == "model" else "wider"].finding(
                CHECK,
                "a layer after it whose parameters are of the narrow format will refuse its output",
                {"format": outcome.attempt.format, "returned": returned},
            )


def _drift(exam: Examination, finite: Sequence[Outcome]) -> Iterator[Finding]:
    """A warning if bfloat16 gives another result than rounding explains."""
    exact = Attempt(torch.float32)
    for outcome in finite:
        if outcome.attempt.dtype == torch.bfloat16 and outcome.output is not None:
            one, other = (exam.run(exact.inputs(exam), module=exact.module(exam)).double() for _ in range(2))
            deviation = relative_change(one, outcome.output.double())
            if relative_change(one, other) <= STEADY and deviation > DEVIATION:
                yield TEXTS["drift"].finding(
                    CHECK,
                    f"outputs differ by {deviation:.0%} of their size on ordinary inputs (rounding: a few percent)",
                )
