"""Whether a position sees later ones: what must not, what must, and what does a little of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import SCRAMBLED_HEADS, Finding, FindingText
from attnlab.doctor.influence.differences import LEAK, Leakage, deviation, largest
from attnlab.doctor.influence.heads import check_heads_mixed
from attnlab.doctor.influence.influence import (
    Influence,
    influence,
    of_calls,
    of_future,
    of_hidden,
    of_samples,
    some_cuts,
)
from attnlab.doctor.influence.logits import HUGE_LOGIT, LARGE_LOGIT, enlarging
from attnlab.doctor.influence.masks import as_declared
from attnlab.doctor.influence.steady import draws_alike, is_steady, same_course
from attnlab.doctor.leaking_parts import parts_that_see_ahead, without_sight_ahead
from attnlab.doctor.turned_views import VIEWS_MOVE_NOTHING
from attnlab.inspection.tape.attentions import attentions

_ID = "causality"
_MASK = "before the softmax: `scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float('-inf'))`"
_REMEDY = f"hide all later positions {_MASK}, with T taken from the input"
_EARLIER = (
    "let what mixes positions see earlier ones alone: pad a convolution on the left, `F.pad(x, (dilation * (kernel_size"
    " - 1), 0))` with the length last and no padding of its own, and run a recurrent layer forward only"
)
_VASWANI = "Vaswani 2017, arXiv:1706.03762, section 3.2.3: illegal connections are set to -inf before the softmax"
_FINITE = "karpathy/minGPT#75: a finite mask value lets the future in once logits are large"
_ACCEPT = "; if it is meant, accept it (--accept causality)"
_FAINT = 1e-4  # of the size of the output: less is near rounding, above it in one sample and below in another
_WEAK = 0.05  # of the influence of the past: no bidirectional layer treats the two sides so unequally by chance
_NEAR = 3  # positions ahead that an off-by-one in a mask or a padding lets in, beside the whole past

_FAR_FETCHED = f"once logits reach {HUGE_LOGIT:.0e}"
"""The condition under which masks fail that well-known models have."""

_SHORT = (2, 5)  # the shortest with a future, and one between that and the usual length
_LONG = 67  # above the sizes of 16, 32 and 64 that buffers of small test modules have

_LEAKS = "the future leaks {condition}, though not for ordinary inputs in evaluation mode"

TEXTS: Mapping[str, FindingText] = {
    "leak": FindingText("error", "it is {declared}, but {pattern}.", "{remedy}", _VASWANI),
    "leak of parts": FindingText(
        "error",
        "it is {declared}, but {pattern}, through {parts} alone.",
        _EARLIER,
        "van den Oord 2016, arXiv:1609.03499, section 2.1 (causal convolutions)",
    ),
    "leak beside scrambled heads": FindingText(
        "error",
        "it is {declared}, but positions see later ones, which its scrambled heads can bring about.",
        "mend first what the error heads-mixed says, and look again",
        VIEWS_MOVE_NOTHING,
        called=SCRAMBLED_HEADS,
    ),
    "leak behind the last position": FindingText(
        "error",
        "it is {declared}, but {pattern}; so it is in what `{part}` returns, of which the output is a part.",
        "{remedy}",
        _VASWANI,
    ),
    "leak in a prefix": FindingText(
        "warning",
        "it is {declared}, but positions 0 to {last} see each other, later ones too, and no other position sees ahead:"
        " meant, as a prefix is?",
        f"{_REMEDY}{_ACCEPT}",
        _VASWANI,
        "set-up",
    ),
    "leak under a condition": FindingText("error", f"{_LEAKS}.", "{remedy}", _VASWANI),
    "finite mask": FindingText(
        "error",
        f"{_LEAKS}: the mask's value is finite and too small.",
        f"use float('-inf') or torch.finfo(scores.dtype).min {_MASK}",
        _FINITE,
    ),
    "finite mask of well-known models": FindingText(
        "warning",
        f"{_LEAKS}: the mask's value is finite and too small.",
        f"use float('-inf') or torch.finfo(scores.dtype).min {_MASK}",
        _FINITE,
    ),
    "blind to itself": FindingText(
        "error",
        "a position does not see itself: the mask is off by one the other way.",
        "keep the diagonal: `torch.ones(T, T).tril()` keeps it, `.tril(-1)` does not, `.triu(1)` blocks what is later"
        f" and `.triu()` blocks the position itself too{_ACCEPT}",
        _VASWANI,
    ),
    "late": FindingText(
        "warning",
        "no output sees what stands at its own position, only what stood {delay} earlier and before.",
        "a convolution of kernel size k wants k - 1 positions of padding before its input, a mask keeps its diagonal,"
        " and of inputs and targets only one is shifted; in a model that shifts its own inputs it is meant",
        _VASWANI,
    ),
    "what follows": FindingText(
        "warning",
        "outputs depend on how many positions follow, though not on what they hold.",
        "count positions from the start, and divide by what a position sees, not by the length; else generation word"
        " by word differs from training",
        "a causal model gives a prefix the same outputs as the same positions of a longer sequence",
    ),
    "never ahead": FindingText(
        "error",
        "it is declared bidirectional by {by}, but no position sees a later one.",
        "leave the causal mask away, or declare the module causal",
        "Devlin 2019, arXiv:1810.04805, section 3.1: a bidirectional layer sees both sides",
    ),
    "neither": FindingText(
        "error",
        "it is neither causal nor bidirectional: {what}.",
        f"decide: {_REMEDY}, or no position{_ACCEPT}",
        _VASWANI,
    ),
    "one direction or a window": FindingText(
        "warning",
        "it is neither causal nor bidirectional: {what}; nothing declares whether that is meant.",
        f"say what is meant (--causal, --not-causal): if causal, {_REMEDY}",
        _VASWANI,
        "set-up",
    ),
    "weak mask": FindingText(
        "error",
        "`{name}` does not hide what it must: positions that a causal mask forbids still have influence.",
        f"apply it as minus infinity {_MASK}",
        _FINITE,
    ),
}
"""What -> its text; braces are filled with what was measured."""


def check_causality(exam: Examination) -> Iterator[Finding]:
    """Replace positions one by one and all later ones, and compare which outputs change."""
    steady = is_steady(exam) or draws_alike(exam)
    if exam.convention.length < 3 or not steady or of_samples(exam).ratio:
        return  # where samples meet, what is later in one is seen in another
    if exam.convention.pooled:
        yield from _behind_the_last_position(exam)
        return
    exam = as_declared(exam)
    if exam.convention.causal:
        yield from _must_not_see_ahead(exam)
        return
    seen = influence(exam, causal=False)
    if seen.is_one_sided:
        yield from _never_ahead(exam)
    elif seen.ahead.any():
        yield from _lopsided(exam, seen)
    if exam.convention.causal_means in ("mask", "flag") and seen.ahead.any():
        yield from _mask_holds(exam, seen)


# What must not see ahead


def _must_not_see_ahead(exam: Examination) -> Iterator[Finding]:
    """An error for a future that leaks, or for a position that does not see itself."""
    seen = influence(exam)
    if seen.ahead.any():
        yield _leak(exam, seen)
        return
    under = list(_leaks(exam))
    if under:
        yield _leak_under_a_condition(exam, under)
    if all(leak.condition == _FAR_FETCHED for leak in under):
        yield from _blind_to_itself(exam, seen)
        yield from _depends_on_what_follows(exam)


def _leak(exam: Examination, seen: Influence) -> Finding:
    """What to say of a leak under ordinary conditions, with its pattern."""
    convention = exam.convention
    sample, row, column = seen.worst()
    declared = _declared(exam)
    evidence = (
        f"replacing position {column} changes the output at position {row} of sample {sample} by {seen.ratio:.2g} of"
        f" the largest change at or after a replaced position (evaluation mode, length {convention.length})"
    )
    prefix = seen.blocks[0] if len(seen.blocks) == 1 else range(0)
    if prefix and prefix[0] == 0 and convention.causal_by != "--causal":
        return TEXTS["leak in a prefix"].finding(_ID, evidence, {"declared": declared, "last": prefix[-1]})
    words = {"declared": declared, "pattern": _pattern(exam, seen), "remedy": _remedy(exam)}
    weight = _weight_ahead(exam, causal=None)
    if not weight and any(one.severity == "error" and one.called == SCRAMBLED_HEADS for one in check_heads_mixed(exam)):
        return TEXTS["leak beside scrambled heads"].finding(_ID, evidence, words)
    parts = () if weight else _leaking_parts(exam)
    words["parts"] = ", ".join(f"`{name}`" for name in parts)
    return TEXTS["leak of parts" if parts else "leak"].finding(_ID, evidence, words)


def _leaking_parts(exam: Examination) -> tuple[str, ...]:
    """The submodules that see later positions by themselves; none where a leak is left without that."""
    names = parts_that_see_ahead(exam)
    module = without_sight_ahead(exam, names)
    try:
        left = bool(names) and of_calls(exam, lambda x: exam.run(x, module=module), exam.inputs()).ahead.any()
    except (ModuleError, RuntimeError):
        return ()
    return () if left else tuple(names)


def _behind_the_last_position(exam: Examination) -> Iterator[Finding]:
    """An error for a leak in a causal model that returns its last position alone, seen in what it is taken from."""
    if not exam.convention.causal or exam.convention.slots is not None or exam.convention.layout != "batch-first":
        return
    try:
        part, seen = of_hidden(exam) or ("", None)
    except ModuleError:
        return
    if seen is not None and seen.ahead.any() and not seen.blocks:
        evidence = f"influence of later positions {seen.mean(ahead=True):.2g}, of earlier ones"
        evidence += f" {seen.mean(ahead=False):.2g} (mean change of a position when one is replaced)"
        words = {"declared": _declared(exam), "pattern": _pattern(exam, seen), "part": part, "remedy": _remedy(exam)}
        yield TEXTS["leak behind the last position"].finding(_ID, evidence, words)


def _declared(exam: Examination) -> str:
    by = exam.convention.causal_by
    if by == "--causal":
        return "declared causal"
    return f"declared causal by {by}" if by else "meant to be causal"


def _pattern(exam: Examination, seen: Influence) -> str:
    """Say what kind of leak it is, and what of a mask that is, where weights let it in."""
    what, of_mask = _kind(seen)
    return f"{what}{of_mask}" if _weight_ahead(exam, causal=None) else what


def _kind(seen: Influence) -> tuple[str, str]:
    if not seen.past.any():
        return "a position sees what comes after it and nothing that comes before", ": the mask is transposed"
    if seen.clean_samples:
        clean = ", ".join(map(str, seen.clean_samples))
        return f"the future is hidden in sample {clean} of the batch alone", ": the mask has a wrong batch axis"
    if seen.rows_ahead == {0}:
        return "the first position, which is left with nothing to see, sees everything", ""
    return _amount(seen)


def _amount(seen: Influence) -> tuple[str, str]:
    """Say how much of the future is seen."""
    steps = seen.steps(seen.ahead)
    if steps == {1}:
        return "each position sees the next one", ": the mask is off by one"
    if max(steps) <= _NEAR:
        return f"each position sees up to {max(steps)} later ones", ""
    if seen.mean(ahead=True) < 0.5 * seen.mean(ahead=False):
        return "later positions are damped instead of hidden", " (a weak mask, or a sum over all positions)"
    return "positions see later ones", " as if there were no mask"


def _remedy(exam: Examination) -> str:
    return _remedy_of_mask(exam) if _weight_ahead(exam, causal=None) else _EARLIER


def _remedy_of_mask(exam: Examination) -> str:
    mask = exam.convention.pair_mask
    if exam.convention.causal_means == "mask" and mask is not None:
        return f"let `{mask.parameter}` hide what it blocks {_MASK}"
    return _REMEDY


def _leak_under_a_condition(exam: Examination, under: list[_Leak]) -> Finding:
    """What to say of a future that is hidden under ordinary conditions and leaks under others."""
    worst = max(under, key=lambda leak: leak.ratio)
    kind = "leak under a condition"
    if "inputs" in under[0].condition or "logits" in under[0].condition:
        mild = all(leak.condition == _FAR_FETCHED for leak in under)
        kind = "finite mask of well-known models" if mild else "finite mask"
    evidence = "change of earlier positions when later ones are replaced, as a part of the change of those: "
    evidence += "; ".join(f"{leak.ratio:.2g} {leak.condition}" for leak in under[:4])
    evidence += f" (worst: {worst.ratio:.2g}, length {exam.convention.length})"
    return TEXTS[kind].finding(_ID, evidence, {"condition": under[0].condition, "remedy": _remedy_of_mask(exam)})


def _blind_to_itself(exam: Examination, seen: Influence) -> Iterator[Finding]:
    """An error if a position sees earlier ones and not itself; a warning of a model, which may shift its inputs."""
    if not seen.past.any():
        return
    length = exam.convention.length
    blind = not seen.seen.diagonal(dim1=-2, dim2=-1)[:, 1:].any()  # the first may be NaN
    evidence = ""
    if blind and exam.convention.kind == "layer":
        evidence = "replacing a position changes later outputs, and its own by 0"
    elif any(_is_strict(found.weights, length) for found in attentions(exam.usual_tape, exam.convention)):
        evidence = "the largest attention weight of a position on itself is 0, that on the one before it is not"
    elif blind:
        delay = next(k for k in range(1, length) if seen.seen.diagonal(-k, -2, -1).any())
        told = f"replacing a position changes no output before the one {delay} later (length {length})"
        yield TEXTS["late"].finding(_ID, told, {"delay": delay})
    if evidence:
        yield TEXTS["blind to itself"].finding(_ID, f"{evidence} (length {length})")


def _is_strict(weights: Tensor, length: int) -> bool:
    """Whether weights are zero on the diagonal and not below it, the first row left out: it may be NaN."""
    if weights.shape[-2:] != (length, length):
        return False
    own, before = (weights[..., 1:, 1:].diagonal(offset, -2, -1).nan_to_num().any() for offset in (0, -1))
    return bool(before and not own)


def _depends_on_what_follows(exam: Examination) -> Iterator[Finding]:
    """A warning if outputs change with the number of later positions, whatever they hold."""
    if not exam.convention.any_length or not is_steady(exam):
        return  # of other lengths chance draws other numbers
    x = exam.inputs()
    cut = x.size(1) // 2 + 1
    try:
        apart = deviation(exam.run(x[:, :cut].contiguous()), exam.run(x)[:, :cut])
    except ModuleError:
        return
    if apart:
        evidence = f"the first {cut} of {x.size(1)} positions differ by {apart:.2g} of the largest output from the same"
        yield TEXTS["what follows"].finding(_ID, f"{evidence} {cut} given alone")


# The conditions under which the future may leak: a mask can hold for ordinary inputs and fail for others


@final
@dataclass(frozen=True)
class _Leak:
    """Say under which condition the future leaks, and how much of what replaced positions change themselves."""

    condition: str
    ratio: float


def _leaks(exam: Examination, *, causal: bool | None = None) -> Iterator[_Leak]:
    """Replace the future under every condition."""
    for condition, measure in _CONDITIONS.items():
        try:
            ratio = max((leakage.ratio for leakage in measure(exam, causal)), default=0.0)
        except ModuleError:
            continue
        if ratio:
            yield _Leak(condition, ratio)


_Measure = Callable[[Examination, bool | None], Iterator[Leakage]]


def _at_scale(scale: float) -> _Measure:
    """The measurement at another size of inputs; tokens have none."""

    def measure(exam: Examination, causal: bool | None) -> Iterator[Leakage]:
        if exam.convention.takes != "tokens":
            x = exam.inputs(scale=scale)
            yield of_future(exam, lambda x: exam.run(x, causal=causal), x, some_cuts(x.size(1)))

    return measure


def _in_training(exam: Examination, causal: bool | None) -> Iterator[Leakage]:
    """Measure in training mode; a batch norm, or randomness of the module's own, hides what is asked."""
    module, x = exam.fresh(train=True), exam.inputs()
    before, again = (exam.run(x, module=module, causal=causal) for _ in range(2))
    if deviation(before, again) or of_samples(exam, train=True).ratio:
        return
    found = of_future(exam, lambda x: exam.run(x, module=module, causal=causal), x, range(1, x.size(1)))
    if not found.ratio or same_course(exam, module, exam.change(x, slice(1, None))):
        yield found


