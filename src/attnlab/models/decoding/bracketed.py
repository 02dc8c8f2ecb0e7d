"""Let a model write nothing but trees: brackets that match, over exactly the words that are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlab.models.decoding.generation import EndMarks, Writer
from attnlab.models.parsers.possible import PossibleTokens


@final
class BracketedWriter:
    """Give no probability to a token after which no tree can come, as `PossibleTokens` says.

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
        self._writer = writer
        self._possible = PossibleTokens(
            allowed, words, opening=opening, close=close, begin=marks.begin, end=marks.end, limits=limits
        )

    def advance(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Add a token to every sequence and return the logits of the next, minus infinity where no tree can come."""
        logits = self._writer.advance(tokens)
        self._possible.add(tokens.cpu())
        return logits.masked_fill(~self._possible.mask(logits.shape[-1]).to(logits.device), -torch.inf)

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Keep some sequences, in a new order."""
        self._writer.select(rows)
        self._possible.select(rows)
