"""A person's own module, seen as a run is: found out how it is called, and given tokens."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch
from attnlab.core.errors import DataError, ModuleError, SpecError
from attnlab.inspection.watch import Captured
from attnlab.models.from_checkpoint import TOKENIZER
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.layouts import IMAGES
from attnlab.strangers.containment import Traces, contained, seed_all
from attnlab.strangers.loading.loading import load
from attnlab.strangers.patient import Declared, Patient
from attnlab.strangers.trying.interview import interview
from attnlab.studies.using.measured import longest_text, measured_checkpoint
from attnlab.studies.using.parts import delimiters, kinds_beyond, usual_patterns
from attnlab.studies.using.pretrained import load_pretrained
from attnlab.tasks.char_lm.char_lm import CharLM
from attnlab.tasks.datasets import find_text
from attnlab.viewer.inside.asked import Asked
from attnlab.viewer.inside.looking import ModelInView, writer_in_view
from attnlab.viewer.inside.measuring import HeldOutHeads
from attnlab.viewer.inside.reading import AbstractReader, Side, require_short, require_text, side_of_text

SEED = 0  # of a module that starts at random, and of vectors that stand for tokens
SENTENCE = "The cat sat on the mat, and the cat slept."
"""What is looked at first of a checkpoint that has a tokenizer."""
EXAMPLE = 64
"""Tokens of the text that a page begins with, at most."""
REPEATED = 8  # different tokens of an example in numbers, so that a head that looks for repetitions finds some


@final
@dataclass(frozen=True)
class OwnModule:
    """Name a module of a person's own, and what it is made with."""

    target: str  # ``FILE.py:Name``: a class, a function that returns a module, or an instance
    arguments: Mapping[str, Any]  # of the constructor
    text: str = ""
    """File whose characters are its tokens, in their order, and on which heads are measured; of a checkpoint with a
    tokenizer only the latter. Empty: tokens are typed as numbers, and no heads are measured."""
    causal: bool | None = None  # whether a position is meant to see no later one; None: as the doctor finds out
    shown: str = ""  # a checkpoint, as its page calls it; empty: none


def own_in_view(own: OwnModule) -> tuple[ModelInView, dict[str, Any]]:
    """A module of a person's own in view, and what its page begins with.

    Parameters
    ----------
    own : OwnModule
        It is imported, built and called.

    Returns
    -------
    view : ModelInView
        To be looked at.
    begin : dict
        ``name`` of its class, ``text`` to look at first, whether it ``measures`` heads on held-out data, and what
        ``kind`` of input it reads.

    Raises
    ------
    SpecError, ModuleError
        As `load` and `interview` raise; or if it reads images, or other tokens than the text has.
    DataError
        If the text cannot be read.
    """
    folder = Path(own.arguments.get("folder", ""))
    if own.shown and own.text:
        longest_text(folder)
    if own.shown and (folder / TOKENIZER).is_file():
        trained = load_pretrained(folder)
        view = writer_in_view(trained, measure=functools.partial(_on_text, folder, own.text) if own.text else None)
        begin = {"name": type(trained.model).__name__, "text": SENTENCE, "measures": view.measures}
        return view, {**begin, "kind": trained.task.codec.kind}
    characters = _characters(own.text)
    with contained(Traces()):
        patient = replace(_loaded(own, characters), declared=Declared(own.causal))
        convention = interview(patient)
        model = Called(patient.copy().eval(), convention)
    if convention.layout in IMAGES:
        raise ModuleError(f"{patient.name} reads images; sequences alone can be looked at")
    reader = OwnReader(patient.name, convention, sorted(set(characters)))
    measure = functools.partial(_held_out_heads, own.text, patient, model, reader)
    view = ModelInView(model, reader, measure=measure if own.text and reader.vocab_size else None)
    return view, {"name": model.name, "text": reader.example(characters), "measures": view.measures, "kind": "module"}


def _on_text(folder: Path, text: str) -> HeldOutHeads:
    """The heads of a checkpoint on a person's text."""
    return HeldOutHeads.of(measured_checkpoint(folder, Path(text)), Path(text).name)


def _held_out_heads(path: str, patient: Patient, model: Called, reader: OwnReader) -> HeldOutHeads:
    """The heads of a language model of characters, on the last tenth of the text."""
    task = CharLM(path, reader.window)
    if list(task.vocabulary) != reader.symbols:
        raise DataError(f"{path}: its last tenth has characters that stand nowhere before; measure on a longer text")

    def kinds(trace: Mapping[str, Captured], batch: Batch) -> Mapping[str, Any]:
        build = patient.build
        if build is None:  # a ready instance: nobody knows how it began
            return {}
        separating = delimiters(task.codec)
        untrained = functools.partial(usual_patterns, lambda: Called(build({}), model.convention), batch, separating)
        return kinds_beyond(untrained, model, trace, batch, separating)

    return HeldOutHeads(model, task, kinds, "the last tenth of the text")


def _characters(path: str) -> str:
    return find_text(path).content() if path else ""


