"""Constituency trees: what they are, what of a treebank's is left out, and their brackets."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, final

EMPTY = "-NONE-"
"""Tag of what is not said: traces, and subjects that are left out."""
ROOTS = frozenset({"", "ROOT", "TOP", "S1"})
"""Labels of brackets around a sentence that say nothing of it."""
_CATEGORY = re.compile(r".[^-=]*")


@final
class Constituent(NamedTuple):
    """Name a constituent.

    Parameters
    ----------
    start, end : int
        Its first word, and the word after its last.
    label : str
        Its category.
    """

    start: int
    end: int
    label: str


@final
class Tree(NamedTuple):
    """Hold a constituent: a label over others, or a tag over a word.

    Parameters
    ----------
    label : str
        Its category or, of a word, its part of speech.
    children : tuple of Tree
        What it consists of; nothing where it is a word.
    word : str
        The word; empty where it is none.

    Examples
    --------
    >>> tree = Tree("NP", (Tree("DT", word="the"), Tree("NN", word="dog")))
    >>> print(tree, tree.words(), tree.spans())
    (NP (DT the) (NN dog)) ['the', 'dog'] [Constituent(start=0, end=2, label='NP')]
    """

    label: str
    children: tuple[Tree, ...] = ()
    word: str = ""

    def leaves(self) -> Iterator[Tree]:
        """The words with their tags."""
        waiting = [self]
        while waiting:
            tree = waiting.pop()
            if tree.children:
                waiting.extend(reversed(tree.children))
            else:
                yield tree

    def words(self) -> list[str]:
        """The words alone."""
        return [leaf.word for leaf in self.leaves()]

    def spans(self) -> list[Constituent]:
        """The constituents that are no words, each before what it consists of."""
        found: list[Constituent] = []
        self._add_spans(found, 0)
        return found

    def _add_spans(self, found: list[Constituent], start: int) -> int:
        if not self.children:
            return start + 1
        place, end = len(found), start
        found.append(Constituent(start, end, self.label))
        for child in self.children:
            end = child._add_spans(found, end)
        found[place] = Constituent(start, end, self.label)
        return end

    def __str__(self) -> str:
        """The tree in brackets, on one line."""
        inside = self.word if not self.children else " ".join(map(str, self.children))
        return f"({self.label} {inside})"


def cleaned(tree: Tree, removed: Counter[str] | None = None) -> Tree | None:
    """A tree as papers on parsing learn and judge it: what is not said, function tags and outer brackets left out.

    Parameters
    ----------
    tree : Tree
        As a treebank has it.
    removed : Counter, optional
        Counts what was left out: ``empty elements``, ``function tags``, ``outer brackets``.

    Returns
    -------
    Tree or None
        None where nothing is said at all. An outer bracket over several constituents stays, as ``ROOT``.

    References
    ----------
    .. [1] Collins, 1999, "Head-driven statistical models for natural language parsing", section 7.1.
    """
    counts: Counter[str] = Counter() if removed is None else removed
    found = _cleaned(tree, counts)
    while found is not None and found.label in ROOTS and len(found.children) == 1:
        counts["outer brackets"] += 1
        (found,) = found.children
    if found is not None and not found.label:
        return Tree("ROOT", found.children)
    return found


def _cleaned(tree: Tree, removed: Counter[str]) -> Tree | None:
    if tree.label == EMPTY:
        removed["empty elements"] += 1
        return None
    children = tuple([kept for child in tree.children if (kept := _cleaned(child, removed)) is not None])
    if tree.children and not children:
        return None
    label = category(tree.label)
    if label != tree.label:
        removed["function tags"] += 1
    return Tree(label, children, tree.word)


def without_repeats(tree: Tree) -> Tree:
    """A tree without the brackets that are all that is in one of the same label.

    Examples
    --------
    >>> word = Tree("NN", word="dog")
    >>> print(without_repeats(Tree("NP", (Tree("NP", (Tree("NP", (word,)),)), word))))
    (NP (NP (NN dog)) (NN dog))
    """
    children = tuple(without_repeats(child) for child in tree.children)
    if len(children) == 1 and children[0].children and children[0].label == tree.label:
        return children[0]
    return tree._replace(children=children)


@functools.cache
def category(label: str) -> str:
    """A label without function tags and numbers: NP of ``NP-SBJ-1``; ``-LRB-`` stays."""
    found = _CATEGORY.match(label)
    return label if found is None or label.startswith("-") else found[0]
