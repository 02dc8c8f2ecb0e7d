"""Sentences cut into words as treebanks have them."""

from __future__ import annotations

import re

from attnlab.core.errors import DataError

BRACKETS = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
"""How treebanks write brackets that are words."""
_CUTS = (
    (re.compile(r'(^|[\s(\[{<])"'), r"\1 `` "),
    (re.compile(r'"'), " '' "),
    (re.compile(r"(\.\.\.|--|[,;:](?!\d)|[@#$%&?!()\[\]{}<>])"), r" \1 "),
    (re.compile(r"([^.\s])(\.)([)\]}>'\s]*)$"), r"\1 \2 \3"),
    (re.compile(r"(\w)('(?:s|m|d|ll|re|ve))\b", re.IGNORECASE), r"\1 \2"),
    (re.compile(r"(\w)(n't)\b", re.IGNORECASE), r"\1 \2"),
    (re.compile(r"(?<=\w)'(?=\s|$)"), " '"),
    (re.compile(r"\b(can)(not)\b", re.IGNORECASE), r"\1 \2"),
)
"""What is cut, one after the other: quotes, signs, the last full stop, short forms."""


def words_of(sentence: str) -> list[str]:
    """Cut a sentence into words as the Penn Treebank does, but for rare short forms.

    Raises
    ------
    DataError
        If there are none.

    References
    ----------
    .. [1] MacIntyre, 1995, "Sed script to produce Penn Treebank tokenization on arbitrary raw text".

    Examples
    --------
    >>> words_of("They can't (yet) say no.")
    ['They', 'ca', "n't", '-LRB-', 'yet', '-RRB-', 'say', 'no', '.']
    """
    for pattern, cut in _CUTS:
        sentence = pattern.sub(cut, sentence)
    return given_words(sentence)


def given_words(sentence: str) -> list[str]:
    """The words of a sentence that blanks divide; brackets that are words are written as treebanks do.

    Raises
    ------
    DataError
        If there are none, or a word holds a bracket.
    """
    found = [BRACKETS.get(word, word) for word in sentence.split()]
    if not found:
        raise DataError("an empty sentence has no tree")
    for word in found:
        if "(" in word or ")" in word:
            raise DataError(f"the word {word!r} holds a bracket, which trees are written with; divide it by blanks")
    return found
