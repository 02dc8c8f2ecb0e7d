"""Whether the weights of each attention are what a softmax over the keys gives, where a softmax is meant."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.influence.padded import with_own_memory
from attnlab.doctor.measures.after_softmax import AfterSoftmax, course_of
from attnlab.doctor.over_features import chooses_summaries
from attnlab.inspection.tape.attentions import TapedAttention, attentions
from attnlab.inspection.tape.contractions import Operand
from attnlab.inspection.tape.dependence import Dependence, dependence_of
from attnlab.inspection.tape.tape import Tape, record
from attnlab.inspection.tape.tracing import back_to, places_in
from attnlab.inspection.tape.weighted_sums import Products, softmaxes, weighted_sums
from attnlab.strangers.said.source import descriptions, is_torchs_own, source_of

_ID = "normalization"
_SOURCE = "Vaswani 2017, arXiv:1706.03762, equation 1: softmax over the keys of each query, then the values"
_TOLERANCE = 1e-3  # far above the rounding of a sum of weights in any dtype, and above the eps of written-out ones

_EXACT = 1e-9  # rounding of a sum of weights in float64
_INEXACT = 1e-5  # a sum of weights that an epsilon in the divisor does not explain

_DISTRIBUTION = re.compile(
    r"\b(is|as|are|remains?|stays?|still|into) (?!not? )(an? )?(\w+ )?(probability )?distributions?\b"
    r"|(?<!not )(?<!longer )\bsums? (up )?to (one|1)\b|(?<!not )(?<!out )(?<!no )\bre-?normali[sz]\w+",
    re.IGNORECASE,
)
"""Words for weights that sum to one after some of them were dropped."""

_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm"})
_REMEDY_LEARNED = "normalize over the axis that the product sums over: `softmax(dim=-1)` on scores (..., vectors)"
_REMEDIES = {
    "queries": "normalize over the keys: `softmax(dim=-1)` on scores of shape (batch, heads, q_len, k_len)",
    "heads": "normalize over the keys, the last axis of the scores, not over the heads: `softmax(dim=-1)`",
    "batch": "normalize over the keys, the last axis of the scores, not over the batch: `softmax(dim=-1)`",
    "unknown": "normalize over the keys of each query alone: `softmax(dim=-1)` on scores (batch, heads, q_len, k_len)",
}


def check_normalization(exam: Examination) -> Iterator[Finding]:
    """Sum the weights of each attention over its keys, and look at what happens between softmax and values."""
    found = [finding for each in with_own_memory(exam) for finding in _wrong(each)] or list(_of_learned(exam))
    gravest = next((finding for finding in found if finding.severity == "error"), next(iter(found), None))
    if gravest is not None:
        yield from exam.as_meant([gravest], "no softmax")
    else:
        yield from _dropped_scores(exam)


def _wrong(exam: Examination) -> Iterator[Finding]:
    """The error of each attention that has one."""
    for tape, real in _calls(exam):
        dependence = dependence_of(tape, exam.convention)
        for attention in attentions(tape, exam.convention):
            seen = _of_real_queries(_of_rows_that_see(attention), real)
            found = None if chooses_summaries(dependence, attention) else _judge(exam, tape, dependence, seen)
            if found is not None:
                yield found


def _of_learned(exam: Examination) -> Iterator[Finding]:
    """The error of weights of learned vectors, such as the slots of a memory, that sum to one over another axis.

    What a layer with a bias reads is no weights but features.
    """
    tape = exam.usual_tape
    dependence = dependence_of(tape, exam.convention)
    sums = weighted_sums(tape, dependence, Products(tape, dependence))
    of_input = {softmax.event for one in sums for softmax in one.softmaxes}  # which may be of heads that are mixed
    for start in (one.event for one in softmaxes(tape, dependence) if one.event not in of_input):
        output = tape.events[start].output
        over = [axis for axis, size in enumerate(output.shape) if size > 1 and _is_one(output.sum(axis))]
        for rows in itertools.islice(_multiplying_learned(exam, dependence, start, over), 1) if over else ():
            sums_to = rows.sum(-1)
            evidence = (
                f"a softmax of shape {tuple(output.shape)} sums to one over axis {over[0]}; what multiplies the"
                f" {rows.shape[-1]} learned vectors sums to {sums_to.min():.3g} to {sums_to.max():.3g}"
            )
            message = "The softmax runs over another axis than that of the learned vectors its weights are for."
            yield Finding(_ID, "error", message, evidence, _REMEDY_LEARNED, _SOURCE)


def _multiplying_learned(
    exam: Examination, dependence: Dependence, start: int, over: Sequence[int]
) -> Iterator[Tensor]:
    """Yield what a softmax gives, as rows that multiply a learned matrix, if they are across the axes it runs over."""
    tape = dependence.tape
    output = tape.events[start].output
    for event in (tape.events[index] for index in sorted(tape.descendants(start))):
        number = int(event.call in ("addmm", "baddbmm"))
        if event.call in _PRODUCTS and dependence.is_learned(event, number + 1):
            places, rows = places_in(tape, start, (event.index, number)), event.inputs[number]
            if places is None or bool((places < 0).any()) or not torch.equal(output.flatten()[places], rows):
                continue
            across = not any(_runs_along(places, output.shape, axis) for axis in over)
            if across and not _has_bias(exam, dependence, (event.index, number + 1)):
                yield rows


def _runs_along(places: Tensor, shape: Sequence[int], axis: int) -> bool:
    """Whether rows hold several places of an axis of what they are made of, given where each element lies in it."""
    along = places // math.prod(shape[axis + 1 :]) % shape[axis]
    return bool((along != along[..., :1]).any())


def _has_bias(exam: Examination, dependence: Dependence, operand: Operand) -> bool:
    """Whether a learned factor is the weight of a layer with a bias."""
    events = dependence.tape.events
    if operand[1] == 2 and dependence.is_learned(events[operand[0]], 0):  # added by the product itself
        return True
    while (parent := events[operand[0]].parents[operand[1]]) is not None:
        operand = (parent, 0)
    owner, _, name = (events[operand[0]].parameters[operand[1]] or "").rpartition(".")
    return name == "weight" and getattr(exam.patient.module.get_submodule(owner), "bias", None) is not None


def _is_one(sums: Tensor) -> bool:
    return bool(((sums - 1).abs() <= _INEXACT).all())


def _calls(exam: Examination) -> Iterator[tuple[Tape, Bool[Tensor, "batch length"] | None]]:
    """Yield calls to look into, and which positions are real where some are not: the usual one, one with a mask."""
    yield exam.usual_tape, None
    x = exam.inputs()
    batch, length = x.shape[:2]
    if exam.convention.key_mask is not None:
        real = torch.arange(length) < length - 1 - torch.arange(batch)[:, None]
        yield exam.tape(x, padding=real), real
    elif exam.convention.pair_mask is not None:
        allowed = torch.ones(batch, length, length, dtype=torch.bool).tril(2)
        yield record(exam.eval_module, lambda: exam.run(x, allowed=allowed)), None


def _of_rows_that_see(attention: TapedAttention) -> TapedAttention:
    """An attention whose weights are NaN in the rows of queries that see no key: those may be zero."""
    blind = (attention.weights == 0).all(-1, keepdim=True)
    if attention.scores is not None:
        blind = blind | torch.isneginf(attention.scores).all(-1, keepdim=True)
    return replace(attention, weights=attention.weights.masked_fill(blind, torch.nan))


def _of_real_queries(attention: TapedAttention, real: Bool[Tensor, "batch length"] | None) -> TapedAttention:
    """An attention whose weights are NaN in the rows of padded queries, which may be anything."""
    if real is None or attention.weights.shape[0] != real.shape[0] or attention.weights.shape[2] != real.shape[1]:
        return attention
    weights = attention.weights.masked_fill(~real[:, None, :, None], torch.nan)
    return replace(attention, weights=weights)


def _judge(exam: Examination, tape: Tape, dependence: Dependence, attention: TapedAttention) -> Finding | None:
    """What is wrong with one attention's weights."""
    if attention.normalizer == "softmax":
        return _of_softmax(exam, tape, dependence, attention)
    return _missing(exam, tape, attention)


