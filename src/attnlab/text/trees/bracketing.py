"""Labelled bracketing scores: how well trees agree with those of a treebank, counted as evalb counts."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from attnlab.core.errors import DataError
from attnlab.text.trees.tree import EMPTY, Constituent, Tree, category

PUNCTUATION = frozenset({",", ":", "``", "''", "."})
"""Tags of words that are judged neither as words nor as parts of constituents."""
UNJUDGED = PUNCTUATION | {EMPTY, "TOP"}
ALIKE = {"PRT": "ADVP"}
"""Labels that count as others."""
SIGNATURE = "evalb|prm:COLLINS|labelled"


@final
@dataclass(frozen=True)
class BracketScores:
    """Hold how one tree, or all of a treebank, agree with the right ones; sums add up over sentences.

    Parameters
    ----------
    sentences : int
        Trees that were compared.
    matched, gold, guessed : int
        Constituents in both, in the right trees, and in those that are judged.
    crossing : int
        Constituents that are judged and cross a right one.
    words, tags : int
        Words that are judged, and those with the right tag.
    exact, uncrossed, nearly : int
        Sentences with the right constituents and no other; with none that crosses; with two at most.
    skipped, failed : int
        Sentences without a tree or with one over no words; and those whose tree is over other words.
    """

    sentences: int = 0
    matched: int = 0
    gold: int = 0
    guessed: int = 0
    crossing: int = 0
    words: int = 0
    tags: int = 0
    exact: int = 0
    uncrossed: int = 0
    nearly: int = 0
    skipped: int = 0
    failed: int = 0

    def __add__(self, other: BracketScores) -> BracketScores:
        """Both together."""
        pairs = zip(self._counts(), other._counts(), strict=True)
        return BracketScores(*(mine + theirs for mine, theirs in pairs))

    def _counts(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    @property
    def recall(self) -> float:
        """Right constituents that were found, in percent."""
        return _percent(self.matched, self.gold)

    @property
    def precision(self) -> float:
        """Constituents found that are right, in percent."""
        return _percent(self.matched, self.guessed)

    @property
    def f1(self) -> float:
        """The harmonic mean of recall and precision, in percent."""
        return _percent(2 * self.matched, self.gold + self.guessed)

    @property
    def exact_match(self) -> float:
        """Sentences whose constituents are all right, in percent of those that were compared."""
        return _percent(self.exact, self.sentences)

    @property
    def tagging(self) -> float:
        """Words with the right tag, in percent."""
        return _percent(self.tags, self.words)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def compare_trees(gold: Tree, guess: Tree | None) -> BracketScores:
    """Compare a tree with the right one, as evalb does with the parameters of Collins.

    Parameters
    ----------
    gold : Tree
        The right tree.
    guess : Tree or None
        The one that is judged; None where a parser found none.

    Returns
    -------
    BracketScores
        Of one sentence, or of one that could not be compared.

    Notes
    -----
    Punctuation is taken out of the sentence by its tags, and brackets around nothing else with it; TOP does not count,
    other outer brackets do unless `cleaned` took them off; function tags are ignored, and ADVP and PRT are one. Each
    constituent matches one at most. Where a tag makes punctuation of a word in one tree alone, the words differ and the
    sentence is not judged.

    References
    ----------
    .. [1] Sekine, Collins, 1997, evalb, COLLINS.prm; Black et al., 1991, "A procedure for quantitatively comparing the
       syntactic coverage of English grammars".
    """
    ours, theirs = _Judged(gold), _Judged(guess or Tree(EMPTY))
    if not theirs.leaves:
        return BracketScores(skipped=1)
    if [leaf.word for leaf in ours.leaves] != [leaf.word for leaf in theirs.leaves]:
        return BracketScores(failed=1)
    matched = sum((Counter(ours.spans) & Counter(theirs.spans)).values())
    crossing = sum(any(_cross(span, other) for other in ours.spans) for span in theirs.spans)
    tags = sum(
        ALIKE.get(one.label, one.label) == ALIKE.get(other.label, other.label)
        for one, other in zip(ours.leaves, theirs.leaves, strict=True)
    )
    return BracketScores(
        sentences=1,
        matched=matched,
        gold=len(ours.spans),
        guessed=len(theirs.spans),
        crossing=crossing,
        words=len(ours.leaves),
        tags=tags,
        exact=matched == len(ours.spans) == len(theirs.spans),
        uncrossed=crossing == 0,
        nearly=crossing <= 2,
    )


def compare_all(
    gold: Sequence[Tree], guesses: Sequence[Tree | None], *, shortest: int = 0, longest: int | None = None
) -> BracketScores:
    """Compare the trees of a treebank.

    Parameters
    ----------
    gold : sequence of Tree
        The right trees.
    guesses : sequence of Tree or None
        As many.
    shortest, longest : int, optional
        Words of the shortest and the longest sentences that are judged, punctuation among them.

    Returns
    -------
    BracketScores
        Sums over sentences.

    Raises
    ------
    DataError
        If there are not as many trees on both sides.
    """
    if len(gold) != len(guesses):
        raise DataError(f"{len(guesses)} trees cannot be compared with {len(gold)}")
    most = math.inf if longest is None else longest
    taken = (pair for pair in zip(gold, guesses, strict=True) if shortest <= _length(pair[0]) <= most)
    return sum((compare_trees(right, guess) for right, guess in taken), BracketScores())


def beside(guess: Tree, gold: Tree) -> list[tuple[str, bool]]:
    """A tree in brackets, cut where what is right and what is wrong meet, each with whether it is right.

    A bracket is right where the other tree has one with the same label around the same words, a tag where it has the
    same.
    """
    left, tags = Counter(gold.spans()), [leaf.label for leaf in gold.leaves()]
    found: list[tuple[str, bool]] = []
    spans = iter(guess.spans())
    place = itertools.count()

    def add(text: str, right: bool) -> None:
        if found and found[-1][1] == right:
            found[-1] = (found[-1][0] + text, right)
        else:
            found.append((text, right))

    def walk(tree: Tree, before: str) -> None:
        if not tree.children:
            number = next(place)
            add(f"{before}({tree.label} {tree.word})", number < len(tags) and tags[number] == tree.label)
            return
        span = next(spans)
        right = left[span] > 0
        left[span] -= 1
        add(f"{before}({tree.label}", right)
        for child in tree.children:
            walk(child, " ")
        add(")", right)

    walk(guess, "")
    return found


def _length(tree: Tree) -> int:
    return sum(leaf.label != EMPTY for leaf in tree.leaves())


@final
class _Judged:
    """Hold the words and the constituents of a tree that count."""

    def __init__(self, tree: Tree) -> None:
        self.leaves: list[Tree] = []
        self.spans: list[Constituent] = []
        self._walk(tree)

    def _walk(self, tree: Tree) -> None:
        start = len(self.leaves)
        if not tree.children and tree.label not in UNJUDGED:
            self.leaves.append(tree)
        place = len(self.spans)
        for child in tree.children:
            self._walk(child)
        label = category(tree.label)
        if tree.children and len(self.leaves) > start and label not in UNJUDGED:
            self.spans.insert(place, Constituent(start, len(self.leaves), ALIKE.get(label, label)))


def _cross(one: Constituent, other: Constituent) -> bool:
    return one.start < other.start < one.end < other.end or other.start < one.start < other.end < one.end