def _at_lengths(choose: Callable[[Examination], tuple[int, ...]]) -> _Measure:
    """The measurement at other lengths."""

    def measure(exam: Examination, causal: bool | None) -> Iterator[Leakage]:
        for length in choose(exam) if exam.convention.any_length else ():
            x = exam.inputs(length=length)
            yield of_future(exam, lambda x: exam.run(x, causal=causal), x, some_cuts(length))

    return measure


def _longer(exam: Examination) -> tuple[int, ...]:
    """The longest length, or one above the usual sizes of buffers."""
    length = min(_LONG, exam.convention.longest or _LONG)
    return (length,) if length > exam.convention.length else ()


def _by_gradient(exam: Examination, causal: bool | None) -> Iterator[Leakage]:
    """Differentiate some output positions by all inputs."""
    x = exam.inputs()
    output, leaf = exam.run_from_embeddings(x, causal=causal)
    if not output.requires_grad or not output.isfinite().all():
        return
    weights = torch.linspace(-1.0, 1.0, output.size(-1), dtype=output.dtype) + 0.3  # a mean over features can cancel
    for position in some_cuts(x.size(1)):
        (gradient,) = torch.autograd.grad((output[:, position - 1] @ weights).sum(), leaf, retain_graph=True)
        sizes = gradient.nan_to_num().abs().amax(-1)  # (batch, length)
        sizes = sizes if sizes.shape == x.shape[:2] else sizes.T
        yield Leakage(largest(sizes[:, position:]), largest(sizes[:, :position]), 0.0)