def _of_softmax(exam: Examination, tape: Tape, dependence: Dependence, attention: TapedAttention) -> Finding | None:
    """What is wrong with weights that a softmax has made."""
    course = course_of(tape, dependence, attention)
    if course.logarithm:
        return _error(
            attention,
            "The weights are logarithms: the output of a log-softmax multiplies the values.",
            "use softmax for the weights; log_softmax is for losses",
        )
    if course.repeated:
        return _error(
            attention,
            "The scores go through two softmaxes, so the weights are nearly uniform.",
            "remove one softmax; the second one gets numbers between 0 and 1 and can no longer prefer any key",
        )
    if course.squeezed:
        return _error(
            attention,
            "Scores stay within 1 of each other however large queries and keys are, so the weights are nearly uniform.",
            "take out what squeezes the scores before the softmax (a clamp, a sigmoid), or multiply behind it",
        )
    if attention.along == "positions" and any(map(_of_length_one_over_positions, (attention.q, attention.k))):
        return _error(
            attention,
            "Queries or keys are divided by their length over the positions, not over their features: the scores are"
            " no cosines, and shrink with the length of the sequence.",
            "normalize over the features of a head, the axis that the product sums over: F.normalize(q, dim=-1) on q"
            " of shape (batch, heads, length, d_head)",
        )
    said = bool(_DISTRIBUTION.search(exam.patient.text))
    return _sums_wrong(attention, course, said=said)


