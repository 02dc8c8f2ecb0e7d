"""What a search asks for the next token: one model with kept keys and values or without, or several models."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.errors import ModuleError, SpecError
from attnlab.models.decoding.generation import Writer
from attnlab.models.encoder_decoder import EncoderDecoder
from attnlab.models.parsers.rnng import Rnng
from attnlab.models.recurrent_translation import AbstractRecurrent
from attnlab.models.stacks import Decoder
from attnlab.nn.block import BlockCache


@final
class CachedWriter:
    """Continue sequences with the keys and values of all earlier positions kept.

    Parameters
    ----------
    model : EncoderDecoder
        In evaluation mode.
    source : Tensor
        Tokens that are read, one row per sequence, (batch, s_len).

    Raises
    ------
    ModuleError
        If a part of the decoder keeps no keys and values.
    """

    def __init__(self, model: EncoderDecoder, source: Int[Tensor, "batch s_len"]) -> None:
        self._model = model
        memory, self._real = model.encode(source.to(device_of(model)))
        self._caches = model.decoder.keep(memory)
        self._sentences = torch.arange(len(source))
        self._position = 0

    def advance(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Add a token to every sequence and return the logits of the next."""
        model = self._model
        x = model.target_embedding(tokens.to(self._real.device)[:, None]) * model.scale
        x = model.decoder.step(x, self._caches, self._position, self._real)
        self._position += 1
        return model.read_out(x[:, -1])

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Keep some sequences, in a new order."""
        sentences = self._sentences[rows]
        stayed = torch.equal(sentences, self._sentences)  # beams change places within their sentence
        self._sentences, rows = sentences, rows.to(self._real.device)
        if not stayed:
            self._real = self._real[rows]
        for cache in self._caches:
            cache.select(rows, same_other=stayed)


@final
class RecurrentWriter:
    """Continue sequences from the states behind their last tokens.

    Parameters
    ----------
    model : AbstractRecurrent or Rnng
        In evaluation mode.
    source : Tensor
        Tokens that are read, one row per sequence, (batch, s_len).
    """

    def __init__(self, model: AbstractRecurrent | Rnng, source: Int[Tensor, "batch s_len"]) -> None:
        self._model = model
        self._memory, self._states = model.read(source.to(device_of(model)))

    def advance(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Add a token to every sequence and return the logits of the next."""
        tokens = tokens.to(device_of(self._model))[:, None]
        logits, *_, self._states = self._model.write(tokens, self._memory, self._states)
        return logits[:, 0]

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Keep some sequences, in a new order."""
        rows = rows.to(device_of(self._model))
        self._memory, self._states = (tuple(one[rows] for one in kept) for kept in (self._memory, self._states))


@final
class RecomputingWriter:
    """Continue sequences by calling a model on all of them, from the beginning, at every token.

    Parameters
    ----------
    model : nn.Module
        In evaluation mode; called with the inputs and, last, the tokens so far.
    *inputs : Tensor
        What it is called with before the tokens, one row per sequence.
    """

    def __init__(self, model: nn.Module, *inputs: Tensor) -> None:
        self._model = model
        self._inputs = tuple(one.to(device_of(model)) for one in inputs)
        self._tokens: Tensor | None = None

    def advance(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Add a token to every sequence and return the logits of the next."""
        tokens = tokens.to(device_of(self._model))[:, None]
        self._tokens = tokens if self._tokens is None else torch.cat((self._tokens, tokens), dim=1)
        return self._model(*self._inputs, self._tokens)[:, -1]

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Keep some sequences, in a new order."""
        rows = rows.to(device_of(self._model))
        self._inputs = tuple(one[rows] for one in self._inputs)
        self._tokens = None if self._tokens is None else self._tokens[rows]


@final
class Ensemble:
    """Let several writers continue the same sequences, and average their probabilities.

    Parameters
    ----------
    writers : sequence of Writer
        Of one vocabulary.

    Raises
    ------
    SpecError
        If there is none.
    """

    def __init__(self, writers: Sequence[Writer]) -> None:
        if not writers:
            raise SpecError("an ensemble needs at least one model")
        self._writers = list(writers)

    def advance(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """The logarithms of the mean probabilities of the next token."""
        found = torch.stack([writer.advance(tokens).float().log_softmax(dim=-1) for writer in self._writers])
        return found.logsumexp(dim=0) - math.log(len(self._writers))

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Keep some sequences, in a new order."""
        for writer in self._writers:
            writer.select(rows)


