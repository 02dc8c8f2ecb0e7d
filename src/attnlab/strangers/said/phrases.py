"""A plain notation for phrases, so that a vocabulary is a table of words."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator

_NO_LINK = r"(?!(?:not|never|cannot|\w+n't|by|between|among|across)\b)"
_NEAR = rf"(?:[^\w.;!?]+{_NO_LINK}\w+){{0,4}}?[^\w.;!?]+"
"""A few words in between, none of them "not", none that leads to another thing: shared across heads, heads are not."""
_TAKEN_BACK = re.compile(
    r"\b(not|no|never|unlike|isn't|doesn't|don't|aren't|cannot|can't|avoids?|than|instead of)( \w+){0,2} $",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.;!?])(?<!et al\.)\s+|\n+")
_LONGEST = 90  # characters of a quotation: with its message it stays within two or three lines


@functools.cache
def phrases(*written: str) -> re.Pattern[str]:
    """The pattern of phrases.

    Parameters
    ----------
    *written : str
        Phrases, of which any counts. ``|`` stands between words that do equally well, ``*`` for any end of a word, a
        space or hyphen for either or nothing; `` .. `` between words near each other in this order, `` + `` in any.

    Returns
    -------
    re.Pattern
        Finds the phrases in either case.

    Examples
    --------
    >>> phrases("shar*|tied + weight*").search("layers with Tied input weights").group()
    'Tied input weights'
    >>> phrases("look-ahead mask").search("a lookahead mask").group()
    'lookahead mask'
    """
    return re.compile("|".join(order for each in written for order in _orders(each)), re.IGNORECASE)


def crossed(*words: str) -> str:
    """All combinations of words that follow each other, as synonyms; each argument has its own, divided by ``|``.

    Examples
    --------
    >>> crossed("no|without", "|a", "softmax")
    'no softmax|no a softmax|without softmax|without a softmax'
    """
    choices = itertools.product(*(one.split("|") for one in words))
    return "|".join(" ".join(filter(None, chosen)) for chosen in choices)


def _orders(written: str) -> Iterator[str]:
    """The orders in which the words of a phrase may stand, as regular expressions."""
    words = [_words(one) for one in re.split(r" \+ | \.\. ", written)]
    for order in itertools.permutations(words) if " + " in written else [words]:
        yield _NEAR.join(order)


def _words(synonyms: str) -> str:
    """Words of which one must stand there; a power or "first" behind one makes it another."""
    each = (
        re.escape(one).replace(r"\*", r"\w*").replace(r"\ ", r"\-").replace(r"\-", "[- ]?")
        for one in synonyms.split("|")
    )
    return rf"(?<!\w)(?:{'|'.join(each)})(?!\w| ?\*\*| ?\^|[- ]first\b)"


def sentence(said: str, pattern: re.Pattern[str]) -> str:
    """The sentence in which a phrase stands that is not taken back, or nothing.

    Examples
    --------
    >>> sentence("One. Heads share weights. Two.", phrases("shar* + weight*"))
    'Heads share weights'
    >>> sentence("Heads do not share weights.", phrases("shar* + weight*"))
    ''
    """
    for one in _SENTENCE.split(said):
        for match in pattern.finditer(one):
            if not _TAKEN_BACK.search(one[: match.start()]):
                start = 0 if len(one) <= _LONGEST else match.start()
                return one[start : start + _LONGEST].strip(" .;")
    return ""