def _of_length_one_over_positions(vectors: Float[Tensor, "batch heads length d_head"] | None) -> bool:
    """Whether every feature of a head has length 1 over the positions, and the positions have several."""
    if vectors is None or min(vectors.shape[2:]) < 2:
        return False
    of_features, of_positions = (
        vectors.norm(dim=axis).transpose(0, 1).flatten(1) for axis in (2, 3)
    )  # (heads, batch * each)
    return bool(((of_features - 1).abs() <= _EXACT).all()) and not _alike(of_positions)


def _alike(lengths: Float[Tensor, "heads each"]) -> bool:
    return bool((lengths.amax(1) - lengths.amin(1) <= _EXACT * lengths.amax(1)).all()) and bool(lengths.any())


def _sums_wrong(attention: TapedAttention, course: AfterSoftmax, *, said: bool) -> Finding | None:
    """The error for sums over the keys that are not one; `said`: the source says that they are."""
    deviates = _deviates(attention.weights)
    if course.meant_otherwise:
        return _thinned(attention) if course.thinned and said and deviates else None
    if not course.masked and _over_queries(attention.weights):
        return _axis(replace(attention, normalized_over="queries"))
    return (_axis(attention) or _after(attention, course)) if deviates else None


def _axis(attention: TapedAttention) -> Finding | None:
    """The error for a softmax over another axis than the keys."""
    over = attention.normalized_over
    if over == "keys" or (over == "unknown" and not _sums_over_several(attention)):
        return None
    axis = {"unknown": "several axes at once", "batch": "the batch", "heads": "the heads"}.get(over, "the queries")
    return _error(attention, f"The softmax runs over {axis}, not over the keys of each query.", _REMEDIES[over])


def _sums_over_several(attention: TapedAttention) -> bool:
    """Whether the weights of all pairs of a head sum to one."""
    return not _deviates(attention.weights.flatten(2)) or not _deviates(attention.weights.flatten(1))


def _over_queries(weights: Float[Tensor, "batch heads q_len k_len"]) -> bool:
    """Whether the weights of each key sum to one, to the last digits, and those of the queries do not."""
    rows, columns = ((weights.sum(axis) - 1).abs().max() for axis in (-1, -2))
    return bool(columns < _EXACT) and bool(rows > _INEXACT)


def _thinned(attention: TapedAttention) -> Finding:
    """The error for weights of which some are dropped where the others are said to be a distribution."""
    return _error(
        attention,
        "Weights are set to zero after the softmax, and the rest is no distribution.",
        "divide by what is left, weights / weights.sum(-1, keepdim=True), or mask the scores before the softmax",
    )


def _after(attention: TapedAttention, course: AfterSoftmax) -> Finding:
    """The error for weights that were changed after the softmax."""
    if course.masked:
        return _error(
            attention,
            "A mask is applied after the softmax and the weights are not normalized again.",
            "mask the scores before the softmax: scores.masked_fill(blocked, float('-inf'))",
        )
    if course.constant is not None:
        return _error(
            attention,
            f"The weights are multiplied by {course.constant:.3g} after the softmax.",
            "multiply the scores before the softmax; the weights of a query must sum to one",
        )
    return _error(
        attention,
        "The weights that multiply the values do not sum to one over the keys.",
        "let nothing change the weights between softmax and values, or divide by their sum over the keys; if it is"
        " meant, accept it (--accept normalization)",
    )