def _at_logits_of(size: float) -> _Measure:
    """The measurement with logits of some size in an attention whose mask is finite."""

    def measure(exam: Examination, causal: bool | None) -> Iterator[Leakage]:
        x = exam.inputs()
        visible = torch.ones(1, x.size(1), x.size(1), dtype=torch.bool).tril()
        for change in enlarging(exam, exam.tape(x, causal=causal), visible, size=size):
            yield of_future(
                exam,
                lambda x, change=change: exam.tape(x, causal=causal, change=change).output,
                x,
                (1, x.size(1) // 2),
            )

    return measure


_CONDITIONS: Mapping[str, _Measure] = {
    "for small inputs (0.1 standard deviations)": _at_scale(0.1),
    "for large inputs (10 standard deviations)": _at_scale(10.0),
    "for large inputs (30 standard deviations)": _at_scale(30.0),
    "in training mode": _in_training,
    "at short lengths": _at_lengths(lambda _exam: _SHORT),
    "at a longer length": _at_lengths(_longer),
    "in the gradient": _by_gradient,
    f"once logits reach {LARGE_LOGIT:.0e}": _at_logits_of(LARGE_LOGIT),
    _FAR_FETCHED: _at_logits_of(HUGE_LOGIT),
}
"""Condition, in words that end a sentence -> measurement, from the cheap to the strange."""


# What must see ahead, and what nobody declared


def _never_ahead(exam: Examination) -> Iterator[Finding]:
    """An error if what is declared bidirectional never looks ahead; what is undeclared is taken as causal."""
    if exam.convention.causal is None:
        yield from _must_not_see_ahead(exam)
        return
    evidence = (
        f"replacing a position changes later outputs, and no earlier one (length {exam.convention.length}, batch 3)"
    )
    yield TEXTS["never ahead"].finding(_ID, evidence, {"by": exam.convention.causal_by or "its caller"})


def _lopsided(exam: Examination, seen: Influence) -> Iterator[Finding]:
    """An error if it sees ahead in a way that nobody can mean; a question where somebody might."""
    kind, what = "neither", _strange(exam, seen) or _causal_at_times(exam)
    if not what:
        kind, what = "one direction or a window", _unusual(exam, seen)
    if what:
        evidence = (
            f"influence of later positions {seen.mean(ahead=True):.2g}, of earlier ones {seen.mean(ahead=False):.2g}"
            f" (mean change of an output when one position is replaced; length {exam.convention.length})"
        )
        yield TEXTS[kind].finding(_ID, evidence, {"what": what})


def _strange(exam: Examination, seen: Influence) -> str:
    """What nobody can mean in the pattern of what is seen, or nothing."""
    ahead, back = seen.steps(seen.ahead), seen.steps(seen.past)
    if seen.clean_samples and seen.mean(ahead=True) > _FAINT:
        return "the future is hidden in some samples of a batch and not in others"
    if not back or seen.blocks:
        return ""
    if seen.rows_ahead == {0}:
        return "the first position sees everything, the others nothing later"
    if max(ahead) == 1 < -min(back) == exam.convention.length - 1:
        return "a position sees everything before it, but only 1 ahead"
    if seen.mean(ahead=True) < _WEAK * seen.mean(ahead=False):
        return "later positions are damped, but not hidden: a mask that does not hold"
    return "some heads see later positions and others do not" if _causal_heads(exam) else ""


def _unusual(exam: Examination, seen: Influence) -> str:
    """What few mean in the pattern of what is seen, or nothing."""
    ahead, back = seen.steps(seen.ahead), seen.steps(seen.past)
    if not back:
        return "a position sees later ones alone, as backward in time, or through a transposed mask"
    if max(ahead) <= _NEAR and max(ahead) < -min(back) == exam.convention.length - 1:
        return f"a position sees everything before it, but only {max(ahead)} ahead"
    return ""


def _causal_at_times(exam: Examination) -> str:
    """In which mode or length alone it is causal, or nothing."""
    try:
        if influence(exam, causal=False, train=True).is_one_sided:
            return "it is causal in training mode and not in evaluation mode"
        if exam.convention.any_length and influence(exam, causal=False, length=5).is_one_sided:
            return f"it is causal at length 5 and not at length {exam.convention.length}"
    except ModuleError:
        pass
    return ""


def _causal_heads(exam: Examination) -> bool:
    """Whether, in some attention, some heads look both ways and others back alone."""
    for found in attentions(exam.tape(exam.inputs(), causal=False), exam.convention):
        if found.weights.shape[-2:] == (exam.convention.length,) * 2:
            ahead = found.weights.triu(1).abs().amax((0, 2, 3)) > 0  # (heads,)
            back = found.weights.tril(-1).abs().amax((0, 2, 3)) > 0
            if (ahead & back).any() and (back & ~ahead).any():
                return True
    return False


# What a causal mask must hide


def _mask_holds(exam: Examination, free: Influence) -> Iterator[Finding]:
    """An error if a causal mask or flag, given as an argument, does not hide what it blocks."""
    masked = influence(exam, causal=True)
    apart = largest((masked.sizes - free.sizes).abs().nan_to_num(posinf=0.0))
    if exam.convention.causal_means == "mask" and apart <= max(masked.noise, free.noise):
        return  # it has no effect at all: mask-polarity says so
    evidence = ""
    if masked.ahead.any():
        weight = _weight_ahead(exam, causal=True)
        evidence = f"attention weights of up to {weight:.2g} on blocked positions" if weight else ""
    else:
        under = [leak for leak in _leaks(exam, causal=True) if leak.condition != _FAR_FETCHED]
        listed = "; ".join(f"{leak.ratio:.2g} {leak.condition}" for leak in under[:4])
        evidence = f"influence of blocked positions as a part of that of the others: {listed}" if under else ""
    if evidence:
        mask = exam.convention.pair_mask
        name = exam.convention.flag if mask is None else mask.parameter
        yield TEXTS["weak mask"].finding(_ID, f"{evidence} (length {exam.convention.length})", {"name": name})


def _weight_ahead(exam: Examination, *, causal: bool | None) -> float:
    """The largest attention weight above the diagonal, maybe under a causal mask; other paths may be free."""
    weight, tape = 0.0, exam.usual_tape if causal is None else exam.tape(exam.inputs(), causal=causal)
    for found in attentions(tape, exam.convention):
        if found.weights.shape[-2:] == (exam.convention.length,) * 2:
            weight = max(weight, float(found.weights.nan_to_num().triu(1).abs().max()))
    return weight if weight > LEAK else 0.0
