"""What the values of mask arguments do, against what is declared, and what an empty row becomes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.findings import Finding, FindingText
from attnlab.doctor.influence.differences import difference, largest, size_of
from attnlab.doctor.influence.padded import lengths_of, real_positions, telling
from attnlab.doctor.slips import slips
from attnlab.inspection.tape.attentions import attentions
from attnlab.inspection.tape.tape import Tape, record
from attnlab.strangers.calling.convention import elements
from attnlab.strangers.calling.masking import ENCODINGS, LENGTHS, Masking
from attnlab.strangers.calling.roles import roles_of
from attnlab.strangers.said.topics import declared

_POLARITY = "mask-polarity"
_ROW = "masked-row"
_CONVENTIONS = (
    "PyTorch documentation, nn.MultiheadAttention (key_padding_mask, bool attn_mask: True = ignored) against"
    " scaled_dot_product_attention (True = takes part); lucidrains/x-transformers#164"
)
_ALONG_KEYS = (
    "lay `{mask}` along the keys, the last axis of the scores (`[:, None, None, :]` of (batch, k_len)), and set hidden"
    " scores to minus infinity before the softmax"
)
_FINITE = (
    "give such rows something finite before the softmax: `scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)`,"
    " or let each position see itself; `torch.where` or nan_to_num after the softmax can leave NaN in the gradient"
)
_NAN = "pytorch/pytorch#41508: NaN where all keys of a row are masked"

TEXTS: Mapping[str, FindingText] = {
    "no effect": FindingText(
        "error",
        "the mask argument `{mask}` is accepted and has no effect.",
        "apply `{mask}` to the scores before the softmax, or remove the argument",
        _CONVENTIONS,
    ),
    "not understood": FindingText(
        "warning",
        "`{mask}` is read and was not understood: given in any usual form it has no effect.",
        "say its shape and what its values mean (--mask, or in the docstring): `{mask}`: (batch, k_len), True = keep",
        _CONVENTIONS,
        "set-up",
    ),
    "misspelled": FindingText(
        "error",
        "no call with `{mask}` runs: its code names '{name}', which does not exist.",
        "correct the name, and call it with a mask in a test",
        _CONVENTIONS,
    ),
    "of two types": FindingText(
        "error",
        "no call with `{mask}` runs: its code wants numbers in one place and True or False in another.",
        "make it one of them at the start, `{mask} = {mask}.bool()`, invert it by `~`, and test it with a mask",
        "PyTorch documentation, Tensor.masked_fill: the mask is a BoolTensor, which `1 - mask` refuses since torch 1.2",
    ),
    "hides nothing": FindingText(
        "error",
        "`{mask}` hides no key from the queries, whichever value is taken for hidden.",
        _ALONG_KEYS,
        _CONVENTIONS,
    ),
    "beside another": FindingText(
        "warning",
        "`{mask}` hides only where `{other}` is given too: alone it is ignored.",
        "apply each mask that is given, whether or not the other one is",
        _CONVENTIONS,
        "set-up",
    ),
    "indispensable": FindingText(
        "warning",
        "`{mask}` may be left out by the signature, and no call without it runs.",
        "ask whether it is there (`if {mask} is not None`) before anything is done with it, or give it no default",
        _CONVENTIONS,
        "set-up",
    ),
    "inverted": FindingText(
        "error",
        "`{mask}` works the other way round: by {by}, True (1) means {said}.",
        "invert it inside (`~{mask}`), or say its true meaning in name and docstring",
        _CONVENTIONS,
    ),
    "inverted?": FindingText(
        "warning",
        "`{mask}` hides where it is True (1), and elsewhere an argument of this name is 1 where a position is kept.",
        "say what its values mean in its docstring (or --mask); to change it, invert it inside (`~{mask}`)",
        _CONVENTIONS,
        "set-up",
    ),
    "undeclared": FindingText(
        "info", "what the values of its masks mean, as measured, not judged: {meanings}.", "", _CONVENTIONS
    ),
    "ordinary input": FindingText("error", "ordinary input gives NaN or infinity.", _FINITE, _NAN),
    "promised empty row": FindingText(
        "error", "a row documented as allowed to attend to nothing gives NaN.", _FINITE, _NAN
    ),
    "empty row": FindingText("warning", "a row that may attend to nothing gives NaN.", _FINITE, _NAN),
}
"""What -> its text; braces are filled with what was measured."""


def check_mask_polarity(exam: Examination) -> Iterator[Finding]:
    """Hide a position by each mask argument, and compare what its values do with what they are said to do."""
    for slip in slips(exam):
        text, words = TEXTS["misspelled" if slip.name else "of two types"], {"mask": slip.mask, "name": slip.name}
        yield text.finding(_POLARITY, f"it raises {slip.raised}", words)
    yield from _indispensable(exam)
    undeclared = yield from _judged(exam, exam)
    if exam.of_memory is not None:
        undeclared += yield from _judged(exam, exam.of_memory)
    if undeclared:
        evidence = "a position that is hidden so loses its influence"
        yield TEXTS["undeclared"].finding(_POLARITY, evidence, {"meanings": "; ".join(undeclared)})


def _judged(patient: Examination, exam: Examination) -> Generator[Finding, None, list[str]]:
    """What is wrong with the masks over one input, and return what those do of which nothing is said."""
    undeclared: list[str] = []
    for parameter in dict.fromkeys(mask.parameter for mask in exam.convention.masks):
        mask = next(mask for mask in exam.convention.masks if mask.parameter == parameter)  # one may say both things
        if not has_effect(exam, mask):
            if not (mask.encoding == LENGTHS and _returns_another(exam, mask)):
                yield _no_effect(patient, exam, mask)
        elif mask.over == "keys" and (others := _silenced_without(exam, mask)):
            words = {"mask": parameter, "other": others[0].parameter}
            yield TEXTS["beside another"].finding(_POLARITY, "given alone it changes no output", words)
        elif not mask.obeyed and mask.over == "pairs" and not exam.convention.causal:
            yield from _hides_nothing(patient, exam, mask)
        elif mask.declared is not None and mask.keeps is not None:
            if (mask.declared == "True keeps") is not mask.keeps:
                yield _inverted(exam, mask)
        elif mask.keeps is not None or "added" in mask.encoding:
            undeclared.append(f"`{mask.parameter}`: {mask.encoding}")
    return undeclared


def _indispensable(exam: Examination) -> Iterator[Finding]:
    """A warning for each mask that has a default with which no call runs, be the others given or left out too."""
    masks = exam.convention.masks
    optional = {one.name for one in roles_of(exam.eval_module) if not one.required}
    fewest = [mask for mask in masks if mask.parameter not in optional]
    for name in dict.fromkeys(mask.parameter for mask in masks if mask.required and mask.parameter in optional):
        raised = _failure(exam, [mask for mask in masks if mask.parameter != name])
        if raised and _failure(exam, fewest):
            yield TEXTS["indispensable"].finding(_POLARITY, f"without it: {raised}", {"mask": name})


def _failure(exam: Examination, masks: Sequence[Masking]) -> str:
    """What a call with some masks alone raises; nothing where it runs."""
    with_them = exam.relying_on(replace(exam.convention, masks=tuple(masks)))
    try:
        with_them.run(with_them.inputs(), module=with_them.fresh())
    except ModuleError as error:
        return str(error).partition(" raised ")[2] or str(error)
    return ""


def _given(x: Tensor, mask: Masking, *, hidden: bool) -> dict[str, Any]:
    """How a mask is given: pairs are causal, and may hide the second position beside; keys may hide the last third."""
    if mask.over == "pairs":
        allowed = torch.ones(x.size(0), x.size(1), x.size(1), dtype=torch.bool).tril()
        if hidden:
            allowed[:, 2:, 1] = False
        return {"allowed": allowed}
    real = torch.ones(x.shape[:2], dtype=torch.bool)
    if hidden:
        real[:, 2 * x.size(1) // 3 :] = False
    return {"padding": real}


def has_effect(exam: Examination, mask: Masking) -> bool:
    """Whether hiding something changes what fresh copies give, under either meaning of the mask's values."""
    x = exam.inputs()
    before, after = (exam.run(x, module=exam.fresh(), **_given(x, mask, hidden=hidden)) for hidden in (False, True))
    if not before.isfinite().all():
        return True  # where outputs are NaN nothing can be seen to move them
    return largest(difference(before, after)) > exam.tolerance * size_of(before)


