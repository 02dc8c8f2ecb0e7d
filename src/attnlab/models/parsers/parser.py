"""What every model keeps to that finds a tree as a whole, and how pieces of words become words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.models.translator import Source, Target

Losses = Float[Tensor, " batch"]
"""Of each whole tree."""
Allowed = Bool[Tensor, "batch words vocab_size"]
"""True at the tokens that may stand for each word; none of what fills up a short sentence."""
FORBIDDEN = -1e9
"""The score of what cannot be."""
BASE, BITS = 1_000_003, 2**48 - 1
"""Of the numbers that stand for words: sums of their pieces, each times a power of the base, below 2^48."""


class AbstractParser(nn.Module, ABC):
    """Read a sentence, and answer with the loss of a whole tree over it, or with the best one.

    Parameters
    ----------
    source_vocab_size : int
        Number of distinct tokens that are read: words, or pieces of them.
    word_starts : sequence of int
        Tokens that begin with a blank: a word each, but for the first.
    brackets : mapping
        What trees are written with: ``close``, the token that closes a bracket, and how many ``labels`` and ``tags``
        follow it.
    pad : int, default 0
        The token that fills up short sequences.
    """

    @abstractmethod
    def forward(self, source: Source, target: Target) -> Losses:
        """The loss of each tree, given by its brackets, over its sentence."""

    @abstractmethod
    def trees(self, source: Source, allowed: Allowed) -> list[list[int]]:
        """The tokens of the best tree over each sentence."""

    def trees_with(self, others: Sequence[nn.Module], source: Source, allowed: Allowed) -> list[list[int]]:
        """The tokens of the tree over each sentence that several models find together.

        Raises
        ------
        SpecError
            If such models cannot.
        """
        if others:
            raise SpecError(f"{type(self).__name__} finds whole trees and cannot find them together with others")
        return self.trees(source, allowed)


@final
class WordKeys(NamedTuple):
    """Number the words of sentences by their pieces, and by the last of these; no word has a number of the other kind.

    Parameters
    ----------
    words, endings : Tensor
        Of each word.
    """

    words: Int[Tensor, "batch words"]
    endings: Int[Tensor, "batch words"]


@final
class WordPlaces(nn.Module):
    """Say which word each piece belongs to.

    Parameters
    ----------
    vocab_size : int
        Number of distinct pieces.
    word_starts : sequence of int
        Pieces that begin with a blank.
    pad : int
        The piece that fills up short sentences.
    """

    starts: Bool[Tensor, " vocab_size"]

    def __init__(self, vocab_size: int, *, word_starts: Sequence[int], pad: int) -> None:
        super().__init__()
        self.pad = pad
        starts = torch.zeros(vocab_size, dtype=torch.bool)
        starts[list(word_starts)] = True
        self.register_buffer("starts", starts, persistent=False)

    def forward(self, source: Source) -> Int[Tensor, "batch s_len"]:
        """The number of the word, from 0, that each piece belongs to; padding to none, -1."""
        starts = self.starts[source].long()
        words = starts.cumsum(dim=1) - starts[:, :1]  # the first piece may have no blank before it
        return words.masked_fill(source == self.pad, -1)

    def keys(self, source: Source, words: int) -> WordKeys:
        """The numbers of so many words of each sentence."""
        places = self(source)
        real, at = places >= 0, places.clamp(0, words - 1)
        order = torch.arange(source.shape[1], device=source.device).expand_as(source)
        powers = torch.full((source.shape[1],), BASE, device=source.device).cumprod(0)
        whole = torch.zeros(len(source), words, dtype=torch.long, device=source.device)
        first = torch.full_like(whole, source.shape[1] - 1).scatter_reduce(
            1, at, torch.where(real, order, 10**9), "amin"
        )
        last = torch.zeros_like(whole).scatter_reduce(1, at, torch.where(real, order, -1), "amax")
        inner = torch.where(real, (source + 1) * powers[(order - first.gather(1, at)).clamp(min=0)], 0)
        whole = whole.scatter_add(1, at, inner) & BITS
        endings = 2 * source.gather(1, last) + (last > first)
        return WordKeys(whole, endings + BITS + 1)


@final
class WordTable(nn.Module):
    """Embed words as the sums of the vectors of their pieces.

    Parameters
    ----------
    vocab_size : int
        Number of distinct pieces.
    width : int
        Of a vector.
    word_starts, pad
        As `WordPlaces` takes them.
    """

    def __init__(self, vocab_size: int, width: int, *, word_starts: Sequence[int], pad: int) -> None:
        super().__init__()
        self.places = WordPlaces(vocab_size, word_starts=word_starts, pad=pad)
        self.pieces = nn.Embedding(vocab_size, width)
        nn.init.normal_(self.pieces.weight, std=width**-0.5)

    def forward(self, source: Source, words: int) -> Float[Tensor, "batch words width"]:
        """The vectors of so many words of each sentence, zero where it has fewer; pieces of more belong to the last."""
        places = self.places(source)
        pieces = self.pieces(source) * (places >= 0)[..., None]
        places = places.clamp(0, words - 1)[..., None].expand_as(pieces)
        return pieces.new_zeros(len(source), words, pieces.shape[-1]).scatter_add(1, places, pieces)
