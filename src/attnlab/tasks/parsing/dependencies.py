"""Sentences with their dependencies, as files of CoNLL-U hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from attnlab.core.errors import DataError
from attnlab.text.sources import clean, open_bytes, said

COLUMNS = 10
ID, FORM, HEAD, RELATION, MISC = 0, 1, 6, 7, 9
NO_BLANK = "SpaceAfter=No"
LEFT_OUT = frozenset({"_", "root", "punct"})
"""Relations that name no word that a word hangs on, or hang punctuation on one."""


@final
@dataclass(frozen=True)
class Dependency:
    """Hold that a word hangs on another."""

    relation: str  # such as ``nsubj``, without a subtype
    dependent: int  # number of the word, from 0
    head: int  # of the word that it hangs on


@final
@dataclass(frozen=True)
class ParsedSentence:
    """Hold a sentence, where its words stand in it, and which hangs on which."""

    text: str  # as it is written
    spans: tuple[tuple[int, int], ...]  # of each word, its characters in the text
    dependencies: tuple[Dependency, ...]  # without the root's and those of punctuation


def read_dependencies(path: str | Path) -> list[ParsedSentence]:
    """Read the sentences of a file of CoNLL-U, such as any treebank of Universal Dependencies.

    Parameters
    ----------
    path : str or Path
        The file; it may be compressed.

    Returns
    -------
    list of ParsedSentence
        Those that have dependencies, in order. Words that are written together (``don't``, French ``du``) stand at the
        same characters; empty nodes are left out. A subtype (``nsubj:pass``) counts as its relation.

    Raises
    ------
    DataError
        If the file cannot be read, a row has not ten columns, or a word hangs on one that is not there; with file and
        line.

    References
    ----------
    .. [1] https://universaldependencies.org/format.html
    """
    with said(str(path)), open_bytes(str(path)) as file:
        lines = clean(file.read().decode("utf-8-sig")).split("\n")
    sentences = [_sentence(rows, str(path)) for rows in _blocks(lines)]
    found = [one for one in sentences if one.dependencies]
    if not found:
        raise DataError(f"{path} has no sentence with dependencies in the ten columns of CoNLL-U")
    return found


def _blocks(lines: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """The rows of each sentence, with their lines."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*lines, ""], 1):
        if line.strip() and not line.startswith("#"):
            block.append((number, line))
        elif not line.strip() and block:
            yield block
            block = []


def _sentence(rows: Sequence[tuple[int, str]], path: str) -> ParsedSentence:
    text, span = "", (0, 0)
    together = 0  # the last word of those that are written together
    spans: list[tuple[int, int]] = []
    hung: list[tuple[int, str, str]] = []
    for line, row in rows:
        columns = row.split("\t")
        if len(columns) != COLUMNS:
            raise DataError(f"{path}, line {line}: {len(columns)} columns, where CoNLL-U has {COLUMNS}")
        if "." in columns[ID]:
            continue
        first, _, last = columns[ID].partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and int(first) == len(spans) + 1):
            raise DataError(f"{path}, line {line}: word {columns[ID]!r} where word {len(spans) + 1} must stand")
        if last or len(spans) >= together:
            start, text = len(text), text + columns[FORM]
            span = start, len(text)
            text += "" if NO_BLANK in columns[MISC].split("|") else " "
        if last:
            together = int(last)
        else:
            spans.append(span)
            hung.append((line, columns[HEAD], columns[RELATION]))
    return ParsedSentence(text.rstrip(), tuple(spans), tuple(_dependencies(hung, path)))


def _dependencies(hung: Sequence[tuple[int, str, str]], path: str) -> Iterator[Dependency]:
    for dependent, (line, head, relation) in enumerate(hung):
        name = relation.partition(":")[0]
        if name in LEFT_OUT or head == "_":
            continue
        if not head.isdecimal() or not 0 <= int(head) <= len(hung) or int(head) == dependent + 1:
            raise DataError(f"{path}, line {line}: hangs on {head!r}, which is no other of the {len(hung)} words")
        if int(head):
            yield Dependency(name, dependent, int(head) - 1)
