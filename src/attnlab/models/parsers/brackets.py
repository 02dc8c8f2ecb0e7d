"""Trees between their two forms: tokens of brackets one after the other, and labelled spans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

Chain = tuple[int, ...]
"""Opening brackets around the same words, the outermost first."""


@final
class TreeSpan(NamedTuple):
    """Name the brackets around some words.

    Parameters
    ----------
    start, end : int
        The first word, and the one after the last.
    chain : tuple of int
        Their opening tokens, the outermost first.
    """

    start: int
    end: int
    chain: Chain


SpansAndTags = tuple[list[TreeSpan], list[int]]
"""A tree by its brackets, each before those inside it, and by the tags of its words."""


@final
@dataclass(frozen=True)
class Brackets:
    """Say which tokens are what, and read and write trees with them."""

    close: int  # the token that closes a bracket; those of labels follow it, then those of tags
    labels: int  # how many there are
    tags: int  # how many parts of speech there are

    @classmethod
    def of(cls, numbers: Mapping[str, int]) -> Brackets:
        """From the three numbers by name."""
        return cls(**numbers)

    @property
    def opening(self) -> range:
        """The tokens that open a bracket."""
        return range(self.close + 1, self.close + 1 + self.labels)

    @property
    def words(self) -> range:
        """The tokens that stand for a word."""
        return range(self.opening.stop, self.opening.stop + self.tags)

    @property
    def size(self) -> int:
        """The number of tokens."""
        return self.words.stop

    def read(self, tokens: Iterable[int]) -> SpansAndTags:
        """The spans of a tree, each before those inside it, and the tags of its words.

        Brackets that do not match or hold nothing are passed over, like all other tokens.
        """
        tags: list[int] = []
        waiting: list[tuple[int, int]] = []  # label and first word of each open bracket
        chains: dict[tuple[int, int], Chain] = {}
        words, opening = self.words, self.opening
        for token in tokens:
            if token in words:
                tags.append(token)
            elif token in opening:
                waiting.append((token, len(tags)))
            elif token == self.close and waiting:
                label, start = waiting.pop()
                if start < len(tags):
                    place = (start, len(tags))
                    chains[place] = (label, *chains.get(place, ()))
        spans = [TreeSpan(start, end, chain) for (start, end), chain in chains.items()]
        return sorted(spans, key=lambda span: (span.start, -span.end)), tags

    def write(self, spans: Iterable[TreeSpan], tags: Sequence[int]) -> list[int]:
        """The tokens of a tree of spans, each before those inside it."""
        opened: dict[int, list[int]] = {}
        closed = [0] * (len(tags) + 1)
        for span in spans:
            opened.setdefault(span.start, []).extend(span.chain)
            closed[span.end] += len(span.chain)
        found: list[int] = []
        for place, tag in enumerate(tags):
            found += [*opened.get(place, ()), tag, *[self.close] * closed[place + 1]]
        return found
