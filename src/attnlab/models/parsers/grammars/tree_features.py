"""What is seen of whole trees: of each constituent and each word, with what is around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from attnlab.models.parsers.brackets import SpansAndTags
from attnlab.models.parsers.grammars.symbols import Symbols
from attnlab.models.parsers.parser import BASE, BITS
from attnlab.models.parsers.templates import Templates

MOST = 10  # words of the longest constituent whose length is told, and parts of one whose places are
NAMES = "x c g l m n r w z b a t u v y s e k q o"
SEEN = (
    "r", "r c", "r c g", "x c g", "c l x", "c m l x", "c l x n", "g c l x", "x t", "x u", "x v t", "x u y", "x v y",
    "x w", "x z", "x b", "x a", "x b w", "x z a", "c x w", "g c x w", "l x b w", "x s e", "x s y", "c x s", "k e",
    "c k e", "l q", "x l q", "x l o",
)  # fmt: skip
"""Of a constituent or a word: x, its symbol; c and g, those of what is around it and of what is around that; l, m and
n, of what stands to its left, to the left of that and to its right; r, its parts; w and z, its first and last word; b
and a, the words before and after it; t, u, v and y, the tags of these; s, its length; e, how far it ends from the end
of the sentence; k, whether it is a word; q and o, how far it is like m and by how much longer."""


@final
class TreeFeatures:
    """Number what is seen of trees by places in a table of weights.

    Parameters
    ----------
    symbols : Symbols
        Of constituents and words.
    size : int
        Rows of the table.
    """

    def __init__(self, symbols: Symbols, size: int) -> None:
        self._symbols = symbols
        self._templates = Templates(NAMES, SEEN, size)

    def __call__(
        self, trees: Sequence[SpansAndTags], words: Int[Tensor, " words"]
    ) -> tuple[Int[Tensor, "nodes templates"], Int[Tensor, " nodes"]]:
        """The rows of each node of some trees over the same words, given by their numbers, and the tree of each."""
        nodes = [(number, *node) for number, tree in enumerate(trees) for node in self._nodes(*tree)]
        first = torch.tensor([tree for tree, *_ in nodes]).bincount().cumsum(0).roll(1)
        first[0] = 0
        tree, symbol, start, end, parent, left, place = torch.tensor(nodes, device=words.device).T
        none = len(nodes)  # what is not there comes last
        parent, left = (torch.where(one < 0, none, one + first.to(one.device)[tree]) for one in (parent, left))
        symbol, parent, left = (
            torch.cat((one, one.new_tensor([last]))) for one, last in ((symbol, -1), (parent, none), (left, none))
        )
        right = torch.full_like(left, none).scatter(0, left[:-1], torch.arange(none, device=left.device))
        right[-1] = none
        powers = torch.full((MOST,), BASE, device=words.device).cumprod(0)[place.clamp(max=MOST - 1)]
        made = torch.zeros_like(symbol).index_add(0, parent[:-1], (symbol[:-1] + 1) * powers) & BITS
        deep = torch.zeros_like(symbol).index_add(0, parent[:-1], (made[:-1] + symbol[:-1] + 1) * powers) & BITS
        length, other = torch.cat((end - start, end.new_zeros(1))), left[left]
        same = torch.stack([one == one[other] for one in (symbol, made, deep)]).long().cumprod(0).sum(0)
        shown = torch.nn.functional.pad(words, (1, 1), value=-1)
        is_word = symbol < self._symbols.tags
        tags = symbol.new_full((len(trees), len(words) + 2), -1)
        tags[tree[is_word[:-1]], start[is_word[:-1]] + 1] = symbol[:-1][is_word[:-1]]
        edges = (start + 1, end, start, end + 1)
        seen = (
            *(symbol[at][:-1] for at in (slice(None), parent, parent[parent], left, other, right)),
            made[:-1],
            *(shown[at] for at in edges),
            *(tags[tree, at] for at in edges),
            (end - start).clamp(max=MOST),
            (len(words) - end).clamp(max=2),
            is_word[:-1].long(),
            torch.where(other == none, -1, same)[:-1],
            torch.where(other == none, -3, (length - length[other]).clamp(-2, 2))[:-1],
        )
        return self._templates(torch.stack(seen, dim=1)), tree

    def _nodes(self, spans: Sequence[tuple[int, int, tuple[int, ...]]], tags: Sequence[int]) -> list[tuple[int, ...]]:
        """Symbol, start, end, parent, left neighbor and place of each constituent and word; -1 where there is none."""
        every = [(start, -end, 0, self._symbols.of(chain)) for start, end, chain in spans]
        every += [(at, -at - 1, 1, tag - self._symbols.brackets.words.start) for at, tag in enumerate(tags)]
        found: list[tuple[int, ...]] = []
        around, parts = list[int](), dict[int, list[int]]()
        for start, end, _, symbol in sorted(every):
            while around and found[around[-1]][2] <= start:
                around.pop()
            parent = around[-1] if around else -1
            before = parts.setdefault(parent, [])
            around.append(len(found))
            left = before[-1] if before else -1
            before.append(len(found))
            found.append((symbol, start, -end, parent, left, len(before) - 1))
        return found
