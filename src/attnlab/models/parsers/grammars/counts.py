"""What a grammar has counted, and the probabilities that follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

FREE = torch.iinfo(torch.int64).max
"""Key of a place that is not taken yet; it sorts last."""
UNSEEN = 1e-8
"""Probability of a rule, or of a word under its tag, that training has not shown."""


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

    def find(self, wanted: Int[Tensor, " *places"]) -> Int[Tensor, " *places"]:
        """The numbers of keys."""
        ordered, places = self.keys.sort()
        at = torch.searchsorted(ordered, wanted.contiguous()).clamp(max=len(ordered) - 1)
        return torch.where(ordered[at] == wanted, places[at], self.unknown)

    def add(self, wanted: Int[Tensor, " wanted"]) -> None:
        """Give new keys a place while there is one."""
        new = wanted[self.find(wanted) == self.unknown].unique()
        used = int((self.keys != FREE).sum())
        new = new[: len(self.keys) - used]
        self.keys[used : used + len(new)] = new


@final
@dataclass(frozen=True)
class Counts:
    """Hold how often everything is expected, by kinds of its symbols, and give probabilities in float64.

    Sums are constants to gradients, as the optimizer ``em`` wants it.
    """

    root: Float[Tensor, "symbols kinds"]
    binary: Float[Tensor, "rules kinds kinds kinds"]
    unary: Float[Tensor, "unary kinds kinds"]
    words: Float[Tensor, "words kinds"]
    binary_parents: Int[Tensor, " rules"]
    unary_parents: Int[Tensor, " unary"]
    word_parents: Int[Tensor, " words"]
    """Symbols that are made into something; one behind the last symbol where a place is free."""

    def without_kinds(self) -> Counts:
        """The same of symbols as they are seen."""
        return Counts(
            self.root.sum(dim=1, keepdim=True),
            self.binary.sum(dim=(1, 2, 3), keepdim=True),
            self.unary.sum(dim=(1, 2), keepdim=True),
            self.words.sum(dim=1, keepdim=True),
            self.binary_parents,
            self.unary_parents,
            self.word_parents,
        )

    def totals(self) -> Float[Tensor, "symbols kinds"]:
        """How often each symbol is made into something; 1 behind the last."""
        found = torch.zeros(len(self.root) + 1, self.root.shape[1], dtype=torch.float64, device=self.root.device)
        found.index_add_(0, self.binary_parents, self.binary.detach().sum(dim=(2, 3)).double())
        found.index_add_(0, self.unary_parents, self.unary.detach().sum(dim=2).double())
        found.index_add_(0, self.word_parents, self.words.detach().double())
        found[-1] = 1.0
        return found


def probabilities(
    counts: Float[Tensor, "rules ..."],
    parents: Int[Tensor, " rules"],
    totals: Float[Tensor, "symbols kinds"],
    rules: Int[Tensor, " wanted"],
) -> Float[Tensor, "wanted ..."]:
    """The probabilities of some rules; a number behind the last is that of an unknown one."""
    known = rules < len(counts)
    at = rules.clamp(max=len(counts) - 1)
    shape = (len(rules), counts.shape[1], *[1] * (counts.ndim - 2))
    found = counts[at].double() / totals[parents[at]].view(shape).clamp(min=1e-300)
    return torch.where(known.view(-1, *[1] * (counts.ndim - 1)), found, UNSEEN)
