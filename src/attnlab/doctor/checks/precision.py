"""Whether its numbers stay finite and right: large inputs in float32, ordinary and large ones in the half formats.

Every attempt runs forward and backward. What float32 cannot do either on ordinary inputs is no matter of
precision, unless an operation other than the softmax makes it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.influence.padded import real_positions
from attnlab.doctor.measures.formats import Attempt, Outcome
from attnlab.inspection.tape.tape import Event

CHECK = "precision"
LARGE = 30.0  # standard deviations that float32 must bear: residual streams of trained models reach them
LARGE_HALF = 10.0  # the same for formats of 16 bits
HALVES = (torch.bfloat16, torch.float16)
DEVIATION = 0.25  # of the output's size; bfloat16 rounds by 0.004, a few dozen operations in a row by some percent
STEADY = 1e-5  # of the output's size: rounding of two calls in float32, far below what chance makes
LONG = 128  # positions: enough for a product of a decay per position to leave float16
MANY = 600  # operations of an ordinary call: beyond, it loops over pairs of positions and would take seconds
EMPTY = 1  # position whose input is all zero, as an embedding's padding index gives it
SOURCE = "Micikevicius et al. 2018, arXiv:1710.03740, section 3; torch.finfo"

_SUMS = frozenset({"bmm", "mm", "addmm", "baddbmm", "sum", "mean", "var", "cumsum", "prod", "linalg_vector_norm"})
_PRODUCTS = _SUMS | {"mul", "mul_", "pow", "square"}
_SINGULAR = frozenset({"sqrt", "rsqrt", "log", "div", "div_", "reciprocal"})
_MASKINGS = frozenset({"add", "add_", "sub", "masked_fill", "masked_fill_", "where"})
_SOFTMAXES = frozenset({"_softmax", "_safe_softmax", "_log_softmax"})


def check_precision(exam: Examination) -> Iterator[Finding]:
    """What overflows, fails or drifts in float32, bfloat16 and float16."""
    ordinary = Attempt(torch.float32).run(exam)
    if ordinary.raised:
        raise ModuleError(ordinary.raised)
    if not ordinary.finite:
        yield from _never_finite(exam, ordinary)
        return
    outcomes = {dtype: list(_half_outcomes(exam, dtype)) for dtype in HALVES}
    large = [attempt.run(exam) for attempt in (Attempt(torch.float32, LARGE), *_long(exam, torch.float32))]
    yield from _silent(exam, [*large, *outcomes[torch.bfloat16], *outcomes[torch.float16]])
    yield from _refused({dtype: found[-1] for dtype, found in outcomes.items()}, exam)
    finite = [found[0] for found in outcomes.values() if found[0].finite]
    yield from _promoted(exam, finite)
    yield from _drift(exam, finite)
    yield from _empty_input(exam)


def _half_outcomes(exam: Examination, dtype: torch.dtype) -> Iterator[Outcome]:
    """The outcomes of rising demands, up to the first that is not met."""
    attempts = [Attempt(dtype), *_long(exam, dtype), Attempt(dtype, LARGE_HALF)]
    if exam.convention.key_mask is not None:
        length = exam.convention.length
        lengths = [length, max(1, length - 3), max(1, length - 1)]
        attempts += [Attempt(dtype, LARGE_HALF, real_positions(lengths, length, side)) for side in ("right", "left")]
    for attempt in attempts:
        if attempt.padding is not None and not _float32(attempt).run(exam).finite:
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


def _float32(attempt: Attempt) -> Attempt:
    return Attempt(torch.float32, attempt.scale, attempt.padding)


def _never_finite(exam: Examination, outcome: Outcome) -> Iterator[Finding]:
    """An error if an operation other than a softmax over an empty row fails on ordinary inputs."""
    event = _first_bad(exam, outcome.attempt)
    if event is None or event.call not in _SOFTMAXES:
        yield Finding(
            CHECK,
            "error",
            f"{_what(outcome)} on ordinary inputs, in float32 already.",
            f"{_how(outcome)}{_place(event)}",
            _remedy(event),
            SOURCE,
        )


def _silent(exam: Examination, outcomes: list[Outcome]) -> Iterator[Finding]:
    """Yield one error over all attempts that ended in NaN or infinity without an exception."""
    bad = [outcome for outcome in outcomes if outcome.silently_bad]
    if not bad:
        return
    event = _first_bad(exam, bad[0].attempt)
    formats = " and ".join(dict.fromkeys(outcome.format for outcome in bad))
    yield Finding(
        CHECK,
        "warning" if all(map(_tamed_by_loss_scaling, bad)) else "error",
        f"In {formats} {_what(bad[0])} without any exception, where float32 on ordinary inputs has none.",
        "; ".join(map(_how, bad)) + _place(event),
        _remedy(event),
        SOURCE,
    )


def _tamed_by_loss_scaling(outcome: Outcome) -> bool:
    """Whether only gradients of large inputs leave the narrow range of float16, where training skips a step."""
    return not outcome.bad_output and outcome.attempt.dtype == torch.float16 and outcome.attempt.scale > 1


def _refused(last: dict[torch.dtype, Outcome], exam: Examination) -> Iterator[Finding]:
    """What formats it refuses: an error for a number that fits not even bfloat16; else autocast is the way."""
    seen: set[str] = set()
    for dtype, outcome in last.items():
        kind = outcome.refusal
        if kind is None or kind in seen or (dtype == torch.float16 and _own_mask_overflows(exam)):
            continue
        seen |= {kind} if kind != "range" else set()
        yield _refusal(outcome)


def _refusal(outcome: Outcome) -> Finding:
    """The finding for a format that a call raises in."""
    if outcome.refusal == "kernel":
        message = f"could not be examined in {outcome.format}: torch has no such operation on this processor."
        return Finding(CHECK, "info", message, outcome.raised)
    cause = {
        "range": "a constant in it does not fit the format",
        "mixed": "formats are mixed: something in it stays float32",
        "unsupported": "an operation in it does not exist in that format",
    }.get(outcome.refusal or "", "the call raises, where float32 works")
    remedies = {
        "range": "use torch.finfo(scores.dtype).min or a bool mask with float('-inf') instead of a fixed number",
        "mixed": "make constants with dtype=x.dtype, register tables as buffers, cast back after steps in float32",
        "unsupported": "cast to float32 around that operation and back: op(x.float()).to(x.dtype)",
    }
    return Finding(
        CHECK,
        "error" if (outcome.refusal, outcome.attempt.dtype) == ("range", torch.bfloat16) else "warning",
        f"It cannot run in {outcome.format}: {cause}.",
        f"{_scale(outcome)}: {outcome.raised}",
        remedies.get(outcome.refusal or "", "run it once in that format and follow the exception"),
        SOURCE,
    )


def _own_mask_overflows(exam: Examination) -> bool:
    """Whether the doctor itself gives a mask that float16 cannot hold, as the module asks for it."""
    return any("-1e9" in mask.encoding for mask in exam.convention.masks)


def _promoted(exam: Examination, finite: list[Outcome]) -> Iterator[Finding]:
    """A warning if half precision comes back in a wider format; a model's logits may."""
    for outcome in finite[:1]:
        returned = outcome.output.dtype if outcome.output is not None else outcome.attempt.dtype
        if returned != outcome.attempt.dtype:
            yield Finding(
                CHECK,
                "info" if exam.convention.kind == "model" else "warning",
                f"Given {outcome.format} it returns {str(returned).removeprefix('torch.')}.",
                "a layer after it whose parameters are of the narrow format will refuse its output",
                "make constants with dtype=x.dtype, or cast back to x.dtype at the end",
                "PyTorch documentation, Type Promotion",
            )