def _missing(exam: Examination, tape: Tape, attention: TapedAttention) -> Finding | None:
    """The error for a softmax that is named and not applied, or an exponential that is not divided."""
    if not _names_softmax(exam) or not _deviates(attention.weights):
        return None
    if attention.normalizer == "other" and (not _exponential(tape, attention) or _divided_later(tape, attention)):
        return None
    return _error(
        attention,
        "A softmax is named and none is applied: the values are multiplied by scores.",
        "apply softmax over the keys to the scores: weights = scores.softmax(dim=-1)",
    )


def _names_softmax(exam: Examination) -> bool:
    """Whether the class of one of its parts is described with a softmax, holds one or calls one."""
    parts = {type(part): part for part in exam.patient.module.modules()}
    own = [part for part in parts.values() if not is_torchs_own(part)]
    described = any("softmax" in text.lower() for part in own for text in descriptions(part))
    called = any(re.search(r"softmax\w*\(", source_of(type(part)), re.IGNORECASE) for part in own)
    return described or called or nn.Softmax in parts


def _exponential(tape: Tape, attention: TapedAttention) -> bool:
    """Whether the weights are exponentials of scores."""
    stop = set() if attention.products_index is None else {attention.products_index}
    return any(tape.events[index].call == "exp" for index in back_to(tape, attention.sources.weights, stop=stop))


def _divided_later(tape: Tape, attention: TapedAttention) -> bool:
    """Whether the sum of values is divided by a tensor, as where the weights are normalized afterwards."""
    after = (tape.events[index] for index in tape.descendants(attention.outputs_index))
    return any(event.call == "div" and len(event.inputs) == 2 and event.inputs[1].dim() > 0 for event in after)


def _deviates(weights: Float[Tensor, "*rows k_len"]) -> bool:
    """Whether some finite row does not sum to one."""
    sums = _sums(weights)
    return bool(((sums - 1).abs() > _TOLERANCE).any())


def _sums(weights: Float[Tensor, "*rows k_len"]) -> Float[Tensor, " n"]:
    sums = weights.sum(-1).flatten()
    return sums[torch.isfinite(sums)]


def _error(attention: TapedAttention, message: str, remedy: str) -> Finding:
    sums = _sums(attention.weights)
    batch, heads, q_len, k_len = attention.weights.shape
    digits = 3 if _deviates(attention.weights) else 7  # small deviations must be seen
    ends = [f"{value:.{digits}g}" for value in (sums.min(), sums.max(), sums.mean())] if sums.numel() else []
    spread = "{} to {}, mean {}".format(*ends) if ends else "no finite number"
    place = f" in '{attention.where}'" if attention.where else ""
    evidence = f"weights{place} of {batch} x {heads} x {q_len} queries sum to {spread} over {k_len} keys (must be 1)"
    if not _deviates(attention.weights):
        largest = attention.weights.amax(-1).nanmean()
        evidence += f"; the largest weight of a query is {largest:.3g} on average, uniform would be {1 / k_len:.3g}"
    return Finding(_ID, "error", message, evidence, remedy, _SOURCE)


# Dropout on scores


def _dropped_scores(exam: Examination) -> Iterator[Finding]:
    """A warning if dropout sets scores to zero before the softmax in training."""
    tape = exam.tape(exam.inputs(), module=exam.copy(train=True))
    dependence = dependence_of(tape, exam.convention)
    found: Sequence[TapedAttention] = attentions(tape, exam.convention)
    dropped = [attention for attention in found if attention.softmaxes and _drops_scores(tape, dependence, attention)]
    if dropped:
        yield Finding(
            _ID,
            "warning",
            "Dropout is applied to the scores before the softmax: a dropped score becomes 0, which is no small weight.",
            f"training mode, {len(dropped)} of {len(found)} attentions: a random factor between products and softmax",
            "apply dropout to the weights, after the softmax",
            "Vaswani 2017, arXiv:1706.03762; torch.nn.functional.scaled_dot_product_attention: dropout after softmax",
        )


def _drops_scores(tape: Tape, dependence: Dependence, attention: TapedAttention) -> bool:
    """Whether a random factor multiplies the scores."""
    return course_of(tape, dependence, attention).random_scores