def _empties_weights(exam: Examination, mask: Masking) -> bool:
    """Whether a hidden key weighs nothing under some meaning: what it does all the same, it does by another way."""
    x = exam.inputs()
    for encoding in ENCODINGS:
        given = exam.relying_on(replace(exam.convention, masks=(replace(mask, encoding=encoding),)))
        with contextlib.suppress(ModuleError):
            tape = record(given.eval_module, functools.partial(given.run, x, **_given(x, mask, hidden=True)))
            weights = [found.weights for found in attentions(tape, given.convention) if found.along == "positions"]
            if weights and not any(each[..., 2:, 1].any() for each in weights if each.size(-1) == x.size(1)):
                return True
    return False


def _silenced_without(exam: Examination, mask: Masking) -> list[Masking]:
    """The other masks that every call gives, if without them this one has no effect."""
    others = [each for each in exam.convention.masks if each.required and each.parameter != mask.parameter]
    try:
        alone = exam.relying_on(replace(exam.convention, masks=(replace(mask, required=False),)))
        return others if others and not has_effect(alone, mask) else []
    except ModuleError:  # it cannot be called without them
        return []


@final
class _Taped(nn.Module):
    """Hand a call on, and record what the module alone does with its arguments."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.given: list[Any] = []
        self.named: dict[str, Any] = {}
        self.tapes: list[Tape] = []
        self.returned: Any = None

    def forward(self, *positional: Any, **named: Any) -> Any:
        """Call the inner module."""
        self.named = named

        def call() -> Any:
            self.returned = self.inner(*positional, **named)
            found = (value for value in elements(self.returned).values() if isinstance(value, Tensor))
            return next(found, torch.zeros(()))

        self.tapes.append(record(self.inner, call))
        return self.returned


def _returns_another(exam: Examination, mask: Masking) -> bool:
    """Whether lengths change something that is returned beside the output: what is left of them, as losses ask."""
    x, returned = exam.inputs(), []
    for hidden in (False, True):
        taped = _Taped(exam.fresh())
        exam.run(x, module=taped, **_given(x, mask, hidden=hidden))
        returned.append([one.double() for one in elements(taped.returned).values() if isinstance(one, Tensor)])
    pairs = list(zip(*returned, strict=False))
    return any(one.shape != other.shape or not torch.allclose(one, other, equal_nan=True) for one, other in pairs)


def _is_read(exam: Examination, mask: Masking) -> bool:
    """Whether the output is computed from a mask, with whatever effect."""
    x = exam.inputs()
    taped = _Taped(exam.fresh())
    exam.run(x, module=taped, **_given(x, mask, hidden=True))
    value = taped.named.get(mask.parameter)
    if not isinstance(value, Tensor):
        return False
    tape = taped.tapes[-1]
    starts = [
        event.index
        for event in tape.events
        for number, parent in enumerate(event.parents)
        if parent is None and event.inputs[number].shape == value.shape and torch.equal(event.inputs[number], value)
    ]
    ends = {event.index for event in tape.events if event.output.shape == tape.output.shape}
    reached = {index for start in starts for index in {start, *tape.descendants(start)}}
    return max(ends, default=-1) in reached


def _no_effect(patient: Examination, exam: Examination, mask: Masking) -> Finding:
    """The finding on a mask that changes nothing: it is not looked at, or was given in another form than it takes."""
    mixes = not attentions(patient.usual_tape, patient.convention)
    kind = "no effect" if mixes or not _is_read(exam, mask) else "not understood"
    evidence = f"hiding positions by it changes no output (given as {mask.encoding}, {mask.shape}; batch {BATCH},"
    found = TEXTS[kind].finding(_POLARITY, f"{evidence} length {patient.convention.length})", {"mask": mask.parameter})
    return _of_mixer(found) if mixes else found


def _of_mixer(found: Finding) -> Finding:
    """What is said of a mask, as a warning: a mixer may take one to look like an attention."""
    return replace(found, severity="warning", nature="set-up")


def _hides_nothing(patient: Examination, exam: Examination, mask: Masking) -> Iterator[Finding]:
    """The finding on a mask that does something, but hides no position from others with any value."""
    if _empties_weights(exam, mask):
        return
    evidence = "positions that it should hide keep their influence on others under every meaning and shape that was"
    evidence = f"{evidence} tried (judged as {mask.encoding}, {mask.shape})"
    found = TEXTS["hides nothing"].finding(_POLARITY, evidence, {"mask": mask.parameter})
    yield found if attentions(patient.usual_tape, patient.convention) else _of_mixer(found)


def _inverted(exam: Examination, mask: Masking) -> Finding:
    """The error of a mask that does the opposite of what is declared."""
    keeping, losing = ("True (1)", "False (0)") if mask.keeps else ("False (0)", "True (1)")
    said = "keep" if mask.declared == "True keeps" else "ignore"
    by_custom = mask.declared_by == "its name" and "attention_mask" in mask.parameter  # which itself says nothing
    as_in_transformers = any(one.parameter in ("hidden_states", "input_ids") for one in exam.convention.arguments)
    return TEXTS["inverted?" if by_custom and not as_in_transformers else "inverted"].finding(
        _POLARITY,
        f"positions whose value is {losing} lose their influence, those with {keeping} keep it",
        {"mask": mask.parameter, "by": mask.declared_by or "its name", "said": said},
    )


# Masks with the values that are declared, where they do a part of what is said, or nothing at all: a module that adds
# ``(1 - mask) * -4`` hides everything under a mask of minus infinities, and little under the ones and zeros that its
# docstring asks for; only the latter is what people will give it.

_ENCODINGS = {"True keeps": "float, 1 = may attend", "True blocks": "float, 1 = blocked"}
_HIDES = 0.1
"""Part of the influence that is left of a hidden position.

