"""A look at a trained model: what it makes of a text, token by token, and where every head looks. No HTTP in here."""

from __future__ import annotations

import base64
import functools
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnlab.core.errors import DataError, RunError, SpecError
from attnlab.core.files import finite, read_json
from attnlab.core.sizes import require_known
from attnlab.inspection import Captured, ablate, capture
from attnlab.inspection.interventions import How
from attnlab.inspection.maps import LARGEST_BYTE, calls_of_maps
from attnlab.models.decoding.writers import device_of
from attnlab.studies.using.trained import Trained, load_run, sentence_codec
from attnlab.studies.using.translating import sides_of_maps, translations
from attnlab.tasks.codecs import CharacterCodec, SentenceCodec

GUESSES = 5
"""Likeliest tokens that are told at every position."""
THUMBNAIL = 32  # rows and columns of a small map at most
KEPT_TRANSLATIONS = 64  # of each model


@final
@dataclass(frozen=True)
class Asked:
    """Hold what a person wants to see; what is equal is answered alike."""

    text: str  # what is read; of a translation model a sentence
    target: str = ""  # translation that is to be judged; empty: what the whole model writes
    off: tuple[str, ...] = ()  # heads that are switched off, as `ablate` names places
    how: How = "zero"  # what stands in their place, as `ablate` takes it


@final
@dataclass(frozen=True)
class Side:
    """Hold one of the sequences that a model reads, and what it is to predict at each of its positions."""

    name: str  # of the language; "text" of a text
    inputs: tuple[int, ...]  # tokens that are read
    wanted: tuple[int | None, ...]  # the token after each; None: unknown. Empty where nothing is predicted
    pieces: tuple[str, ...]  # every token as a person reads it, that after the last one included
    spans: tuple[tuple[int, int] | None, ...]  # of each piece, the characters of the text that it stands for