def _loaded(own: OwnModule, characters: str) -> Patient:
    """The module, with as many tokens as the text has characters where its constructor asks how many."""
    seed_all(SEED)
    given = dict(own.arguments)
    if characters and "vocab_size" not in given:
        try:
            return load(own.target, {"vocab_size": len(set(characters)), **given}, causal=own.causal)
        except SpecError:  # it asks for nothing such
            seed_all(SEED)
    return load(own.target, given, causal=own.causal)


@final
class Called(nn.Module):
    """Call a module with tokens, as it wants to be called.

    Parameters
    ----------
    module : nn.Module
        A person's own.
    convention : Convention
        How it is called.
    """

    def __init__(self, module: nn.Module, convention: Convention) -> None:
        super().__init__()
        self.name = type(module).__name__
        self.add_module(self.name, module)
        self.convention = convention

    def forward(self, x: Tensor) -> Tensor:
        """The output, (batch, length, d_out), or (batch, d_out) where it is one for a sequence."""
        return self.convention.call(self.get_submodule(self.name), x)


@final
class OwnReader(AbstractReader):
    """Read tokens: characters of a person's text, or numbers.

    Parameters
    ----------
    name : str
        Of the module.
    convention : Convention
        How it is called.
    symbols : sequence of str
        The characters of the text in their order; empty where tokens are typed as numbers.

    Notes
    -----
    A module that takes vectors gets a random one for each token, the same wherever the token stands.
    """

    def __init__(self, name: str, convention: Convention, symbols: Sequence[str]) -> None:
        self._convention, self.symbols = convention, list(symbols)
        size = convention.vocab_size if convention.takes == "tokens" else None
        if size is not None and len(symbols) > size:
            raise SpecError(
                f"the text has {len(symbols)} different characters and {name} knows {size} tokens; give it so many: "
                f"--arg vocab_size={len(symbols)}, or as its constructor names them"
            )
        self._size = size
        predicts = size is not None and convention.d_out == size and not convention.pooled
        self.vocab_size = size if predicts and size and convention.causal else 0
        self.notes = tuple(self._said(predicts))

    def _said(self, predicts: bool) -> list[str]:
        """What a page says of how the module is called."""
        said = [f"Called as {self._convention}."]
        if self._size is None:
            said.append("It takes vectors: every token is given a random one, the same wherever it stands.")
        if predicts and not self.vocab_size:
            said.append(
                "Nothing says that it hides later positions, so its guesses of a next token are not judged: --causal."
            )
        if not predicts:
            said.append("Its output is not as wide as a vocabulary, so there are no predictions and no losses.")
        return said

    def example(self, text: str) -> str:
        """What a page begins with."""
        if self.symbols:
            return text[: self.window]
        tokens = min(REPEATED, self._size or REPEATED)
        return " ".join(str(place % tokens) for place in range(min(self.window, 2 * REPEATED)))

    @property
    def window(self) -> int:
        """Tokens that it is given at once where nobody typed them."""
        return min(EXAMPLE, self._longest) if self._convention.any_length else self._convention.length

    @property
    def _longest(self) -> int:
        return self._convention.longest or LONGEST

    def sides(self, asked: Asked) -> tuple[Side, ...]:
        """The tokens."""
        require_text(asked.text)
        tokens, pieces = self._tokens(asked.text)
        require_short(len(tokens), self._longest, "tokens")
        if not self._convention.any_length and len(tokens) != self._convention.length:
            raise DataError(
                f"this module reads {self._convention.length} tokens, neither more nor fewer; got {len(tokens)}"
            )
        return (side_of_text(tokens, pieces, predicts=self.vocab_size > 0),)

    def _tokens(self, text: str) -> tuple[list[int], list[str]]:
        if self.symbols:
            unknown = next((one for one in text if one not in self.symbols), None)
            if unknown is not None:
                raise DataError(f"the text given has no character {unknown!r}; type characters that it has")
            return [self.symbols.index(one) for one in text], list(text)
        pieces = text.split()
        if not all(one.isdecimal() for one in pieces):
            raise DataError(
                "tokens are numbers with blanks between them; to type texts, start a module with --text FILE, and keep "
                f"{TOKENIZER} in the folder of a checkpoint"
            )
        tokens = [int(one) for one in pieces]
        if self._size is not None and max(tokens) >= self._size:
            raise DataError(f"there is no token {max(tokens)}, only {self._size}, counted from 0")
        return tokens, [f"{one} " for one in pieces]

    def inputs(self, sides: Sequence[Side]) -> list[Tensor]:
        """Tokens, or vectors that stand for them."""
        tokens = [side.inputs for side in sides]
        if self._size is not None:
            return [torch.tensor([one]) for one in tokens]
        return [torch.stack([self._vector(int(token)) for token in one])[None] for one in tokens]

    def _vector(self, token: int) -> Tensor:
        return torch.randn(self._convention.d_in, generator=torch.Generator().manual_seed(SEED + token))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Characters, or numbers."""
        return [self.symbols[token] if token < len(self.symbols) else f"{token} " for token in tokens]


LONGEST = 1024
"""Tokens that are read at once, of a module that names no limit: a map of that size has a million weights."""
