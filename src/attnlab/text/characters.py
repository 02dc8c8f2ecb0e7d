"""Text as characters: decoding a file, splitting before windowing, numbering the characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Int, Int32, Int64, UInt32
from torch import Tensor

from attnlab.core.errors import DataError

UNKNOWN = "\ufffd"  # Unicode's replacement character stands for what the training part lacks
CODE_POINTS = 0x110000  # Unicode's size


def decode_utf8(content: bytes, where: str) -> str:
    """Text from bytes that must be UTF-8 and not empty."""
    if not content:
        raise DataError(f"{where} is empty; a text to train on is needed")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{where} must be UTF-8; got byte 0x{content[error.start]:02x} at offset {error.start} (line {line}): "
            f"{error.reason}; save it as UTF-8 and try again"
        ) from error


def split_text(text: str, *, test: bool, seed: int | None = None) -> dict[str, str]:
    """Cut a text into contiguous parts, before any window is taken from it.

    A tenth is held out: the last, or with a seed one that begins anywhere; what stands around it is then joined.
    """
    held = len(text) - len(text) * 9 // 10
    begin = len(text) - held if seed is None else int(np.random.default_rng(seed).integers(len(text) - held + 1))
    middle, end = begin + len(text) * 19 // 20 - len(text) * 9 // 10, begin + held
    train = text[:begin] + text[end:]
    if not test:
        return {"train": train, "validation": text[begin:end]}
    return {"train": train, "validation": text[begin:middle], "test": text[middle:end]}


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
        train, *held_out = (_code_points(part) for part in parts)
        known = np.bincount(train, minlength=CODE_POINTS) > 0
        seen = np.zeros_like(known)
        for codes in held_out:
            seen |= np.bincount(codes, minlength=CODE_POINTS) > 0
        self.unknown_characters = [chr(code) for code in np.flatnonzero(seen & ~known)]
        known[ord(UNKNOWN)] |= bool(self.unknown_characters)
        codes = np.flatnonzero(known)
        self.symbols = [chr(code) for code in codes]
        self._tokens = np.full(CODE_POINTS, -1, dtype=np.int32)
        self._tokens[codes] = np.arange(len(codes), dtype=np.int32)

    def encode(self, text: str) -> Int64[Tensor, " length"]:
        """The token of each character."""
        return torch.from_numpy(self.tokens(text)).long()

    def tokens(self, text: str) -> Int32[np.ndarray, " length"]:
        """The token of each character as a numpy array; `encode` says what it raises."""
        tokens = self._tokens[_code_points(text)]
        missing = np.flatnonzero(tokens < 0)
        if not len(missing):
            return tokens
        if UNKNOWN not in self.symbols:
            first = int(missing[0])
            raise DataError(f"the training text has no character {text[first]!r} (position {first} of the text given)")
        tokens[missing] = self._tokens[ord(UNKNOWN)]
        return tokens

    def decode(self, tokens: Int[Tensor, " length"]) -> str:
        """The text of tokens."""
        return "".join(self.symbols[token] for token in tokens.tolist())


def _code_points(text: str) -> UInt32[np.ndarray, " length"]:
    """The Unicode code point of each character."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