@final
@dataclass(frozen=True)
class Heads:
    """Hold what the heads of an attention computed of one sequence."""

    weights: Float[Tensor, "heads q_len k_len"]  # what came out of the normalizer
    scores: Float[Tensor, "heads q_len k_len"] | None  # what went into it; None where it could not be seen
    values: Float[Tensor, "kv_heads k_len d_v"] | None  # likewise

    @classmethod
    def of(cls, seen: Captured, weights: Tensor) -> Heads:
        """The heads of the only sequence of a batch; a module may have folded them into the batch."""
        scores, values = (None if one is None else one.flatten(0, 1) for one in (seen.scores, seen.v))
        return cls(weights.flatten(0, 1), scores, values)

    @classmethod
    def joined(cls, steps: Sequence[Heads]) -> Heads:
        """The steps of a decoder, one query each, as one attention."""
        scores = [one.scores for one in steps if one.scores is not None]
        return cls(
            torch.cat([one.weights for one in steps], dim=1),
            torch.cat(scores, dim=1) if len(scores) == len(steps) else None,
            steps[0].values,
        )

    def visible_scores(self, head: int) -> Float[Tensor, "q_len k_len"] | None:
        """The scores of a head, NaN where no weight came of them."""
        return None if self.scores is None else self.scores[head].masked_fill(self.weights[head] == 0, torch.nan)

    def norms(self, head: int) -> list[float] | None:
        """The length of each key's value vector; several heads may share them."""
        count, values = len(self.weights), self.values
        if values is None or values.shape[1] != self.weights.shape[2] or count % len(values):
            return None
        return values[head * len(values) // count].float().norm(dim=-1).tolist()


@final
@dataclass(frozen=True)
class TextSeen:
    """Hold what a model did with a text."""

    sides: tuple[Side, ...]  # what the model read, the side on which it predicts last
    logits: Float[Tensor, "answers vocab_size"]  # of the tokens after the last positions of the last side
    heads: Mapping[str, Heads]  # by name of the attention


@final
class RunInView:
    """Look at the model of a run, as often as asked; the last look is kept, so that its maps need no other.

    Parameters
    ----------
    trained : Trained
        A translation model or a language model of characters.
    """

    def __init__(self, trained: Trained) -> None:
        self._trained, self._codec = trained, trained.task.codec
        self._written = functools.lru_cache(KEPT_TRANSLATIONS)(self._write)
        self._kept: tuple[Asked, TextSeen] | None = None

    @classmethod
    def load(cls, folder: Path) -> RunInView:
        """The model of a run as it was saved last; `load_run` says what it raises."""
        return cls(load_run(folder))

    def look(self, asked: Asked) -> dict[str, Any]:
        """What the model makes of a text, as JSON types.

        Parameters
        ----------
        asked : Asked
            The text, and what is switched off.

        Returns
        -------
        dict
            ``sides``: by sequence its ``name`` and ``tokens``, each with ``text``, ``span``, and where something is
            predicted ``loss``, ``before`` (the loss with nothing switched off), in nats, and ``guesses``, the likeliest
            tokens with their probabilities. ``vocab_size``. ``layers``: of every attention its ``name``, ``sides``
            (which sequence asks, which is looked at), ``shape`` [heads, q_len, k_len], and ``thumbnails``, base64 of a
            byte per weight, pooled by maximum to ``thumbnail`` [rows, columns]; 255 stands for ``max``. ``ms``.

        Raises
        ------
        DataError
            If the text is empty, too long, or has a character that the model does not know.
        SpecError
            If there is no such head, or no such way to switch it off.
        """
        began = time.perf_counter()
        look = self._look(asked)
        losses = _losses(look)
        before = _losses(self._run(look.sides)) if asked.off else losses
        told: list[dict[str, Any]] = [
            {"name": side.name, "tokens": [_token(*one) for one in zip(side.pieces, side.spans, strict=True)]}
            for side in look.sides
        ]
        for token, loss, whole in zip(told[-1]["tokens"], losses, before, strict=True):
            token |= {"loss": loss, "before": whole}
        self._add_guesses(told[-1]["tokens"], look)
        layers = [_small(name, seen.weights, self._axes(name, seen, look.sides)) for name, seen in look.heads.items()]
        ms = 1000 * (time.perf_counter() - began)
        return finite({"sides": told, "layers": layers, "vocab_size": self._vocab_size, "ms": round(ms)})

    def head_map(self, asked: Asked, layer: str, head: int, *, shown: str = "weights") -> dict[str, Any]:
        """All that one head computed of a text, as JSON types.

        Parameters
        ----------
        asked : Asked
            As `look` takes it.
        layer : str
            Name of an attention.
        head : int
            Its head, counted from 0.
        shown : {"weights", "scores"}
            Weights, or scores before the softmax; those of keys without any weight are NaN.

        Returns
        -------
        dict
            ``shape`` [q_len, k_len], ``values``, base64 of float32 row by row, and ``norms``, the length of each key's
            value vector. What could not be seen is None.

        Raises
        ------
        SpecError
            If there is no such layer or head, or nothing such to show; and what `look` raises.
        """
        require_known("shown", shown, ("weights", "scores"))
        layers = self._look(asked).heads
        require_known("layer", layer, layers)
        return _full(layer, layers[layer], head, shown)

    def write(self, asked: Asked) -> dict[str, Any]:
        """The translation that the model writes by itself, with what is switched off, and without."""
        whole = self._written(asked.text)
        return {"whole": whole, "text": self._written(asked.text, asked.off, asked.how) if asked.off else whole}

    @property
    def _vocab_size(self) -> int:
        codec = self._codec
        return codec.tokenizer.size if isinstance(codec, SentenceCodec) else len(codec.vocabulary.symbols)

    def _write(self, text: str, off: tuple[str, ...] = (), how: How = "zero") -> str:
        """A translation; with something switched off, nothing is kept from token to token, so that it is off in all."""
        model, codec = self._trained.model, sentence_codec([self._trained])
        with _off(model, off, how):
            return translations([model], codec, [text], cached=not off)[0].text

    def _look(self, asked: Asked) -> TextSeen:
        """The look that was asked for; the last one is kept."""
        if self._kept is None or self._kept[0] != asked:
            self._kept = asked, self._run(self._sides(asked), asked)
        return self._kept[1]

    def _run(self, sides: tuple[Side, ...], asked: Asked | None = None) -> TextSeen:
        """Call the model, watched if something is asked, else whole."""
        model = self._trained.model
        inputs = [torch.tensor([side.inputs], device=device_of(model)) for side in sides]
        with torch.no_grad():
            if asked is None:
                return TextSeen(sides, model(*inputs)[0].float().cpu(), {})
            with _off(model, asked.off, asked.how), capture(model) as trace:
                logits = model(*inputs)[0].float().cpu()
        return TextSeen(sides, logits, _heads_of(trace))

    def _sides(self, asked: Asked) -> tuple[Side, ...]:
        """The tokens of a text, and of its translation."""
        if not asked.text.strip():
            raise DataError("there is no text to look at; type some")
        if isinstance(self._codec, CharacterCodec):
            return (_characters(self._codec, asked.text, self._trained.task.model_arguments["max_length"]),)
        source, target = self._codec.languages
        typed = asked.target.strip()
        return (
            _sentence(self._codec, source, asked.text),
            _judged(self._codec, target, typed or self._written(asked.text), cut=not typed),
        )

    def _add_guesses(self, tokens: Sequence[dict[str, Any]], look: TextSeen) -> None:
        """Say at each token what was held likeliest there."""
        known = look.logits.softmax(dim=-1)[
            :, : self._vocab_size
        ]  # some models have logits of more tokens than there are
        found = known.topk(min(GUESSES, self._vocab_size))
        for token, chances, ids in zip(
            tokens[-len(known) :], found.values.tolist(), found.indices.tolist(), strict=True
        ):
            token["guesses"] = list(zip(_pieces(self._codec, ids), chances, strict=True))

    def _axes(self, name: str, heads: Heads, sides: Sequence[Side]) -> Sequence[int | None]:
        """Which sequence the rows of a map are, and which its columns; None where their length does not tell it."""
        known = sides_of_maps(self._trained.model, [name])
        lengths = [len(side.inputs) for side in sides]
        by_length = [lengths.index(one) if lengths.count(one) == 1 else None for one in heads.weights.shape[1:]]
        return known.get(name, by_length)


@final
class KeptMaps:
    """Show the attention maps that a study kept of a run whose model reads no text.

    Parameters
    ----------
    attention : mapping
        What `attnlab.inspection.attention_maps` returned.
    """

    def __init__(self, attention: Mapping[str, Any]) -> None:
        self._labels = attention["labels"]
        self._layers = {layer["name"]: layer for layer in attention["layers"]}

    @classmethod
    def read(cls, path: Path) -> KeptMaps:
        """The maps in a file of a run."""
        attention = read_json(path).get("attention")
        if not attention:
            raise RunError(
                f"the model of {path.parent} reads no text and has no attention: there is nothing to look at"
            )
        return cls(attention)

    def look(self, asked: Asked) -> dict[str, Any]:
        """All maps, as `RunInView.look` tells them, of the sample that was kept."""
        if asked.off:
            raise SpecError("heads of this run cannot be switched off: its maps were kept, its model reads no text")
        sides = [{"name": "positions", "tokens": [_token(text, None) for text in label]} for label in self._labels]
        layers = [_small(name, self._weights(name), layer.get("axes")) for name, layer in self._layers.items()]
        return {"sides": sides, "layers": layers, "vocab_size": 0, "ms": 0}

    def head_map(self, _: Asked, layer: str, head: int, *, shown: str = "weights") -> dict[str, Any]:
        """The map of one head, as `RunInView.head_map` tells it; weights alone were kept."""
        require_known("shown", shown, ("weights",))
        require_known("layer", layer, self._layers)
        return _full(layer, Heads(self._weights(layer), None, None), head, shown)

    def _weights(self, layer: str) -> Float[Tensor, "heads q_len k_len"]:
        kept = self._layers[layer]
        numbers = torch.frombuffer(bytearray(base64.b64decode(kept["weights"])), dtype=torch.uint8)
        return numbers.view(kept["shape"]) * (kept["max"] / LARGEST_BYTE)


def _off(model: torch.nn.Module, off: Sequence[str], how: How) -> AbstractContextManager[None]:
    """Switch heads off while the context is open."""
    require_known("how", how, ("zero", "mean"))
    return ablate(model, list(off), how=how)


def _characters(codec: CharacterCodec, text: str, longest: int) -> Side:
    """A text whose every next character is predicted; what comes after the last one nobody knows."""
    if len(text) > longest:
        raise DataError(f"the text has {len(text)} characters and this model reads at most {longest}; shorten it")
    tokens = codec.vocabulary.encode(text).tolist()
    spans = [(place, place + 1) for place in range(len(text))]
    return Side("text", tuple(tokens), (*tokens[1:], None), (*text, ""), (*spans, None))


def _sentence(codec: SentenceCodec, name: str, text: str) -> Side:
    """A sentence that is read."""
    tokens, spans = _tokens(codec, text)
    return Side(name, tokens, (), tuple(_pieces(codec, tokens)), spans)


def _judged(codec: SentenceCodec, name: str, text: str, *, cut: bool) -> Side:
    """A sentence whose every next token is predicted, from the mark of its begin to that of its end."""
    tokens, spans = _tokens(codec, text)
    most = codec.max_length - 1
    if len(tokens) > most and not cut:
        raise DataError(f"the translation has {len(tokens)} tokens and this model writes at most {most}; shorten it")
    tokens, spans = tokens[:most], spans[:most]
    inputs, wanted = (codec.marks.begin, *tokens), (*tokens, codec.marks.end)
    return Side(name, inputs, wanted, tuple(_pieces(codec, (*inputs, codec.marks.end))), (None, *spans, None))


def _tokens(codec: SentenceCodec, text: str) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """The tokens of a sentence, and which of its characters each of them stands for."""
    found = codec.tokenizer.wrapped.encode(text.strip(), add_special_tokens=False)
    return tuple(found.ids), tuple(found.offsets)


def _pieces(codec: SentenceCodec | CharacterCodec, tokens: Sequence[int]) -> list[str]:
    """Tokens as a person reads them."""
    if isinstance(codec, SentenceCodec):
        return codec.tokenizer.pieces(tokens)
    return [codec.vocabulary.symbols[token] for token in tokens]


def _token(text: str, span: tuple[int, int] | None) -> dict[str, Any]:
    return {"text": text, "span": span}


def _losses(look: TextSeen) -> list[float | None]:
    """By piece of the last side the loss in nats; None where nothing was predicted, or nobody knows what is right."""
    side = look.sides[-1]
    chances = look.logits.log_softmax(dim=-1)
    wanted = side.wanted[-len(chances) :]  # a model may answer for the last positions alone
    found = [None if token is None else -float(chances[row, token]) for row, token in enumerate(wanted)]
    return [None] * (len(side.pieces) - len(found)) + found


def _heads_of(trace: Mapping[str, Captured]) -> dict[str, Heads]:
    """What was seen, by name of the map."""
    seen = {name: Heads.of(one, one.weights) for name, one in trace.items() if one.weights is not None}
    maps = calls_of_maps({name: one.weights for name, one in seen.items()})
    return {name: Heads.joined([seen[call] for call in calls]) for name, calls in maps.items()}


def _small(name: str, weights: Float[Tensor, "heads q_len k_len"], axes: Sequence[int | None] | None) -> dict[str, Any]:
    """An attention with small maps of all its heads."""
    sizes = weights.abs().nan_to_num(nan=0.0, posinf=0.0)
    _, *shape = sizes.shape
    rows, columns = (min(THUMBNAIL, length) for length in shape)
    pooled, largest = F.adaptive_max_pool2d(sizes, (rows, columns)), float(sizes.max())
    return {
        "name": name,
        "sides": axes or [0, 0],
        "shape": list(sizes.shape),
        "max": largest,
        "thumbnail": [rows, columns],
        "thumbnails": _base64((pooled * (LARGEST_BYTE / (largest or 1))).round().byte().cpu().numpy()),
    }


def _full(name: str, heads: Heads, head: int, shown: str) -> dict[str, Any]:
    """The whole map of one head."""
    count, *shape = heads.weights.shape
    if not 0 <= head < count:
        raise SpecError(f"{name} has no head {head}, only {count}, counted from 0")
    values = heads.weights[head] if shown == "weights" else heads.visible_scores(head)
    data = None if values is None else _base64(values.float().cpu().numpy().astype("<f4"))
    return {"shape": shape, "values": data, "norms": finite(heads.norms(head))}


def _base64(numbers: Any) -> str:
    return base64.b64encode(numbers.tobytes()).decode("ascii")
