"""Do the lines of a parallel text belong together? Found from the text itself, in languages of which nothing is known.

Three things say of two lines that one translates the other: their lengths, what they share as it is written (names,
numbers, punctuation), and words that stand in translations of each other elsewhere in the text. What lines share with
their partner is compared with what they share with the partner's neighbors, and with lines far away.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float64, Int64

from attnlab.text.pairs.parallel import Pair

LINES, RUNS = 256, 32  # of a stretch of lines that is looked at, and stretches at most, evenly spread over a text
FEWEST = 60  # lines of a text of which anything is said
REACH = 4  # lines by which a side may be shifted
SHIFTS = range(-REACH, REACH + 1)
FAR = (11, 17, 23, -11, -17, -23)  # lines away, where nothing is shared but what any two lines share
COMMON, LOOKED_AT = 1000, 12  # words of a side that are learned, and words of a line that are looked up
STEM = 5  # letters of a word that count: what follows changes with case and number
UNCUT = 12  # letters of a mean word, from which on a script has no blanks between words
BEYOND_CHANCE = 2.0  # standard errors above the largest that so many stretches have by chance
SWAPPED_LINES = 25  # one after the other
COPIED = 0.1  # of the lines of a text: in clean ones names and numbers are a few of a hundred
COPIED_RUN = 25  # lines one after the other
UNRELATED_SURE = 10.0  # standard errors; free translations of a page reach 5
DIRECTION = 200  # words of both sides that tell the sides apart
UNCLEAR = 0.15  # along that direction, of 1
FOLD = 16  # lines one after the other of which words are learned from the other half
ALIKE = 0.5  # spread below which lines are too much alike for anything to be said
UNRELATED_FROM, UNRELATED_LINES = 200, 50  # lines from which on a text, or a stretch of one, is called unrelated
WORDS = re.compile(r"\w[^\s!-/:-@\[-`{-~]*")  # marks that are combined with letters are none of \w


@final
class Sample:
    """Keep stretches of lines that are evenly spread over a text, whatever its length."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, list[Pair]]] = []  # number of the first line from 1, and the pairs
        self.every = 1  # one stretch in so many is kept
        self.lines = 0

    def add(self, pair: Pair) -> None:
        """Take the next line, an empty one too."""
        place, within = divmod(self.lines, LINES)
        self.lines += 1
        if place % self.every:
            return
        if not within:
            if len(self.runs) == RUNS:
                self.runs, self.every = self.runs[::2], 2 * self.every
                if place % self.every:
                    return
            self.runs.append((self.lines, []))
        self.runs[-1][1].append(pair)


@final
@dataclass(frozen=True)
class Suspicion:
    """Hold what is wrong with the lines of a text."""

    kind: str  # "shifted", "unrelated", "swapped" or "copied"
    first: int  # the first line that it was seen on, from 1
    last: int  # the last line
    size: float  # lines of the shift; standard errors; share of the lines that are copied


def suspicions(sample: Sample) -> list[Suspicion]:
    """What is wrong with how the lines of a text are paired; empty where nothing is, or where nothing can be said.

    Notes
    -----
    A stretch of lines is said to be shifted where its lines have more in common with those d lines away than with
    their partners, clearly beyond chance: the stretch of the largest sum is tested (Kadane's), for every d up to
    `REACH`. Words are looked up in what other lines of the text taught, as association beyond chance at that shift
    at which it is strongest, so that a text that is shifted everywhere is found too. Time O(lines).
    """
    lines = [first + number for first, run in sample.runs for number in range(len(run))]
    pairs = [pair for _, run in sample.runs for pair in run]
    if sum(bool(source and target) for source, target in pairs) < FEWEST:
        return []
    numbers = np.array(lines)
    found = [_copied(pairs, numbers), _swapped(pairs, numbers)]
    if found[0] is None:  # sides that are equal say of other lines that they are not
        found.append(_displaced(pairs, numbers))
    return [one for one in found if one is not None]


