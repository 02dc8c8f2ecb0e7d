"""Whether samples of a batch see each other: the batch read as time, batch norm, a softmax or a mean over the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.findings import Finding, FindingText
from attnlab.doctor.influence.differences import Leakage, deviation
from attnlab.doctor.influence.influence import of_samples
from attnlab.doctor.influence.steady import call_seeded, is_steady_when_fresh, same_course
from attnlab.inspection.tape.attentions import attentions
from attnlab.inspection.tape.dependence import differs
from attnlab.strangers.calling.layouts import LAYOUTS
from attnlab.strangers.patient import twin_of

_ID = "batch-independence"
SLIGHT = 1e-4  # of the way to another sample
_MODES = {False: "evaluation mode", True: "training mode"}
_LAYOUT = "PyTorch documentation, nn.MultiheadAttention and nn.LSTM, `batch_first`; pytorch/pytorch#25100"
_SAMPLES = "Vaswani 2017, arXiv:1706.03762, section 3.2: attention runs over the positions of one sequence"
_MEET = "samples of a batch see each other in {mode}: "
_BATCH_NORM = _MEET + "batch norm ({names}) takes mean and variance over samples and positions"

TEXTS: Mapping[str, FindingText] = {
    "batch norm": FindingText(
        "warning",
        _BATCH_NORM + ".",
        "mind what comes with it: padding and other samples enter the statistics, and evaluation uses others than"
        " training; nn.LayerNorm (or RMSNorm) over the features does without",
        "Ioffe & Szegedy 2015, arXiv:1502.03167, section 3.1; Ba 2016, arXiv:1607.06450, section 1",
    ),
    "causal batch norm": FindingText(
        "error",
        _BATCH_NORM + ": later positions enter what is meant to see none.",
        "replace {names} by nn.LayerNorm (or RMSNorm) over the features",
        "Ba 2016, arXiv:1607.06450, section 1: batch statistics do not suit what runs position by position",
    ),
    "softmax": FindingText(
        "error",
        _MEET + "the softmax runs over the batch.",
        "let the softmax run over the keys: `scores.softmax(dim=-1)` on (batch, heads, q_len, k_len)",
        _SAMPLES,
    ),
    "layout": FindingText("error", _MEET + "it reads the batch as time{where}.", "{remedy}", _LAYOUT),
    "layout?": FindingText(
        "warning",
        "called as {taken}, it reads the batch as time{where}; it is clean for {axes}: which layout is meant?",
        "say the layout (--layout, a shape comment, or batch_first); if {taken}: {remedy}",
        _LAYOUT,
        "set-up",
    ),
    "something": FindingText(
        "error",
        _MEET + "something runs over the batch axis{where}.",
        "look for a sum, mean, view or recurrence over axis 0{where}; samples may share parameters alone",
        _SAMPLES,
    ),
    "choice": FindingText(
        "warning",
        _MEET + "a choice among all of them{where}; what one is given changes another's output in jumps alone.",
        "mind it where experts have a capacity: an output depends on what else is in the batch, so evaluate with room"
        " for every token; if no choice over the batch is meant, look for argmax, sort or topk over axis 0{where}",
        "Fedus et al. 2022, arXiv:2101.03961, section 2.2: tokens beyond the capacity of an expert are dropped",
    ),
    "batch of one": FindingText(
        "error",
        "it takes a batch of {batch} samples, but not a batch of one.",
        "keep the batch axis where it has size 1: `squeeze(dim)` with a named axis instead of `squeeze()`,"
        " sizes from `x.shape` instead of constants",
        "PyTorch documentation, torch.squeeze",
    ),
    "alone": FindingText(
        "error",
        "the output of a sample depends on {on}.",
        "look for something indexed by, added along or divided by `x.size(0)`; with batch-first inputs the length is"
        " `x.size(1)`",
        _SAMPLES,
    ),
}
"""What -> its text; braces are filled with what was measured."""


_BY_AXIS = ("something", "layout")
"""Causes behind which a part may take the batch for time."""


def check_batch_independence(exam: Examination) -> Iterator[Finding]:
    """Replace one sample and look at the others; then call each sample alone."""
    if not is_steady_when_fresh(exam):
        return
    met = of_samples(exam)
    if met.ratio:
        yield _found(exam, met, train=False)
        return
    yield from _layout_not_told(exam)
    alone = list(_alone(exam))
    yield from alone
    if not alone:
        yield from _in_training(exam)


def _in_training(exam: Examination) -> Iterator[Finding]:
    """What makes samples meet in training mode alone; modules random in their own way cannot be judged there."""
    x = exam.inputs()
    if deviation(*(call_seeded(exam, exam.fresh(train=True), x, 1) for _ in range(2))):
        return
    met = of_samples(exam, train=True)
    module = exam.fresh(train=True)
    if met.ratio and same_course(exam, module, exam.change(x, slice(None), samples=0)):
        yield _found(exam, met, train=True)


def _layout_not_told(exam: Examination) -> Iterator[Finding]:
    """A question if nobody says that the sequence comes first, and batch first, which runs too, samples meet."""
    if exam.convention.layout != "sequence-first" or exam.convention.layout_by:
        return
    usual = exam.relying_on(replace(exam.convention, layout="batch-first"))
    try:
        met = of_samples(usual)
    except ModuleError:
        return
    if met.ratio:
        yield _found(usual, met, train=False)


# Samples that see each other


def _found(exam: Examination, met: Leakage, *, train: bool) -> Finding:
    """What to say of samples that meet, with the cause where it can be told."""
    module = exam.fresh(train=train)
    place = _where_samples_meet(exam, module)
    cause, words = _cause(exam, module, place)
    measured = "without bound" if met.signal == 0 else f"by up to {met.ratio:.2g} times its own change"
    evidence = f"replacing one of {BATCH} samples changes the outputs of the others {measured}"
    evidence += f" ({_MODES[train]}, length {exam.convention.length})"
    found = TEXTS[cause].finding(_ID, evidence, {"mode": _MODES[train], **words})
    if place is None or place.is_whole or cause not in _BY_AXIS or not place.is_own(module):
        return found
    return replace(found, samples_meet_in=place.kind)


def _cause(exam: Examination, module: nn.Module, place: _Place | None) -> tuple[str, dict[str, str]]:
    """The most telling explanation: a key of `TEXTS`, and its words."""
    norms = _batch_norms(exam, module, place)
    if norms:
        return "causal batch norm" if exam.convention.causal else "batch norm", {"names": norms}
    if any(found.normalized_over == "batch" for found in attentions(exam.usual_tape, exam.convention)):
        return "softmax", {}
    where = "" if place is None else f" in {place.words}"
    clean = _clean_layout(exam)
    layout = clean or _layout_of_part(module, place)
    if layout is None:
        return "choice" if _in_jumps(exam, module) else "something", {"where": where}
    words = {"where": where, "remedy": _layout_remedy(module, layout, "" if clean or place is None else place.name)}
    if clean is None or exam.convention.layout_by:
        return "layout", words
    return "layout?", words | {"taken": LAYOUTS[exam.convention.layout].axes, "axes": LAYOUTS[layout].axes}


def _in_jumps(exam: Examination, module: nn.Module) -> bool:
    """Whether a slight change of any one sample leaves the others as they are."""
    x = exam.inputs()
    if exam.convention.takes == "tokens":
        return _without_gradient(exam, x)
    usual = exam.run(x, module=twin_of(module))
    for sample in range(BATCH):
        nudged = exam.change(x, slice(None), samples=sample).lerp(x, 1 - SLIGHT)
        touched = differs(usual, exam.run(nudged, module=twin_of(module))).flatten(1).any(dim=1)
        touched[sample] = False
        if touched.any():
            return False
    return True


def _without_gradient(exam: Examination, x: Tensor) -> bool:
    """Whether what the samples of one batch give hangs on their own embeddings alone, as far as it does smoothly."""
    try:
        output, leaf = exam.run_from_embeddings(x)
    except ModuleError:
        return False
    own = leaf.shape.index(BATCH) if BATCH in leaf.shape else None
    if own is None or not output.requires_grad:
        return False
    for sample in range(BATCH):
        (gradient,) = torch.autograd.grad(output[sample].square().sum(), leaf, retain_graph=True)
        others = [other for other in range(BATCH) if other != sample]
        if gradient.movedim(own, 0)[others].any():
            return False
    return True


def _batch_norms(exam: Examination, module: nn.Module, place: _Place | None) -> str:
    """The names of batch norms, if one is where samples meet first, or all there is; else nothing."""
    norms = [name for name, part in module.named_modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if place is not None and not place.is_whole and not any(f"{name}.".startswith(f"{place.name}.") for name in norms):
        return ""
    calls = {event.call for event in exam.tape(exam.inputs(), module=module).events}
    if not (norms and module.training) and not any("batch_norm" in call for call in calls):
        return ""
    return ", ".join(f"`{name}`" for name in norms) or "batch_norm"


def _clean_layout(exam: Examination) -> str | None:
    """Another layout in which samples do not see each other, None if there is none."""
    for layout in ("sequence-first", "batch-first"):
        if layout == exam.convention.layout:
            continue
        other = exam.relying_on(replace(exam.convention, layout=layout))
        try:
            if not of_samples(other).ratio:
                return layout
        except ModuleError:
            continue
    return None


def _layout_of_part(module: nn.Module, place: _Place | None) -> str | None:
    """The layout of the part of torch in which samples meet, None if it is none or has the batch first."""
    part = None if place is None else module.get_submodule(place.name)
    return "sequence-first" if getattr(part, "batch_first", None) is False else None


def _layout_remedy(module: nn.Module, layout: str, part: str = "") -> str:
    """What to do about a module that keeps to another layout, or a part of it that does, and others of its name."""
    named = [name for name, one in module.named_modules() if name and getattr(one, "batch_first", None) is False]
    if part:
        named = [name for name in named if name.rpartition(".")[2] == part.rpartition(".")[2]]
    if named:
        first = f"give batch_first=True to {', '.join(f'`{name}`' for name in named)}, or transpose before and after"
        return first if part else f"{first}; as it stands it takes {LAYOUTS[layout].axes}"
    return (
        f"it is clean for {LAYOUTS[layout].axes} (looks like {layout}): transpose inside, or say"
        " this layout in its docstring"
    )


# Where they meet


@final
@dataclass(frozen=True)
class _Place:
    """Name the submodule in which samples meet."""

    name: str
    kind: str

    @property
    def words(self) -> str:
        """It for a message."""
        return f"`{self.name}` ({self.kind})" if self.name else "its own forward"

    def is_own(self, module: nn.Module) -> bool:
        """Whether its class is none of torch's."""
        return not type(module.get_submodule(self.name)).__module__.startswith("torch.")

    @property
    def is_whole(self) -> bool:
        """Whether it is the module itself."""
        return not self.name


