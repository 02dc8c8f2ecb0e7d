"""Whether the logits keep their size when heads grow: the scale against d_head, under the module's own start."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from attnlab.core.constructors import named
from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding, Severity
from attnlab.doctor.measures.logit_size import LogitSize, factors_of, factors_of_learned, logit_sizes
from attnlab.inspection.tape.tape import Tape
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.layouts import IMAGES

_ID = "scale"
_SOURCE = "Vaswani 2017, arXiv:1706.03762, section 3.2.1 and footnote 4: products of d_head terms grow as its root"
_WITHOUT = "; without it: Luong 2015, arXiv:1508.04025, section 3.1; Wang 2018, arXiv:1711.07971, section 3.2"
_TOLERATED = 0.2  # of a slope: missing and doubled scales are at 0.5 and -0.5
_CERTAIN = 0.1  # a slope below is flat at the first sight, without other random starts
_FEWEST_SIZES = 3  # through two points goes any line
_SPREAD = 3.9  # the largest size must be about four times the smallest, for a slope to mean anything
_STARTS = 3  # random starts, over which a slope in doubt is averaged
_SATURATING = 5.0  # std of logits: of 11 keys the largest holds four fifths of the weight on average
_TIMES_LONGER = 4
_LIKE = 0.1  # two factors are alike if their logarithms differ by less

Factors = Callable[[Sequence[Tape], Sequence[Convention]], list[tuple[float, ...]]]

_VARIATIONS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("n_heads", (2, 8, 4, 1, 16)),
    ("d_head", (8, 32, 16, 64)),
    ("d_model", (32, 128, 64, 192)),
)
"""Constructor arguments that change the size of a head, and values to try until there are sizes enough."""

_WIDTH = r"(self\.)?(emb_?size|embed_?(dim|size)|d_?model|n_?embd|hidden_?(size|dim)|emb_?dim|model_?dim|dim)"
_BY_WIDTH = re.compile(
    rf"\b{_WIDTH}\s*\*\*\s*\(?\s*-|sqrt\(\s*{_WIDTH}\s*\)|/\s*{_WIDTH}\s*\*\*\s*\(?\s*(0?\.5|1\s*/\s*2)"
)
"""A scale by the width of the model, in the source."""


@final
@dataclass(frozen=True)
class Slopes:
    """Hold how the logits of one attention grow with the size of its heads."""

    plain: float  # slope of log std against log d_head under the module's own start
    relative: float  # the same relative to the sizes of queries and keys
    scatter: float  # largest distance of a log std from the line
    sizes: tuple[int, ...]  # head sizes
    stds: tuple[float, ...]  # standard deviation at each
    varied: str  # which constructor argument was changed

    @property
    def off(self) -> bool:
        """Whether both slopes are off the flat line, in one direction, by more than chance."""
        together = self.plain * self.relative > 0 and self.scatter < _TOLERATED
        return together and min(abs(self.plain), abs(self.relative)) > _TOLERATED


def check_scale(exam: Examination) -> Iterator[Finding]:
    """Build the patient with heads of several sizes and measure its logits at each."""
    yield from exam.as_set(exam.as_meant(_judged(exam), "another scale"), r"\w*scale\w*=(False|1|1\.0)$")


def _judged(exam: Examination) -> Iterator[Finding]:
    """What is wrong with the first attention whose products are of learned vectors."""
    found = [logits for logits in logit_sizes(exam.usual_tape, exam.convention) if logits.d_head > 1]
    found = [logits for logits in found if not logits.excuse]
    if not found:
        yield from _by_length(exam, factors_of_learned)
        return
    slopes = _slopes(exam)
    if slopes is None:
        wrong = list(_by_factor(exam, found[0]))
    else:
        off = slopes.off and not _right_for_one_head(slopes, found[0])
        wrong = [_error(exam, found[0], slopes)] if off else []
    wrong = wrong or list(_by_length(exam, factors_of, factors_of_learned))
    yield from wrong or _one_head(exam, found[0], slopes)
    if not wrong:
        yield from _saturated(exam, found[0])


# Slopes


def _slopes(exam: Examination) -> Slopes | None:
    """The slopes over the first constructor argument that changes the size of a head.

    With the number of heads more than the size of a head may change: where they are off, what changes the size alone
    is asked too.
    """
    found = (_slopes_over(exam, word, values) for word, values in _VARIATIONS)
    slopes = next((each for each in found if each is not None), None)
    if slopes is None or not slopes.off or slopes.varied != "n_heads":
        return slopes
    alone = _slopes_over(exam, "d_head", dict(_VARIATIONS)["d_head"])
    return alone if alone is not None and not alone.off else slopes


def _slopes_over(exam: Examination, word: str, values: Sequence[int]) -> Slopes | None:
    """The slopes over one constructor argument, from as few values as will do."""
    measured: list[LogitSize] = []
    used: list[int] = []
    for value in values:
        found = _first_logits(exam, {word: value}, 0)
        measured += [] if found is None else [found]
        used += [] if found is None else [value]
        if _fit(word, measured) is not None:
            return _repeated(exam, word, used, measured)
    return None


def _repeated(exam: Examination, word: str, values: Sequence[int], measured: Sequence[LogitSize]) -> Slopes | None:
    """The slopes, from further random starts too where the first ones do not make it plain."""
    slopes = _fit(word, measured)
    if slopes is None or min(abs(slopes.plain), abs(slopes.relative)) < _CERTAIN:
        return slopes
    again = [_first_logits(exam, {word: value}, start) for start in range(1, _STARTS) for value in values]
    return _fit(word, [*measured, *(logits for logits in again if logits is not None)])


def _first_logits(exam: Examination, changes: Mapping[str, Any], start: int) -> LogitSize | None:
    torch.default_generator.manual_seed(start)
    module = exam.another(changes)
    if module is None:
        return None
    sized = exam
    if "d_model" in changes and exam.convention.takes == "embeddings":
        sized = exam.relying_on(replace(exam.convention, d_in=changes["d_model"]))
    try:
        x = sized.inputs(seed=start)
        tape = sized.tape(x.to(exam.dtype) if x.is_floating_point() else x, module=module)
    except ModuleError:
        return None
    found = logit_sizes(tape, sized.convention)
    return found[0] if found else None


def _fit(word: str, measured: Sequence[LogitSize]) -> Slopes | None:
    """The slopes through the geometric means at each head size, None if there are too few sizes."""
    sizes = sorted({logits.d_head for logits in measured})
    if len(sizes) < _FEWEST_SIZES or sizes[-1] / sizes[0] < _SPREAD:
        return None
    stds = [_mean(measured, size, lambda logits: logits.std) for size in sizes]
    relative = [_mean(measured, size, lambda logits: logits.relative) for size in sizes]
    plain, scatter = _line(sizes, stds)
    return Slopes(plain, _line(sizes, relative)[0], scatter, tuple(sizes), tuple(stds), word)


def _mean(measured: Sequence[LogitSize], size: int, value: Callable[[LogitSize], float]) -> float:
    """The geometric mean of a value at one head size."""
    logs = [math.log(value(logits)) for logits in measured if logits.d_head == size]
    return math.exp(sum(logs) / len(logs))


def _line(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """The slope of the least-squares line through the logarithms, and how far the farthest of them is from it."""
    x = torch.tensor([math.log(size) for size in sizes], dtype=torch.float64)
    y = torch.tensor([math.log(value) for value in values], dtype=torch.float64)
    x, y = x - x.mean(), y - y.mean()
    slope = (x * y).sum() / x.square().sum()
    return float(slope), float((y - slope * x).abs().max())


# Findings


def _saturated(exam: Examination, logits: LogitSize) -> Iterator[Finding]:
    """An error for logits that are too large at the start because of the width, a warning if nobody knows why.

    Token tables may be of any size at the start, and a norm may be meant to stand before: no error for a model.
    """
    if logits.std < _SATURATING:
        return
    word, values = _VARIATIONS[-1]
    measured = [found for value in values if (found := _first_logits(exam, {word: value}, 0)) is not None]
    slopes = _fit(word, measured)
    grows = slopes is not None and slopes.plain > _TOLERATED and exam.convention.takes == "embeddings"
    stds = (
        ""
        if slopes is None
        else f"; at d_head {', '.join(map(str, slopes.sizes))}, with the width: "
        + ", ".join(f"{std:.3g}" for std in slopes.stds)
    )
    yield Finding(
        _ID,
        "error" if grows else "warning",
        "queries and keys start too large: the softmax gives nearly all weight to one key, and learns slowly."
        + (" It gets worse with the width." if grows else ""),
        f"std of the logits {logits.std:.3g} on inputs of std 1 (queries {logits.q_std:.3g}, keys {logits.k_std:.3g};"
        f" 1 or less is usual){stds}",
        "start the projections of queries and keys with a standard deviation of d_model ** -0.5, as"
        " nn.init.xavier_uniform_ does",
        "Glorot and Bengio 2010, AISTATS; Vaswani 2017, arXiv:1706.03762, section 3.2.1: vanishing gradients",
    )


def _right_for_one_head(slopes: Slopes, logits: LogitSize) -> bool:
    """Whether a lone head is as large as the model, and only that size was taken away from it."""
    return slopes.varied == "d_head" and logits.n_heads == 1 and _alike(logits.relative, 1.0)


def _error(exam: Examination, logits: LogitSize, slopes: Slopes) -> Finding:
    stds = ", ".join(f"{std:.3g}" for std in slopes.stds)
    evidence = (
        f"std of the logits at d_head {', '.join(map(str, slopes.sizes))}: {stds}; slope of their logarithms"
        f" {slopes.plain:+.2f} (0 is right, {_TOLERATED} tolerated); the factor at d_head {logits.d_head} is"
        f" {_factors(logits)}"
    )
    return _finding(exam, logits, evidence, grows=slopes.plain > 0)


def _finding(exam: Examination, logits: LogitSize, evidence: str, *, grows: bool) -> Finding:
    """An error; a warning where the papers of such layers have no scale: states as they are, pixels without heads."""
    known = not logits.projected or (exam.convention.layout in IMAGES and not named("n_heads", exam.patient.arguments))
    severity: Severity = "warning" if known and _kind(exam, logits) == "missing" else "error"
    message, remedy = _reading(exam, logits, grows=grows)
    source = _SOURCE + _WITHOUT if severity == "warning" else _SOURCE
    return Finding(_ID, severity, message, evidence, remedy, source, scores_times=1 / logits.relative)


def _factors(logits: LogitSize) -> str:
    """What the products were multiplied by, and what they must be."""
    return f"{logits.relative * logits.d_head**-0.5:.3g}, d_head ** -0.5 would be {logits.d_head**-0.5:.3g}"


def _reading(exam: Examination, logits: LogitSize, *, grows: bool) -> tuple[str, str]:
    """What is wrong with the scale, in words, and what to do."""
    names = {
        "missing": ("the scores are not scaled", "multiply the scores by d_head ** -0.5"),
        "doubled": (
            "the scores are scaled twice",
            "scale once, by d_head ** -0.5: the root must not be missing, and SDPA scales by itself",
        ),
        "inverted": ("the scores are divided by what must multiply them", "multiply the scores by d_head ** -0.5"),
        "width": ("the scores are scaled by the width of the model, not of a head", "scale by d_head ** -0.5"),
        "length": ("the scores are scaled by the length", "scale by d_head ** -0.5, with d_head = q.size(-1)"),
        "": ("the scores are not scaled by d_head ** -0.5", "multiply the scores by d_head ** -0.5, nothing else"),
    }
    name, remedy = names[_kind(exam, logits, grows=grows)]
    verb = "grow" if grows else "shrink"
    return f"{name}: the logits {verb} with the size of a head.", remedy


def _kind(exam: Examination, logits: LogitSize, *, grows: bool = False) -> str:
    """Which wrong factor explains the size of the logits, and that they grow with the size of a head if they do."""
    d_head = logits.d_head
    widths = {d_head * logits.n_heads, exam.convention.d_in or d_head * logits.n_heads}  # queries may be wider than x
    candidates = {
        "missing": d_head**0.5,
        "doubled": d_head**-0.5,
        "inverted": d_head,
        "width": min(((d_head / one) ** 0.5 for one in widths), key=lambda one: abs(math.log(logits.relative / one))),
        "length": (d_head / exam.convention.length) ** 0.5,
    }
    near = {kind: abs(math.log(logits.relative / factor)) for kind, factor in candidates.items()}
    near |= {"doubled": math.inf} if grows else {}
    kind = min(near, key=lambda name: near[name])
    return kind if near[kind] < _LIKE else ""


def _alike(first: float, second: float) -> bool:
    return abs(math.log(first / second)) < _LIKE


def _by_factor(exam: Examination, logits: LogitSize) -> Iterator[Finding]:
    """An error for a module of which there is one size: the factor must be none of the wrong ones."""
    kind = _kind(exam, logits)
    made_up_for = kind == "missing" and max(logits.q_std, logits.k_std) > 1.6 * min(logits.q_std, logits.k_std)
    lone = kind == "width" and logits.n_heads == 1
    if not kind or kind == "length" or _alike(logits.relative, 1.0) or made_up_for or lone:
        return
    evidence = (
        f"d_head {logits.d_head}: std of queries {logits.q_std:.3g}, of keys {logits.k_std:.3g}, of logits"
        f" {logits.std:.3g}; the factor is {_factors(logits)}"
    )
    yield _finding(exam, logits, evidence, grows=logits.relative > 1 or kind == "width")


def _by_length(exam: Examination, *factors: Factors) -> Iterator[Finding]:
    """An error for products that are multiplied by less in a longer sequence."""
    short = exam.convention.length
    long = min(_TIMES_LONGER * short, exam.convention.longest or _TIMES_LONGER * short)
    if not exam.convention.any_length or long < 2 * short:
        return
    try:
        tapes = [exam.tape(exam.inputs(length=length)) for length in (short, long)]
    except ModuleError:
        return
    conventions = [replace(exam.convention, length=length) for length in (short, long)]
    found = [pair for of in factors for pair in of(tapes, conventions)]
    slope, pair = min(((_line((short, long), pair)[0], pair) for pair in found), default=(0.0, ()))
    if slope < -_TOLERATED:
        evidence = (
            f"products that scores of the same positions are made of are multiplied by {pair[0]:.3g} at length {short}"
            f" and by {pair[1]:.3g} at length {long}: by the length to the power {slope:.2g}"
        )
        message = "the scores are scaled by the length of the sequence: the longer it is, the less attention chooses."
        yield Finding(_ID, "error", message, evidence, "scale by d_head ** -0.5, with d_head = q.size(-1)", _SOURCE)


def _one_head(exam: Examination, logits: LogitSize, slopes: Slopes | None) -> Iterator[Finding]:
    """A fact where a lone head is scaled by the width of the model."""
    by_width = (slopes is not None and slopes.off) or _BY_WIDTH.search(exam.patient.text)
    if logits.n_heads != 1 or not by_width or not _alike(logits.relative, 1.0):
        return
    yield Finding(
        _ID,
        "info",
        "the scale is the width of the model to the power -0.5: right for one head only (of several, d_head ** -0.5).",
        f"one head of size {logits.d_head} in a width of {exam.convention.d_in}; with h heads the logits would be"
        " sqrt(h) times too small",
        "",
        _SOURCE,
    )
