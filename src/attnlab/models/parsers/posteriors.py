"""The share of a sentence's trees that each symbol has a part in, at every span."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab.models.parsers.forest import Level, Probabilities, inside
from attnlab.models.parsers.symbols import Symbols

Posteriors = Float[Tensor, "places places symbols"]
"""Of each symbol between two places."""


@final
class Grammar(NamedTuple):
    """Give probabilities of a grammar whose symbols have kinds.

    Parameters
    ----------
    root : Tensor
        Of each symbol and kind at the top of a tree.
    binary, unary, words : callable
        Of rules, and of words under tags, by their numbers.
    used : Tensor
        Numbers of the binary rules that there are.
    parents, lefts, rights : Tensor
        Their symbols.
    """

    root: Float[Tensor, "symbols kinds"]
    binary: Probabilities
    unary: Probabilities
    words: Probabilities
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


def posteriors_of_kinds(
    grammar: Grammar,
    symbols: Symbols,
    leaves: Float[Tensor, "words tags kinds"],
    alive: Bool[Tensor, "places places symbols"],
) -> Posteriors:
    """Of all trees whose symbols are alive, with kinds; see `posteriors`."""
    nodes, levels = _levels(grammar, symbols, alive)
    start, end, symbol = nodes.T
    is_leaf = symbol < symbols.tags
    with torch.enable_grad():
        weights = leaves.new_ones(len(nodes)).requires_grad_()
        below = leaves[start[is_leaf], symbol[is_leaf]]
        values = inside(below, levels, unary=grammar.unary, binary=grammar.binary, weights=weights)
        tops = (start == 0) & (end == len(leaves)) & ~is_leaf
        total = (values[tops] * grammar.root[symbol[tops]]).sum().log()
        (shares,) = torch.autograd.grad(total, weights)
    found = torch.zeros(alive.shape, dtype=shares.dtype, device=shares.device)
    found[start, end, symbol] = shares
    return found


def _levels(
    grammar: Grammar, symbols: Symbols, alive: Bool[Tensor, "places places symbols"]
) -> tuple[Int[Tensor, "nodes 3"], list[Level]]:
    """Start, end and symbol of all nodes that are alive, the leaves first, and how they are made of each other."""
    parents, lefts, rights, device = grammar.parents, grammar.lefts, grammar.rights, alive.device
    numbers = torch.full(alive.shape, -1, device=device)
    words = torch.arange(len(alive) - 1, device=device)
    word, tag = alive[words, words + 1, : symbols.tags].nonzero().T
    numbers[word, word + 1, tag] = torch.arange(len(word), device=device)
    nodes, levels = [torch.stack((word, word + 1, tag), dim=1)], []
    for width in range(1, len(alive)):
        starts, first = words[: len(alive) - width], sum(map(len, nodes))
        here = alive[starts, starts + width].clone()
        here[:, : symbols.tags] = False
        start, symbol = here.nonzero().T
        numbers[start, start + width, symbol] = first + torch.arange(len(start), device=device)
        nodes.append(torch.stack((start, start + width, symbol), dim=1))
        unary, binary = (torch.zeros(0, columns, dtype=torch.long, device=device) for columns in (3, 4))
        if width == 1:
            children = numbers[start, start + 1, : symbols.tags]  # (nodes, tags)
            node, tag = ((children >= 0) & (symbol < symbols.constituents.stop)[:, None]).nonzero().T
            unary = torch.stack((node, children[node, tag], symbols.unary(symbol[node], tag)), dim=1)
        else:
            cuts = starts[:, None] + torch.arange(1, width, device=device)
            left, right = numbers[starts[:, None], cuts], numbers[cuts, starts[:, None] + width]
            start, cut, rule = (
                ((left >= 0)[..., lefts] & (right >= 0)[..., rights] & here[:, None, parents]).nonzero().T
            )
            node = numbers[start, start + width, parents[rule]] - first
            made_of = left[start, cut, lefts[rule]], right[start, cut, rights[rule]]
            binary = torch.stack((node, *made_of, grammar.used[rule]), dim=1)
        levels.append(Level(len(nodes[-1]), unary, binary))
    return torch.cat(nodes), levels