def _drift(exam: Examination, finite: list[Outcome]) -> Iterator[Finding]:
    """A warning if bfloat16 gives another result than rounding explains."""
    for outcome in finite:
        if outcome.attempt.dtype != torch.bfloat16 or outcome.output is None:
            continue
        exact, again = (_forward(exam, _float32(outcome.attempt)) for _ in range(2))
        deviation = _relative(outcome.output, exact)
        if _relative(again, exact) <= STEADY and deviation > DEVIATION:
            yield Finding(
                CHECK,
                "warning",
                "In bfloat16 it computes something else than in float32, beyond what rounding explains.",
                f"outputs differ by {deviation:.0%} of their size on ordinary inputs (rounding: a few percent)",
                "compute positions, angles, norms and long sums in float32 and cast back",
                SOURCE,
            )


def _forward(exam: Examination, attempt: Attempt) -> Tensor:
    return exam.run(attempt.inputs(exam), module=attempt.module(exam), padding=attempt.padding)


def _relative(output: Tensor, exact: Tensor) -> float:
    """The root mean square of the difference over that of the exact result."""
    size = exact.double().square().mean().sqrt().item()
    return (output.double() - exact.double()).square().mean().sqrt().item() / size if size else 0.0


def _empty_input(exam: Examination) -> Iterator[Finding]:
    """A warning if a position that is all zero gives NaN."""
    if exam.convention.takes == "tokens" or exam.convention.length <= EMPTY:
        return
    outcomes = [Attempt(dtype, empty=EMPTY).run(exam) for dtype in (torch.float32, torch.float16)]
    for outcome in [outcome for outcome in outcomes if outcome.silently_bad][:1]:
        event = _first_bad(exam, outcome.attempt)
        yield Finding(
            CHECK,
            "warning",
            f"With a position whose input is all zero, as a padding index gives it, {_what(outcome)}.",
            f"position {EMPTY} all zero, {_how(outcome)}{_place(event)}",
            _remedy(event),
            SOURCE,
            nature="known effect",
        )


