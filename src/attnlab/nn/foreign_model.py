"""A whole model of a person's own, unchanged, called as it wants to be where that is not the lab's way."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.build import Order, Spec, load_object, parse, path_of, prepare
from attnlab.core.constructors import is_required, named, signature_of
from attnlab.core.errors import ModuleError
from attnlab.nn.foreign import module_of, where_tensors_are_made
from attnlab.strangers.calling.convention import Convention, invoke, label_of
from attnlab.strangers.calling.interview import interview
from attnlab.strangers.calling.masking import mask_values
from attnlab.strangers.calling.sources import SOURCES, Situation
from attnlab.strangers.containment import quiet
from attnlab.strangers.patient import Declared, Patient, twin_of
from attnlab.strangers.texts import classes_of, text_of

_BATCH, _LENGTH = 3, 11  # unlike each other and most widths, so that axes cannot be mistaken
_PAD_TOKEN = 0  # of tasks whose items have different lengths
_MEMORY = "memory tokens"  # how an interview calls the sequence that is looked at
_TARGET = re.compile(r"tgt|trg|target|dec|out", re.IGNORECASE)
_PAD = re.compile(r"pad.*(id|token)|^pad$", re.IGNORECASE)
_LEARNED: dict[tuple[Any, ...], Convention | None] = {}
"""Conventions by file, time of its last change, arguments and task; None: it is called as the lab calls models."""


@final
class ForeignModel(nn.Module):
    """Call a person's own model like one of the lab's: with what the task reads, for one tensor.

    Parameters
    ----------
    module : nn.Module
        The person's model; its weights are under ``module.`` in the state dict.
    convention : Convention
        How it wants to be called.
    name : str, optional
        What the person called it, for error texts; the name of its class if left out.
    """

    same_draws_as = "module"

    def __init__(self, module: nn.Module, convention: Convention, *, name: str | None = None) -> None:
        super().__init__()
        self.module = module
        self.convention = convention
        self.label = label_of(module, name)

    def forward(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        """The model's output, (batch, length, d_out), or (batch, d_out) where it gives one for a sequence.

        Of two sequences the second asks, and the first is looked at.
        """
        with where_tensors_are_made(first):
            if second is not None:
                return self._beside(first, second) if self._asks_for_two else self._as_given(first, second)
            told = self.convention.takes == "tokens" and not self.convention.causal and self.convention.key_mask
            padding = first != _PAD_TOKEN if told else None
            return self.convention.call(self.module, first, padding=padding, label=self.label)

    @property
    def _asks_for_two(self) -> bool:
        return any(one.source == _MEMORY for one in self.convention.arguments)

    def _as_given(self, first: Tensor, second: Tensor) -> Tensor:
        """The output for what a task of a person's own gives, which is more than was known of it."""
        return self.convention.output_in(self.module(first, second), first, label=self.label)

    def _beside(self, source: Tensor, x: Tensor) -> Tensor:
        """The output for tokens beside a source, whose padding is told where it can be."""
        convention, of_source = self.convention, self.convention.over_memory
        dtype = next(weight.dtype for weight in self.module.parameters())
        at, beside = (Situation(one, convention.layout, dtype) for one in (x, source))
        given = {
            one.parameter: beside.given if one.source == _MEMORY else SOURCES[one.source](at, one.value)
            for one in convention.arguments
        }
        allowed = None
        if convention.causal_means == "mask":
            allowed = torch.ones(len(x), at.length, at.length, dtype=torch.bool, device=x.device).tril()
        given |= {} if convention.flag is None else {convention.flag: True}
        given |= mask_values(convention.masks, at, padding=None, allowed=allowed)
        if of_source is not None:
            given |= mask_values(of_source.masks, beside, padding=source != _PAD_TOKEN, allowed=None)
        positional = [given.pop(one.parameter) for one in convention.arguments if not one.by_name]
        returned = invoke(self.module, positional, given, label=self.label)
        return convention.output_in(returned, x, label=self.label)

    def extra_repr(self) -> str:
        """How the model is called, for printing."""
        return str(self.convention)


