"""What is suspicious about a parallel corpus before anything is trained on it: its lines, its sides, its parts."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

import numpy as np

from attnlab.text.pairs.languages import mistaken
from attnlab.text.pairs.pairing import WORDS, Sample, Suspicion, suspicions, turned
from attnlab.text.pairs.parallel import Pair, ParallelText, Part

APART = 0.5  # standard deviations between the mean lengths of two parts
UNKNOWN_TIMES, UNKNOWN_MORE = 3.0, 0.05  # of words that the training part has not: as many as expected, and so many
FEWEST = 20  # pairs of a part of which anything is said
HEADINGS = (
    "source target src tgt trg text texts sentence sentences translation translations input output original reference "
    "id language lang from to english german french spanish italian portuguese dutch russian chinese japanese korean "
    "arabic deutsch englisch französisch français anglais allemand español inglés"
)
"""Words over columns; codes of the languages count too."""


def suspicious(parts: Mapping[str, Part], languages: tuple[str, str]) -> list[str]:
    """What is suspicious about a corpus, one sentence for each thing; of a large one, stretches of it are looked at."""
    samples = {part: Sample() for part in parts}
    texts: dict[ParallelText, Sample] = {}
    for part, one in parts.items():
        for _, pair in one.pairs():
            samples[part].add(pair)
        if one.text not in texts:
            texts[one.text] = Sample()
            for pair in one.text.pairs():
                texts[one.text].add(pair)
    found = [said for text, sample in texts.items() for said in _of_text(text, sample, languages)]
    train, *others = ((part, [pair for _, run in sample.runs for pair in run]) for part, sample in samples.items())
    for part, pairs in others:
        if min(len(pairs), len(train[1])) >= FEWEST:
            found += _of_parts(train[1], part, pairs)
    return found


def _of_text(text: ParallelText, sample: Sample, languages: tuple[str, str]) -> list[str]:
    name = " and ".join(text.files)
    pairs = [pair for _, run in sample.runs for pair in run]
    looked = f" (looked at: {len(pairs):,} of {sample.lines:,} lines)" if len(pairs) < sample.lines else ""
    found = [f"{name}, {_told(one)}{looked}" for one in suspicions(sample)]
    known = {*HEADINGS.split(), *(code.lower() for code in languages)}
    if pairs and all(
        side and {word.lower() for word in WORDS.findall(side.replace("_", " "))} <= known for side in pairs[0]
    ):
        found.append(f"{name}, line 1 is read as a pair and looks like a heading: {' / '.join(pairs[0])!r}; remove it")
    wrong = mistaken(pairs, languages)
    if len(wrong) == 2:
        found.append(
            f"{name}: the sides seem swapped: what should be {languages[0]} reads like {wrong[0]}{looked}; check pair"
        )
    elif wrong:
        found.append(f"{name}: what should be {languages[languages[0] == wrong[0]]} reads like {wrong[0]}{looked}")
    return found


def _told(one: Suspicion) -> str:
    """What is wrong with lines, and what to do."""
    where = f"lines {one.first:,} to {one.last:,}"
    if one.kind == "shifted":
        return (
            f"{where}: line n of the source goes with line n{one.size:+.0f} of the target; a line is "
            f"missing or too much near line {one.first:,}"
        )
    if one.kind == "unrelated":
        return f"{where}: the sides have no more to do with each other than any two lines; are they translations?"
    if one.kind == "copied":
        return f"{where}: both sides are the same in {one.size:.0%} of the lines; a model learns to copy"
    return f"{where}: the sides are swapped there, beside the other lines"


def _of_parts(train: Sequence[Pair], part: str, pairs: Sequence[Pair]) -> list[str]:
    """How a held-out part differs from the training part."""
    found = []
    if turned(train, pairs):
        found.append(f"the sides of the {part} part are swapped beside those of the training part")
    lengths = [np.array([len(pair.source.split()) for pair in some]) for some in (train, pairs)]
    logs = [np.log1p([len(pair.source) for pair in some]) for some in (train, pairs)]
    if abs(logs[0].mean() - logs[1].mean()) > APART * logs[0].std() + 0.1:
        found.append(
            f"sentences of the {part} part have {lengths[1].mean():.1f} words, those of the training part "
            f"{lengths[0].mean():.1f}: what is measured is not what is trained for"
        )
    expected, unknown = _unknown(train, pairs)
    if unknown > UNKNOWN_TIMES * expected + UNKNOWN_MORE:
        found.append(
            f"{unknown:.0%} of the words of the {part} part stand nowhere in the training part, of whose own kind "
            f"{expected:.0%} would: it is another kind of text"
        )
    return found


def _unknown(train: Sequence[Pair], pairs: Sequence[Pair]) -> tuple[float, float]:
    """The share of new words that a sentence of the training part's kind has (Good-Turing), and that of other pairs."""
    counts = collections.Counter(word for pair in train for word in WORDS.findall(pair.source.casefold()))
    asked = [word for pair in pairs for word in WORDS.findall(pair.source.casefold())]
    once = sum(count == 1 for count in counts.values())
    return once / max(1, counts.total()), sum(word not in counts for word in asked) / max(1, len(asked))
