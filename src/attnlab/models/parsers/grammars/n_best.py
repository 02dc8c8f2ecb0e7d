"""The best trees of a forest, in order of score."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import final

Children = tuple[int, ...]
Ranks = tuple[int, ...]
Way = tuple[float, Children]
"""The score of a way to make a node, and the nodes that it is made of; none of a leaf."""


def n_best(ways: Sequence[Sequence[Way]], top: int, count: int) -> list[tuple[float, list[int]]]:
    """The best trees, the best first: the score of each, and its nodes, each before those it is made of.

    Parameters
    ----------
    ways : sequence of sequence of tuple
        In which each node may be made, no two of the same nodes; a tree's score is the sum over those it is made in.
    top : int
        The node that all trees are below.
    count : int
        How many trees are wanted; where there are fewer, all of them are found.

    Notes
    -----
    Lazily: the next best of a node is looked for when a tree above asks for it.

    References
    ----------
    .. [1] Huang, Chiang, 2005, "Better k-best parsing", algorithm 3.
    """
    lazy = _Lazy(ways)
    found: list[tuple[float, list[int]]] = []
    while len(found) < count and (score := lazy.score(top, len(found))) is not None:
        found.append((score, lazy.nodes(top, len(found))))
    return found


@final
class _Lazy:
    """Find the trees below each node one after the other."""

    def __init__(self, ways: Sequence[Sequence[Way]]) -> None:
        self._ways = ways
        self._found: dict[int, list[tuple[float, int, Ranks]]] = {}  # minus the score, the way, which trees of children
        self._waiting: dict[int, list[tuple[float, int, Ranks]]] = {}
        self._met: set[tuple[int, int, Ranks]] = set()

    def score(self, node: int, rank: int) -> float | None:
        """The score of a node's tree of some rank, from 0; None where there are fewer."""
        if node not in self._found:
            self._found[node], self._waiting[node] = [], []
            for way, (_, children) in enumerate(self._ways[node]):
                self._offer(node, way, (0,) * len(children))
        found, waiting = self._found[node], self._waiting[node]
        while len(found) <= rank and waiting:
            found.append(heapq.heappop(waiting))
            _, way, ranks = found[-1]
            for place, of_child in enumerate(ranks):
                self._offer(node, way, (*ranks[:place], of_child + 1, *ranks[place + 1 :]))
        return -found[rank][0] if rank < len(found) else None

    def _offer(self, node: int, way: int, ranks: Ranks) -> None:
        if (node, way, ranks) in self._met:
            return
        self._met.add((node, way, ranks))
        total, children = self._ways[node][way]
        for child, rank in zip(children, ranks, strict=True):
            score = self.score(child, rank)
            if score is None:
                return
            total += score
        heapq.heappush(self._waiting[node], (-total, way, ranks))

    def nodes(self, node: int, rank: int) -> list[int]:
        """The nodes of a tree that was found."""
        _, way, ranks = self._found[node][rank]
        pairs = zip(self._ways[node][way][1], ranks, strict=True)
        return [node, *(one for child, of_child in pairs for one in self.nodes(child, of_child))]
