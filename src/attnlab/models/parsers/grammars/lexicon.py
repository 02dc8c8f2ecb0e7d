"""How likely words are under tags: by how often they were seen, and by how words end."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.models.parsers.grammars.counts import FIRST, FREE, UNSEEN, Counts, Registry, smoothed, tally
from attnlab.models.parsers.parser import BITS

LIKE = 1.0
"""Times that each word counts as seen with the tags of words that end like it, beside the times that it was seen."""
ANY = 1.0
"""Words that each ending counts as seen on, with the tags of all words."""
BLURRED = 0.1
"""Share of a word's probability under a kind of a tag that is the mean over all its kinds."""


@final
class Lexicon(nn.Module):
    """Count words, and endings of words when they are met first, with their tags.

    Parameters
    ----------
    capacity : int
        Pairs of a word, or an ending, and its tag that find a place.
    tags : int
        How many there are.
    kinds : int
        Of each tag, at most.

    Notes
    -----
    ``P(word | kind) = (C(word, kind) + LIKE P(kind | ending)) / sum``, where ``P(kind | ending)`` are shares of
    distinct pairs of a word and its tag, drawn towards those of all: what is rare takes other tags than it was seen
    with, and what is new the tags of its ending.
    """

    seen: Float[Tensor, " capacity"]

    def __init__(self, capacity: int, *, tags: int, kinds: int) -> None:
        super().__init__()
        self.tags, self.registry = tags, Registry(capacity)
        self.kinds = nn.Parameter(torch.full((capacity, kinds), FIRST))
        self.register_buffer("seen", torch.zeros(capacity, dtype=torch.float64))

    def count(self, words: Int[Tensor, " pairs"], endings: Int[Tensor, " pairs"]) -> None:
        """Count pairs of words and tags, given by `keys`, and their endings where they are new."""
        new = (self.registry.find(words) == self.registry.unknown).nonzero()[:, 0]
        order = words[new].argsort(stable=True)
        first = torch.ones_like(order, dtype=torch.bool)
        first[1:] = words[new][order][1:] != words[new][order][:-1]
        for keys in (words, endings[new[order[first]]]):
            tally(self.seen, self.registry.add(keys))

    def keys(self, words: Int[Tensor, " *words"], tags: Int[Tensor, " *words"]) -> Int[Tensor, " *words"]:
        """The keys of pairs of words, or endings, and tags."""
        return words * self.tags + tags

    def counts(self, kinds: int) -> Counts:
        """What was counted, by so many kinds; the symbol of a place that is free is one behind the last tag."""
        used = max(1, self.registry.used)
        keys = self.registry.keys[:used]
        return Counts(
            self.seen[:used], self.kinds[:used, :kinds], torch.where(keys == FREE, self.tags, keys % self.tags)
        )


@final
class WordShares:
    """Give the probabilities of words under kinds of tags.

    Parameters
    ----------
    lexicon : Lexicon
        That has counted.
    counts : Counts
        What it has counted, with kinds or without.

    Attributes
    ----------
    totals : Tensor
        How often each kind of each tag was made into a word, (tags, kinds).
    """

    def __init__(self, lexicon: Lexicon, counts: Counts) -> None:
        self._lexicon, self._counts = lexicon, counts
        keys = lexicon.registry.keys[: len(counts.seen)]
        self._stems, groups = (keys // lexicon.tags).unique(return_inverse=True)
        ending = (keys // lexicon.tags > BITS) & (keys != FREE)
        seen = counts.seen * ending
        self._sizes = seen.new_zeros(len(self._stems)).index_add(0, groups, seen)  # on how many words endings were seen
        sizes, by_kind = self._sizes[groups], counts.of_parents()
        none = by_kind.new_zeros(lexicon.tags + 1, by_kind.shape[1])
        of_all = none.index_add(0, counts.parents, by_kind * ending[:, None])
        self._any = of_all / of_all.sum().clamp(min=UNSEEN)
        weights = torch.where(ending, LIKE * sizes / (sizes + ANY), 1.0)
        rest = LIKE * (self._sizes * ANY / (self._sizes + ANY)).sum()
        self.totals = (none.index_add(0, counts.parents, by_kind * weights[:, None]) + rest * self._any)[:-1]

    def __call__(
        self, words: Int[Tensor, " pairs"], endings: Int[Tensor, " pairs"], tags: Int[Tensor, " pairs"]
    ) -> Float[Tensor, "pairs kinds"]:
        """Of words, given with their endings, under tags."""
        own, like = (self._lexicon.registry.find(self._lexicon.keys(one, tags)) for one in (words, endings))
        at = torch.searchsorted(self._stems, endings.contiguous()).clamp(max=len(self._stems) - 1)
        sizes = torch.where(self._stems[at] == endings, self._sizes[at], 0.0)[:, None]
        alike = (self._counts.at(like) + ANY * self._any[tags]) / (sizes + ANY)
        found = (self._counts.at(own) + LIKE * alike) / self.totals[tags].clamp(min=UNSEEN)
        return smoothed(found, BLURRED) + UNSEEN  # before anything was counted, too
