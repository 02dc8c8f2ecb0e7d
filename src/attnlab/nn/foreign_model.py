"""A whole model of a person's own, unchanged, called as it wants to be where that is not the lab's way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.build import Order, Spec, parse, path_of, prepare
from attnlab.core.errors import ModuleError
from attnlab.nn.foreign import module_of, where_tensors_are_made
from attnlab.strangers.calling.convention import Convention, label_of
from attnlab.strangers.calling.interview import interview
from attnlab.strangers.containment import quiet
from attnlab.strangers.patient import Declared, Patient, twin_of
from attnlab.strangers.texts import classes_of, text_of

_BATCH, _LENGTH = 3, 11  # unlike each other and most widths, so that axes cannot be mistaken
_PAD_TOKEN = 0  # of tasks whose items have different lengths
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

    def forward(self, x: Tensor) -> Tensor:
        """The model's output, (batch, length, d_out), or (batch, d_out) where it gives one for a sequence."""
        told = self.convention.takes == "tokens" and not self.convention.causal and self.convention.key_mask
        with where_tensors_are_made(x):
            return self.convention.call(self.module, x, padding=x != _PAD_TOKEN if told else None, label=self.label)

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
        What the task tells a model: ``vocab_size`` or ``d_in``, ``d_out``, ``max_length``, ``length``.

    Returns
    -------
    nn.Module
        The model itself where it takes what the task reads and returns a tensor for it, and so if the task reads two
        sequences; else a `ForeignModel` around it.

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
    order = prepare(spec, {}, axis="model", offered=offered)
    convention = _learned(parse(spec, "model")[0], order, offered)
    module = module_of(order)
    return module if convention is None else ForeignModel(module, convention, name=order.where)


def _learned(name: str, order: Order, offered: Mapping[str, Any]) -> Convention | None:
    """The convention of a class, from memory where it was learned before."""
    x = _read(offered)
    if x is None:
        return None
    path = path_of(name)
    key = (name, str(path), path.stat().st_mtime_ns, repr(sorted(order.arguments.items())), repr(sorted(offered)))
    if key not in _LEARNED:
        with quiet():
            probe = module_of(order)
            _LEARNED[key] = None if _answers(probe, x) else _asked(probe, order, offered)
    return _LEARNED[key]


def _read(offered: Mapping[str, Any]) -> Tensor | None:
    """What a model of a task reads: tokens, or numbers at every position; None where that is not one sequence."""
    length = min(offered.get("length") or _LENGTH, offered.get("max_length") or _LENGTH)
    if "vocab_size" in offered:
        return torch.arange(_BATCH * length).view(_BATCH, length) % offered["vocab_size"]
    return (
        torch.linspace(-1, 1, _BATCH * length * offered["d_in"]).view(_BATCH, length, -1) if "d_in" in offered else None
    )


def _answers(probe: nn.Module, x: Tensor) -> bool:
    """Whether a model takes what a task reads and returns a tensor with an answer for each sample."""
    try:
        answer = twin_of(probe).eval()(x)
    except Exception:  # whatever a person's code raises: it is asked how it wants to be called
        return False
    return isinstance(answer, Tensor) and answer.ndim > 0 and len(answer) == len(x)


def _asked(probe: nn.Module, order: Order, offered: Mapping[str, Any]) -> Convention:
    """How a model wants to be called, found by calling it."""
    causal = "vocab_size" in offered and "d_out" not in offered  # no width of answers: they are the next tokens
    declared = Declared(causal=causal, layout="batch first")
    roots = classes_of(probe)
    patient = Patient(
        order.where, probe, None, order.arguments, text_of(roots), label_of(probe).file, declared=declared
    )
    convention = interview(patient)
    if (convention.takes == "tokens") != ("vocab_size" in offered):
        raise ModuleError(f"{order.where}: its input is taken for {convention.takes}, which this task does not give")
    return convention
