"""The share of a sentence's trees that each symbol has a part in, at every span."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab.models.parsers.grammars.forest import Level, Probabilities, inside
from attnlab.models.parsers.grammars.symbols import Symbols

Posteriors = Float[Tensor, "places places symbols"]
"""Of each symbol between two places."""


@final
class Grammar(NamedTuple):
    """Give probabilities of a grammar whose symbols have kinds.

    Parameters
    ----------
    root : Tensor
        Of each symbol and kind at the top of a tree.
    binary, unary : callable
        Of rules by their numbers.
    words : callable
        Of words under tags, by the numbers of words, of their endings, and of tags.
    used : Tensor
        Numbers of the binary rules that there are.
    parents, lefts, rights : Tensor
        Their symbols.
    """

    root: Float[Tensor, "symbols kinds"]
    binary: Probabilities
    unary: Probabilities
    words: Callable[[Tensor, Tensor, Tensor], Tensor]
    used: Int[Tensor, " rules"]
    parents: Int[Tensor, " rules"]
    lefts: Int[Tensor, " rules"]
    rights: Int[Tensor, " rules"]


@torch.no_grad()
def posteriors(grammar: Grammar, symbols: Symbols, leaves: Float[Tensor, "words tags"]) -> Posteriors:
    """Of all trees by a grammar without kinds; not a number where there is none.

    Parameters
    ----------
    grammar : Grammar
        With one kind of each symbol.
    symbols : Symbols
        Its symbols.
    leaves : Tensor
        Probabilities of words under their tags, scaled.

    Notes
    -----
    Time O(words^3 rules) at most: pairs of symbols are multiplied as matrices, then looked up by rule.
    """
    parents, rule = grammar.parents, grammar.binary(grammar.used)[:, 0, 0, 0]
    unary = grammar.unary(torch.arange(len(symbols.chains) * symbols.tags, device=leaves.device))
    unary = unary.view(len(symbols.chains), symbols.tags)
    sides = (grammar.lefts, grammar.rights)
    (first, lefts), (second, rights) = (side.unique(return_inverse=True) for side in sides)
    both = lefts * len(second) + rights
    places, count, tags = len(leaves) + 1, symbols.count, symbols.tags
    below = leaves.new_zeros(places, places, count)
    by_start, by_end = (leaves.new_zeros(places, places, len(side)) for side in (first, second))  # as in `chart`
    for width in range(1, places):
        spans = torch.arange(places - width, device=leaves.device)
        if width > 1:
            left, right = by_start[: len(spans), 1:width], by_end[width:, 1:width].flip(1)
            ways = torch.einsum("skl,skr->slr", left, right).flatten(1).index_select(1, both) * rule
            found = leaves.new_zeros(len(spans), count).index_add(1, parents, ways)
        else:
            found = nn.functional.pad(torch.cat((leaves, leaves @ unary.T), dim=1), (0, symbols.brackets.labels))
        below[spans, spans + width] = found
        by_start[spans, width], by_end[spans + width, width] = found[:, first], found[:, second]
    total = below[0, -1] @ grammar.root[:, 0]
    shares = torch.zeros_like(below)
    above_start, above_end = torch.zeros_like(by_start), torch.zeros_like(by_end)
    for width in range(places - 1, 0, -1):
        spans = torch.arange(places - width, device=leaves.device)
        outside = leaves.new_zeros(len(spans), count)
        outside[:, first] += above_start[spans, width]
        outside[:, second] += above_end[spans + width, width]
        if width == places - 1:
            outside += grammar.root[:, 0] / total
        if width > 1:
            pairs = leaves.new_zeros(len(spans), len(first), len(second))
            pairs.view(len(spans), -1).index_add_(1, both, outside.index_select(1, parents) * rule)
            left, right = by_start[: len(spans), 1:width], by_end[width:, 1:width].flip(1)
            above_start[: len(spans), 1:width] += torch.einsum("slr,skr->skl", pairs, right)
            above_end[width:, 1:width] += torch.einsum("slr,skl->skr", pairs, left).flip(1)
        else:
            outside[:, :tags] += outside[:, symbols.constituents] @ unary
        shares[spans, spans + width] = outside * below[spans, spans + width]
    return shares


@final
@dataclass(frozen=True)
class PackedTrees:
    """Hold all trees of a sentence whose symbols are alive, and how much of them is made in each way."""

    nodes: Int[Tensor, "nodes 3"]  # start, end and symbol of each, the leaves first
    levels: list[Level]  # how the other nodes are made
    ways: Float[Tensor, " ways"]  # posteriors of leaves, then of ways as levels have them; no number where no tree is

    def made(self) -> tuple[Int[Tensor, " ways"], Int[Tensor, "ways 2"]]:
        """The node that each way makes, and the one or two it is made of, -1 where there is none."""
        first = len(self.nodes) - sum(level.size for level in self.levels)
        found, children = [torch.arange(first, device=self.nodes.device)], [self.nodes.new_full((first, 2), -1)]
        for level in self.levels:
            found += [first + level.unary[:, 0], first + level.binary[:, 0]]
            children += [nn.functional.pad(level.unary[:, 1:2], (0, 1), value=-1), level.binary[:, 1:3]]
            first += level.size
        return torch.cat(found), torch.cat(children)

    def shares(self) -> Float[Tensor, " nodes"]:
        """The posteriors of nodes."""
        return self.ways.new_zeros(len(self.nodes)).index_add(0, self.made()[0], self.ways)


def posteriors_of_kinds(
    grammar: Grammar,
    symbols: Symbols,
    leaves: Float[Tensor, "words tags kinds"],
    alive: Bool[Tensor, "places places symbols"],
) -> Posteriors:
    """Of all trees whose symbols are alive, with kinds; see `posteriors`."""
    found = packed(grammar, symbols, leaves, alive)
    shares = found.ways.new_zeros(alive.shape)
    shares[tuple(found.nodes.T)] = found.shares()
    return shares


def packed(
    grammar: Grammar,
    symbols: Symbols,
    leaves: Float[Tensor, "words tags kinds"],
    alive: Bool[Tensor, "places places symbols"],
) -> PackedTrees:
    """All trees of a sentence whose symbols are alive, kinds summed over."""
    nodes, levels = _forest(grammar, symbols, alive)
    start, end, symbol = nodes.T
    is_leaf = symbol < symbols.tags
    below = leaves[start[is_leaf], symbol[is_leaf]]
    with torch.enable_grad():
        weights = leaves.new_ones(len(below) + sum(level.ways for level in levels)).requires_grad_()
        values = inside(below, levels, unary=grammar.unary, binary=grammar.binary, weights=weights)
        tops = (start == 0) & (end == len(leaves)) & ~is_leaf
        total = (values[tops] * grammar.root[symbol[tops]]).sum().log()
        (shares,) = torch.autograd.grad(total, weights)
    return PackedTrees(nodes, levels, shares)


def _forest(
    grammar: Grammar, symbols: Symbols, alive: Bool[Tensor, "places places symbols"]
) -> tuple[Int[Tensor, "nodes 3"], list[Level]]:
    """Start, end and symbol of all nodes that are alive, the leaves first, and how they are made of each other."""
    keys, order = (grammar.lefts * symbols.count + grammar.rights).sort()
    numbers = torch.full(alive.shape, -1, device=alive.device)
    words = torch.arange(len(alive) - 1, device=alive.device)
    word, tag = alive[words, words + 1, : symbols.tags].nonzero().T
    numbers[word, word + 1, tag] = torch.arange(len(word), device=alive.device)
    nodes, levels = [torch.stack((word, word + 1, tag), dim=1)], []
    for width in range(1, len(alive)):
        starts, first = words[: len(alive) - width], sum(map(len, nodes))
        here = alive[starts, starts + width].clone()
        here[:, : symbols.tags] = False
        start, symbol = here.nonzero().T
        numbers[start, start + width, symbol] = first + torch.arange(len(start), device=alive.device)
        nodes.append(torch.stack((start, start + width, symbol), dim=1))
        unary, binary = (torch.zeros(0, columns, dtype=torch.long, device=alive.device) for columns in (3, 4))
        if width == 1:
            children = numbers[start, start + 1, : symbols.tags]  # (nodes, tags)
            node, tag = ((children >= 0) & (symbol < symbols.constituents.stop)[:, None]).nonzero().T
            unary = torch.stack((node, children[node, tag], symbols.unary(symbol[node], tag)), dim=1)
        else:
            cuts = starts[:, None] + torch.arange(1, width, device=alive.device)
            left, right = (
                one.flatten(0, 1) for one in (numbers[starts[:, None], cuts], numbers[cuts, cuts[:, -1:] + 1])
            )
            place, lefts = (left >= 0).nonzero().T
            counts = (right >= 0).sum(dim=1)
            pair, at = _each(counts[place])
            rights = (right >= 0).nonzero()[:, 1][(counts.cumsum(0) - counts)[place[pair]] + at]
            place, lefts = place[pair], lefts[pair]
            wanted = lefts * symbols.count + rights
            begin, end = (torch.searchsorted(keys, wanted, right=side) for side in (False, True))
            pair, at = _each(end - begin)
            rule, place = order[begin[pair] + at], place[pair]
            node = numbers[place // (width - 1), place // (width - 1) + width, grammar.parents[rule]]
            made_of = left[place, grammar.lefts[rule]], right[place, grammar.rights[rule]]
            binary = torch.stack((node - first, *made_of, grammar.used[rule]), dim=1)[node >= 0]
        levels.append(Level(len(nodes[-1]), unary, binary))
    return torch.cat(nodes), levels


def _each(counts: Int[Tensor, " groups"]) -> tuple[Int[Tensor, " all"], Int[Tensor, " all"]]:
    """The members of groups of some sizes: the group of each, and its place within."""
    groups = torch.repeat_interleave(counts)
    return groups, torch.arange(len(groups), device=counts.device) - (counts.cumsum(0) - counts)[groups]