def build_foreign_model(spec: Spec, offered: Mapping[str, Any]) -> nn.Module:
    """Build a model from a person's own class.

    Parameters
    ----------
    spec : str or mapping
        ``path.py:Class``, or a mapping with that as ``name`` and constructor arguments.
    offered : mapping
        What the task tells a model: ``vocab_size`` or ``d_in``, ``d_out``, ``max_length``, ``length``; for a pair of
        sequences ``source_vocab_size``, ``target_vocab_size`` and ``pad``.

    Returns
    -------
    nn.Module
        The model itself where it takes what the task reads and returns a tensor for it; else a `ForeignModel` around
        it.

    Raises
    ------
    SpecError
        If the file, the class or an argument is missing or wrong.
    ModuleError
        If the class raises, or no way is found to call it.

    Notes
    -----
    What a model may want beside its input is a mask, which is causal where the task asks for the next token, or
    targets, without which it answers for the last position alone; of what it returns the answers are taken. It is
    called batch first, as its person calls it.
    """
    name, _ = parse(spec, "model")
    order = prepare(spec, {}, axis="model", offered=_of_both_sides(name, offered))
    convention = _learned(name, order, offered)
    module = module_of(order)
    return module if convention is None else ForeignModel(module, convention, name=order.where)


def _of_both_sides(name: str, offered: Mapping[str, Any]) -> dict[str, Any]:
    """What is offered, by the constructor's own names where it has one for the vocabulary of each side, and padding."""
    if not {"source_vocab_size", "target_vocab_size"} <= offered.keys():
        return dict(offered)
    own = signature_of(load_object(name))
    sizes = {one: offered["target_vocab_size" if _TARGET.search(one) else "source_vocab_size"] for one in named(
        "vocab_size", own)}  # fmt: skip
    return {**offered, **sizes, **{one: offered["pad"] for one in own if _PAD.search(one) and "pad" in offered}}


def _learned(name: str, order: Order, offered: Mapping[str, Any]) -> Convention | None:
    """The convention of a class, from memory where it was learned before."""
    inputs = _read(offered)
    path = path_of(name)
    key = (name, str(path), path.stat().st_mtime_ns, repr(sorted(order.arguments.items())), repr(sorted(offered)))
    if inputs and key not in _LEARNED:
        with quiet():
            probe = module_of(order)
            _LEARNED[key] = None if _answers(probe, inputs) else _asked(probe, order, offered)
    return _LEARNED.get(key)


def _read(offered: Mapping[str, Any]) -> list[Tensor]:
    """What a model of a task reads: tokens, or numbers at every position; nothing where that is not known."""
    length = min(offered.get("length") or _LENGTH, offered.get("max_length") or _LENGTH)
    sizes = [offered[one] for one in ("vocab_size", "source_vocab_size", "target_vocab_size") if one in offered]
    if sizes:
        return [torch.arange(_BATCH * length).view(_BATCH, length) % size for size in sizes]
    numbers = torch.linspace(-1, 1, _BATCH * length * offered.get("d_in", 0)).view(_BATCH, length, -1)
    return [numbers] if "d_in" in offered else []


def _answers(probe: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Whether a model takes what a task reads and returns a tensor with an answer for each sample."""
    try:
        answer = twin_of(probe).eval()(*inputs)
    except Exception:  # whatever a person's code raises: it is asked how it wants to be called
        return False
    return isinstance(answer, Tensor) and answer.ndim > 0 and len(answer) == _BATCH


def _asked(probe: nn.Module, order: Order, offered: Mapping[str, Any]) -> Convention | None:
    """How a model wants to be called, found by calling it; None where a task of a person's own must know."""
    of_tokens, of_two = "d_in" not in offered or "vocab_size" in offered, "source_vocab_size" in offered
    causal = of_tokens and "d_out" not in offered  # no width of answers: they are the next tokens
    declared = Declared(causal=causal, layout="batch first")
    roots = classes_of(probe)
    patient = Patient(
        order.where, probe, None, order.arguments, text_of(roots), label_of(probe).file, declared=declared
    )
    try:
        convention = interview(patient)
    except ModuleError:
        if sum(map(is_required, signature_of(probe.forward).values())) > 1 + of_two:
            return None
        raise
    beside = sum(one.source == _MEMORY for one in convention.arguments)
    if (convention.takes == "tokens") != of_tokens or beside > of_two:
        return None
    if beside < of_two:
        raise ModuleError(f"{order.where}: it takes one sequence, {convention}, and this task gives two")
    return convention
