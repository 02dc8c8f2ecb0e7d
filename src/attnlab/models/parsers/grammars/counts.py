"""What a grammar has counted, and the probabilities that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

FREE = torch.iinfo(torch.int64).max
"""Key of a place that is not taken yet; it sorts last."""
UNSEEN = 1e-8
"""Probability of a rule, or of a word under its tag, that training has not shown."""
BLURRED = 0.01
"""Share of a rule's probability under a kind of its parent that is the mean over all these kinds."""
FIRST = 1e-6
"""Every count before training, far below that of what is seen once."""


@final
class Registry(nn.Module):
    """Give keys numbers in the order in which they are met, and keep them with the weights.

    Parameters
    ----------
    capacity : int
        How many keys find a place; later ones stay unknown.
    """

    keys: Int[Tensor, " capacity"]

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.full((capacity,), FREE))

    @property
    def unknown(self) -> int:
        """The number of what was never met: one behind the last place."""
        return len(self.keys)

    @property
    def used(self) -> int:
        """How many places are taken, the first ones."""
        return int((self.keys != FREE).sum())

    def find(self, wanted: Int[Tensor, " *places"]) -> Int[Tensor, " *places"]:
        """The numbers of keys."""
        ordered, places = self.keys[: self.used + 1].sort()  # and one that is free, if there is one
        at = torch.searchsorted(ordered, wanted.contiguous()).clamp(max=len(ordered) - 1)
        return torch.where(ordered[at] == wanted, places[at], self.unknown)

    def add(self, wanted: Int[Tensor, " wanted"]) -> Int[Tensor, " wanted"]:
        """Give new keys a place while there is one, and say which places are those of all."""
        new = wanted[self.find(wanted) == self.unknown].unique()
        used = self.used
        new = new[: len(self.keys) - used]
        self.keys[used : used + len(new)] = new
        return self.find(wanted)


def tally(seen: Float[Tensor, " places"], at: Int[Tensor, " met"]) -> None:
    """Count what was met at places, in place; numbers behind the last are of what found none."""
    known = at[at < len(seen)]
    seen.index_add_(0, known, torch.ones_like(known, dtype=seen.dtype))


@final
@dataclass(frozen=True)
class Counts:
    """Hold what was counted of rules of one sort, and give probabilities in float64.

    A rule is as frequent as it was seen; how its uses divide among the kinds of its symbols is expected. The sums are
    constants to gradients, as the optimizer ``em`` wants it.
    """

    seen: Float[Tensor, " rules"]
    """How often, in float64."""
    kinds: Float[Tensor, "rules kinds ..."]
    """Of the symbol that is made into something, then of those it is made into; up to a factor for each rule."""
    parents: Int[Tensor, " rules"]
    """Symbols that are made into something; one behind the last symbol where a place is free."""

    def merged(self, kinds: int) -> Counts:
        """The same by fewer kinds, each of them as many of those here that stand beside each other."""
        found = self.kinds
        for axis in range(1, found.ndim):
            found = found.unflatten(axis, (kinds, -1)).sum(dim=axis + 1)
        return Counts(self.seen, found, self.parents)

    def of_parents(self) -> Float[Tensor, "rules kinds"]:
        """How often each kind of a rule's parent was made by it."""
        found = self.kinds.detach().flatten(2).sum(dim=2) if self.kinds.ndim > 2 else self.kinds.detach()
        return found.double() * (self.seen / found.double().sum(dim=1))[:, None]

    def at(self, rules: Int[Tensor, " wanted"]) -> Float[Tensor, "wanted kinds ..."]:
        """How often some rules were used with which kinds; 0 for a number behind the last."""
        at = rules.clamp(max=len(self.kinds) - 1)
        found = self.kinds.index_select(0, at).double()
        factors = torch.where(rules == at, self.seen[at] / found.detach().flatten(1).sum(dim=1), 0.0)
        return found * factors.view(-1, *[1] * (found.ndim - 1))


def totals(counts: Sequence[Counts], symbols: int) -> Float[Tensor, "symbols kinds"]:
    """How often each kind of each symbol is made into something; 1 behind the last."""
    first = counts[0].kinds
    found = torch.zeros(symbols + 1, first.shape[1], dtype=torch.float64, device=first.device)
    for one in counts:
        found.index_add_(0, one.parents, one.of_parents())
    found[-1] = 1.0
    return found


def smoothed(shares: Float[Tensor, "rules kinds ..."], share: float) -> Float[Tensor, "rules kinds ..."]:
    """Probabilities drawn towards their means over the kinds of the parent, so that they still sum to 1."""
    return shares.lerp(shares.mean(dim=1, keepdim=True), share) if shares.shape[1] > 1 else shares


def probabilities(
    counts: Counts, sums: Float[Tensor, "symbols kinds"], rules: Int[Tensor, " wanted"]
) -> Float[Tensor, "wanted kinds ..."]:
    """The probabilities of some rules, given their parents' `totals`; a number behind the last is an unknown one's."""
    some, places = rules.unique(return_inverse=True)
    known = some < len(counts.kinds)
    found = counts.at(some)
    one = [1] * (found.ndim - 2)
    found = found / sums[counts.parents[some * known]].clamp(min=1e-300).view(*found.shape[:2], *one)
    return (smoothed(found, BLURRED) + (~known * UNSEEN).view(-1, 1, *one)).index_select(0, places)
