"""Many trees in one: nodes, and the ways in which each may be made of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlab.models.parsers.brackets import TreeSpan
from attnlab.models.parsers.grammars.counts import Registry
from attnlab.models.parsers.grammars.symbols import Symbols

Probabilities = Callable[[Tensor], Tensor]
"""From the numbers of rules to their probabilities by kinds of the parent and of each child, in float64."""


@final
class Level(NamedTuple):
    """Hold nodes that are made of earlier ones.

    Parameters
    ----------
    size : int
        How many nodes there are.
    unary : Tensor
        Ways with one child: node within the level, child, number of the rule, (ways, 3).
    binary : Tensor
        Ways with two: node within the level, left child, right child, number of the rule, (ways, 4).
    """

    size: int
    unary: Int[Tensor, "ways 3"]
    binary: Int[Tensor, "ways 4"]

    @property
    def ways(self) -> int:
        """How many ways there are."""
        return len(self.unary) + len(self.binary)


def inside(
    leaves: Float[Tensor, "leaves kinds"],
    levels: Sequence[Level],
    *,
    unary: Probabilities,
    binary: Probabilities,
    weights: Float[Tensor, " ways"],
) -> Float[Tensor, "nodes kinds"]:
    """What all trees below each node come to, by its kind; leaves first, then level by level.

    Parameters
    ----------
    leaves : Tensor
        Of words under their tags.
    levels : sequence of Level
        The nodes of each are numbered behind those before it.
    unary, binary : callable
        Give probabilities of rules.
    weights : Tensor
        What each leaf and each way is multiplied by, those with one child first within a level: the derivative of a
        root's logarithm by it, at 1, is the posterior of that way.

    Returns
    -------
    Tensor
        Products of probabilities as they are: a leaf should be far above 1, or those of long sentences vanish.

    References
    ----------
    .. [1] Baker, 1979, "Trainable grammars for speech recognition".
    .. [2] Eisner, 2016, "Inside-outside and forward-backward algorithms are just backprop".
    """
    values = leaves * weights[: len(leaves), None]
    rest = weights[len(leaves) :, None]
    of_unary = _by_level(unary, [level.unary[:, -1] for level in levels])
    of_binary = _by_level(binary, [level.binary[:, -1] for level in levels])
    for level, one, two in zip(levels, of_unary, of_binary, strict=True):
        found = values.new_zeros(level.size, values.shape[1])
        times_one, times_two, rest = rest.split((len(level.unary), len(level.binary), rest.shape[0] - level.ways))
        node, child, _ = level.unary.T
        found = found.index_add(0, node, torch.einsum("exy,ey->ex", one, values[child]) * times_one)
        node, left, right, _ = level.binary.T
        over_right = torch.einsum("exyz,ez->exy", two, values[right])
        found = found.index_add(0, node, torch.einsum("exy,ey->ex", over_right, values[left]) * times_two)
        values = torch.cat((values, found))
    return values


def _by_level(of: Probabilities, rules: Sequence[Int[Tensor, " ways"]]) -> Sequence[Tensor]:
    """The probabilities of each level's rules, looked up at once: a gradient is as large as all counts."""
    return of(torch.cat([*rules])).split([len(some) for some in rules]) if rules else ()


