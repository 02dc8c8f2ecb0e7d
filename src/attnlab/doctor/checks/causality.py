"""Whether a position sees later ones: what must not, what must, and what does a little of both."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.measures.declared import as_declared
from attnlab.doctor.measures.differences import LEAK, deviation
from attnlab.doctor.measures.futures import FAR_FETCHED, Leak, leaks
from attnlab.doctor.measures.sight import Sight, look
from attnlab.doctor.measures.steady import is_steady
from attnlab.doctor.measures.words import excused, quote
from attnlab.inspection.tape.attentions import attentions

_ID = "causality"
_SOURCE = "Vaswani 2017, arXiv:1706.03762, section 3.2.3: illegal connections are set to -inf before the softmax"
_FINITE_SOURCE = "karpathy/minGPT#75: a finite mask value lets the future in once logits are large"
_PREFIX_SOURCE = "a causal model gives a prefix the same outputs as the same positions of a longer sequence"
_MASK = "before the softmax: `scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float('-inf'))`"
_REMEDY = f"hide all later positions {_MASK}, with T taken from the input"
_WEAK = 0.05  # of the influence of the past: no bidirectional layer treats the two sides so unequally by chance
_NEAR = 3  # positions ahead that an off-by-one in a mask or a padding lets in, beside the whole past
_STRICT_WORDS = re.compile(
    r"strict(ly)?[- ](the )?(past|causal|lower|earlier|before|preceding)|mask type a|shared[- ]qk|\breformer\b"
    r"|exclud(es|ing)( \w+){0,2} (itself|the (current|present|diagonal|query))|exclusive (of itself|prefix)"
    r"|(without|and not|but not|not (see|attend to)|nor) itself|(itself|diagonal)( \w+){0,2} (excluded|hidden|masked)",
    re.IGNORECASE,
)
_PARTLY = (
    r"\bprefix[- ]?lm\b|\bprefix[- ]language[- ]model|\bblock[- ]causal\b"
    r"|(sees?|attends?|looks?|attention|bidirectional)( (to|at|over|within|inside|in|on))?( \w+){0,3}"
    r" (prefix|(own|same) (chunk|block))\b|\b(prefix|chunk|block)( \w+){0,3} (bidirectional|each other)"
    r"|look[- ]?ahead (of|by) \w+|(sees?|looks?) (\w+ )?(positions? |steps? |tokens? )?ahead\b"
)
_PART_WORDS = re.compile(_PARTLY, re.IGNORECASE)
_WINDOW_WORDS = re.compile(
    rf"{_PARTLY}|sliding[- ]window|windowed|chunked|chunk[- ]?wise|in chunks|chunks? of|block[- ]?wise|window (of|size)"
    r"|streaming (attention|transformer|encoder)|asymmetric (window|context|attention)",
    re.IGNORECASE,
)
_BACKWARD_WORDS = re.compile(
    r"backward[- ](in time|direction|attention|rnn|lstm|gru|half|language|model|scan|looking)|(runs?|reads?) backwards?"
    r"|revers(e|ed) (direction|time|order|sequence)|right[- ]to[- ]left|anti[- ]?causal",
    re.IGNORECASE,
)
_WAY = r"(back\w*|ahead|forwards?|causal\w*|past|future|left|right|both|bidirectional\w*|later|earlier|directions?)"
_HEAD_WORDS = re.compile(
    rf"(some|half|first|other|second|one)( half)?( of)?( the| its)? heads? \w+( \w+){{0,3}} {_WAY}\b"
    rf"|heads? (look|see|attend|read)s?( \w+){{0,3}} {_WAY}\b|(causal|bidirectional|backward|forward) heads\b",
    re.IGNORECASE,
)


def check_causality(exam: Examination) -> Iterator[Finding]:
    """Replace positions one by one and all later ones, and compare which outputs change."""
    if exam.usage.pooled or exam.usage.length < 3 or not is_steady(exam):
        return
    exam = as_declared(exam)
    usage = exam.usage
    if usage.causal:
        yield from _must_not_see_ahead(exam)
        return
    sight = look(exam, causal=False)
    if sight.past.any() and not sight.ahead.any():
        yield from _blind_ahead(exam)
    elif sight.ahead.any():
        yield from _lopsided(exam, sight)
    if usage.causal_means in ("mask", "flag") and sight.ahead.any():
        yield from _mask_holds(exam, sight)


# What must not see ahead


def _must_not_see_ahead(exam: Examination) -> Iterator[Finding]:
    """An error for a future that leaks, or for a position that does not see itself."""
    sight = look(exam)
    if sight.ahead.any():
        yield from excused([_leak(exam, sight)], _declared_part(exam, sight))
        return
    under = list(leaks(exam))
    if under:
        yield _conditional_leak(exam, under)
    if any(leak.condition != FAR_FETCHED for leak in under):
        return
    yield from excused(_blind_to_itself(exam, sight), quote(exam, _STRICT_WORDS))
    yield from _depends_on_what_follows(exam)


def _declared_part(exam: Examination, sight: Sight) -> str:
    """The words by which a class says itself that a part of the future is seen, if no more than a part is."""
    pairs = exam.usage.length * (exam.usage.length - 1) // 2
    if exam.usage.causal_by == "--causal" or int(sight.ahead.any(0).sum()) >= pairs:
        return ""
    return quote(exam, _PART_WORDS)


def _leak(exam: Examination, sight: Sight) -> Finding:
    """The error for a leak under ordinary conditions, with its pattern."""
    usage = exam.usage
    sample, row, column = sight.worst()
    declared = f"declared causal by {usage.causal_by}" if usage.causal_by else "meant to be causal"
    return Finding(
        _ID,
        "error",
        f"it is {declared}, but {_pattern(sight)}.",
        f"replacing position {column} changes the output at position {row} of sample {sample} by {sight.ratio:.2g} of"
        f" the largest change at or after a replaced position (evaluation mode, length {usage.length})",
        _remedy(exam),
        _SOURCE,
    )


def _pattern(sight: Sight) -> str:
    """Say what kind of leak it is."""
    if not sight.past.any():
        return "a position sees what comes after it and nothing that comes before: the mask is transposed"
    if sight.clean_samples:
        clean = ", ".join(map(str, sight.clean_samples))
        return f"the future is hidden in sample {clean} of the batch alone: the mask has a wrong batch axis"
    if sight.rows_ahead == {0}:
        return "the first position, which is left with nothing to see, sees everything"
    return _amount(sight)


def _amount(sight: Sight) -> str:
    """Say how much of the future is seen."""
    steps = sight.steps(sight.ahead)
    if steps == {1}:
        return "each position sees the next one: the mask is off by one"
    if max(steps) <= _NEAR:
        return f"each position sees up to {max(steps)} later ones"
    if sight.mean(ahead=True) < 0.5 * sight.mean(ahead=False):
        return "later positions are damped instead of hidden (a weak mask, or a sum over all positions)"
    return "positions see later ones as if there were no mask"


def _remedy(exam: Examination) -> str:
    mask = exam.usage.pair_mask
    if exam.usage.causal_means == "mask" and mask is not None:
        return f"let `{mask.parameter}` hide what it blocks {_MASK}"
    return _REMEDY


def _conditional_leak(exam: Examination, under: list[Leak]) -> Finding:
    """The error for a future that is hidden under ordinary conditions and leaks under others."""
    worst = max(under, key=lambda leak: leak.ratio)
    mild = all(leak.condition == FAR_FETCHED for leak in under)
    finite = "inputs" in under[0].condition or "logits" in under[0].condition
    why = ": the mask's value is finite and too small" if finite else ""
    return Finding(
        _ID,
        "warning" if mild else "error",
        f"the future leaks {under[0].condition}, though not for ordinary inputs in evaluation mode{why}.",
        "change of earlier positions when later ones are replaced, as a part of the change of those: "
        + "; ".join(f"{leak.ratio:.2g} {leak.condition}" for leak in under[:4])
        + f" (worst: {worst.ratio:.2g}, length {exam.usage.length})",
        f"use float('-inf') or torch.finfo(scores.dtype).min {_MASK}" if finite else _remedy(exam),
        _FINITE_SOURCE if finite else _SOURCE,
    )


def _blind_to_itself(exam: Examination, sight: Sight) -> Iterator[Finding]:
    """An error if a position sees earlier ones and not itself."""
    if not sight.past.any():
        return
    own = sight.seen.diagonal(dim1=-2, dim2=-1)[:, 1:]  # the first may be NaN
    if exam.usage.kind == "layer" and not own.any():
        yield _blind(exam, "replacing a position changes later outputs, and its own by 0")
    elif _strict_attention(exam):
        yield _blind(
            exam, "the largest attention weight of a position on itself is 0, that on the one before it is not"
        )


def _strict_attention(exam: Examination) -> bool:
    """Whether some attention's weights are zero on the diagonal and not below it."""
    for found in attentions(exam.usual_tape, exam.usage):
        weights = found.weights
        square = weights.dim() == 4 and weights.size(-1) == weights.size(-2) == exam.usage.length
        if square and not _any_number(weights, 0) and _any_number(weights, -1):
            return True
    return False


