"""Read trees in the brackets of the Penn Treebank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from attnlab.core.errors import DataError
from attnlab.text.trees.tree import Tree

DEEPEST = 200
"""Brackets within brackets; those of sentences are a few dozen at most."""
_PIECE = re.compile(r"[()]|[^\s()]+", re.ASCII)  # a word may hold a narrow blank of Unicode
_COMMENT = re.compile(r"\s*(\*x\*|;)")  # headers of treebank files, and what people write beside trees


@final
class _Place(NamedTuple):
    """Name a place in a file."""

    name: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.name}, line {self.line}, column {self.column}"


@final
@dataclass(slots=True)
class _Open:
    """Hold a bracket that is not closed yet."""

    place: _Place
    label: str | None = None
    word: str = ""
    children: list[Tree] = field(default_factory=list)

    def take(self, text: str, place: _Place) -> None:
        """Take a label or a word."""
        if self.label is None and not self.children:
            self.label = text
        elif self.word or self.children:
            raise DataError(f"{place}: {text!r} stands beside what else is in its bracket; a word has one of its own")
        else:
            self.word = text

    def take_in(self, tree: Tree, place: _Place) -> None:
        """Take a constituent."""
        if self.word:
            raise DataError(f"{place}: {self.word!r} stands beside a bracket; a word has one of its own")
        self.children.append(tree)

    def closed(self) -> Tree:
        """The constituent."""
        if not self.word and not self.children:
            raise DataError(f"{self.place}: a bracket without words")
        return Tree(self.label or "", tuple(self.children), self.word)


def read_trees(lines: Iterable[str], name: str = "trees") -> Iterator[Tree]:
    """Read trees in brackets, as ``( (S (NP-SBJ (PRP It)) (VP (VBZ works)) (. .)) )``.

    Parameters
    ----------
    lines : iterable of str
        A tree may stand on several lines, and several trees on one. Lines outside of trees that begin with ``*x*`` or
        ``;`` are comments.
    name : str
        What errors call the place, such as the name of a file.

    Yields
    ------
    Tree
        As it stands there, with empty elements and function tags; `cleaned` leaves them out.

    Raises
    ------
    DataError
        If brackets do not match, one is empty, or a word stands outside of a bracket of its own; with line and column.

    Examples
    --------
    >>> [str(tree) for tree in read_trees(["(NP (DT the)", "  (NN dog)) (X (Y z))"])]
    ['(NP (DT the) (NN dog))', '(X (Y z))']
    """
    opened: list[_Open] = []
    for piece, place in _pieces(lines, name, opened):
        if piece == "(":
            if len(opened) == DEEPEST:
                raise DataError(f"{place}: more than {DEEPEST} brackets within each other")
            opened.append(_Open(place))
        elif not opened:
            what = "a bracket is closed that was never opened" if piece == ")" else f"{piece!r} is in no bracket"
            raise DataError(f"{place}: {what}; trees look like (S (NP (DT the) (NN dog)) (VP (VBZ barks)))")
        elif piece != ")":
            opened[-1].take(piece, place)
        else:
            tree = opened.pop().closed()
            if opened:
                opened[-1].take_in(tree, place)
            else:
                yield tree
    if opened:
        raise DataError(f"{opened[0].place}: this bracket is never closed")


def _pieces(lines: Iterable[str], name: str, opened: Sequence[object]) -> Iterator[tuple[str, _Place]]:
    """Brackets and words with their places; comments stand where no bracket is open."""
    for number, line in enumerate(lines, 1):
        if opened or not _COMMENT.match(line):
            for found in _PIECE.finditer(line):
                yield found[0], _Place(name, number, found.start() + 1)
