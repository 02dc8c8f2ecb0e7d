"""A look at a model: what it makes of an input, position by position, and where every head looks."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import RunError
from attnlab.core.files import finite
from attnlab.core.sizes import require_known
from attnlab.inspection import ablate, capture
from attnlab.inspection.interventions import How
from attnlab.models.decoding.writers import device_of
from attnlab.studies.using.measured import measured_run
from attnlab.studies.using.trained import Trained, load_run, parse, sentence_codec
from attnlab.studies.using.translating import Search, translations
from attnlab.tasks.codecs import ClassCodec, NumbersCodec, SentenceCodec, TreeCodec
from attnlab.viewer.inside.asked import Asked
from attnlab.viewer.inside.explaining import Chosen, explanation
from attnlab.viewer.inside.heads import Heads, full_map, heads_of, require_head, small_maps
from attnlab.viewer.inside.measuring import HeldOutHeads
from attnlab.viewer.inside.reading import (
    AbstractReader,
    ClassReader,
    SentenceReader,
    SeriesReader,
    Side,
    TextReader,
    TreeReader,
)

KEPT_TRANSLATIONS = 64  # of each model


@final
@dataclass(frozen=True)
class Seen:
    """Hold what a model did with what it read."""

    sides: tuple[Side, ...]  # what it read, the side on which it predicts last
    output: Float[Tensor, "answers features"]  # of the last positions of the last side: logits, or numbers
    heads: Mapping[str, Heads]  # by name of the attention


@final
class ModelInView:
    """Look at a model as often as asked; the last look is kept, so that its maps need no other.

    Parameters
    ----------
    model : nn.Module
        In evaluation mode.
    reader : AbstractReader
        What the model is given, and what its output means.
    write : callable, optional
        Translates a text with heads off in some way; of models that translate.
    measure : callable, optional
        Reads the held-out data on which heads are measured; where there are some.
    """

    def __init__(
        self,
        model: nn.Module,
        reader: AbstractReader,
        *,
        write: Callable[..., str] | None = None,
        measure: Callable[[], HeldOutHeads] | None = None,
    ) -> None:
        self._model, self._reader, self._write, self._measure = model, reader, write, measure
        self._kept: tuple[Asked, Seen] | None = None
        self._whole: tuple[tuple[Side, ...], Tensor] | None = None  # what it read last, and the whole model's output
        self._measured: HeldOutHeads | None = None

    def look(self, asked: Asked) -> dict[str, Any]:
        """What the model makes of an input, as JSON types.

        Parameters
        ----------
        asked : Asked
            The input, and what is switched off.

        Returns
        -------
        dict
            ``sides``: by sequence its ``name`` and ``tokens``, each with ``text``, ``span``, and where something is
            predicted ``loss``, ``before`` (the loss with nothing switched off), in nats, and ``guesses``, the likeliest
            tokens with their probabilities. ``series``, of models of numbers: ``input``, ``wanted``, ``prediction``,
            ``before``, and the mean squared errors of the last two. ``classes``, of classifiers: ``name``, ``chance``
            and ``before`` of each. ``vocab_size``. ``layers``: of every attention its
            ``name``, ``sides`` (which sequence asks, which is looked at), ``shape`` [heads, q_len, k_len], and
            ``thumbnails``, base64 of a byte per weight, pooled by maximum to ``thumbnail`` [rows, columns]; 255 stands
            for ``max``. ``notes``: sentences. ``ms``.

        Raises
        ------
        DataError
            If the text is empty, too long, or has a character that the model does not know.
        SpecError
            If there is no such head, or no such way to switch it off.
        """
        began = time.perf_counter()
        seen = self._look(asked)
        if self._whole is None or self._whole[0] != seen.sides:
            self._whole = seen.sides, self._run(seen.sides).output if asked.off else seen.output
        told = self._reader.told(seen.sides, seen.output, self._whole[1], asked)
        layers = [small_maps(name, heads, self._axes(name, seen)) for name, heads in seen.heads.items()]
        ms = round(1000 * (time.perf_counter() - began))
        beside = {"vocab_size": self._reader.vocab_size, "notes": self._reader.notes, "ms": ms}
        return finite({**told, "layers": layers, **beside})

    def head_map(self, asked: Asked, layer: str, head: int, *, shown: str = "weights") -> dict[str, Any]:
        """All that one head computed of an input, as JSON types.

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
        return full_map(layer, self._heads(asked, layer), head, shown)

    def write(self, asked: Asked) -> dict[str, Any]:
        """The translation that the model writes by itself, with what is switched off, and without."""
        if self._write is None:
            raise RunError("this model translates nothing")
        whole = self._write(asked.text)
        return {"whole": whole, "text": self._write(asked.text, asked.off, asked.how) if asked.off else whole}

    def explain(self, asked: Asked, piece: int, layer: str = "", head: int = 0) -> dict[str, Any]:
        """What a prediction is made of, and what it hangs on; see `explanation`.

        Parameters
        ----------
        asked : Asked
            As `look` takes it; what is switched off stays so.
        piece : int
            Which token of the last sequence, counted from 0.
        layer, head : str, int
            The head whose weights are compared; none where there is no name.
        """
        seen = self._look(asked)
        if layer:
            require_head(layer, self._heads(asked, layer), head)
        chosen = Chosen(layer, head, seen.heads[layer].weights[head], self._axes(layer, seen)) if layer else None
        with off(self._model, asked.off, asked.how):
            found = explanation(
                self._model, self._reader, sides=seen.sides, logits=seen.output, piece=piece, chosen=chosen
            )
        return finite(found)

    @property
    def measures(self) -> bool:
        """Whether there are data to measure heads on."""
        return self._measure is not None

    def heads(self) -> dict[str, Any]:
        """The heads that can be measured on held-out data, and what kinds they are; see `HeldOutHeads.begin`."""
        return finite(self._held_out().begin())

    def worth(self, place: str, how: How) -> dict[str, Any]:
        """What the model loses on held-out data without one head."""
        return finite(self._held_out().worth(place, how))

    def cost(self, asked: Asked) -> dict[str, Any]:
        """What the model loses on held-out data with all that is off; see `HeldOutHeads.cost`."""
        return finite(self._held_out().cost(asked.off, asked.how))

    def _held_out(self) -> HeldOutHeads:
        """The heads on held-out data, which are read when they are asked for first."""
        if self._measured is None:
            if self._measure is None:
                raise RunError(
                    "there are no data to measure heads on: a model of your own needs --text and predictions"
                )
            self._measured = self._measure()
        return self._measured

    def _look(self, asked: Asked) -> Seen:
        """The look that was asked for; the last one is kept."""
        if self._kept is None or self._kept[0] != asked:
            self._kept = asked, self._run(self._reader.sides(asked), asked)
        return self._kept[1]

    def _run(self, sides: tuple[Side, ...], asked: Asked | None = None) -> Seen:
        """Call the model, watched if something is asked, else whole."""
        model = self._model
        inputs = [one.to(device_of(model)) for one in self._reader.inputs(sides)]
        with torch.no_grad():
            if asked is None:
                return Seen(sides, model(*inputs)[0].float().cpu(), {})
            with off(model, asked.off, asked.how), capture(model) as trace:
                output = model(*inputs)[0].float().cpu()
        return Seen(sides, output, heads_of(trace))

    def _heads(self, asked: Asked, layer: str) -> Heads:
        heads = self._look(asked).heads
        require_known("layer", layer, heads)
        return heads[layer]

    def _axes(self, name: str, seen: Seen) -> Sequence[int | None]:
        """Which sequence the rows of a map are, and which its columns; None where their length does not tell it."""
        lengths = [len(side.inputs) for side in seen.sides]
        by_length = [
            lengths.index(one) if lengths.count(one) == 1 else None for one in seen.heads[name].weights.shape[1:]
        ]
        return self._reader.axes([name]).get(name, by_length)