@final
class BinaryTrees:
    """Make trees binary, and lay out their nodes so that children come first.

    Parameters
    ----------
    symbols : Symbols
        Of the grammar that they are trees of.

    Attributes
    ----------
    leaves : list of tuple of int
        Tree, word, and tag of each.
    """

    def __init__(self, symbols: Symbols) -> None:
        self._symbols = symbols
        self.leaves: list[tuple[int, int, int]] = []
        self._made: list[tuple[int, ...]] = []  # of every node: nothing, child and rule, or left, right and key of rule
        self._heights: list[int] = []
        self._symbol: list[int] = []
        self._tops: list[int] = []  # of every tree

    def grow(self, spans: Sequence[TreeSpan], tags: Sequence[int]) -> None:
        """Add a tree; one without a top gets the most frequent one, one without words one that is unknown."""
        tags = tags or self._symbols.brackets.words[:1]
        whole = bool(spans) and (spans[0].start, spans[0].end) == (0, len(tags))
        around = [] if whole else [TreeSpan(0, len(tags), self._symbols.chains[0])]
        waiting = iter([*around, *spans])
        self._tops.append(self._constituent(next(waiting), _Ahead(waiting), tags))

    def keys(self) -> list[int]:
        """Those of binary rules."""
        return [made[2] for made in self._made if len(made) == 3]

    def singles(self) -> list[int]:
        """The numbers of rules with one child."""
        return [made[1] for made in self._made if len(made) == 2]

    def tops(self) -> list[int]:
        """The symbols of the tops."""
        return [self._symbol[top] for top in self._tops]

    def levels(self, rules: Registry) -> tuple[list[int], list[Level]]:
        """The numbers of the tops, and all nodes that are no leaves, by their height."""
        device = rules.keys.device
        by_height = defaultdict(list)
        for node, height in enumerate(self._heights):
            by_height[height].append(node)
        numbers = [0] * len(self._heights)
        for number, node in enumerate(node for height in sorted(by_height) for node in by_height[height]):
            numbers[node] = number
        found = iter(rules.find(torch.tensor(self.keys(), dtype=torch.long, device=device)).tolist())
        known = {node: next(found) for node, made in enumerate(self._made) if len(made) == 3}
        levels = []
        for height in sorted(by_height)[1:]:
            made = [(place, node, *self._made[node]) for place, node in enumerate(by_height[height])]
            unary = [(place, numbers[one[0]], one[1]) for place, _, *one in made if len(one) == 2]
            binary = [(at, numbers[one[0]], numbers[one[1]], known[node]) for at, node, *one in made if len(one) == 3]
            pairs = torch.tensor(binary, dtype=torch.long, device=device).view(-1, 4)
            singles = torch.tensor(unary, dtype=torch.long, device=device).view(-1, 3)
            levels.append(Level(len(made), singles, pairs))
        return [numbers[top] for top in self._tops], levels

    def _constituent(self, span: TreeSpan, ahead: _Ahead, tags: Sequence[int]) -> int:
        symbols, place, parts = self._symbols, span.start, list[int]()
        while place < span.end:
            if ahead.next and ahead.next.start == place:
                below = ahead.take()
                parts.append(self._constituent(below, ahead, tags))
                place = below.end
            else:
                tag = tags[place] - symbols.brackets.words.start
                self.leaves.append((len(self._tops), place, tag))
                parts.append(self._add(tag))
                place += 1
        symbol = symbols.of(span.chain)
        if len(parts) == 1:
            return self._add(symbol, parts[0], symbols.unary(symbol, self._symbol[parts[0]]))
        right = parts[-1]
        for part in reversed(parts[1:-1]):
            right = self._pair(symbols.rest(span.chain), part, right)
        return self._pair(symbol, parts[0], right)

    def _pair(self, symbol: int, left: int, right: int) -> int:
        return self._add(symbol, left, right, self._symbols.key(symbol, self._symbol[left], self._symbol[right]))

    def _add(self, symbol: int, *made: int) -> int:
        self._made.append(made)
        self._symbol.append(symbol)
        self._heights.append(1 + max((self._heights[child] for child in made[:-1]), default=-1))
        return len(self._made) - 1


@final
class _Ahead:
    """Look at the next of some spans before it is taken."""

    def __init__(self, spans: Iterator[TreeSpan]) -> None:
        self._spans = spans
        self.next = next(spans, None)

    def take(self) -> TreeSpan:
        """The next one."""
        taken, self.next = self.next, next(self._spans, None)
        assert taken
        return taken
