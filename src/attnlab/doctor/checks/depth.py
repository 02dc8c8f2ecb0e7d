"""Checks `signal` and `gradient`: what layers do to size, to differences between positions, and to gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding, Severity
from attnlab.doctor.measures.stacks import Depths, Stacks, is_stacked, measured

_SHRINKS = 0.7  # per layer; six layers leave 12 %
_GROWS = 1.5  # per layer; six layers make 11 of 1
_TOO_LARGE = 5.0  # behind the last layer, relative to that behind the first; a sum of branches gives sqrt(layers)
_ALIKE = 0.95  # mean cosine of positions that have become one direction
_ROSE = 0.3  # and by how much it must have risen to be the layers' doing
_VANISHES = 30.0  # last over first gradient, or first over last; post-norm at six layers gives about 2
_LOPSIDED = 3.0
_HE = "He 2023, arXiv:2302.10322; Noci 2022, arXiv:2206.03126"
_DONG = "Dong 2021, arXiv:2103.03404; Noci 2022, arXiv:2206.03126"
_XIONG = "Xiong 2020, arXiv:2002.04745; Liu 2020, arXiv:2004.08249"


def check_signal(exam: Examination) -> Iterator[Finding]:
    """Measure size and likeness of positions by depth, as it is and with a skip around every layer.

    Parameters
    ----------
    exam : Examination
        The examination; its option `depth` says how many layers are stacked.

    Yields
    ------
    Finding
        A warning where a signal shrinks, blows up, or loses its rank; a fact where a bare attention layer, which is
        not meant to be stacked by itself, does so, or where all is well.
    """
    found = measured(exam)
    if found is None or not math.isfinite(found.plain.sizes[-1]):
        return
    severity: Severity = "warning" if is_stacked(exam) else "info"
    evidence = _evidence(found)
    faults = [*_size_faults(found.plain), *_rank_faults(found.plain)]
    for message, source in faults[:1] if severity == "info" else faults:
        yield Finding("signal", severity, f"{_subject(exam, found)} {message}", evidence, _remedy(found), source)
    if not faults:
        yield Finding("signal", "info", f"{_subject(exam, found)} keeps the size of its signal.", evidence, "", _HE)


def _subject(exam: Examination, found: Stacks) -> str:
    layers = found.plain.layers
    return f"the model's stack of {layers} blocks" if exam.usage.kind == "model" else f"a stack of {layers} of them"


def _size_faults(depths: Depths) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the size of the signal."""
    if depths.layers > 1 and depths.factor < _SHRINKS and depths.settled < _SHRINKS:
        yield f"shrinks the signal {depths.factor:.2f} times per block: deep layers work on almost nothing.", _HE
    growth = depths.settled ** (1 / max(1, depths.layers - 1))
    if depths.layers > 1 and growth > _GROWS and depths.settled > _TOO_LARGE:
        yield f"blows the signal up {growth:.2f} times per block.", _HE


def _rank_faults(depths: Depths) -> Iterator[tuple[str, str]]:
    """Yield whether positions become alike."""
    first, last = depths.likeness[0], depths.likeness[-1]
    if last > _ALIKE and last - first > _ROSE:
        yield "makes all positions alike: what tells them apart is lost (rank collapse).", _DONG


def _remedy(found: Stacks) -> str:
    if found.has_skip or found.other is None:
        return (
            "put a norm before every sublayer, x = x + f(norm(x)), and start its last matrix smaller in deeper stacks"
        )
    return (
        f"put a skip around it and a norm before it, x = x + f(norm(x)); with the skip alone the factor is"
        f" {found.other.factor:.2f} per block"
    )


def _evidence(found: Stacks) -> str:
    words = ["root mean square " + _row(found.plain.sizes), "cosine between positions " + _row(found.plain.likeness)]
    if found.other is not None:
        words[0] = "as it is: " + words[0]
        words.append(f"{_variant(found)}: root mean square " + _row(found.other.sizes))
        words.append("cosine " + _row(found.other.likeness))
    same = "" if found.fresh else " (all layers have the weights of this instance)"
    return f"at the input and after each layer, at initialization{same}: " + "; ".join(words)


def _variant(found: Stacks) -> str:
    return "without the skip" if found.has_skip else "with a skip around each"


def _row(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def check_gradient(exam: Examination) -> Iterator[Finding]:
    """Compare the gradient of the first layer of a stack with that of the last.

    Parameters
    ----------
    exam : Examination
        The examination; its option `depth` says how many layers are stacked.

    Yields
    ------
    Finding
        A warning where gradients vanish or explode with depth, a fact otherwise.
    """
    found = measured(exam)
    if found is None or found.plain.layers < 2 or not any(found.plain.gradients):
        return
    ratio = found.plain.ratio
    evidence = f"norm of the gradient by layer, first to last, at initialization: {_row(found.plain.gradients)}"
    if found.other is not None and any(found.other.gradients):
        evidence += f"; {_variant(found)}: {_row(found.other.gradients)}"
    severity: Severity = "warning" if is_stacked(exam) else "info"
    yield _judged(_subject(exam, found), ratio, severity, evidence)


def _judged(subject: str, ratio: float, severity: Severity, evidence: str) -> Finding:
    """Return what the ratio of last to first gradient means."""
    remedy = "put a skip around every sublayer; prefer the norm before the sublayer, or warm the learning rate up"
    if ratio > _VANISHES:
        message = f"loses the gradient on the way down: the last layer gets {ratio:.3g} times that of the first."
        return Finding("gradient", severity, f"{subject} {message}", evidence, remedy, _HE)
    if ratio < 1 / _VANISHES:
        message = f"blows the gradient up on the way down: the first layer gets {1 / ratio:.3g} times that of the last."
        return Finding("gradient", severity, f"{subject} {message}", evidence, remedy, _HE)
    if ratio > _LOPSIDED:
        message = f"has larger gradients near the output: the last layer gets {ratio:.3g} times that of the first."
        return Finding("gradient", severity, f"{subject} {message}", evidence, remedy, _XIONG)
    message = f"passes the gradient on: the last layer gets {ratio:.3g} times that of the first."
    return Finding("gradient", "info", f"{subject} {message}", evidence, "", _XIONG)