# ---- lines that do not belong together ----


def _displaced(pairs: Sequence[Pair], numbers: Int64[np.ndarray, " lines"]) -> Suspicion | None:
    """The stretch of lines that are shifted, or else that have nothing to do with each other."""
    scores = _Compared(pairs, numbers).scores()
    enough, best, found = np.sqrt(2 * np.log(2 * REACH * len(pairs))) + BEYOND_CHANCE, 0.0, None
    for shift in SHIFTS:
        first, last, sure = _stretch(np.nan_to_num(np.clip(scores[shift] - scores[0], -4, 4)))
        if shift and sure >= enough and sure > best:
            best, found = sure, Suspicion("shifted", int(numbers[first]), int(numbers[last]), shift)
    if found:
        return found
    there = np.isfinite(scores[0])
    beyond = scores[0][there] - np.mean([np.nan_to_num(scores[shift][there]) for shift in FAR], axis=0)
    return _unrelated(beyond, numbers[there])


def _unrelated(beyond: Float64[np.ndarray, " lines"], numbers: Int64[np.ndarray, " lines"]) -> Suspicion | None:
    """The stretch of lines that have no more in common than lines far away."""
    spread = float(beyond.std()) + 1e-9
    if len(beyond) >= UNRELATED_FROM and spread > ALIKE and beyond.mean() < 3 * spread / np.sqrt(len(beyond)):
        return Suspicion("unrelated", int(numbers[0]), int(numbers[-1]), 0.0)
    half = np.quantile(beyond, 0.7) / 2
    first, last, _ = _stretch(half - np.clip(beyond, -half, 3 * half))
    inside, outside = beyond[first : last + 1], np.concatenate([beyond[:first], beyond[last + 1 :]])
    if min(len(inside), len(outside)) < UNRELATED_LINES or inside.mean() > 0.2 * outside.mean():
        return None
    sure = float(outside.mean() - inside.mean()) / spread * np.sqrt(len(inside))
    return Suspicion("unrelated", int(numbers[first]), int(numbers[last]), sure) if sure >= UNRELATED_SURE else None


