"""Write the dependencies of English sentences as CoNLL-U, by the link grammar parser (Debian: ``link-grammar``).

Use: ``python docs/make_parses.py SENTENCES.txt PARSES.conllu``, a sentence a line. Links become relations that are named
as in Stanford dependencies: a determiner, an adjective, a noun before a noun, a subject and an object hang on their
noun or verb, a preposition on what stands before it, and its object on the preposition. Sentences that the parser finds
no whole linkage of are left out. `attnlab heads --parses` reads any CoNLL-U; this is what answers-parts.md used.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

RELATIONS = [
    (r"SI", "nsubj", "right"), (r"S(?!F)", "nsubj", "left"), (r"O(?!F)", "obj", "right"), (r"D(?!P|T)", "det", "left"),
    (r"AN", "compound", "left"), (r"A(?![A-Z])", "amod", "left"), (r"J(?![A-Z])", "pobj", "right"),
    (r"MVp|Mp", "prep", "right"), (r"E(?![A-Z])", "advmod", "left"), (r"PP|Pg", "aux", "left"),
]
"""Of a kind of link by how its name begins: the relation, and which of the two words hangs on the other."""
WORDS = re.compile(r"\(((?:[^()]|\([^()]*\))*)\)")
LINK = re.compile(r"\[(\d+) (\d+) \d+ \(([^)]+)\)\]")
MARKED = re.compile(r"(?<=.)(\[[!?~&][^\]]*\])?\.#?[a-z][-a-z0-9]*$|(?<=.)\[[!?~&][^\]]*\]$")


def linkages(sentences: Sequence[str]) -> Iterator[tuple[list[str], list[tuple[int, int, str]]]]:
    """The words and links of the sentences that have a whole linkage."""
    options = ["-verbosity=0", "-graphics=0", "-postscript=1", "-limit=100", "-timeout=5", "-null=0", "-spell=0"]
    told = subprocess.run(["link-parser", *options], input="\n".join(sentences), capture_output=True, text=True, check=False).stdout
    for block in told.split("\n\n"):
        flat = block.replace("\n", "")
        if "(LEFT-WALL)" in flat:
            start = flat.index("[(LEFT-WALL)")
            words = [MARKED.sub("", word) for word in WORDS.findall(flat[start : flat.index("][[")])]
            links = [(int(left), int(right), name) for left, right, name in LINK.findall(flat[start:])]
            yield words, links


def forms(words: Sequence[str], sentence: str) -> list[tuple[str, str]] | None:
    """Each word as the sentence has it, and what CoNLL-U says of a blank behind it; None of another sentence."""
    place, found = 0, []
    for word in words:
        start = len(sentence) - len(sentence[place:].lstrip())
        if sentence[start : start + len(word)].lower() != word.lower():
            return None
        place = start + len(word)
        found.append((sentence[start:place], "_" if sentence[place : place + 1] in (" ", "") else "SpaceAfter=No"))
    return found if not sentence[place:].strip() else None


def rows(words: Sequence[tuple[str, str]], links: Sequence[tuple[int, int, str]]) -> Iterator[str]:
    """One row a word; words are numbered from 1, the wall on the left is 0."""
    hung: dict[int, tuple[int, str]] = {}
    for left, right, link in links:
        name = link.lstrip("dh")
        relation, which = next(((one, side) for form, one, side in RELATIONS if re.match(form, name)), ("", ""))
        dependent, head = (left, right) if which == "left" else (right, left)
        if relation and left and right <= len(words):
            hung.setdefault(dependent, (head, relation))
    for number, (form, blank) in enumerate(words, 1):
        head, relation = hung.get(number, (0, "_"))
        yield "\t".join([str(number), form, "_", "_", "_", "_", str(head), relation, "_", blank])


def main(source: str, target: str) -> None:
    """Parse and write."""
    sentences = [line.strip() for line in Path(source).read_text(encoding="utf-8").splitlines() if line.strip()]
    by_words = {"".join(sentence.lower().split()): sentence for sentence in sentences}
    blocks = []
    for words, links in linkages(sentences):
        told = [word for word in words[1:] if word != "RIGHT-WALL"]
        sentence = by_words.pop("".join(told).lower(), None)  # None of one that the parser spelled otherwise
        if found := sentence and forms(told, sentence):
            blocks.append("\n".join(rows(found, links)))
    Path(target).write_text("\n\n".join(blocks) + "\n\n", encoding="utf-8")
    print(f"{len(blocks)} of {len(sentences)} sentences")


if __name__ == "__main__":
    main(*sys.argv[1:])