def run_in_view(folder: Path) -> ModelInView:
    """The model of a run as it was saved last; `load_run` says what it raises."""
    trained = load_run(folder)
    model, task = trained.model, trained.task

    def measure() -> HeldOutHeads:
        return HeldOutHeads.of(measured_run(trained))

    numbers = task.kept is None or task.kept.kind == NumbersCodec.kind
    if numbers and task.model_arguments.get("d_in") == 1:
        return ModelInView(model, SeriesReader(task.model_arguments["length"]), measure=measure)
    return writer_in_view(trained, measure=measure)


def writer_in_view(trained: Trained, *, measure: Callable[[], HeldOutHeads] | None = None) -> ModelInView:
    """A model that reads texts: of a run, or a checkpoint with its tokenizer."""
    model, codec, sizes = trained.model, trained.task.codec, trained.task.model_arguments
    if codec.kind == ClassCodec.kind:
        return ModelInView(model, ClassReader(codec), measure=measure)  # pyrefly: ignore
    if codec.kind not in (SentenceCodec.kind, TreeCodec.kind):
        known = sizes["vocab_size"] if codec.kind != "tokens" else 0
        return ModelInView(model, TextReader(codec, known, sizes["max_length"]), measure=measure)  # pyrefly: ignore
    made = _tree if isinstance(codec, TreeCodec) else _translation
    write = functools.lru_cache(KEPT_TRANSLATIONS)(functools.partial(made, trained))
    if isinstance(codec, TreeCodec):
        reader: AbstractReader = TreeReader(codec, model, write)
    else:
        reader = SentenceReader(codec, model, write, sizes["target_vocab_size"])
    return ModelInView(model, reader, write=write, measure=measure)


def _translation(trained: Trained, text: str, switched_off: tuple[str, ...] = (), how: How = "zero") -> str:
    """A translation; with something switched off, nothing is kept from token to token, so that it is off in all."""
    model, codec = trained.model, sentence_codec([trained])
    with off(model, switched_off, how):
        return translations([model], codec, [text], Search(cached=not switched_off))[0].text


def _tree(trained: Trained, text: str, switched_off: tuple[str, ...] = (), how: How = "zero") -> str:
    """A tree in brackets, likewise."""
    with off(trained.model, switched_off, how):
        return parse([trained], [text], cached=not switched_off)[0]


def off(model: nn.Module, places: Sequence[str], how: How) -> AbstractContextManager[None]:
    """Switch heads off while the context is open."""
    require_known("how", how, ("zero", "mean"))
    return ablate(model, list(places), how=how)
