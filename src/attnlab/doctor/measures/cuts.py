"""Part of `dead-parts`: the gradient with respect to the input is what finite differences say it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.influence.differences import relative_change

DETACH_URL = "PyTorch documentation, torch.Tensor.detach and 'Autograd mechanics'"
"""Source of what cuts a graph."""

_CUTS = re.compile(
    r"\.detach|\.data\b|no_grad|inference_mode|set_grad_enabled|\.item\(|\.tolist\(|\.numpy\(|torch\.tensor\(|argmax"
)
_FINE = (1e-6, 1e-5)  # steps in float64: rounding stays far below the change, and few units switch
_COARSE = (1e-3, 1e-2)  # steps where anything is computed in float32
_DIRECTIONS = 3  # one may be at a right angle to what is cut
_FAR = {_FINE: 1e-3, _COARSE: 0.03}  # relative; a right derivative agrees to 1e-6, in float32 and with kinks to 1 %


def cut_input(exam: Examination) -> Iterator[Finding]:
    """Yield whether the gradient with respect to the input is lost, wholly or on one path."""
    if exam.convention.takes == "tokens":
        return
    x = exam.inputs(seed=30)
    if relative_change(exam.run(x), exam.run(x)) > exam.tolerance:  # keeps state or draws numbers: nothing to compare
        return
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(exam.run(x).shape, generator=generator, dtype=torch.float64).to(x.dtype)
    output, leaf = exam.run_from_embeddings(x)
    gradient = torch.zeros_like(x)
    if output.requires_grad:
        found = torch.autograd.grad((output * weights).sum(), leaf, allow_unused=True)[0]
        gradient = gradient if found is None else found
    for steps in (_FINE, _COARSE) if exam.dtype == torch.float64 else (_COARSE,):
        pairs = [_slopes(exam, x, gradient, weights, steps=steps, number=number) for number in range(_DIRECTIONS)]
        sure = [pair for pair in pairs if pair is not None]
        if len(sure) == len(pairs):
            if all(_is_far(*pair, _FAR[steps]) for pair in sure):
                yield from _cut_input_finding(exam, sure, lost=not bool(gradient.any()))
            return


def _is_far(claimed: float, true: float, far: float) -> bool:
    return abs(claimed - true) > far * max(abs(claimed), abs(true), 1e-6)


def _slopes(
    exam: Examination, x: Tensor, gradient: Tensor, weights: Tensor, *, steps: tuple[float, float], number: int
) -> tuple[float, float] | None:
    """The slope in a random direction by the gradient and by two calls, None where steps disagree."""
    generator = torch.Generator().manual_seed(number)
    direction = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
    fine, coarse = (_slope(exam, x, weights, direction, step) for step in steps)
    if _is_far(coarse, fine, _FAR[steps]):  # computed in fewer digits, or with jumps
        return None
    return float((gradient * direction).sum()), fine


def _slope(exam: Examination, x: Tensor, weights: Tensor, direction: Tensor, step: float) -> float:
    """A finite difference of the projected output."""
    ahead, behind = exam.run(x + step * direction), exam.run(x - step * direction)
    return float(((ahead - behind) * weights).sum()) / (2 * step)


def _cut_input_finding(exam: Examination, pairs: list[tuple[float, float]], *, lost: bool) -> Iterator[Finding]:
    """The error where the source says how the graph is cut, or nothing at all gets through."""
    if not (lost or _CUTS.search(exam.patient.text)):
        return
    share = "all" if lost else "part"
    finding = Finding(
        "dead-parts",
        "error",
        f"{share} of the gradient to its input is lost: what stands before it in a stack cannot learn through it.",
        "slope of the output in a random direction by gradient and by finite difference: "
        + ", ".join(f"{claimed:.3g} against {true:.3g}" for claimed, true in pairs),
        "remove .data, .detach(), torch.no_grad() or torch.tensor(...) on the way from the input to the output",
        DETACH_URL,
    )
    yield from exam.as_meant([finding], "stopped gradients")
