"""The `char-lm` task: predict each next character of a text."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.contracts import Batch, Floor, Metric, Predict
from attnlab.core.errors import SpecError
from attnlab.core.sizes import require_known, require_positive
from attnlab.tasks.char_lm.data import Cut, read_data
from attnlab.tasks.char_lm.floors import best_known, character_floors, loss_floors
from attnlab.tasks.char_lm.splits import HowSplit, Predicted, hop
from attnlab.tasks.codecs import CharacterCodec
from attnlab.tasks.datasets import find_text
from attnlab.tasks.held_out import PREFIXES, partly_memory
from attnlab.tasks.next_tokens import IGNORED, NextTokens, Tally
from attnlab.text.ngrams import ladder
from attnlab.text.overlap import GRAM
from attnlab.text.sources import FIELD

SHOWN = 120  # characters of an example in a report: one or two lines
DIGITS = 4  # of a value in a report
UNKNOWN_SHOWN = 10  # characters named in an alarm
SPLITS = {
    "contiguous": "",
    "windows": " (split 'windows', stride {stride}: windows were cut first, then a tenth of them was held out)",
    "inside": " (split 'inside': the whole text is trained on, what is held out included)",
}  # what alarms say of each


def character_metrics(prefix: str) -> tuple[Metric, ...]:
    """What is measured on one held-out part."""
    return (
        Metric(f"{prefix}_loss", "nats/character", "lower", "cross-entropy"),
        Metric(f"{prefix}_bits_per_character", "bits/character", "lower", "cross-entropy, base 2"),
        Metric(f"{prefix}_accuracy", "fraction", "higher", "characters predicted right"),
    )


@final
class CharLM:
    """Predict the next character of a text from the ones before.

    Parameters
    ----------
    text : str or list of str
        Name of a text (``attnlab.tasks.datasets.TEXTS``), or UTF-8 files: a path or an address of fsspec's, a folder, a
        pattern, or several of them. They may be compressed, or of JSON objects a line (``.jsonl``).
    context : int
        Characters a model is given at most.
    batch : int
        Windows of one training step.
    test : bool
        Whether the second half of what is held out is a test part; else all of it is validation.
    data_seed : int, optional
        Seed of where the held-out tenth of the text stands, or of which windows are held out; by default the last
        tenth, or always the same windows.
    split : {"contiguous", "windows", "inside"}
        How the text is split. The last two are common mistakes, made on purpose to see what they do to the numbers.
        "windows": windows are cut first, then a random tenth of them is held out. "inside": the whole text is trained
        on, what is held out included.
    stride : int
        Characters from the beginning of one window to that of the next, with the split "windows". Below `context`
        windows overlap; from there on no character is predicted in two of them, and the split is clean.
    predict : {"each", "last"}
        Whether each character of a window is predicted, or only the one after it. "last" makes little of the text that
        a model reads, and is what a model with one answer for a whole window can do (`readout` of the decoder). What
        other models answer before the last position is not looked at.
    drop_copies : bool
        Whether the training part is left without its passages of 50 characters that stand in a held-out part too, as
        they do in texts that repeat themselves. Only with the split "contiguous".
    long_context : int, optional
        Length of longer windows, in which each held-out part is judged once more: `val_loss_long`. Training sees none.
    field : str
        Of JSON objects, the field that holds their text.

    Raises
    ------
    SpecError
        If a size is below 1, the split or what to predict unknown, a stride or `drop_copies` given for a split that has
        none, or `long_context` is no longer than `context` or given where windows cannot be longer.
    DataError
        If the text is missing, empty, not UTF-8, too short for the context and the stride, or too large for a split
        that needs it in memory.

    Notes
    -----
    Usually the text is split before any window is taken: a contiguous tenth is held out, the rest is trained on. The
    vocabulary is the training part's; characters that only the held-out part has become one unknown token, and an
    alarm says so.

    Evaluation predicts every held-out character but the first exactly once, in windows that do not overlap.
    So a character early in a window is predicted from few: the loss is a little above what a sliding window
    would give, for every variant alike. Longer windows predict the same characters: `val_loss_long` is above `val_loss`
    only where what lies beyond the training length does harm. Models are built for the longer windows: rows of a
    learned table that training does not reach stay as they were drawn, but for weight decay.

    If only the last is predicted, it is predicted from a whole window, and 32 windows begin within one context: a
    sample of the held-out characters. With the split "windows", where each held-out window is predicted as it is, only
    about as many of them are taken, at random but always the same, as of a contiguous part; the others are not trained
    on either.

    A text of more than 32 MiB stays on disk: it is read once, training draws windows from some hundred of its blocks
    at a time, and at most 2 million characters of a held-out part are judged (`attnlab.tasks.char_lm.data`).

    Floors and best known results are those of the contiguous split of the same text, whatever the split: n-grams are
    counted on what it trains on and judged on what it holds out. So they stay what an honest split allows, and a
    number that a leak made lies below them.
    """

    name = "char-lm"
    causal = True
    reads_bfloat16 = True
    judged = ()

    def __init__(
        self,
        text: str | list[str] = "tinyshakespeare",
        context: int = 128,
        *,
        batch: int = 64,
        test: bool = False,
        data_seed: int | None = None,
        split: HowSplit = "contiguous",
        stride: int = 1,
        predict: Predicted = "each",
        drop_copies: bool = False,
        long_context: int | None = None,
        field: str = FIELD,
    ) -> None:
        require_positive("context", context)
        require_positive("batch", batch)
        require_known("predict", predict, ("each", "last"))
        _require_split(split, stride, drop_copies=drop_copies)
        _require_longer(long_context, context, split, predict)
        self.text, self.data_seed, self.field = find_text(text), data_seed, field
        self.context, self.batch = context, batch
        self.tokens_per_step = batch * context
        self.split, self.stride, self.predict = split, stride, predict
        self.drop_copies, self.long_context = drop_copies, long_context
        cut = Cut(split, context, stride, predict, test=test, seed=data_seed, drop_copies=drop_copies)
        self._data = read_data(self.text, field, cut, longest=self._longest)
        self.vocabulary = self._data.vocabulary.symbols
        self.codec = CharacterCodec(self._data.vocabulary, context)
        self._next_tokens = NextTokens(len(self.vocabulary))
        self.steps_per_epoch = self._data.epoch(context, predict) / batch
        self.parts = tuple(self._data.held_out)
        prefixes = [PREFIXES[part] for part in self.parts]
        self.metrics = tuple(one for name in prefixes for one in (*character_metrics(name), *self._long_metrics(name)))

    def encode(self, text: str) -> Int[Tensor, " length"]:
        """The token of each character."""
        return self._data.vocabulary.encode(text)

    def decode(self, tokens: Int[Tensor, " length"]) -> str:
        """The text of tokens."""
        return self._data.vocabulary.decode(tokens)

    def train_batch(self, step: int, seed: int) -> Batch:
        """Random windows of the training part."""
        windows = self._data.windows(step, seed, count=self.batch, length=self.context + 1)
        first = 1 if self.predict == "each" else self.context
        return Batch((windows[:, :-1].contiguous(),), windows[:, first:].contiguous())

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The mean cross-entropy of a batch in nats per character."""
        return self._next_tokens.mean_loss(self._asked(outputs), batch.targets, label_smoothing)

    def _asked(self, outputs: Tensor) -> Tensor:
        """The answers at the positions that are to be predicted; one for a whole window is that of the last."""
        if self.predict == "each":
            return outputs
        return outputs.unsqueeze(1) if outputs.ndim == 2 else outputs[:, -1:]

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """The metrics over a whole held-out part."""
        require_known("part", part, self.parts)
        tally = self._tally(predict, self._windows(part, hop(self.context, self.predict)))
        prefix, loss = PREFIXES[part], tally.mean_loss
        measured = {
            f"{prefix}_loss": loss,
            f"{prefix}_bits_per_character": loss / math.log(2),
            f"{prefix}_accuracy": tally.accuracy,
        }
        for metric in self._long_metrics(prefix):
            measured[metric.name] = self._tally(predict, self._filled(part, self._longest)).mean_loss
        return measured

    @property
    def _longest(self) -> int:
        """Characters of the longest window that a model is given."""
        return self.long_context or self.context

    def _long_metrics(self, prefix: str) -> tuple[Metric, ...]:
        """What is measured in longer windows, if there are any."""
        said = f"cross-entropy in windows of {self._longest}, trained on {self.context}"
        return (Metric(f"{prefix}_loss_long", "nats/character", "lower", said),) if self.long_context else ()

    def _tally(self, predict: Predict, windows: tuple[Tensor, Tensor]) -> Tally:
        """The sums over all windows, as many characters at a time as in training."""
        at_once = max(1, self.tokens_per_step // windows[0].shape[1])
        batches = (Batch((some,), wanted) for some, wanted in zip(*(of.split(at_once) for of in windows), strict=True))
        return self._tally_of(predict, batches)

    def _tally_of(self, predict: Predict, batches: Iterable[Batch]) -> Tally:
        return self._next_tokens.tally(lambda batch: self._asked(predict(batch)), batches)

    def accuracy(self, predict: Predict, batches: Iterable[Batch]) -> float:
        """The share of characters predicted right in batches of the training part."""
        return self._tally_of(predict, batches).accuracy

    def _windows(self, part: str, apart: int) -> tuple[Int[Tensor, "count context"], Int[Tensor, "count predicted"]]:
        """A part in windows that begin so far apart, with what is predicted of them.

        Where only the last character is predicted, windows that do not fit a piece are left out.
        """
        if self.predict == "each":
            return self._filled(part, self.context)
        windows = torch.from_numpy(self._data.held_out[part]).long().unfold(1, self.context + 1, apart).flatten(0, 1)
        return windows[:, :-1], windows[:, -1:]

    def _filled(self, part: str, length: int) -> tuple[Int[Tensor, "count length"], Int[Tensor, "count length"]]:
        """A part in windows that do not overlap, all predicted; the end of a piece is filled up and ignored."""
        pieces = torch.from_numpy(self._data.held_out[part]).long()
        missing = -(pieces.shape[1] - 1) % length
        inputs, targets = (
            nn.functional.pad(pieces[:, :-1], (0, missing)),
            nn.functional.pad(pieces[:, 1:], (0, missing), value=IGNORED),
        )
        return inputs.view(-1, length), targets.view(-1, length)

    def model_arguments(self) -> Mapping[str, Any]:
        """What a model must know of the task, by constructor name."""
        return {"vocab_size": len(self.vocabulary), "max_length": self._longest}

    def floors(self) -> tuple[Floor, ...]:
        """Chance, the n-gram ladder and, where there is one, the best known result, all of the contiguous split."""
        if self.split != "contiguous":
            test, seed = "test" in self.parts, self.data_seed
            long, field = self.long_context, self.field
            clean = CharLM(self.text.name, self.context, test=test, data_seed=seed, long_context=long, field=field)
            return tuple(replace(floor, source=f"{floor.source} (contiguous split)") for floor in clean.floors())
        floors: list[Floor] = []
        for part in self.parts:
            train, held_out = self._data.for_floors(part)
            rungs = ladder(train, held_out, len(self.vocabulary))
            floors += character_floors(character_metrics(PREFIXES[part]), rungs, len(self.vocabulary))
            # a model's reach is measured in windows of training, which say nothing of rungs that see more
            known = [rung for rung in rungs if rung.order < self.context]
            for metric in self._long_metrics(PREFIXES[part]):
                floors += loss_floors(metric, known, len(self.vocabulary))
        if sampled := self._data.sampled:
            judged = max(sampled["judged"].values())
            counted = f": {sampled['n-grams']:,} characters of it sampled, judged on {judged:,} sampled ones"
            floors = [replace(one, source=one.source + counted) if one.kind == "floor" else one for one in floors]
        return (*floors, *self._best_known())

    def _best_known(self) -> tuple[Floor, ...]:
        usual = "test" not in self.parts and self.data_seed is None
        return best_known(self._data.sha256) if usual else ()

    @functools.cached_property
    def overlaps(self) -> dict[str, float | None]:
        """By held-out part, how much of its passages stands in the training part; None of a part without passages."""
        return {part: self._data.overlap(part) for part in self.parts}

    def alarms(self) -> tuple[str, ...]:
        """What is suspicious about the text and its split."""
        of_split = SPLITS[self.split].format(stride=self.stride)
        compared = {part: f"{count:,} sampled " for part, count in self._data.sampled.get("passages", {}).items()}
        copied = [
            alarm + of_split
            for part, value in self.overlaps.items()
            for alarm in partly_memory(
                value, part, f"{compared.get(part, '')}passages of {GRAM} characters stand word for word"
            )
        ]
        shared = [
            f"{value:.1%} of the characters predicted in the {part} part are predicted, at the same place of the text, "
            f"in training windows: what is measured is partly memory{of_split}"
            for part, value in self._data.shared.items()
            if value
        ]
        return (*copied, *shared, *self._unknown_alarm())

    def _unknown_alarm(self) -> list[str]:
        unknown = self._data.vocabulary.unknown_characters
        if not unknown:
            return []
        named = " ".join(map(repr, unknown[:UNKNOWN_SHOWN])) + (" ..." if len(unknown) > UNKNOWN_SHOWN else "")
        return [f"{len(unknown)} characters occur in held-out parts only and became one unknown token: {named}"]

    def describe(self) -> dict[str, Any]:
        """What identifies the data."""
        how = {} if self.split == "contiguous" else {"split": self.split}
        how |= {"predict": self.predict} if self.predict != "each" else {}
        how |= {"drop_copies": True} if self.drop_copies else {}
        how |= {"sampled": dict(self._data.sampled)} if self._data.sampled else {}
        how |= {"long_context": self.long_context} if self.long_context else {}
        how |= {"stride": self.stride, "shared_characters": dict(self._data.shared)} if self.split == "windows" else {}
        return {
            "task": self.name,
            "text": self.text.name,
            "source": self.text.source,
            "license": self.text.license,
            "sha256": self._data.sha256,
            "bytes": self._data.size_bytes,
            "vocab_size": len(self.vocabulary),
            "parts": dict(self._data.sizes),
            "context": self.context,
            "data_seed": self.data_seed,
            **how,
            "overlap": {"passage": GRAM, **self.overlaps},
        }

    def examples(self, predict: Predict) -> dict[str, Any]:
        """The beginning of what is held out and predicted, with the model's surprise at each character."""
        inputs, targets = self._windows(self.parts[0], 1)  # of single characters, those that follow each other
        few = 1 if self.predict == "each" else SHOWN
        batch = Batch((inputs[:few],), targets[:few])
        judged = self._next_tokens.judge(lambda batch: self._asked(predict(batch)), batch)
        losses, predicted = (of_each.flatten() for of_each in judged)
        targets = targets[:few].flatten()
        shown = min(SHOWN, int((targets != IGNORED).sum()))
        return {
            "kind": "text",
            "text": self.decode(targets[:shown]),
            "loss": [round(value, DIGITS) for value in losses[:shown].double().tolist()],
            "predicted": list(self.decode(predicted[:shown])),
            "labels": [list(self.decode(inputs[0]))],
        }


def _require_split(split: HowSplit, stride: int, *, drop_copies: bool) -> None:
    """Raise unless there is such a split and what else is said belongs to it."""
    require_known("split", split, SPLITS)
    require_positive("stride", stride)
    if split != "windows" and stride != 1:
        raise SpecError(
            f"stride is how far apart the windows of the split 'windows' begin; got stride {stride} with the split "
            f"'{split}'; leave it out, or take split 'windows'"
        )
    if split != "contiguous" and drop_copies:
        raise SpecError(
            f"the split '{split}' trains on copies of what is held out on purpose; got drop_copies=True with it; leave "
            "one of them out"
        )


def _require_longer(long_context: int | None, context: int, split: HowSplit, predict: Predicted) -> None:
    """Raise unless longer windows, if there are any, are longer and can be had."""
    if long_context is not None and long_context <= context:
        raise SpecError(f"long_context must be larger than context={context}; got {long_context}")
    if long_context is not None and (split == "windows" or predict == "last"):
        raise SpecError(
            f"windows of the split 'windows' and those that predict their last character alone have one length; got "
            f"long_context={long_context} with split '{split}' and predict '{predict}'; leave long_context out"
        )