A mask of ones and zeros that is added to scores as it is leaves exp(-1) of the weight; -4 leaves exp(-4).
"""


def as_declared(exam: Examination) -> Examination:
    """An examination that gives masks as declared, where so given they hide most of what they must."""
    for mask in exam.convention.masks:
        if mask.declared is None or mask.keeps is not None or "added" not in mask.encoding:
            continue
        other = replace(mask, encoding=_ENCODINGS[mask.declared])
        masks = tuple(other if each is mask else each for each in exam.convention.masks)
        trial = exam.relying_on(replace(exam.convention, masks=masks))
        exam = trial if _does_as_said(trial, other) else exam
    return exam


def _does_as_said(exam: Examination, mask: Masking) -> bool:
    """Whether a hidden last third loses most of its influence on the first position.

    A docstring is believed too where the values that it names do nothing at all.
    """
    x = exam.inputs()
    cut = 2 * x.size(1) // 3
    moved = exam.change(x, slice(cut, None))
    try:
        open_, hidden = (_remaining(exam, mask, x, moved, cut=each) for each in (x.size(1), cut))
    except ModuleError:
        return False
    idle = mask.declared_by == "docstring" and abs(hidden - open_) <= exam.tolerance * open_
    return open_ > 0 and (hidden < _HIDES * open_ or idle)


def _remaining(exam: Examination, mask: Masking, x: Tensor, moved: Tensor, *, cut: int) -> float:
    """What the last third does to the first output (or the pooled one) while all from `cut` on is hidden."""
    real = torch.arange(x.size(1)) < cut
    if mask.over == "pairs":
        allowed = real.expand(x.size(0), x.size(1), -1)
        apart = difference(exam.run(x, allowed=allowed), exam.run(moved, allowed=allowed))
    else:
        padding = real.expand(x.size(0), -1)
        apart = difference(exam.run(x, padding=padding), exam.run(moved, padding=padding))
    return largest(apart if exam.convention.pooled else apart[:, 0])


# Rows that may attend to nothing


def check_masked_row(exam: Examination) -> Iterator[Finding]:
    """Look for NaN without a mask, with padding on either side, with a wholly padded sample, and with an empty row."""
    for each, where in ((exam, ""), (exam.of_memory, " (memory)")):
        if each is None:
            continue
        for kind, trials in (("ordinary input", _ordinary), ("empty row", _empty)):
            troubles = [trouble for trial in trials(each) if (trouble := _trouble(each, trial, where))]
            if troubles:
                promised = kind == "empty row" and declared(exam.patient.said, "rows that may be empty")
                yield TEXTS[f"promised {kind}" if promised else kind].finding(_ROW, "; ".join(troubles))
                break


@final
@dataclass(frozen=True)
class _Trial:
    """Hold one call, and which outputs a loss would read."""

    words: str
    x: Tensor
    how: dict[str, Any]
    read: Tensor | None = None


def _inputs(exam: Examination) -> Tensor:
    """Inputs in float32: the smallest number of float64 that some modules mask with is infinite there."""
    return exam.inputs(dtype=torch.float32)


def _ordinary(exam: Examination) -> Iterator[_Trial]:
    """Yield calls that every user makes."""
    x = _inputs(exam)
    yield _Trial("no mask", x, {})
    if exam.convention.any_length and not exam.patient.declared.whole:
        yield _Trial("length 1", x[:, :1].contiguous(), {})
    mask = exam.convention.key_mask
    if mask is None:
        return
    for side in ("right", "left") if mask.tells_left_padding and not _empties_rows(exam) else ("right",):
        real = real_positions(lengths_of(x.size(1), BATCH), x.size(1), side)
        yield _Trial(f"padding on the {side}", x, {**telling(exam, real)}, real)


def _empty(exam: Examination) -> Iterator[_Trial]:
    """Yield calls in which something may attend to nothing."""
    x = _inputs(exam)
    if exam.convention.key_mask is not None and not _is_added(exam.convention.key_mask):
        real = real_positions([0, *lengths_of(x.size(1), BATCH - 1)], x.size(1))
        yield _Trial("a wholly padded sample", x, {"padding": real}, real)
    if _empties_rows(exam) and exam.convention.key_mask is not None and exam.convention.key_mask.tells_left_padding:
        real = real_positions(lengths_of(x.size(1), BATCH), x.size(1), "left")
        yield _Trial("padding on the left", x, {**telling(exam, real)}, real)
    if exam.convention.pair_mask is not None and not _is_added(exam.convention.pair_mask):
        allowed = torch.ones(x.size(0), x.size(1), x.size(1), dtype=torch.bool)
        allowed = allowed.tril() if exam.convention.causal else allowed
        allowed[:, 2] = False
        read = torch.ones(x.shape[:2], dtype=torch.bool)
        read[:, 2] = False
        yield _Trial("a mask with an empty row", x, {"allowed": allowed}, read)


def _empties_rows(exam: Examination) -> bool:
    """Whether it is the caller whose causal mask leaves nothing to see for padding on the left."""
    return exam.convention.causal_means == "mask" and exam.convention.causal is True


def _is_added(mask: Masking) -> bool:
    """Whether a mask is added as it is: minus infinity in every place of a row is the caller's doing."""
    return "added" in mask.encoding