@final
class _Compared:
    """What the lines of two sides have in common, for every shift."""

    def __init__(self, pairs: Sequence[Pair], numbers: Int64[np.ndarray, " lines"]) -> None:
        self.numbers = numbers
        self.empty = np.array([not (source and target) for source, target in pairs])
        self.lengths = [np.log1p([len(pair[side]) for pair in pairs]) for side in range(2)]
        words = [_words([pair[side] for pair in pairs]) for side in range(2)]
        counts = [collections.Counter(word for line in side for word in line) for side in words]
        total = counts[0] + counts[1]
        shared = _numbered({word: total[word] for word in counts[0].keys() & counts[1].keys()})
        self.weights = np.array([0.0, *(np.log(2 * len(pairs) / total[word]) for word in shared)])
        self.shared = [_rarest(side, shared) for side in words]
        twice = [{word: count for word, count in side.items() if count > 1} for side in counts]
        tables = [_numbered(side, COMMON) for side in twice]  # what stands in one line teaches nothing of others
        self.words = [_rarest(side, table) for side, table in zip(words, tables, strict=True)]
        self.sizes = [len(table) + 1 for table in tables]
        self.fold = np.arange(len(pairs)) // FOLD % 2

    def scores(self) -> dict[int, Float64[np.ndarray, " lines"]]:
        """For each shift what every source line has in common with the target line so far away."""
        taught = max(SHIFTS, key=lambda one: (float(np.nanmean(self._lexical(one, self._learned(one)))), -abs(one)))
        learned = self._learned(taught)
        total = {shift: np.zeros(len(self.numbers)) for shift in (*SHIFTS, *FAR)}
        for kind in (self._like_length, self._written, lambda one: self._lexical(one, learned)):
            found = {shift: kind(shift) for shift in total}
            spread = float(np.nanstd([found[shift] for shift in FAR])) + 1e-9
            for shift, one in found.items():
                total[shift] += one / spread
        return total

    def _partners(self, shift: int) -> tuple[Int64[np.ndarray, " lines"], Float64[np.ndarray, " lines"]]:
        """The places of the lines so far away, and NaN where there is none beside the line or one is empty."""
        count = len(self.numbers)
        places = np.clip(np.arange(count) + shift, 0, count - 1)
        there = (self.numbers[places] - self.numbers == shift) & ~self.empty & ~self.empty[places]
        return places, np.where(there, 0.0, np.nan)

    def _like_length(self, shift: int) -> Float64[np.ndarray, " lines"]:
        places, gaps = self._partners(shift)
        source, target = self.lengths
        usual = np.median(target[~self.empty] - source[~self.empty])
        return gaps - np.minimum(np.abs(target[places] - source - usual), 1.0)

    def _written(self, shift: int) -> Float64[np.ndarray, " lines"]:
        places, gaps = self._partners(shift)
        source, target = self.shared[0], self.shared[1][places]
        same = (source[:, :, None] == target[:, None, :]) & (source > 0)[:, :, None]  # (lines, words, words)
        common = (same.any(2) * self.weights[source]).sum(1)
        whole = np.sqrt(self.weights[source].sum(1) * self.weights[target].sum(1))
        return gaps + common / np.maximum(whole, 1e-9)

    def _learned(self, shift: int) -> list[Float64[np.ndarray, "source target"]]:
        """How much words go together at a shift beyond chance, by each of two halves of the lines."""
        places, gaps = self._partners(shift)
        found = []
        for fold in range(2):
            chosen = np.flatnonzero(np.isfinite(gaps) & (self.fold == fold))
            source, target = self.words[0][chosen], self.words[1][places[chosen]]
            cells = source[:, :, None].astype(np.int64) * self.sizes[1] + target[:, None, :]
            together = np.bincount(cells.ravel(), minlength=self.sizes[0] * self.sizes[1]).reshape(self.sizes)
            alone = [
                np.bincount(side.ravel(), minlength=size)
                for side, size in zip((source, target), self.sizes, strict=True)
            ]
            expected = np.outer(*alone) / max(1, len(chosen))
            beyond = np.clip((together - expected) / np.sqrt(expected + 1), 0, 6).astype(np.float32)
            beyond[0], beyond[:, 0] = 0, 0
            found.append(beyond)
        return found

    def _lexical(
        self, shift: int, learned: Sequence[Float64[np.ndarray, "source target"]]
    ) -> Float64[np.ndarray, " lines"]:
        places, gaps = self._partners(shift)
        found = np.zeros(len(gaps))
        for fold, table in enumerate(learned):
            chosen = np.flatnonzero(self.fold != fold)
            source, target = self.words[0][chosen], self.words[1][places[chosen]]
            best = table[source[:, :, None], target[:, None, :]].max(1)  # (lines, words of the target)
            found[chosen] = best.sum(1) / np.maximum(1, (target > 0).sum(1))
        return gaps + found


# ---- sides that are not what they should be ----


def _copied(pairs: Sequence[Pair], numbers: Int64[np.ndarray, " lines"]) -> Suspicion | None:
    """The lines of which both sides are the same: many of the text, or many one after the other."""
    same = np.array([source == target and any(map(str.isalpha, source)) for source, target in pairs])
    share = float(same.mean())
    if share >= COPIED:
        places = np.flatnonzero(same)
        return Suspicion("copied", int(numbers[places[0]]), int(numbers[places[-1]]), share)
    first, last, _ = _stretch(same - 0.8)
    if same[first : last + 1].sum() >= COPIED_RUN:
        return Suspicion("copied", int(numbers[first]), int(numbers[last]), float(same[first : last + 1].mean()))
    return None


