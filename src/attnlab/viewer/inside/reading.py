"""How a model reads what a person gives it, and what it says of that: characters, sentences, sequences of numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import DataError
from attnlab.models.parsers.parser import AbstractParser
from attnlab.studies.using.pretrained import StoredSentenceCodec, StoredTextCodec
from attnlab.studies.using.translating import sides_of_maps
from attnlab.tasks.arrays.classify import answers_of
from attnlab.tasks.codecs import CharacterCodec, ClassCodec, SentenceCodec, TextCodec, TreeCodec
from attnlab.viewer.inside.asked import Asked

GUESSES = 5
"""Likeliest tokens that are told at every position."""

Axes = Mapping[str, Sequence[int | None]]
"""By name of an attention which sequence asks, and which is looked at."""


@final
@dataclass(frozen=True)
class Side:
    """Hold one of the sequences that a model reads, and what it is to predict at each of its positions."""

    name: str  # of the language; "text" of a text
    inputs: tuple[int, ...] | tuple[float, ...]  # tokens, or numbers, that are read
    wanted: tuple[int | None, ...]  # the token after each; None: unknown. Empty where nothing is predicted
    pieces: tuple[str, ...]  # every token as a person reads it, that after the last one included
    spans: tuple[tuple[int, int] | None, ...]  # of each piece, the characters of the text that it stands for


class AbstractReader(ABC):
    """Say what a model is given, and what its output means."""

    vocab_size: int = 0
    """Tokens that are predicted; 0 where none are."""
    notes: tuple[str, ...] = ()
    """What a person should know of how the model is called, in sentences."""

    @abstractmethod
    def sides(self, asked: Asked) -> tuple[Side, ...]:
        """What is read, the side on which something is predicted last; raise `DataError` where it cannot be."""

    @abstractmethod
    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Tokens as a person reads them."""

    def inputs(self, sides: Sequence[Side]) -> list[Tensor]:
        """What the model is called with."""
        return [torch.tensor([side.inputs]) for side in sides]

    def axes(self, layers: Iterable[str]) -> Axes:
        """Which sides the maps of attentions are over, where the reader knows."""
        del layers
        return {}

    def told(self, sides: Sequence[Side], output: Tensor, whole: Tensor, asked: Asked) -> dict[str, Any]:
        """What the model made of the sides, and what it makes of them with nothing switched off."""
        del asked
        told: list[dict[str, Any]] = [{"name": side.name, "tokens": _tokens(side)} for side in sides]
        if not self.vocab_size:
            return {"sides": told}
        tokens = told[-1]["tokens"]
        for token, loss, before in zip(tokens, losses(sides[-1], output), losses(sides[-1], whole), strict=True):
            token |= {"loss": loss, "before": before}
        for token, guesses in zip(tokens[-len(output) :], self.guesses(output), strict=True):
            token["guesses"] = guesses
        return {"sides": told}

    def guesses(
        self, logits: Float[Tensor, "answers vocab_size"], count: int = GUESSES
    ) -> list[list[tuple[str, float]]]:
        """What was held likeliest at each position, with its probability."""
        known = logits.softmax(dim=-1)[:, : self.vocab_size]  # some models have logits of more tokens than there are
        found = known.topk(min(count, self.vocab_size))
        return [
            list(zip(self.pieces(ids), chances, strict=True))
            for chances, ids in zip(found.values.tolist(), found.indices.tolist(), strict=True)
        ]