def _any_number(weights: Tensor, offset: int) -> bool:
    """Whether a diagonal holds anything but zero and NaN; the first row is left out."""
    return bool(weights[..., 1:, 1:].diagonal(offset, -2, -1).nan_to_num().any())


def _blind(exam: Examination, evidence: str) -> Finding:
    return Finding(
        _ID,
        "error",
        "a position does not see itself: the mask is off by one the other way.",
        f"{evidence} (length {exam.usage.length})",
        "keep the diagonal: `torch.ones(T, T).tril()` keeps it, `.tril(-1)` does not, `.triu(1)` blocks what is later"
        " and `.triu()` blocks the position itself too; say so in the docstring if it is meant",
        _SOURCE,
    )


def _depends_on_what_follows(exam: Examination) -> Iterator[Finding]:
    """A warning if outputs change with the number of later positions, whatever they hold."""
    if not exam.usage.any_length:
        return
    x = exam.inputs()
    cut = x.size(1) // 2 + 1
    try:
        apart = deviation(exam.run(x[:, :cut].contiguous()), exam.run(x)[:, :cut])
    except ModuleError:
        return
    if apart:
        yield Finding(
            _ID,
            "warning",
            "outputs depend on how many positions follow, though not on what they hold.",
            f"the first {cut} of {x.size(1)} positions differ by {apart:.2g} of the largest output from the same {cut}"
            " given alone",
            "count positions from the start, and divide by what a position sees, not by the length; else generation"
            " word by word differs from training",
            _PREFIX_SOURCE,
        )