def _swapped(pairs: Sequence[Pair], numbers: Int64[np.ndarray, " lines"]) -> Suspicion | None:
    """The stretch of lines whose sides stand the other way round than in most of the text."""
    signs = _directions(pairs)
    first, last, _ = _stretch(np.where(signs, -signs - 0.5, 0.0))
    inside, outside = signs[first : last + 1], np.concatenate([signs[:first], signs[last + 1 :]])
    if (inside < 0).sum() >= SWAPPED_LINES and _agree(-inside) and _agree(outside):
        return Suspicion("swapped", int(numbers[first]), int(numbers[last]), 0.0)
    return None


def turned(known: Sequence[Pair], asked: Sequence[Pair]) -> bool:
    """Whether the sides of pairs stand the other way round than in others."""
    signs = _directions([*known, *asked])
    one, other = signs[: len(known)], signs[len(known) :]
    enough = min(np.count_nonzero(one), np.count_nonzero(other)) >= SWAPPED_LINES
    return bool(enough and _agree(one) and _agree(-other))


def _agree(signs: Float64[np.ndarray, " lines"]) -> bool:
    """Whether nearly all lines that have a sign have a positive one."""
    return bool((signs > 0).sum() >= 0.9 * np.count_nonzero(signs))


def _directions(pairs: Sequence[Pair]) -> Float64[np.ndarray, " lines"]:
    """Which way round the sides of each line stand: 1 as in most, -1 as in few, 0 where it is not clear.

    What words a source has more often than its target is one direction for all lines, the first principal one; lines
    whose sides are swapped have the opposite sign.
    """
    sides = [_words([pair[side] for pair in pairs]) for side in range(2)]
    counts = collections.Counter(word for side in sides for line in side for word in line)
    table = _numbered(counts, DIRECTION)
    apart = np.zeros((len(pairs), len(table) + 1))
    for sign, side in zip((1, -1), sides, strict=True):
        for row, line in enumerate(side):
            apart[row, [table[word] for word in line if word in table]] += sign
    apart /= np.maximum(1.0, np.linalg.norm(apart, axis=1, keepdims=True))
    along = apart @ np.linalg.eigh(apart.T @ apart)[1][:, -1]
    signs = np.where(np.abs(along) > UNCLEAR, np.sign(along), 0.0)
    return signs if signs.sum() >= 0 else -signs


# ---- what both read ----


def _words(lines: Sequence[str]) -> list[list[str]]:
    """The different beginnings of words of each line, or pairs of letters where words are not divided."""
    cut = [WORDS.findall(line.casefold()) for line in lines]
    words = sum(map(len, cut))
    if words and sum(len(word) for line in cut for word in line) / words > UNCUT:
        cut = [[word[place : place + 2] for word in line for place in range(max(1, len(word) - 1))] for line in cut]
    marks = [line[-1:] for line in lines]
    return [sorted({word[:STEM] for word in line} | {mark} - {""}) for line, mark in zip(cut, marks, strict=True)]


def _numbered(counts: Mapping[str, int], most: int | None = None) -> dict[str, int]:
    """The commonest words with their numbers, from 1."""
    ordered = sorted(counts, key=lambda word: (-counts[word], word))[:most]
    return {word: number for number, word in enumerate(ordered, start=1)}


def _rarest(lines: Iterable[Sequence[str]], table: dict[str, int]) -> Int64[np.ndarray, "lines words"]:
    """The rarest known words of each line, by number; 0 fills up."""
    found = [sorted((table[word] for word in line if word in table), reverse=True)[:LOOKED_AT] for line in lines]
    return np.array([line + [0] * (LOOKED_AT - len(line)) for line in found], dtype=np.int32)


def _stretch(gains: Float64[np.ndarray, " lines"]) -> tuple[int, int, float]:
    """The first and the last place of the stretch with the largest sum, and how many standard errors that is."""
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    rises = sums - np.minimum.accumulate(sums)
    stop = int(rises.argmax())
    start = int(sums[: stop + 1].argmin())
    if stop == start:
        return 0, 0, 0.0
    inside = gains[start:stop]
    return start, stop - 1, float(inside.sum() / np.sqrt(np.square(inside).sum() + 1))
