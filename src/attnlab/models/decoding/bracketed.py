"""Let a model write nothing but trees: brackets that match, over exactly the words that are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlab.core.errors import SpecError
from attnlab.models.decoding.generation import EndMarks, Writer

LONGEST_CHAIN = 8
"""Brackets that may open at one word, one after the other."""


@final
class BracketedWriter:
    """Give no probability to a token after which no tree can come.

    Parameters
    ----------
    writer : Writer
        What continues sequences.
    allowed : Tensor
        True at the tokens that may stand for each word of each sentence, (sentences, longest, vocab_size).
    words : sequence of int
        How many words each sentence has.
    opening : Tensor
        True at the tokens that open a bracket.
    close : int
        The token that closes one.
    marks : EndMarks
        What begins and ends a sequence.
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

    References
    ----------
    .. [1] Vinyals et al., 2015, arXiv:1412.7449, section 3.2 (malformed trees of a model that may write anything).
    """

    def __init__(
        self,
        writer: Writer,
        *,
        allowed: Bool[Tensor, "sentences longest vocab"],
        words: Sequence[int],
        opening: Bool[Tensor, " vocab"],
        close: int,
        marks: EndMarks,
        limits: Sequence[int],
    ) -> None:
        for count, limit in zip(words, limits, strict=True):
            if count < 1 or limit < count + 3:
                raise SpecError(f"a tree over {count} words does not fit into {limit} tokens")
        self._writer, self._allowed, self._opening, self._close, self._marks = writer, allowed, opening, close, marks
        self._sentence = torch.arange(len(words))
        self._left = torch.tensor(words)  # words that are to come
        self._read = torch.zeros(len(words), dtype=torch.long)
        self._depth = torch.zeros(len(words), dtype=torch.long)
        self._chain = torch.zeros(len(words), dtype=torch.long)  # brackets opened since the last word or closing one
        self._room = torch.tensor(limits)

    def advance(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Add a token to every sequence and return the logits of the next, minus infinity where no tree can come."""
        logits = self._writer.advance(tokens)
        told = tokens.cpu()
        if not bool((told == self._marks.begin).all()):
            opens, closes = self._opening[told], told == self._close
            word = ~opens & ~closes & (told != self._marks.end)
            self._depth += opens.long() - closes.long()
            self._left -= word.long()
            self._read += word.long()
            self._chain = torch.where(opens, self._chain + 1, 0)
            self._room -= 1
        return logits.masked_fill(~self._possible(logits.shape[-1]).to(logits.device), -torch.inf)

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Keep some sequences, in a new order."""
        self._writer.select(rows)
        for name in ("_sentence", "_left", "_read", "_depth", "_chain", "_room"):
            setattr(self, name, getattr(self, name)[rows])

    def _possible(self, vocab: int) -> Bool[Tensor, "rows vocab"]:
        left, depth = self._left > 0, self._depth
        fits = self._room >= self._left + depth + 3  # with one bracket more, what closes it, and the end
        opens = left & fits & (self._chain < LONGEST_CHAIN)
        words = left & (depth > 0)
        closes = (self._chain == 0) & torch.where(left, depth > 1, depth > 0)
        ends = ~left & (depth == 0)
        found = torch.zeros(len(depth), vocab, dtype=torch.bool)
        known = self._opening.shape[0]  # a model may have logits of more tokens than there are
        found[:, :known] = opens[:, None] & self._opening
        at = self._read.clamp(max=self._allowed.shape[1] - 1)
        found[:, :known] |= words[:, None] & self._allowed[self._sentence, at]
        found[:, self._close] = closes
        found[:, self._marks.end] = ends | ~found.any(dim=1)  # a search may keep a row that it gave no probability
        return found