def _trouble(exam: Examination, trial: _Trial, where: str) -> str:
    """Where a call gives NaN or infinity, or nothing."""
    module = exam.fresh(dtype=torch.float32)
    try:
        output = exam.run(trial.x, module=module, grad=True, **trial.how)
    except ModuleError:
        if not trial.how and trial.words == "no mask":
            raise
        return ""
    bad = ~output.isfinite().all(-1)
    words = f"{trial.words}{where}"
    if bad.any():
        return f"{words}: {_place(bad, trial.read)}"
    gradients = _bad_gradients(module, output, trial.read)
    return f"{words}: finite outputs, NaN in the gradient of {gradients}" if gradients else ""


def _place(bad: Tensor, read: Tensor | None) -> str:
    """Say which outputs are bad: all of them, or those of padded or empty rows, or others too."""
    words = f"{int(bad.sum())} of {bad.numel()} output rows"
    if read is None or read.shape != bad.shape:
        return words
    others = int((bad & read).sum())
    return f"{words}, {others} of them at real positions" if others else f"{words}, all at positions nobody reads"


def _bad_gradients(module: nn.Module, output: Tensor, read: Tensor | None) -> str:
    """The parameters whose gradient is not finite when a loss reads what is real."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not output.requires_grad or not named:
        return ""
    loss = (output if read is None or read.shape != output.shape[:-1] else output[read]).square().sum()
    gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    bad = [
        f"`{name}`" for (name, _), g in zip(named, gradients, strict=True) if g is not None and not g.isfinite().all()
    ]
    return ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