@final
class Without:
    """Continue sequences as another writer does, and never by some tokens.

    Parameters
    ----------
    writer : Writer
        The other one.
    banned : sequence of int
        Tokens that are not to be written.
    """

    def __init__(self, writer: Writer, banned: Sequence[int]) -> None:
        self._writer, self._banned = writer, list(banned)

    def advance(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Add a token to every sequence and return the logits of the next."""
        logits = self._writer.advance(tokens)
        logits[:, self._banned] = -torch.inf
        return logits

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Keep some sequences, in a new order."""
        self._writer.select(rows)


@functools.singledispatch
def writer_for(model: nn.Module, source: Int[Tensor, "batch s_len"], *, cached: bool = True) -> Writer:  # noqa: ARG001
    """What continues translations of some sentences; a model that keeps keys and values registers its own way."""
    return RecomputingWriter(model, source)


@writer_for.register
def _(model: EncoderDecoder, source: Tensor, *, cached: bool = True) -> Writer:
    with contextlib.suppress(ModuleError):  # a mixer without keys and values
        if cached:
            return CachedWriter(model, source)
    return RecomputingWriter(model, source)


@writer_for.register
def _(model: AbstractRecurrent | Rnng, source: Tensor, *, cached: bool = True) -> Writer:
    return RecurrentWriter(model, source) if cached else RecomputingWriter(model, source)


@functools.singledispatch
def caches_for(model: nn.Module) -> list[BlockCache] | None:  # noqa: ARG001
    """What a language model keeps of a text, or None; a model that keeps keys and values registers its own way."""
    return None


@caches_for.register
def _(model: Decoder) -> list[BlockCache] | None:
    with contextlib.suppress(ModuleError):  # a mixer without keys and values
        return model.stack.keep()
    return None


def device_of(model: nn.Module) -> torch.device:
    """Where a model's parameters are."""
    return next(model.parameters()).device


@final
class TextWriter:
    """Continue texts with a language model, whose context they may outgrow.

    Parameters
    ----------
    model : nn.Module
        In evaluation mode; from tokens to logits.
    context : int
        How many tokens the model is given at most: the last ones.

    Notes
    -----
    A decoder keeps keys and values until the context is full. From then on every token is predicted anew from the
    last `context` ones, as all their positions move.
    """

    def __init__(self, model: nn.Module, context: int) -> None:
        self._model, self._context = model, context
        self._tokens = torch.empty(0, 0, dtype=torch.long, device=device_of(model))
        self._caches = caches_for(model)

    def read(self, tokens: Int[Tensor, "rows length"]) -> None:
        """Take tokens that are given, without asking what comes next."""
        if tokens.shape[1]:
            self._take(tokens)

    def advance(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Add a token to every text and return the logits of the next."""
        return self._take(tokens[:, None])

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Keep some texts, in a new order."""
        rows = rows.to(self._tokens.device)
        self._tokens = self._tokens[rows]
        for cache in self._caches or ():
            cache.select(rows)

    def _take(self, tokens: Tensor) -> Tensor:
        tokens = tokens.to(self._tokens.device)
        start = self._tokens.shape[1]
        self._tokens = torch.cat((self._tokens, tokens), dim=1) if start else tokens
        if self._tokens.shape[1] > self._context:
            self._caches = None
        if self._caches is None:
            return self._model(self._tokens[:, -self._context :])[:, -1]
        model = cast(Decoder, self._model)
        return model.logits(model.stack.step(model.embedding(tokens), self._caches, start)[:, -1])
