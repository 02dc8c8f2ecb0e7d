"""The `lm` task: predict each next token of any text, in characters, words or parts of words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.core.build import Spec
from attnlab.core.contracts import Batch, Floor, Metric, Predict
from attnlab.core.generators import generator_for
from attnlab.core.sizes import require_known, require_positive
from attnlab.tasks.char_lm.char_lm import DIGITS, SHOWN
from attnlab.tasks.char_lm.floors import ladder_floors
from attnlab.tasks.codecs import TextCodec
from attnlab.tasks.datasets import find_text
from attnlab.tasks.held_out import PREFIXES, Held, held_parts, partly_memory, require_shares, shares_of
from attnlab.tasks.lm.corpus import Documents
from attnlab.tasks.lm.tokenized import JUDGED, open_corpus
from attnlab.tasks.next_tokens import IGNORED, NextTokens
from attnlab.text.ngrams import LARGEST, ladder
from attnlab.text.sources import FIELD, find_sources

LONGEST_WORD = 20  # characters a word, on average; beyond, a text is taken to have no blanks between words

LARGEST_EXPONENT = 700.0  # what a float holds; of a perplexity beyond it nothing is left to compare


@final
class LM:
    """Predict the next token of a text from the ones before.

    Parameters
    ----------
    text : str or list of str
        As in `CharLM`; also Parquet files and Arrow files of Hugging Face's ``datasets``.
    tokenizer : Spec
        Entry of `TOKENIZERS`, trained on the training part alone, or a ``tokenizer.json`` of Hugging Face's form, or
        the folder of one.
    context : int
        Tokens a model is given at most.
    batch : int
        Windows of one training step.
    validation, test : float, str or list of str, optional
        What is held out: a share of the text's characters, or files as for `text`. There may be no test part.
    join : bool
        Whether a window may span documents; else it is filled up behind the end of its document.
    data_seed : int, optional
        Seed of which documents are held out, or where what is held out of one running text stands; by default the end.
    field : str
        Of JSON objects the field, of tables the column, that holds a text.

    Raises
    ------
    SpecError
        If a size is below 1, what is held out is no share, or there is no such tokenizer.
    DataError
        If a text is missing, cannot be read, or has too little for its parts.

    Notes
    -----
    A document is an object of JSON lines, a row of a table, or else a file. Whole documents are held out. Each ends
    with a token of its own, which is predicted, and from which the first token of the next document is: every token of
    every document is predicted once. A text of one document has no ends: it is cut anywhere, and its first token is
    not predicted.

    A training window begins at a token drawn at random, or as much earlier in its document as it takes to be full.
    Held-out documents are judged in windows that do not overlap, at most their first 2 million tokens.

    Losses of different tokenizers compare per character, byte and word: the loss per token times the tokens, ends
    included, over the characters, bytes or words of the held-out text itself.
    """

    name = "lm"
    causal = True
    reads_bfloat16 = True
    judged = ()

    def __init__(
        self,
        text: str | list[str] = "tinyshakespeare",
        tokenizer: Spec = "bpe",
        *,
        context: int = 128,
        batch: int = 64,
        validation: Held = 0.1,
        test: Held | None = None,
        join: bool = False,
        data_seed: int | None = None,
        field: str = FIELD,
    ) -> None:
        require_positive("context", context)
        require_positive("batch", batch)
        held = held_parts(validation, test)
        shares = shares_of(held)
        require_shares(shares, "text")
        self.text, self.data_seed, self.join = find_text(text), data_seed, join
        self.context, self.batch = context, batch
        given = {part: find_sources(some) for part, some in held.items() if not isinstance(some, int | float)}
        corpus = Documents(self.text.files, given, shares, data_seed, field)
        self._data = open_corpus(corpus, tokenizer, join=join)
        self._held, self._train = held, self._data.parts["train"]
        self.vocab_size = self._data.tokenizer.size
        self.codec = TextCodec(self._data.tokenizer, context, marked=self._data.marked)
        self._next_tokens = NextTokens(self.vocab_size)
        self.tokens_per_step = batch * context
        self.steps_per_epoch = (len(self._train.tokens) - 1) / self.tokens_per_step
        self.parts = tuple(held)
        self.metrics = tuple(metric for part in self.parts for metric in self._measured(part))

    def _scales(self, part: str) -> dict[Metric, Callable[[float], float]]:
        """The metrics that follow from the loss per token of a part, each with how it does."""
        prefix, known = PREFIXES[part], self._data.known["parts"][part]
        per = {unit: known["tokens"] / max(1, known[f"{unit}s"]) for unit in ("character", "byte", "word")}
        found: dict[Metric, Callable[[float], float]] = {
            Metric(f"{prefix}_loss", "nats/token", "lower", "cross-entropy"): lambda loss: loss,
        }
        for unit in ("character", "byte"):
            title = f"cross-entropy, base 2, per {unit} of the text"
            metric = Metric(f"{prefix}_bits_per_{unit}", f"bits/{unit}", "lower", title)
            found[metric] = lambda loss, unit=unit: loss * per[unit] / math.log(2)
        if known["characters"] <= LONGEST_WORD * known["words"]:
            metric = Metric(f"{prefix}_perplexity_per_word", "perplexity", "lower", "perplexity per word of the text")
            found[metric] = lambda loss: math.exp(min(loss * per["word"], LARGEST_EXPONENT))
        return found

    def _measured(self, part: str) -> list[Metric]:
        right = Metric(f"{PREFIXES[part]}_accuracy", "fraction", "higher", "tokens predicted right")
        return [*self._scales(part), right]

    def train_batch(self, step: int, seed: int) -> Batch:
        """Random windows of the training part."""
        places = torch.randint(len(self._train.tokens) - 1, (self.batch,), generator=generator_for(seed, step))
        inputs, targets = self._train.drawn(places.numpy(), self.context)
        return Batch((inputs,), targets)

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The mean cross-entropy of a batch in nats per token."""
        return self._next_tokens.mean_loss(outputs, batch.targets, label_smoothing)

    def targets_of(self, batch: Batch) -> int:
        """The tokens that the mean loss is taken over."""
        return int((batch.targets != IGNORED).sum())

    def accuracy(self, predict: Predict, batches: Iterable[Batch]) -> float:
        """The share of tokens predicted right in batches of the training part."""
        return self._next_tokens.tally(predict, batches).accuracy

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """The metrics over a whole held-out part."""
        require_known("part", part, self.parts)
        windows = self._data.parts[part].whole(self.context, self.batch)
        tally = self._next_tokens.tally(predict, (Batch((some,), wanted) for some, wanted in windows))
        measured = {metric.name: scale(tally.mean_loss) for metric, scale in self._scales(part).items()}
        return {**measured, f"{PREFIXES[part]}_accuracy": tally.accuracy}

    def model_arguments(self) -> Mapping[str, Any]:
        """What a model must know of the task, by constructor name."""
        return {"vocab_size": self.vocab_size, "max_length": self.context}

    def floors(self) -> tuple[Floor, ...]:
        """Chance and the ladder of n-grams of tokens."""
        floors: list[Floor] = []
        for part in self.parts:
            held_out = np.asarray(self._data.parts[part].tokens[: min(JUDGED, LARGEST)])
            rungs = ladder(np.asarray(self._train.tokens[-LARGEST:]), held_out, self.vocab_size)
            floors += ladder_floors(self._scales(part), self._measured(part)[-1], rungs, self.vocab_size)
        return tuple(floors)

    @property
    def overlaps(self) -> dict[str, float | None]:
        """By held-out part the larger share of its passages, or documents, that stand in the training part."""
        known = {part: self._data.known["parts"][part] for part in self.parts}
        return {part: max((one["overlap"] or 0.0), (one["copied_documents"] or 0.0)) for part, one in known.items()}

    def alarms(self) -> tuple[str, ...]:
        """What is suspicious about the text, its parts and its tokens."""
        found = []
        for part in self.parts:
            known = self._data.known["parts"][part]
            for what, share in (
                (f"passages of {known['passage']} tokens", known["overlap"]),
                ("documents", known["copied_documents"]),
            ):
                found += partly_memory(share, part, f"{what} stand word for word")
            if not known["restored"]:
                found.append(
                    f"the tokenizer does not give the {part} part back as it was (unknown words, say, or capitals read "
                    "as small letters): losses per character, byte and word do not compare with other tokenizers'"
                )
        return tuple(found)

    def describe(self) -> dict[str, Any]:
        """What identifies the data."""
        return {
            "task": self.name,
            "text": self.text.name,
            "source": self.text.source,
            "license": self.text.license,
            "sha256": self._data.known["sha256"],
            "vocab_size": self.vocab_size,
            "context": self.context,
            "held_out": dict(self._held),
            "data_seed": self.data_seed,
            "documents": {"ends": self._data.marked, "joined": self.join},
            "parts": self._data.known["parts"],
        }

    def examples(self, predict: Predict) -> dict[str, Any]:
        """The beginning of what is held out, with the model's surprise at each token."""
        inputs, targets = self._data.parts[self.parts[0]].drawn(np.zeros(1, dtype=np.int64), self.context)
        shown = min(SHOWN, int((targets != IGNORED).sum()))
        losses, likeliest = self._next_tokens.judge(predict, Batch((inputs,), targets))
        pieces = self.codec.tokenizer.pieces
        return {
            "kind": "text",
            "text": pieces(targets[0, :shown].tolist()),
            "loss": [round(value, DIGITS) for value in losses[0, :shown].double().tolist()],
            "predicted": pieces(likeliest[0, :shown].tolist()),
            "labels": [pieces(inputs[0].tolist())],
        }
