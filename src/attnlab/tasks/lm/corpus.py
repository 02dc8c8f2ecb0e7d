"""Which documents, or which stretches of one running text, each part consists of, read piece by piece."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
from jaxtyping import Int8

from attnlab.core.errors import DataError
from attnlab.text.sources import Source, read_documents

CHUNK = 2**16  # characters of a document that are encoded together; no shorter document is cut
BEFORE_BLANK = re.compile(r"\S(?=\s)")
PARTS = ("train", "validation", "test")

Stream = Iterator[tuple[str, bool]]
"""Pieces of documents, and whether a document ends with each."""


@final
@dataclass(frozen=True)
class Documents:
    """Say where the parts of a text come from."""

    text: Sequence[Source]  # what is trained on, and what parts are cut from
    given: Mapping[str, Sequence[Source]]  # held-out parts with files of their own
    shares: Mapping[str, float]  # of the text's characters, by held-out part that is cut from it
    seed: int | None  # of what is cut; None: the end of the text
    field: str  # of objects, or column of tables, that holds a text

    def read(self, sources: Sequence[Source]) -> Stream:
        """The documents of some files."""
        return itertools.chain.from_iterable(read_documents(one, self.field) for one in sources)

    def cut(self) -> CutCorpus:
        """The parts, after the text was read once for its sizes.

        Raises
        ------
        DataError
            If a part would be empty.
        """
        lengths, more = [], False
        for piece, last in self.read(self.text):
            if more:
                lengths[-1] += len(piece)
            else:
                lengths.append(len(piece))
            more = not last
        names = [part for part in PARTS[1:] if part in self.shares]
        held = [Fraction(str(self.shares[part])) for part in names]
        if not lengths or (len(lengths) > 1 and len(lengths) <= len(names)):
            where = self.text[0].path + (f" and {len(self.text) - 1} more files" if len(self.text) > 1 else "")
            raise DataError(
                f"the text has {len(lengths)} documents, and every part ({', '.join(['train', *names])}) needs one "
                f"({where}); give more documents, or a part a file of its own"
            )
        if len(lengths) > 1:
            return CutCorpus(self, part_of=_by_documents(lengths, held, names, self.seed))
        return CutCorpus(self, stretches=_by_characters(lengths[0], held, names, self.seed))


@final
@dataclass(frozen=True)
class CutCorpus:
    """Hold which part each document of the text belongs to, or which stretches of its one document.

    Parameters
    ----------
    corpus : Documents
        What was cut.
    part_of : array of int, optional
        The number in `PARTS` of the part of each document.
    stretches : mapping of str to pairs of int, optional
        By part from which character to before which.
    """

    corpus: Documents
    part_of: Int8[np.ndarray, " documents"] | None = None
    stretches: Mapping[str, Sequence[tuple[int, int]]] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts there are, the one that is trained on first."""
        return tuple(part for part in PARTS if part == "train" or part in {*self.corpus.given, *self.corpus.shares})

    def stream(self, part: str) -> Stream:
        """The documents of a part; what is cut from one running text ends where it is cut."""
        if part in self.corpus.given:
            return self.corpus.read(self.corpus.given[part])
        pieces = self.corpus.read(self.corpus.text)
        if self.stretches is not None:
            return _within(pieces, self.stretches[part])
        return self._of_part(pieces, PARTS.index(part))

    def _of_part(self, pieces: Stream, wanted: int) -> Stream:
        number = 0
        for piece, last in pieces:
            if self.part_of[number] == wanted:  # pyrefly: ignore[unsupported-operation]
                yield piece, last
            number += last


def _by_documents(
    lengths: Sequence[int], shares: Sequence[Fraction], names: Sequence[str], seed: int | None
) -> Int8[np.ndarray, " documents"]:
    """Whole documents, as many as it takes to hold each share of the characters; without a seed the last ones."""
    order = np.arange(len(lengths)) if seed is None else np.random.default_rng(seed).permutation(len(lengths))
    ends = np.asarray(lengths)[order].cumsum()
    part_of = np.zeros(len(lengths), dtype=np.int8)
    for place, name in enumerate(names):
        begin = int(np.searchsorted(ends, math.floor((1 - sum(shares[place:])) * int(ends[-1])), "right"))
        begin = min(max(begin, place + 1), len(lengths) - len(names) + place)  # every part has one
        part_of[order[begin:]] = PARTS.index(name)
    return part_of


def _by_characters(
    length: int, shares: Sequence[Fraction], names: Sequence[str], seed: int | None
) -> dict[str, list[tuple[int, int]]]:
    """Stretches of a running text that hold the shares of its characters; without a seed its end."""
    sizes = [math.ceil(share * length) for share in shares]
    if not length > sum(sizes):
        raise DataError(
            f"the text is too short: it has {length} characters for {len(names) + 1} parts; take a longer one"
        )
    begin = length - sum(sizes)
    begin = begin if seed is None else int(np.random.default_rng(seed).integers(begin + 1))
    edges = [begin, *(begin + size for size in itertools.accumulate(sizes))]
    held = {name: [edge] for name, edge in zip(names, itertools.pairwise(edges), strict=True)}
    return {"train": [(0, begin), (edges[-1], length)], **held}


def _within(pieces: Stream, stretches: Sequence[tuple[int, int]]) -> Stream:
    place, end = 0, max(stop for start, stop in stretches if start < stop)
    for piece, _ in pieces:
        for start, stop in stretches:
            if some := piece[max(0, start - place) : max(0, stop - place)]:
                yield some, place + len(piece) >= end and stop == end
        place += len(piece)


def chunks(stream: Stream) -> Stream:
    """The same documents in pieces of moderate length that are cut before a blank, where there is one."""
    rest = ""
    for piece, last in stream:
        rest += piece
        while len(rest) > CHUNK:
            place = max((one.end() for one in BEFORE_BLANK.finditer(rest, CHUNK // 2, CHUNK)), default=CHUNK)
            yield rest[:place], False
            rest = rest[place:]
        if last:
            yield rest, True
            rest = ""
