"""What may be written next, so that nothing but trees over given words comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnlab.core.errors import SpecError

LONGEST_CHAIN = 8
"""Brackets that may open at one word, one after the other."""
TOKENS_A_WORD, MORE = 6, 10
"""A tree may have so many tokens a word, and so many more."""


@final
class PossibleTokens:
    """Follow trees that are written token by token, and say by which tokens each may go on.

    Parameters
    ----------
    allowed : Tensor
        True at the tokens that may stand for each word of each sentence, (sentences, longest, vocab_size).
    words : sequence of int
        How many words each sentence has.
    opening : Tensor
        True at the tokens that open a bracket.
    close, begin, end : int
        The tokens that close a bracket, and that begin and end a sequence.
    limits : sequence of int
        Tokens of the longest sequence of each sentence, its end included.

    Raises
    ------
    SpecError
        If a sentence has no words, or a limit leaves no room for a tree over them.

    Notes
    -----
    The outermost bracket closes behind the last word, and no bracket closes around nothing. While words are left there
    must be room for them, for what is open and for the end.
    """

    def __init__(
        self,
        allowed: Bool[Tensor, "sentences longest vocab"],
        words: Sequence[int],
        *,
        opening: Bool[Tensor, " vocab"],
        close: int,
        begin: int,
        end: int,
        limits: Sequence[int],
    ) -> None:
        for count, limit in zip(words, limits, strict=True):
            if count < 1 or limit < count + 3:
                raise SpecError(f"a tree over {count} words does not fit into {limit} tokens")
        self._allowed, self._opening, self._close, self._begin, self._end = allowed, opening, close, begin, end
        self._sentence = torch.arange(len(words))
        self._left = torch.tensor(words)  # words that are to come
        self._read = torch.zeros(len(words), dtype=torch.long)
        self._depth = torch.zeros(len(words), dtype=torch.long)
        self._chain = torch.zeros(len(words), dtype=torch.long)  # brackets opened since the last word or closing one
        self._room = torch.tensor(limits)

    def add(self, tokens: Int[Tensor, " rows"]) -> None:
        """Take the next token of every tree."""
        if bool((tokens == self._begin).all()):
            return
        opens, closes = self._opening[tokens], tokens == self._close
        word = ~opens & ~closes & (tokens != self._end)
        self._depth += opens.long() - closes.long()
        self._left -= word.long()
        self._read += word.long()
        self._chain = torch.where(opens, self._chain + 1, 0)
        self._room -= 1

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Keep some trees, in a new order."""
        for name in ("_sentence", "_left", "_read", "_depth", "_chain", "_room"):
            setattr(self, name, getattr(self, name)[rows])

    def mask(self, vocab_size: int) -> Bool[Tensor, "rows vocab_size"]:
        """True at every token after which a tree can come; a model may have logits of more tokens than there are."""
        left, depth = self._left > 0, self._depth
        fits = self._room >= self._left + depth + 3  # with one bracket more, what closes it, and the end
        opens = left & fits & (self._chain < LONGEST_CHAIN)
        words = left & (depth > 0)
        closes = (self._chain == 0) & torch.where(left, depth > 1, depth > 0)
        ends = ~left & (depth == 0)
        found = torch.zeros(len(depth), vocab_size, dtype=torch.bool)
        known = self._opening.shape[0]
        found[:, :known] = opens[:, None] & self._opening
        at = self._read.clamp(max=self._allowed.shape[1] - 1)
        found[:, :known] |= words[:, None] & self._allowed[self._sentence, at]
        found[:, self._close] = closes
        found[:, self._end] = ends | ~found.any(dim=1)  # a search may keep a row that it gave no probability
        return found
