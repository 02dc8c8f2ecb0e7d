"""How a module is called by the larger one that it is a part of: that one is called, and what it hands on is kept."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.layouts import LAYOUTS
from attnlab.strangers.calling.roles import input_of, roles_of
from attnlab.strangers.calling.sources import HANDED_ON, Argument, Kept, is_same, laid_out
from attnlab.strangers.calling.widths import vocabulary_of
from attnlab.strangers.containment import wake
from attnlab.strangers.patient import Patient, in_mode
from attnlab.strangers.trying.first_call import Found, first_call, first_of
from attnlab.strangers.trying.masks_learned import with_masks
from attnlab.strangers.trying.trial import BATCH, NOTHING, Trial

_OF_TOKENS = ("batch-first", "sequence-first")

Given = Mapping[str, Any]
"""What a module was given, by the names of its parameters."""


def call_of(trial: Trial, patient: Patient) -> Found:
    """The call that the larger module makes of a patient, where it is a part of one, else the most plausible that runs.

    Of what the larger module hands on, the input is replaced at every call, and the rest stays as it was handed on.
    """
    if patient.whole is None:
        return first_call(trial, patient)
    parameters = roles_of(trial.module)
    with contextlib.suppress(ModuleError):
        given = _handed_on(patient.whole(), type(patient.module))
        leaves = tree_flatten(given.get(input_of(parameters, patient)))[0]
        for x in (leaf for leaf in leaves if isinstance(leaf, Tensor)):
            found = first_of(_as_handed_on(given, x, trial.module, patient), trial, patient, parameters)
            if trial.reaction(found.convention, slice(None)).nan_to_num(1.0).max() > NOTHING:  # of several, one counts
                return found
    return first_call(trial, patient)


def _handed_on(whole: Patient, kind: type) -> Given:
    """What the first part of a class is given when the larger module is called."""
    module = in_mode(whole.copy())
    wake(module)
    trial = Trial(module)
    found = call_of(trial, whole)
    convention = with_masks(trial, found.convention, found.parameters) if found.convention.masks else found.convention
    seen: list[Given] = []

    def note(part: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        bound = inspect.signature(part.forward).bind(*arguments, **named).arguments
        kept = {name: tree_map(_detached, value) for name, value in bound.items()}
        masks = {one.name for one in roles_of(part) if one.role.endswith("mask")}  # zeros of which hide nothing
        begun: dict[tuple[int, ...], Tensor] = {}  # by shape: what is handed on twice stays one and the same
        begin = functools.partial(_begun, begun)
        seen.append({name: value if name in masks else tree_map(begin, value) for name, value in kept.items()})

    for part in module.modules():
        if type(part) is kind:
            part.register_forward_pre_hook(note, with_kwargs=True)
    trial.run(convention, trial.inputs(convention))
    if not seen:
        raise ModuleError(f"{whole.name} never calls its {kind.__name__}")
    return seen[0]


def _detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _begun(made: dict[tuple[int, ...], Tensor], value: Any) -> Any:
    """Of a state that starts at zero one that has begun, as zeros hide what reads it; all else as it is."""
    starts = isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1 and not value.any()
    return made.setdefault(tuple(value.shape), torch.randn(value.shape, dtype=value.dtype)) if starts else value


def _as_handed_on(given: Given, x: Tensor, module: nn.Module, patient: Patient) -> Iterator[Convention]:
    """Yield the call with another input in the place of one tensor, in every layout that it may be in."""
    tokens = None if x.is_floating_point() else [*vocabulary_of(module, patient), int(x.max()) + 1][0]
    for layout, (batch, length, *width) in _layouts_of(x):
        arguments = tuple(_argument(name, value, x, batch) for name, value in given.items())
        arguments = (replace(arguments[0], by_name=False), *arguments[1:])
        start = Convention("layer", "embeddings", sum(width), 0, length=length, layout=layout, arguments=arguments)
        yield start if tokens is None else replace(start, takes="tokens", vocab_size=tokens)


def _argument(name: str, value: Any, x: Tensor, batch: int) -> Argument:
    """What one argument is given: the input, what was handed on with the input in it, or a constant."""
    if isinstance(value, Tensor) and is_same(value, x):
        return Argument(name, "x")
    of_tensors = any(isinstance(leaf, Tensor) for leaf in tree_flatten(value)[0])
    return (
        Argument(name, HANDED_ON, value=Kept(value, x, batch))
        if of_tensors
        else Argument(name, "constant", value=value)
    )


def _layouts_of(x: Tensor) -> Iterator[tuple[str, torch.Size]]:
    """Yield the layouts that an input may have with its sizes batch first, those with the usual batch before others."""
    tokens = not x.is_floating_point()
    found: list[tuple[str, torch.Size]] = []
    for layout in _OF_TOKENS if tokens else LAYOUTS:
        order = LAYOUTS[layout]
        if x.dim() == order.dims - tokens:
            sizes = order.batch_first(x).shape
            if laid_out(torch.empty(sizes), layout).shape == x.shape:
                found.append((layout, sizes))
    yield from sorted(found, key=lambda each: each[1][0] != BATCH)