# What must see ahead, and what nobody declared


def _blind_ahead(exam: Examination) -> Iterator[Finding]:
    """An error if what is declared bidirectional never looks ahead; what is undeclared is taken as causal."""
    if exam.usage.causal is None:
        yield from _must_not_see_ahead(exam)
        return
    yield Finding(
        _ID,
        "error",
        f"it is declared bidirectional by {exam.usage.causal_by or 'its caller'}, but no position sees a later one.",
        f"replacing a position changes later outputs, and no earlier one (length {exam.usage.length}, batch 3)",
        "leave the causal mask away, or declare the module causal",
        "Devlin 2019, arXiv:1810.04805, section 3.1: a bidirectional layer sees both sides",
    )


def _lopsided(exam: Examination, sight: Sight) -> Iterator[Finding]:
    """An error if it sees ahead in a way that nobody can mean."""
    what, words = _half_hidden(exam, sight)
    what, words = (what, words) if what else _half_causal(exam)
    if what:
        finding = Finding(
            _ID,
            "error",
            f"it is neither causal nor bidirectional: {what}.",
            f"influence of later positions {sight.mean(ahead=True):.2g}, of earlier ones {sight.mean(ahead=False):.2g}"
            f" (mean change of an output when one position is replaced; length {exam.usage.length})",
            f"decide: {_REMEDY}, or no position; say in the docstring if it is meant so",
            _SOURCE,
        )
        yield from excused([finding], words)


