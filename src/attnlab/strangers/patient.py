"""What is examined: an instance that stays untouched, how to build others of its kind, and what its class says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from attnlab.core.errors import SpecError, nearest
from attnlab.strangers.loading.texts import words_of

LAYOUTS_DECLARED = {
    "batch first": "batch-first",
    "length first": "sequence-first",
    "channels first": "channels-first",
}
"""What a person may say of the axes: (batch, length, d_model), (length, batch, d_model), (batch, d_model, length)."""

MASKS_DECLARED = {"True = keep": "True keeps", "True = blocked": "True blocks"}
"""What a person may say of a mask's values."""


@dataclass(frozen=True)
class Declared:
    """Hold what a person declares of a module; it beats every word of the module's own text.

    Parameters
    ----------
    causal : bool or None
        Whether a position is meant to see no later one.
    layout : str or None
        A key of `LAYOUTS_DECLARED`.
    mask : str or None
        A key of `MASKS_DECLARED`.

    Raises
    ------
    SpecError
        If layout or mask is none of these.
    """

    causal: bool | None = None
    layout: str | None = None
    mask: str | None = None

    def __post_init__(self) -> None:
        for name, value, known in (("layout", self.layout, LAYOUTS_DECLARED), ("mask", self.mask, MASKS_DECLARED)):
            if value is not None and value not in known:
                choices = " or ".join(f"'{one}'" for one in known)
                raise SpecError(f"{name} must be {choices}; got '{value}'; {nearest(value, known)}")


@dataclass(frozen=True)
class Patient:
    """Hold a module to be examined.

    Parameters
    ----------
    name : str
        What the person called it, such as ``mine.py:MyAttention``.
    module : nn.Module
        A pristine instance on the CPU. It is never called: checks call copies of it.
    build : callable or None
        ``build(changes)`` makes another instance with a new random start, its constructor arguments changed as
        given (glossary words: ``{"d_model": 128, "n_heads": 8}``); it raises `AttnlabError` where that cannot be.
        None for a ready instance, of which there is only one.
    arguments : mapping of str to object
        Constructor arguments it was built with, by its own words.
    text : str
        What its class says: source of the class (and of the classes of the same file it uses), docstrings, comments.
    file : str
        File it is defined in, or nothing.
    notes : tuple of str
        What was done to make it easier to examine.
    declared : Declared
        What the person says of it.
    """

    name: str
    module: nn.Module
    build: Callable[[Mapping[str, Any]], nn.Module] | None
    arguments: Mapping[str, Any]
    text: str
    file: str
    notes: tuple[str, ...] = ()
    declared: Declared = field(default_factory=Declared)

    @cached_property
    def said(self) -> str:
        """What its class and its parts say to their readers: docstrings and comments, no code and no names.

        What excuses a finding must stand here: a word among names (``prefix``, ``qk``) says nothing about intent.
        """
        parts = {type(part) for part in self.module.modules()}
        written = sorted({kind.__doc__ or "" for kind in parts if not kind.__module__.startswith("torch.")})
        return "\n\n".join([words_of(self.text), *written])
