"""Trees as sequences of tokens: a bracket opened, the tag of a word, a bracket closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from attnlab.core.errors import DataError
from attnlab.text.tokenizers import SPECIAL
from attnlab.text.trees.tree import Tree

CLOSE = len(SPECIAL)
"""Token that closes a bracket, after padding, begin and end."""
OTHER = "?"
"""Label and tag of what the training trees have not."""
WORD = "XX"
"""Tag of every word where tags are not written."""
USUAL = 5  # times that a word must have been seen for its tags to be all that it may have
OPEN_CLASS = 50  # different words that a tag must have been seen with to be given to new ones


@final
@dataclass(frozen=True)
class TreeVocabulary:
    """Number what trees are written with.

    Parameters
    ----------
    labels : tuple of str
        Of constituents.
    tags : tuple of str
        Of words; ``XX`` alone where they are not told apart.

    References
    ----------
    .. [1] Vinyals et al., 2015, "Grammar as a foreign language", arXiv:1412.7449, section 2 (there closing brackets
       have labels too).

    Examples
    --------
    >>> tree = Tree("NP", (Tree("DT", word="the"), Tree("NN", word="dog")))
    >>> vocabulary = TreeVocabulary.of([tree])
    >>> vocabulary.pieces(vocabulary.encode(tree))
    ['(NP', 'DT', 'NN', ')']
    """

    labels: tuple[str, ...]
    tags: tuple[str, ...]

    @classmethod
    def of(cls, trees: Iterable[Tree], *, tags: bool = True) -> TreeVocabulary:
        """The vocabulary of some trees, the most frequent labels first."""
        labels: Counter[str] = Counter()
        words: Counter[str] = Counter()
        for tree in trees:
            labels.update(span.label for span in tree.spans())
            words.update(leaf.label for leaf in tree.leaves())
        known = tuple(tag for tag, _ in words.most_common()) if tags else (WORD,)
        return cls((OTHER, *(label for label, _ in labels.most_common())), (OTHER, *known))

    @property
    def size(self) -> int:
        """The number of distinct tokens."""
        return CLOSE + 1 + len(self.labels) + len(self.tags)

    @property
    def opening(self) -> range:
        """The tokens that open a bracket."""
        return range(CLOSE + 1, CLOSE + 1 + len(self.labels))

    @property
    def words(self) -> range:
        """The tokens that stand for a word."""
        return range(CLOSE + 1 + len(self.labels), self.size)

    def encode(self, tree: Tree) -> list[int]:
        """The tokens of a tree, without begin and end."""
        opening = dict(zip(self.labels, self.opening, strict=True))
        words = dict(zip(self.tags, self.words, strict=True))
        any_word, other = words.get(WORD, self.words[0]), self.opening[0]
        found: list[int] = []

        def add(one: Tree) -> None:
            if one.children:
                found.append(opening.get(one.label, other))
                for child in one.children:
                    add(child)
                found.append(CLOSE)
            else:
                found.append(words.get(one.label, any_word))

        add(tree)
        return found

    def decode(self, tokens: Sequence[int], words: Sequence[str]) -> Tree:
        """The tree of tokens over some words.

        Raises
        ------
        DataError
            If they are no tree, or one over another number of words.
        """
        left = iter(words)
        labels, built = [""], [list[Tree]()]  # of the brackets that are open, and what they hold; first, of none
        for token in tokens:
            if token in self.opening:
                labels.append(self.labels[token - self.opening[0]])
                built.append([])
            elif token in self.words:
                built[-1].append(Tree(self.tags[token - self.words[0]], word=next(left, "")))
            elif len(labels) > 1 and built[-1] and token == CLOSE:
                inside = tuple(built.pop())
                built[-1].append(Tree(labels.pop(), inside))
            else:
                built[0].clear()
                break
        if len(built) > 1 or len(built[0]) != 1 or not built[0][0].children or built[0][0].words() != list(words):
            raise DataError(f"no tree over {len(words)} words: {' '.join(self.pieces(tokens))}")
        return built[0][0]

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Each token as a person reads it."""
        names = [*SPECIAL, ")", *(f"({label}" for label in self.labels), *self.tags]
        return [names[token] for token in tokens]


@final
@dataclass(frozen=True)
class TagDictionary:
    """Say which tags a word may have.

    Parameters
    ----------
    seen : mapping of str to tuple of int
        The tokens of the tags that a word was seen with; of a rare one those of new words too.
    new, signs : tuple of int
        Those of words that were never seen, and of such that have no letter and no digit.

    References
    ----------
    .. [1] Ratnaparkhi, 1996, "A maximum entropy model for part-of-speech tagging", section 4 (tag dictionary).
    """

    seen: Mapping[str, tuple[int, ...]]
    new: tuple[int, ...]
    signs: tuple[int, ...]

    @classmethod
    def of(cls, trees: Iterable[Tree], vocabulary: TreeVocabulary) -> TagDictionary:
        """The tags of the words of some trees."""
        tokens = dict(zip(vocabulary.tags, vocabulary.words, strict=True))
        counts = Counter(
            (leaf.word, tokens.get(leaf.label, tokens.get(WORD, -1))) for t in trees for leaf in t.leaves()
        )
        by_word: dict[str, Counter[int]] = {}
        for (word, tag), count in counts.items():
            by_word.setdefault(word, Counter())[tag] += count
        kinds = Counter(tag for word, tags in by_word.items() if _has_letters(word) for tag in tags)
        most = max(kinds.values(), default=0)
        new = tuple(sorted(tag for tag, count in kinds.items() if count >= min(OPEN_CLASS, most)))
        signs = {tag for word, tags in by_word.items() if not _has_letters(word) for tag in tags}
        seen = {
            word: tuple(sorted({*tags, *(new if tags.total() < USUAL and _has_letters(word) else ())}))
            for word, tags in by_word.items()
        }
        return cls(seen, new, tuple(sorted(signs)) or new)

    def allowed(self, word: str) -> tuple[int, ...]:
        """The tokens of the tags that a word may have, at least one."""
        return self.seen.get(word) or (self.new if _has_letters(word) else self.signs)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        seen = {word: list(tags) for word, tags in self.seen.items()}
        return {"seen": seen, "new": list(self.new), "signs": list(self.signs)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TagDictionary:
        """What was kept."""
        seen = {word: tuple(tags) for word, tags in content["seen"].items()}
        return cls(seen, tuple(content["new"]), tuple(content["signs"]))


def _has_letters(word: str) -> bool:
    return any(character.isalnum() for character in word)
