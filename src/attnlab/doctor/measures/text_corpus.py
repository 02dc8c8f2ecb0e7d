"""A person's text as a model is trained and judged on it: split first, then cut into windows that do not overlap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from jaxtyping import Int, Int32
from numpy import ndarray
from torch import Tensor

from attnlab.core.errors import DataError
from attnlab.text.characters import Vocabulary, decode_utf8, split_text
from attnlab.text.ngrams import Rung, ladder
from attnlab.text.overlap import overlap

MOST_WINDOWS = 256  # held-out windows: some ten thousand characters, whose mean loss is known to about 0.02 nats
LEAST_WINDOWS = 2  # a mean of one is none


@final
@dataclass(frozen=True)
class Corpus:
    """Hold a text in tokens.

    Parameters
    ----------
    name : str
        Of the file.
    train : Tensor
        The first 90 %.
    held_out : Tensor
        Windows of the rest; the last token of each is the first of the next, so each but the first is predicted once.
    vocab_size : int
        Number of characters.
    rungs : tuple of Rung
        What n-grams reach on the same held-out characters.
    shared : float
        Share of the held-out passages that stand in the training part word for word.
    """

    name: str
    train: Int[Tensor, " n_train"]
    held_out: Int[Tensor, "windows length"]
    vocab_size: int
    rungs: tuple[Rung, ...]
    shared: float

    @property
    def context(self) -> int:
        """How many characters a model sees at most."""
        return self.held_out.size(1) - 1


def read_corpus(path: Path, context: int) -> Corpus:
    """A text, split and numbered, with its ladder."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    text = decode_utf8(content, str(path))
    parts = split_text(text, test=False)
    windows = min(MOST_WINDOWS, (len(parts["validation"]) - 1) // context)
    if windows < LEAST_WINDOWS:
        least = 10 * (LEAST_WINDOWS * context + 1)
        raise DataError(f"{path} is too short to train and to judge on: {least} characters are needed; got {len(text)}")
    vocabulary = Vocabulary(list(parts.values()))
    train, rest = (vocabulary.tokens(part) for part in parts.values())
    held_out, size = rest[: windows * context + 1], len(vocabulary.symbols)
    shared, rungs = overlap(train, rest) or 0.0, tuple(ladder(train, held_out, size))
    return Corpus(path.name, torch.from_numpy(train).long(), _windows(held_out, context), size, rungs, shared)


def _windows(tokens: Int32[ndarray, " n_tokens"], context: int) -> Int[Tensor, "windows length"]:
    return torch.from_numpy(tokens).long().unfold(0, context + 1, context)