@final
class TextReader(AbstractReader):
    """Read a text whose every next token is predicted.

    Parameters
    ----------
    codec : CharacterCodec, TextCodec or StoredTextCodec
        What tokens mean.
    vocab_size : int
        How many are predicted; 0: no next token is, as later ones are seen.
    longest : int
        Tokens that the model reads at most.
    """

    def __init__(self, codec: CharacterCodec | TextCodec | StoredTextCodec, vocab_size: int, longest: int) -> None:
        self._codec, self._longest = codec, longest
        self.vocab_size = vocab_size
        self.notes = () if vocab_size else ("It sees later tokens too, so there are no guesses of a next one.",)

    def sides(self, asked: Asked) -> tuple[Side, ...]:
        """The text; what comes after its last token nobody knows."""
        require_text(asked.text)
        tokens = self._codec.encode(asked.text)
        require_short(len(tokens), self._longest, "characters" if self._codec.kind == "characters" else "tokens")
        return (side_of_text(tokens, self.pieces(tokens), predicts=self.vocab_size > 0),)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Characters, words or parts of words."""
        return self._codec.pieces(tokens)


@final
class SentenceReader(AbstractReader):
    """Read a sentence, and its translation whose every next token is predicted.

    Parameters
    ----------
    codec : SentenceCodec or StoredSentenceCodec
        What tokens mean.
    model : nn.Module
        Whose axes of maps are told.
    write : callable
        Translates a sentence with the whole model.
    vocab_size : int
        How many tokens it may write.
    """

    def __init__(
        self,
        codec: SentenceCodec | StoredSentenceCodec,
        model: nn.Module,
        write: Callable[[str], str],
        vocab_size: int,
    ) -> None:
        self._codec, self._model, self._write = codec, model, write
        self.vocab_size = vocab_size

    def sides(self, asked: Asked) -> tuple[Side, ...]:
        """The sentence and the translation, from the mark of its begin to that of its end."""
        require_text(asked.text)
        source, target = self._codec.languages
        tokens, spans = self._tokens(asked.text, marked=isinstance(self._codec, StoredSentenceCodec))
        read = Side(source, tokens, (), tuple(self.pieces(tokens)), spans)
        typed = asked.target.strip()
        return read, self._judged(target, typed or self._write(asked.text), cut=not typed)

    def _judged(self, name: str, text: str, *, cut: bool) -> Side:
        tokens, spans = self._tokens(text)
        most = self._codec.max_length - 1
        if len(tokens) > most and not cut:
            raise DataError(
                f"the translation has {len(tokens)} tokens and this model writes at most {most}; shorten it"
            )
        tokens, spans, marks = tokens[:most], spans[:most], self._codec.marks
        inputs, wanted = (marks.begin, *tokens), (*tokens, marks.end)
        return Side(name, inputs, wanted, tuple(self.pieces((*inputs, marks.end))), (None, *spans, None))

    def _tokens(self, text: str, *, marked: bool = False) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """The tokens of a sentence, and which of its characters each of them stands for."""
        found = self._codec.tokenizer.wrapped.encode(text.strip(), add_special_tokens=marked)
        return tuple(found.ids), tuple(found.offsets)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Words, or parts of words."""
        return self._codec.tokenizer.pieces(tokens)

    def axes(self, layers: Iterable[str]) -> Axes:
        """Those of encoder, decoder and what lies between."""
        return sides_of_maps(self._model, layers)


@final
class TreeReader(AbstractReader):
    """Read a sentence, and its tree, whose brackets are predicted one by one unless the model finds trees as a whole.

    Parameters
    ----------
    codec : TreeCodec
        What tokens mean.
    model : nn.Module
        Whose axes of maps are told.
    write : callable
        Writes the tree of a sentence with the whole model, in brackets.
    """

    def __init__(self, codec: TreeCodec, model: nn.Module, write: Callable[[str], str]) -> None:
        self._codec, self._model, self._write = codec, model, write
        if isinstance(model, AbstractParser):
            self.notes = ("This model finds a tree as a whole: no bracket has a loss of its own.",)
        else:
            self.vocab_size = codec.vocabulary.size

    def sides(self, asked: Asked) -> tuple[Side, ...]:
        """The sentence and the tree, from the mark of its begin to that of its end."""
        require_text(asked.text)
        words = self._codec.words_of(asked.text, given=False)
        judged, written = self._codec.read(asked.target.strip() or self._write(asked.text))
        if judged != words:
            raise DataError(f"the tree is over other words, {' '.join(judged)}; the sentence: {' '.join(words)}")
        tokens, marks = self._codec.encode([words])[0], self._codec.marks
        pieces = self._codec.tokenizer.pieces(tokens)
        require_short(len(written) + 1, self._codec.max_length, "tokens of its tree")
        inputs, wanted = (marks.begin, *written), (*written, marks.end)
        shown = [f"{piece} " for piece in self.pieces((*inputs, marks.end))]
        return (
            Side("sentence", tuple(tokens), (), tuple(pieces), (None,) * len(pieces)),
            Side("tree", inputs, wanted, tuple(shown), (None,) * len(shown)),
        )

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Brackets with their labels, and parts of speech."""
        return self._codec.vocabulary.pieces(tokens)

    def axes(self, layers: Iterable[str]) -> Axes:
        """Those of encoder, decoder and what lies between."""
        return sides_of_maps(self._model, layers)


@final
class ClassReader(AbstractReader):
    """Read a text whose class is named.

    Parameters
    ----------
    codec : ClassCodec
        What tokens mean.
    """

    def __init__(self, codec: ClassCodec) -> None:
        self._codec = codec
        self.notes = ("Attention sees what a short text is filled up with, as in training.",)

    def sides(self, asked: Asked) -> tuple[Side, ...]:
        """The text, filled up to what the model reads."""
        require_text(asked.text)
        (tokens,) = self._codec.encode([asked.text])
        require_short(len(tokens), self._codec.max_length, "tokens")
        return (side_of_text(tokens := self._codec.filled(tokens), self.pieces(tokens), predicts=False),)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Words, or parts of words."""
        return self._codec.tokenizer.pieces(tokens)

    def told(self, sides: Sequence[Side], output: Tensor, whole: Tensor, asked: Asked) -> dict[str, Any]:
        """The probability of every class, with and without what is switched off; the likeliest first."""
        names, inputs = self._codec.classes, torch.tensor([sides[0].inputs])
        chances, before = (
            answers_of(one[None], inputs, len(names), padded=True).flatten().softmax(dim=0).tolist()
            for one in (output, whole)
        )
        rows = sorted(zip(names, chances, before, strict=True), key=lambda row: -row[1])
        classes = [{"name": name, "chance": chance, "before": was} for name, chance, was in rows]
        return {**super().told(sides, output, whole, asked), "classes": classes}


