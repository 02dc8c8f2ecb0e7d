"""What is examined: an instance that stays untouched, how to build others of its kind, and what its class says."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import CellType, FunctionType
from typing import Any, final

from torch import Tensor, nn

from attnlab.core.errors import ModuleError, SpecError, nearest
from attnlab.strangers.texts import words_of

LAYOUTS_DECLARED = {
    "batch first": "batch-first",
    "length first": "sequence-first",
    "sequence first": "sequence-first",
    "channels first": "channels-first",
}
"""What a person may say of the axes: (batch, length, d_model), (length, batch, d_model), (batch, d_model, length)."""

MASKS_DECLARED = {"True = keep": "True keeps", "True = blocked": "True blocks"}
"""What a person may say of a mask's values."""


@final
@dataclass(frozen=True)
class Declared:
    """Hold what a person declares of a module; it beats every word of the module's own text.

    Raises
    ------
    SpecError
        If layout or mask is none of these.
    """

    causal: bool | None = None  # whether a position is meant to see no later one
    layout: str | None = None  # a key of `LAYOUTS_DECLARED`
    mask: str | None = None  # a key of `MASKS_DECLARED`
    whole: bool = False  # whether it is a whole model, called at its task's length: no layer or block

    def __post_init__(self) -> None:
        for name, value, known in (("layout", self.layout, LAYOUTS_DECLARED), ("mask", self.mask, MASKS_DECLARED)):
            if value is not None and value not in known:
                choices = " or ".join(f"'{one}'" for one in known)
                raise SpecError(f"{name} must be {choices}; got '{value}'; {nearest(value, known)}")


@final
@dataclass(frozen=True)
class Patient:
    """Hold a module to be examined."""

    name: str  # what the person called it, such as ``mine.py:MyAttention``
    module: nn.Module
    """A pristine instance on the CPU. It is never called: checks call copies of it."""
    build: Callable[[Mapping[str, Any]], nn.Module] | None
    """``build(changes)`` makes another instance with a new random start, its constructor arguments changed as given
    (glossary words: ``{"d_model": 128, "n_heads": 8}``); it raises `AttnlabError` where that cannot be. None for a
    ready instance, of which there is only one."""
    arguments: Mapping[str, Any]  # constructor arguments it was built with, by its own words
    text: str
    """What its class says: source of the class (and of the classes of the same file it uses), docstrings, comments."""
    file: str  # file it is defined in, or nothing
    uninitialized: tuple[str, ...] = ()
    """Parameters that its constructor never fills; in `module` they are started as torch starts linear maps."""
    notes: tuple[str, ...] = ()  # what was done to make it easier to examine
    declared: Declared = field(default_factory=Declared)  # what the person says of it
    whole: Callable[[], Patient] | None = None  # the larger module that builds it, where it is built as a part of one

    def copy(self) -> nn.Module:
        """A copy to be called."""
        return twin_of(self.module)

    @cached_property
    def said(self) -> str:
        """What its class and its parts say to their readers: docstrings and comments, no code and no names.

        What excuses a finding must stand here: a word among names (``prefix``, ``qk``) says nothing about intent.
        """
        parts = {type(part) for part in self.module.modules()}
        written = sorted({kind.__doc__ or "" for kind in parts if not kind.__module__.startswith("torch.")})
        return "\n\n".join([words_of(self.text), *written])


def in_mode(module: nn.Module, *, train: bool = False) -> nn.Module:
    """A module in training or evaluation mode, also where its own ``train`` returns nothing."""
    module.train(train)
    return module


def closes_over_parts(module: nn.Module) -> bool:
    """Whether a module keeps functions with a closure, which copying leaves as they are."""
    kept = (value for part in module.modules() for value in vars(part).values())
    return any(isinstance(value, FunctionType) and value.__closure__ for value in kept)


def twin_of(module: nn.Module) -> nn.Module:
    """A deep copy of a module, also where it keeps tensors of a graph, or functions that close over its parts."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        twin = copy.deepcopy(module, memo)
        for part in twin.modules():
            holders: tuple[dict[Any, Any], ...] = (vars(part), part._forward_hooks, part._forward_pre_hooks)
            for holder in holders:
                for name, value in holder.items():
                    if isinstance(value, FunctionType) and value.__closure__:
                        holder[name] = _closed_anew(value, memo)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise ModuleError(f"{type(module).__qualname__} cannot be copied: {text}") from error
    return twin


def _closed_anew(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """A function with what it closes over replaced by its copies; a function itself is never copied deeply."""
    cells = tuple(CellType(copy.deepcopy(cell.cell_contents, memo)) for cell in function.__closure__ or ())
    twin = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin
