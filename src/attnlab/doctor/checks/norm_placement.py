"""Check `norm-placement`: where the norms of a block stand, and whether each is used, alone, and over the features."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.measures.blocks import TracedBlock, blocks
from attnlab.doctor.measures.identity import Route, follow
from attnlab.doctor.measures.norms import IS_NORM, Norm, norms_of, unused_norms
from attnlab.inspection.tape.tape import Event, Tape
from attnlab.strangers.said.phrases import sentence
from attnlab.strangers.said.source import source_of

ID = "norm-placement"
_BA = "Ba 2016 (layer normalization), arXiv:1607.06450, section 3"
_XIONG = "Xiong 2020, arXiv:2002.04745, figure 1; Liu 2020, arXiv:2004.08249"
_BY_DESIGN = re.compile(r"batch|instance|group|sync|global|response", re.IGNORECASE)
"""Norms that mix positions or samples by design."""
_ACROSS = re.compile(rf"{_BY_DESIGN.pattern}|parametri|normed|normali[sz]e[dr]|attention|block|layer$", re.IGNORECASE)
"""Norms that mix positions or samples by design, and modules that merely have the word in their name."""
_PRE = re.compile(r"\bpre[- _]?(layer[- ]?)?(norm|ln)", re.IGNORECASE)
_POST = re.compile(r"\bpost[- _]?(layer[- ]?)?(norm|ln)", re.IGNORECASE)
_ASKS = re.compile(r"\b(el)?if (not )?[\w.]*((pre|post)_?(layer_?)?(norm|ln)|norm_first)", re.IGNORECASE)
"""A setting that chooses, about whose cases words may be."""
_SHOWN = 4  # names in one sentence
_ROOTS = frozenset({"rsqrt", "sqrt", "pow"})
_SPREADS = frozenset((
    "native_layer_norm", "std", "std_mean", "var", "var_mean",
))  # fmt: skip


def check_norm_placement(exam: Examination) -> Iterator[Finding]:
    """Find norms that are never used, thrown away, or over the wrong axis, and say where the others stand."""
    norms = norms_of(exam)
    yield from _unused(exam, norms)
    yield from _built_in_forward(exam)
    yield from _wrong_axis(exam, norms)
    yield from exam.as_meant(_shared(exam, norms), "shared parts")
    yield from _placement(exam)


# Each norm by itself


def _unused(exam: Examination, norms: list[Norm]) -> Iterator[Finding]:
    """Yield norms that are never called, and those whose result nobody reads."""
    dead = unused_norms(exam, norms)
    for called in (True, False):
        names = [f"'{norm.name}'" for norm in dead if bool(norm.calls) == called]
        if not names:
            continue
        one = len(names) == 1
        does = "computed, but its result is thrown away" if called else "built, but never called"
        does = does if one else does.replace("its result is", "their results are")
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        unmoved = "; the output does not change when the result is replaced by another" if called else ""
        yield Finding(
            ID,
            "error",
            f"the norm{'' if one else 's'} {shown} {'is' if one else 'are'} {does}.",
            f"calls in one forward: {sum(norm.calls for norm in dead if bool(norm.calls) == called)}{unmoved}",
            f"use what it returns, x = self.{names[0][1:-1]}(x): a norm changes nothing in place; or remove it",
            _BA,
        )


def _built_in_forward(exam: Examination) -> Iterator[Finding]:
    """Yield layer norms whose gain is no parameter of the module, but made anew at every call."""
    for event in exam.usual_tape.events:
        gains = [
            (parent, name)
            for value, parent, name in zip(event.inputs[1:], event.parents[1:], event.parameters[1:], strict=True)
            if value.dim() <= len(event.inputs[0].shape)
        ]
        if event.call == "native_layer_norm" and gains and all(name is None for _, name in gains):
            if not all(parent is not None and _is_constant(exam.usual_tape, parent) for parent, _ in gains):
                continue
            yield Finding(
                ID,
                "error",
                f"a norm is built anew at every call{f' in {event.where!r}' if event.where else ''}: its gain and bias"
                " never learn.",
                "the gain of a layer norm is filled with ones during forward; it is no parameter of the module",
                "build the nn.LayerNorm in __init__ and call it in forward",
                _BA,
            )
            return


def _is_constant(tape: Tape, index: int) -> bool:
    """Whether a tensor was filled with one number."""
    while tape.events[index].call in {"_to_copy", "detach", "alias", "view", "clone"} and tape.events[index].parents[0]:
        index = tape.events[index].parents[0] or index
    return tape.events[index].call.rstrip("_") in {"ones", "zeros", "fill", "full", "zero", "ones_like", "empty"}


def _wrong_axis(exam: Examination, norms: list[Norm]) -> Iterator[Finding]:
    """Yield layer norms (and spreads computed by hand) over positions or samples instead of features."""
    sizes = {exam.inputs().shape[1]: "positions", exam.inputs().shape[0]: "samples"}
    if exam.convention.d_in in sizes or exam.convention.d_out in sizes:
        return
    for width in {part.out_features for part in exam.eval_module.modules() if isinstance(part, nn.Linear)}:
        sizes.pop(width, None)  # as a model that runs at one length alone may have it for its width
    seen: set[str] = set()
    for norm in norms:
        if norm.given and not _ACROSS.search(type(norm.module).__name__) and not _is_square(norm.given[0], exam):
            axes = _mixed_sizes(norm)
            across = _named(axes, norm.given[0], sizes)
            if across:
                seen.add(norm.name)
                yield _across(f"the norm '{norm.name}'", across, list(norm.given[0].shape), axes)
    if IS_NORM.search(exam.patient.text):
        for event in exam.usual_tape.events:
            axes = _spread_sizes(exam.usual_tape, event)
            across = _named(axes, event.inputs[0], sizes) if axes else []
            names = _BY_DESIGN if event.call == "mean" else _ACROSS  # squares are averaged for little else
            if across and event.where not in seen and not _is_across(exam, event.where, names):
                seen.add(event.where)
                found = _across(f"the norm in '{event.where or 'forward'}'", across, list(event.inputs[0].shape), axes)
                by_squares = event.call == "mean"  # which gates, and scales of whole series, are made of, too
                yield replace(found, severity="warning", nature="set-up") if by_squares else found


def _named(axes: Sequence[int], given: Tensor, sizes: Mapping[int, str]) -> list[str]:
    """What the sizes of axes are called; nothing where another axis is as large, so that one is taken for the other."""
    return [sizes[size] for size in axes if size in sizes and list(given.shape).count(size) == 1]


def _is_across(exam: Examination, where: str, names: re.Pattern[str]) -> bool:
    """Whether what runs has one of some names, such as that of a batch, group or instance norm."""
    return bool(names.search(f"{type(exam.eval_module.get_submodule(where)).__name__.replace('Layer', '')} {where}"))


def _mixed_sizes(norm: Norm) -> list[int]:
    """The sizes of the axes a norm normalizes over: along them a change in one place is felt in others."""
    given = norm.given[0]
    sizes = []
    for axis, size in enumerate(given.shape):
        if size < 2:
            continue
        moved = given.clone()
        moved.select(axis, 0).add_(torch.linspace(-1, 1, moved.select(axis, 0).numel()).view_as(moved.select(axis, 0)))
        try:
            with torch.no_grad():
                difference = norm.module(moved) - norm.module(given)
        except Exception:  # it wants more than one argument: nothing can be said
            return []
        others = difference.narrow(axis, 1, size - 1)
        if float(others.abs().max()) > 1e-6 * float(difference.abs().max() + 1e-30):
            sizes.append(size)
    return sizes


def _is_square(given: Tensor, exam: Examination) -> bool:
    """Whether a norm acts on attention scores, which it may well do over positions."""
    return given.shape[-2:] == (exam.convention.length, exam.convention.length)


def _spread_sizes(tape: Tape, event: Event) -> list[int]:
    """The sizes of the axes over which values are divided by their own standard deviation."""
    squares = _is_mean_of_squares(tape, event)
    if not (squares or event.call in _SPREADS) or not event.inputs or event.inputs[0].dim() < 2:
        return []
    axes = next((one for one in event.arguments if isinstance(one, list | tuple)), None)
    if not axes or not all(isinstance(axis, int) for axis in axes):
        return []
    if event.call == "native_layer_norm":
        return list(axes)  # the normalized shape itself
    return [event.inputs[0].shape[axis] for axis in axes] if _divides(tape, event, rooted=not squares) else []


def _is_mean_of_squares(tape: Tape, event: Event) -> bool:
    """Whether squares are averaged, of which root mean square norms take the root."""
    parent = event.parents[0] if event.call == "mean" and event.parents else None
    before = None if parent is None else tape.events[parent]
    if before is None:
        return False
    alike = before.call == "mul" and len(before.inputs) > 1 and torch.equal(before.inputs[0], before.inputs[1])
    return alike or before.call == "square" or (before.call == "pow" and 2 in before.arguments)


def _divides(tape: Tape, event: Event, *, rooted: bool) -> bool:
    """Whether a spread ends as the divisor of something of the shape it was taken of, its root taken before."""
    waiting = tape.children(event.index)
    for _ in range(4):  # epsilon, root, views
        following = [tape.events[index] for index in waiting]
        ends = (one for one in following if one.call.startswith(("div", "mul")))
        if rooted and any(one.output.shape == event.inputs[0].shape for one in ends):
            return True
        rooted = rooted or any(one.call in _ROOTS for one in following)
        waiting = [
            index
            for one in following
            if one.output.numel() == event.output.numel()
            for index in tape.children(one.index)
        ]
    return False


def _across(what: str, across: list[str], shape: list[int], axes: list[int]) -> Finding:
    return Finding(
        ID,
        "error",
        f"{what} normalizes over the {' and '.join(across)}, so each changes all others, instead of the"
        " features of one position.",
        f"input {tuple(shape)}; a change in one place is felt along the axes of size {', '.join(map(str, axes))}",
        "normalize over the last axis alone: nn.LayerNorm(d_model) on (batch, length, d_model), mean(-1), var(-1)",
        _BA,
    )


def _shared(exam: Examination, norms: list[Norm]) -> Iterator[Finding]:
    """Yield norms that act at two places of one block."""
    for norm in norms:
        parent, _, attribute = norm.name.rpartition(".")
        source = source_of(type(exam.eval_module.get_submodule(parent)))
        sites = len(re.findall(rf"self\.{re.escape(attribute)}\(", source))
        inputs = [one for one in norm.given if one.shape[-1] == norm.given[0].shape[-1]]
        parents = sum(call.name == parent for call in exam.usual_tape.calls)
        different = any(not torch.equal(inputs[0], other) for other in inputs[1:] if other.shape == inputs[0].shape)
        if sites > 1 and different and len(inputs) > parents:
            yield Finding(
                ID,
                "warning",
                f"one norm, '{norm.name}', is used at {sites} places of a block: they share gain and bias.",
                f"{len(inputs)} calls with different inputs in one forward",
                "give each place its own nn.LayerNorm; if sharing is meant, say so in the docstring",
                _BA,
            )


# Where they stand


def _placement(exam: Examination) -> Iterator[Finding]:
    """The placement in each kind of block as one fact, and whether it is not what the class says."""
    found = {block.title: _places(block, follow(block.tape, block.start)) for block in blocks(exam)}
    if not found:
        return
    words = {title: _word(places) for title, places in found.items()}
    counts = "; ".join(f"{title}: {_counted(places)}" for title, places in found.items())
    yield Finding(
        ID,
        "info",
        "; ".join(f"{title} is {word}" for title, word in words.items()) + ".",
        f"norms on the way of the input and beside it: {counts}",
        "",
        _XIONG,
    )
    text, named = exam.patient.text, set(words.values())
    claims_pre, claims_post = bool(sentence(text, _PRE)), bool(sentence(text, _POST))
    if not _ASKS.search(text) and claims_pre != claims_post and named == {"post-norm" if claims_pre else "pre-norm"}:
        said, is_now = ("pre-norm", "post-norm") if claims_pre else ("post-norm", "pre-norm")
        yield Finding(
            ID,
            "warning",
            f"its text says {said}, but the norms stand as in {is_now}.",
            counts,
            "x = x + f(norm(x)) is pre-norm, x = norm(x + f(x)) is post-norm",
            _XIONG,
        )


def _places(block: TracedBlock, route: Route) -> dict[str, int]:
    """How many norms stand where: on the skip, before a sublayer, behind a sublayer."""
    skip = set(route.output.late) | set(route.output.early)
    events = block.tape.events
    groups: dict[str, set[int]] = defaultdict(set)
    for index, trail in enumerate(route.trails):
        is_norm = index in trail.shares
        if index in skip or (is_norm and not route.output.alive and _stands_alone(block.tape, index)):
            groups["on the skip"].add(index)
        elif is_norm:
            groups["before a sublayer"].add(index)
        elif events[index].call in {"native_layer_norm", "_fused_rms_norm", "native_group_norm", "native_batch_norm"}:
            wide = events[index].output.shape[-1] == block.start.shape[-1]
            groups["behind a sublayer" if wide and trail.depends else "inside"].add(index)
    if _at_the_end(block.tape, route, groups):
        groups["at the end"] = groups.pop("on the skip")
    return Counter({place: len(indices) for place, indices in groups.items() if place != "inside"})


def _at_the_end(tape: Tape, route: Route, groups: Mapping[str, set[int]]) -> bool:
    """Whether the one norm on the skip comes last, behind a sum with what has a norm before it, as in stacks."""
    on, before = groups.get("on the skip", set()), groups.get("before a sublayer", set())
    if len(on) != 1 or not before or min(on) < max(before):
        return False
    sums = [i for i in range(min(on)) if tape.events[i].call in {"add", "add_"} and route.trails[i].alive]
    return len(sums) > 1 and max(before) > sums[-2]


def _stands_alone(tape: Tape, index: int) -> bool:
    """Whether nothing but a norm reads its input: then it stands on the only way there is."""
    parent = tape.events[index].parents[0]
    return parent is not None and set(tape.children(parent)) == {index}


def _word(places: dict[str, int]) -> str:
    """The usual name of a placement."""
    on, before, behind = (places.get(key, 0) for key in ("on the skip", "before a sublayer", "behind a sublayer"))
    if before and "at the end" in places:
        return "pre-norm with a norm at the end"
    if on and before:
        return "both pre- and post-norm"
    if before and behind:
        return "sandwich-norm (before and behind each sublayer)"
    if on:
        return "post-norm"
    if before:
        return "pre-norm"
    return "normalized behind its sublayers" if behind else "without norm"


def _counted(places: dict[str, int]) -> str:
    return ", ".join(f"{count} {place}" for place, count in places.items()) or "none"