@final
class SeriesReader(AbstractReader):
    """Read a sequence of numbers, of which another one of the same length is made.

    Parameters
    ----------
    length : int
        Positions that the model reads.
    """

    def __init__(self, length: int) -> None:
        self._length = length

    def sides(self, asked: Asked) -> tuple[Side, ...]:
        """The sequence."""
        for name, values in (("sequence", asked.values), ("wanted sequence", asked.wanted)):
            if len(values) != self._length and (values or name == "sequence"):
                raise DataError(f"the {name} has {len(values)} numbers and this model reads {self._length}")
        places = tuple(str(place + 1) for place in range(self._length))
        return (Side("positions", asked.values, (), places, (None,) * self._length),)

    def inputs(self, sides: Sequence[Side]) -> list[Tensor]:
        """The numbers, one feature a position."""
        return [torch.tensor(side.inputs)[None, :, None] for side in sides]  # (1, length, 1)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Nothing is written in tokens."""
        return [str(token) for token in tokens]

    def told(self, sides: Sequence[Side], output: Tensor, whole: Tensor, asked: Asked) -> dict[str, Any]:
        """The predictions, and the mean squared error where somebody knows what is right."""
        series: dict[str, Any] = {"input": asked.values, "wanted": asked.wanted}
        for name, predicted in (("prediction", output), ("before", whole)):
            series[name] = predicted.flatten().tolist()
            wanted = torch.tensor(asked.wanted)
            series[f"{name}_error"] = float((predicted.flatten() - wanted).square().mean()) if asked.wanted else None
        return {**super().told(sides, output, whole, asked), "series": series}


def _tokens(side: Side) -> list[dict[str, Any]]:
    return [{"text": text, "span": span} for text, span in zip(side.pieces, side.spans, strict=True)]


def side_of_text(tokens: Sequence[int], pieces: Sequence[str], *, predicts: bool) -> Side:
    """A text, whose every next token may be wanted; after the last one comes a piece of which nothing is known."""
    spans: list[tuple[int, int]] = []
    for piece in pieces:
        start = spans[-1][1] if spans else 0
        spans.append((start, start + len(piece)))
    if not predicts:
        return Side("text", tuple(tokens), (), tuple(pieces), tuple(spans))
    return Side("text", tuple(tokens), (*tokens[1:], None), (*pieces, ""), (*spans, None))


def require_text(text: str) -> None:
    """Raise `DataError` where nothing was typed."""
    if not text.strip():
        raise DataError("there is no text to look at; type some")


def require_short(count: int, longest: int, what: str) -> None:
    """Raise `DataError` where a text is too long."""
    if count > longest:
        raise DataError(f"the text has {count} {what} and this model reads at most {longest}; shorten it")


def losses(side: Side, logits: Float[Tensor, "answers vocab_size"]) -> list[float | None]:
    """By piece of a side the loss in nats; None where nothing was predicted, or nobody knows what is right."""
    chances = logits.log_softmax(dim=-1)
    wanted = side.wanted[-len(chances) :]  # a model may answer for the last positions alone
    found = [None if token is None else -float(chances[row, token]) for row, token in enumerate(wanted)]
    return [None] * (len(side.pieces) - len(found)) + found
