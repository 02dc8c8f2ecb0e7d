"""Text as characters: splitting before windowing, numbering the characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Int, Int32, Int64
from torch import Tensor

from attnlab.core.errors import DataError
from attnlab.text.sources import code_points

UNKNOWN = "\ufffd"  # Unicode's replacement character stands for what the training part lacks
CODE_POINTS = 0x110000  # Unicode's size


def split_places(length: int, *, test: bool, seed: int | None = None) -> dict[str, list[tuple[int, int]]]:
    """Where the parts of a text are, as stretches from one character to before another, before any window is taken.

    A tenth is held out: the last, or with a seed one that begins anywhere; what stands around it is then joined.
    """
    held = length - length * 9 // 10
    begin = length - held if seed is None else int(np.random.default_rng(seed).integers(length - held + 1))
    middle, end = begin + length * 19 // 20 - length * 9 // 10, begin + held
    train = [(0, begin), (end, length)]
    if not test:
        return {"train": train, "validation": [(begin, end)]}
    return {"train": train, "validation": [(begin, middle)], "test": [(middle, end)]}


def split_text(text: str, *, test: bool, seed: int | None = None) -> dict[str, str]:
    """The parts of a text, cut as in `split_places`."""
    places = split_places(len(text), test=test, seed=seed)
    return {part: "".join(text[start:stop] for start, stop in stretches) for part, stretches in places.items()}


@final
class Vocabulary:
    """Number the characters of a training text.

    Parameters
    ----------
    parts : sequence of str
        The training text first; then the texts held out. Characters are taken from the first alone; if
        a later one has others, they all become `UNKNOWN`, which is then part of the vocabulary.

    Notes
    -----
    Characters are Unicode code points in their order. Nothing is learned from the held-out parts but
    whether an unknown token is needed, so that a text without such characters keeps its usual size.
    """

    def __init__(self, parts: Sequence[str]) -> None:
        train, *held_out = (code_points(part) for part in parts)
        known = np.bincount(train, minlength=CODE_POINTS) > 0
        seen = np.zeros_like(known)
        for codes in held_out:
            seen |= np.bincount(codes, minlength=CODE_POINTS) > 0
        self.unknown_characters = [chr(code) for code in np.flatnonzero(seen & ~known)]
        known[ord(UNKNOWN)] |= bool(self.unknown_characters)
        codes = np.flatnonzero(known)
        self.symbols = [chr(code) for code in codes]
        self.table: Int32[np.ndarray, " code_points"] = np.full(CODE_POINTS, -1, dtype=np.int32)
        """The token of each code point, -1 where it has none."""
        self.table[codes] = np.arange(len(codes), dtype=np.int32)

    def encode(self, text: str) -> Int64[Tensor, " length"]:
        """The token of each character."""
        return torch.from_numpy(self.tokens(text)).long()

    def tokens(self, text: str) -> Int32[np.ndarray, " length"]:
        """The token of each character as a numpy array; `encode` says what it raises."""
        tokens = self.table[code_points(text)]
        missing = np.flatnonzero(tokens < 0)
        if not len(missing):
            return tokens
        if UNKNOWN not in self.symbols:
            first = int(missing[0])
            raise DataError(f"the training text has no character {text[first]!r} (position {first} of the text given)")
        tokens[missing] = self.table[ord(UNKNOWN)]
        return tokens

    def decode(self, tokens: Int[Tensor, " length"]) -> str:
        """The text of tokens."""
        return "".join(self.symbols[token] for token in tokens.tolist())