def _half_hidden(exam: Examination, sight: Sight) -> tuple[str, str]:
    """What is strange about the pattern of what is seen, and the words that declare it, or nothing."""
    ahead, back = sight.steps(sight.ahead), sight.steps(sight.past)
    if sight.clean_samples:
        return "the future is hidden in some samples of a batch and not in others", ""
    if not back:
        return "a position sees later ones alone: the mask is transposed", quote(exam, _BACKWARD_WORDS)
    if sight.rows_ahead == {0}:
        return "the first position sees everything, the others nothing later", ""
    words = quote(exam, _WINDOW_WORDS)
    if max(ahead) <= _NEAR and -min(back) == exam.usage.length - 1:
        return f"a position sees everything before it, but only {max(ahead)} ahead", words
    if sight.mean(ahead=True) < _WEAK * sight.mean(ahead=False):
        return "later positions are damped, but not hidden: a mask that does not hold", words
    return "", ""


def _half_causal(exam: Examination) -> tuple[str, str]:
    """In which mode, length or heads alone it is causal, and the words that declare the latter, or nothing."""
    what = _causal_at_times(exam)
    if what or not _causal_heads(exam):
        return what, ""
    return "some heads see later positions and others do not", quote(exam, _HEAD_WORDS)


def _causal_at_times(exam: Examination) -> str:
    """In which mode or length alone it is causal, or nothing."""
    try:
        training = look(exam, causal=False, train=True)
        if training.past.any() and not training.ahead.any():
            return "it is causal in training mode and not in evaluation mode"
        short = look(exam, causal=False, length=5) if exam.usage.any_length else None
    except ModuleError:
        return ""
    if short is not None and short.past.any() and not short.ahead.any():
        return f"it is causal at length 5 and not at length {exam.usage.length}"
    return ""


def _causal_heads(exam: Examination) -> bool:
    """Whether, in some attention, some heads look ahead and others look back alone."""
    for found in attentions(exam.tape(exam.inputs(), causal=False), exam.usage):
        weights = found.weights
        if weights.dim() != 4 or weights.size(-1) != weights.size(-2) or weights.size(-1) != exam.usage.length:
            continue
        ahead = weights.triu(1).abs().amax((0, 2, 3)) > 0  # (heads,)
        back = weights.tril(-1).abs().amax((0, 2, 3)) > 0
        if ahead.any() and (back & ~ahead).any():
            return True
    return False


# What a causal mask must hide


def _mask_holds(exam: Examination, free: Sight) -> Iterator[Finding]:
    """An error if a causal mask or flag, given as an argument, does not hide what it blocks."""
    masked = look(exam, causal=True)
    if exam.usage.causal_means == "mask" and torch.equal(masked.sizes, free.sizes):
        return  # it has no effect at all: mask-polarity says so
    if masked.ahead.any():
        weight = _weight_ahead(exam)
        if weight:
            yield _weak_mask(exam, f"attention weights of up to {weight:.2g} on blocked positions")
        return
    under = [leak for leak in leaks(exam, causal=True) if leak.condition != FAR_FETCHED]
    if under:
        listed = "; ".join(f"{leak.ratio:.2g} {leak.condition}" for leak in under[:4])
        yield _weak_mask(exam, f"influence of blocked positions as a part of that of the others: {listed}")


def _weight_ahead(exam: Examination) -> float:
    """The largest attention weight above the diagonal under a causal mask; other paths may be free."""
    largest = 0.0
    for found in attentions(exam.tape(exam.inputs(), causal=True), exam.usage):
        if found.weights.dim() == 4 and found.weights.shape[-2:] == (exam.usage.length,) * 2:
            largest = max(largest, float(found.weights.nan_to_num().triu(1).abs().max()))
    return largest if largest > LEAK else 0.0


def _weak_mask(exam: Examination, evidence: str) -> Finding:
    mask = exam.usage.pair_mask
    name = f"`{exam.usage.flag}`" if mask is None else f"`{mask.parameter}`"
    return Finding(
        _ID,
        "error",
        f"{name} does not hide what it must: positions that a causal mask forbids still have influence.",
        f"{evidence} (length {exam.usage.length})",
        f"apply it as minus infinity {_MASK}",
        _FINITE_SOURCE,
    )
