"""The symbols of a grammar that is read off a treebank, and the numbers of its rules."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Int
from torch import Tensor

from attnlab.models.parsers.brackets import Brackets, Chain


@final
@dataclass(frozen=True)
class Symbols:
    """Number tags, then chains of brackets around the same words, then what is left of each label.

    Parameters
    ----------
    brackets : Brackets
        What trees are written with.
    chains : tuple of tuple of int
        Opening tokens, the outermost first; the most frequent chain first.

    Notes
    -----
    A constituent of more than two parts is made binary from the right: its first part, and what is left of its label.
    """

    brackets: Brackets
    chains: tuple[Chain, ...]

    @property
    def tags(self) -> int:
        """How many tags there are, and the number of the first chain."""
        return self.brackets.tags

    @property
    def constituents(self) -> range:
        """The numbers of chains."""
        return range(self.tags, self.tags + len(self.chains))

    @property
    def count(self) -> int:
        """How many symbols there are."""
        return self.constituents.stop + self.brackets.labels

    @functools.cached_property
    def _of_chains(self) -> dict[Chain, int]:
        return dict(zip(self.chains, self.constituents, strict=True))

    def of(self, chain: Chain) -> int:
        """The symbol of some brackets; that of the outermost, or the most frequent one, where it was never seen."""
        return self._of_chains.get(chain, self._of_chains.get(chain[:1], self.tags))

    def rest(self, chain: Chain) -> int:
        """The symbol of what is left of some brackets."""
        return self.constituents.stop + chain[-1] - self.brackets.opening.start

    def unary(self, symbol: Any, tag: Any) -> Any:
        """The number of the rule that makes a chain of a tag, or of several."""
        return (symbol - self.tags) * self.tags + tag

    def key(self, parent: int, left: int, right: int) -> int:
        """The key of a binary rule."""
        return (parent * self.count + left) * self.count + right

    def parts(self, keys: Int[Tensor, " rules"]) -> tuple[Tensor, Tensor, Tensor]:
        """Parent, left and right symbol of binary rules."""
        return keys // self.count**2, keys // self.count % self.count, keys % self.count
