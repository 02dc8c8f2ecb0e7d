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
_VANISHES = 30.0  # last over first gradient, or first over last; at six layers pre-norm gives 0.8, post-norm 1.1
_LOPSIDED = 3.0  # last over first gradient
_NARROWEST = 2  # features: what maps one number per position to one number is a whole network, and nobody stacks it
_SHOWN = 8  # values of a row; of longer ones both ends are shown
_WRITTEN_OUT = 1e6  # larger numbers are shown as powers of ten
_HE = "He 2023, arXiv:2302.10322; Noci 2022, arXiv:2206.03126"
_DONG = "Dong 2021, arXiv:2103.03404; Noci 2022, arXiv:2206.03126"
_XIONG = "Xiong 2020, arXiv:2002.04745; Liu 2020, arXiv:2004.08249"


def check_signal(exam: Examination) -> Iterator[Finding]:
    """Measure size and likeness of positions by depth, as it is and with a skip around every layer."""
    found = _stackable(exam)
    if found is None or not math.isfinite(found.plain.sizes[-1]):
        return
    severity: Severity = "warning" if is_stacked(exam) else "info"
    subject = _subject(exam, found)
    faults = [*_size_faults(exam, found), *_rank_faults(exam, found)]
    if not faults:
        message = f"{subject} keeps the size of its signal."
        yield Finding("signal", "info", message, _size_evidence(exam, found), "", _HE)
    if severity == "info":
        subject, faults = f"without skips between them, {subject}", faults[:1]  # they are meant to have some
    for message, evidence, source in faults:
        remedy = "" if severity == "info" else _remedy(found)
        yield Finding("signal", severity, f"{subject} {message}", evidence, remedy, source)


def _stackable(exam: Examination) -> Stacks | None:
    """What happens by depth, None where depth means nothing."""
    narrow = exam.convention.takes == "embeddings" and exam.convention.d_in < _NARROWEST
    if narrow or exam.convention.length < 2:  # a single position has no likeness to others
        return None
    return measured(exam)


def _one(exam: Examination) -> str:
    """What one floor of the stack is called."""
    return "layer" if exam.convention.kind == "layer" else "block"


def _subject(exam: Examination, found: Stacks) -> str:
    layers = found.plain.layers
    whose = "the model's stack of" if exam.convention.kind == "model" else "a stack of"
    return f"{whose} {layers} {'' if exam.convention.kind == 'model' else 'such '}{_one(exam)}s"


def _size_faults(exam: Examination, found: Stacks) -> Iterator[tuple[str, str, str]]:
    """What is wrong with the size of the signal, how it was seen, and who describes it."""
    depths = found.plain
    if depths.layers > 1 and depths.factor < _SHRINKS and depths.settled < _SHRINKS:
        words = f"shrinks the signal to {depths.factor:.2f} of its size per {_one(exam)}"
        yield f"{words}: deep {_one(exam)}s work on almost nothing.", _size_evidence(exam, found), _HE
    growth = depths.settled ** (1 / max(1, depths.layers - 1))
    if depths.layers > 1 and growth > _GROWS and depths.settled > _TOO_LARGE:
        yield f"blows the signal up {growth:.2f} times per {_one(exam)}.", _size_evidence(exam, found), _HE


def _rank_faults(exam: Examination, found: Stacks) -> Iterator[tuple[str, str, str]]:
    """Yield whether positions become alike, how it was seen, and who describes it."""
    first, last = found.plain.likeness[0], found.plain.likeness[-1]
    if last > _ALIKE and last - first > _ROSE:
        evidence = f"mean cosine between positions, at the input and after each {_one(exam)}: {_cosines(found.plain)}"
        if found.other is not None:
            evidence += f"; {_variant(found)}: {_cosines(found.other)}"
        yield "makes all positions alike: what tells them apart is lost (rank collapse).", evidence, _DONG


def _remedy(found: Stacks) -> str:
    if found.has_skip or found.other is None:
        return (
            "put a norm before every sublayer, x = x + f(norm(x)), and start its last matrix smaller in deeper stacks"
        )
    return "put a skip around it and a norm before it, x = x + f(norm(x)); the evidence shows what the skip alone does"


def _size_evidence(exam: Examination, found: Stacks) -> str:
    """The sizes by depth, as it is and otherwise."""
    same = "" if found.fresh else " (all with the weights of this instance)"
    words = f"root mean square at the input and after each {_one(exam)}{same}, untrained: {_row(found.plain.sizes)}"
    return words if found.other is None else f"{words}; {_variant(found)}: {_row(found.other.sizes)}"


def _variant(found: Stacks) -> str:
    return "without the skip" if found.has_skip else "with a skip around each"


def _cosines(depths: Depths) -> str:
    return _listed([f"{round(value, 2) + 0.0:.2f}" for value in depths.likeness])  # + 0.0: no minus before a zero


def _row(values: tuple[float, ...]) -> str:
    return _listed([_short(value) for value in values])


def _listed(words: list[str]) -> str:
    ends = words if len(words) <= _SHOWN else [*words[:3], "...", *words[-3:]]
    return ", ".join(ends)


def check_gradient(exam: Examination) -> Iterator[Finding]:
    """Compare the gradient of the first layer of a stack with that of the last."""
    found = _stackable(exam)
    if found is None or found.plain.layers < 2 or not any(found.plain.gradients) or not is_stacked(exam):
        return
    evidence = (
        f"norm of the gradient at the output, first {_one(exam)} to last, untrained: {_row(found.plain.gradients)}"
    )
    if found.other is not None and any(found.other.gradients):
        evidence += f"; {_variant(found)}: {_row(found.other.gradients)}"
    yield _judged(_subject(exam, found), found.plain.ratio, evidence)


def _judged(subject: str, ratio: float, evidence: str) -> Finding:
    """What the ratio of last to first gradient means."""
    remedy = "put a skip around every sublayer; prefer the norm before the sublayer, or warm the learning rate up"
    last = f"the last gets {_short(ratio)} times the gradient of the first."
    if not math.isfinite(ratio):
        last = "the first gets none."
    if ratio > _VANISHES:
        message = f"loses the gradient on its way back: {last}"
        return Finding("gradient", "warning", f"{subject} {message}", evidence, remedy, _HE)
    if ratio < 1 / _VANISHES:
        first = (
            f"the first gets {_short(1 / ratio)} times the gradient of the last." if ratio else "the last gets none."
        )
        message = f"blows the gradient up on its way back: {first}"
        return Finding("gradient", "warning", f"{subject} {message}", evidence, remedy, _HE)
    if ratio > _LOPSIDED:
        message = f"has larger gradients near the output: {last}"
        return Finding("gradient", "warning", f"{subject} {message}", evidence, remedy, _XIONG)
    return Finding("gradient", "info", f"{subject} passes the gradient on: {last}", evidence, "", _XIONG)


def _short(value: float) -> str:
    """A number with three significant digits, written out while that is readable."""
    return f"{float(f'{value:.3g}'):.0f}" if _WRITTEN_OUT > value >= 1000 else f"{value:.3g}"