def _where_samples_meet(exam: Examination, module: nn.Module) -> _Place | None:
    """The first submodule that gets samples untouched by another one and returns touched ones."""
    x = exam.inputs()
    axis = 1 if exam.convention.layout == "sequence-first" else 0
    moved = exam.change(x, slice(None), samples=0)
    before, after = (exam.tape(each, module=twin_of(module)).calls for each in (x, moved))
    for usual, other in zip(before, after, strict=False):
        touched = _touches_others(usual.returned, other.returned, axis)
        if touched and not _touches_others(usual.given, other.given, axis):
            return _Place(usual.name, usual.kind)
    return None


def _touches_others(before: Sequence[Tensor], after: Sequence[Tensor], axis: int) -> bool:
    """Whether any sample but the first differs."""
    pairs = [(b, a) for b, a in zip(before, after, strict=False) if b.dim() > axis and b.size(axis) == BATCH]
    return any(bool(differs(b, a).movedim(axis, 0)[1:].any()) for b, a in pairs if b.shape == a.shape)


# Samples that depend on the batch they stand in


def _alone(exam: Examination) -> Iterator[Finding]:
    """An error if a sample alone gives something else than in a batch; a question where another layout does without."""
    try:
        apart = _apart(exam)
    except ModuleError as error:
        yield TEXTS["batch of one"].finding(_ID, str(error), {"batch": BATCH})
        return
    if not apart:
        return
    evidence = f"alone and in a batch of {BATCH} it differs by {apart:.2g} of the largest output"
    evidence += f" (length {exam.convention.length})"
    if (layout := layout_meant(exam)) is not None:
        words = {"taken": LAYOUTS[exam.convention.layout].axes, "where": "", "axes": LAYOUTS[layout].axes}
        yield TEXTS["layout?"].finding(_ID, evidence, words | {"remedy": _layout_remedy(exam.fresh(), layout)})
        return
    x = exam.inputs()
    place = deviation(exam.run(x.flip(0), module=exam.fresh()).flip(0), exam.run(x, module=exam.fresh())) > 0
    on = "its place in the batch" if place else "the size of the batch"
    yield TEXTS["alone"].finding(_ID, evidence, {"on": on})


def _apart(exam: Examination) -> float:
    """How far what samples give alone is from what they give in a batch."""
    x = exam.inputs()
    whole = exam.run(x, module=exam.fresh())
    alone = (exam.run(x[sample : sample + 1], module=exam.fresh())[0] for sample in range(BATCH))
    return max(deviation(one, whole[sample]) for sample, one in enumerate(alone))


def layout_meant(exam: Examination) -> str | None:
    """The sequence first, where nobody says a layout and each sample then gives what it gives alone, else None."""
    if exam.convention.layout != "batch-first" or exam.convention.layout_by:
        return None
    other = exam.relying_on(replace(exam.convention, layout="sequence-first"))
    try:
        return None if _apart(other) or of_samples(other).ratio else other.convention.layout
    except ModuleError:
        return None