def _first_bad(exam: Examination, attempt: Attempt) -> Event | None:
    """The first operation of the forward pass that makes NaN or infinity from finite numbers."""
    tape = exam.tape(attempt.inputs(exam), module=attempt.module(exam), padding=attempt.padding)
    for event in tape.events:
        if _overflows(event, event.output) and not any(_overflows(event, value) for value in event.inputs):
            return event
    return None


def _overflows(event: Event, value: Tensor) -> bool:
    """Whether a tensor holds NaN or infinity; minus infinity only where no mask is meant."""
    if not value.is_floating_point():
        return False
    return bool(value.isnan().any() or value.isposinf().any() or (event.call in _SUMS and value.isinf().any()))


def _what(outcome: Outcome) -> str:
    return "outputs are NaN or infinite" if outcome.bad_output else "gradients are NaN or infinite"


def _how(outcome: Outcome) -> str:
    """How it was called and what came of it."""
    if outcome.bad_output:
        return f"{_scale(outcome)}: {outcome.bad_output:.1%} of the output numbers"
    names = ", ".join(outcome.bad_gradients[:3]) + (", ..." if len(outcome.bad_gradients) > 3 else "")
    return f"{_scale(outcome)}: outputs finite, gradients of {names} not"


def _scale(outcome: Outcome) -> str:
    padded = " with padding" if outcome.attempt.padding is not None else ""
    length = "" if outcome.attempt.length is None else f" and length {outcome.attempt.length}"
    return f"{outcome.format}{padded}, inputs of {outcome.attempt.scale:g} standard deviations{length}"


def _place(event: Event | None) -> str:
    if event is None:
        return ""
    return f"; the first comes from `{event.call.strip('_')}` in {event.where or 'the module itself'}"


def _remedy(event: Event | None) -> str:
    """What helps against an operation that leaves the range."""
    call = event.call if event is not None else ""
    if call in ("exp", "exp_"):
        return "subtract the row's maximum before exp, or use torch.softmax, which does"
    if call in _SOFTMAXES:
        return "a row has nothing left to attend to: mask once, with torch.finfo(scores.dtype).min, not by adding masks"
    if call in _PRODUCTS:
        return "scale q before the product, not the scores after it; compute squares and long sums in float32"
    if call in _SINGULAR:
        return "keep roots, logarithms and divisors away from zero with an epsilon the format holds (1e-6 or more)"
    if call in _MASKINGS:
        return "mask with torch.finfo(scores.dtype).min or masked_fill(..., float('-inf')), not with a fixed number"
    return "compute that step in float32 and cast back, and keep divisors and roots away from zero"
