"""What is wrong with the lines of a parallel text is found wherever it begins, and of clean lines nothing is said."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from attnlab.text.pairs.languages import mistaken
from attnlab.text.pairs.pairing import FEWEST, LINES, RUNS, Sample, suspicions, turned
from attnlab.text.pairs.parallel import Pair

SYLLABLES = [first + second for first in "bdfgklmnprst" for second in "aeiou"]


def dictionary(count, seed):
    """Words of two languages that have nothing in common; word n of one is the translation of word n of the other."""
    draw = np.random.default_rng(seed)
    words = ["".join(draw.choice(SYLLABLES, draw.integers(2, 5))) for _ in range(2 * count)]
    return words[:count], [f"{word}q" for word in words[count:]]


def corpus(count, seed=0, *, most=20):
    """Sentences whose words are as frequent as Zipf has it, each with one word for a word, in another order."""
    draw = np.random.default_rng(seed)
    source, target = dictionary(400, seed)
    shares = 1 / np.arange(1, 401)
    pairs = []
    for _ in range(count):
        words = draw.choice(400, draw.integers(min(4, most), most + 1), p=shares / shares.sum())
        pairs.append(Pair(" ".join(source[word] for word in words), " ".join(target[word] for word in sorted(words))))
    return pairs


def looked(pairs):
    sample = Sample()
    for pair in pairs:
        sample.add(pair)
    return suspicions(sample)


def shifted(pairs, begin, by=1):
    """Targets of which some lines are lost, from a line on."""
    targets = [pair.target for pair in pairs]
    return [Pair(pair.source, one) for pair, one in zip(pairs, targets[:begin] + targets[begin + by :], strict=False)]


def shuffled(pairs, begin):
    order = np.random.default_rng(1).permutation(len(pairs) - begin) + begin
    return pairs[:begin] + [
        Pair(pair.source, pairs[one].target) for pair, one in zip(pairs[begin:], order, strict=True)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [0, FEWEST - 1, 100, 1000])
def test_of_clean_lines_nothing_is_said(count, seed):
    pairs = corpus(count, seed)
    for ordered in (
        pairs,
        sorted(pairs),
        sorted(pairs, key=lambda pair: len(pair.source)),
        corpus(count, seed, most=4),
    ):
        assert not looked(ordered)
    with_gaps = [Pair("", "") if number % 7 == 3 else pair for number, pair in enumerate(pairs)]
    assert not looked(with_gaps)


def test_of_lines_that_are_all_alike_nothing_can_be_said():
    few = corpus(3)
    for pairs in (few[:1] * 1000, few * 300, [Pair(f"line {number} of it", "zeile davon") for number in range(1000)]):
        assert not looked(pairs)


@pytest.mark.parametrize(("begin", "by"), [(0, 1), (0, 2), (500, 1), (750, 3)])
def test_lines_that_are_shifted(begin, by):
    (found,) = looked(shifted(corpus(1000), begin, by))
    assert (found.kind, found.size) == ("shifted", -by) or (found.kind, found.size) == ("shifted", by)
    assert abs(found.first - (begin + 1)) < 10
    assert found.last > 950


def test_a_shift_says_its_direction():
    """A line that the target lost: what belongs to source line n stands one line before."""
    pairs = corpus(300)
    assert looked(shifted(pairs, 0))[0].size == -1
    swapped = [Pair(*pair[::-1]) for pair in pairs]
    assert looked([Pair(*pair[::-1]) for pair in shifted(swapped, 0)])[0].size == 1


@pytest.mark.parametrize("begin", [0, 500])
def test_lines_that_have_nothing_to_do_with_each_other(begin):
    (found,) = looked(shuffled(corpus(1500), begin))
    assert found.kind == "unrelated"
    assert abs(found.first - (begin + 1)) < 60


def test_sides_that_are_swapped_somewhere():
    pairs = corpus(400)
    (found,) = looked(pairs[:300] + [Pair(*pair[::-1]) for pair in pairs[300:]])
    assert (found.kind, found.last) == ("swapped", 400)
    assert abs(found.first - 301) < 5
    assert turned(pairs[:300], [Pair(*pair[::-1]) for pair in pairs[300:]])
    assert not turned(pairs[:300], pairs[300:])


def test_sides_that_are_the_same():
    pairs = corpus(400)
    (found,) = looked(pairs[:100] + [Pair(pair.source, pair.source) for pair in pairs[100:130]] + pairs[130:])
    assert (found.kind, found.first, found.last) == ("copied", 101, 130)
    (found,) = looked(
        [Pair(pair.source, pair.source) if number % 5 == 0 else pair for number, pair in enumerate(pairs)]
    )
    assert (found.kind, found.size) == ("copied", pytest.approx(0.2))


def test_a_long_text_is_looked_at_in_stretches():
    sample = Sample()
    for number in range(5 * RUNS * LINES):
        sample.add(Pair(str(number), ""))
    assert RUNS / 2 < len(sample.runs) <= RUNS
    assert sample.lines == 5 * RUNS * LINES
    for first, pairs in sample.runs:
        assert [pair.source for pair in pairs] == [str(first - 1 + number) for number in range(LINES)]
    gaps = np.diff([first for first, _ in sample.runs])
    assert set(gaps.tolist()) == {sample.every * LINES}
    assert sample.runs[-1][0] + gaps[0] > sample.lines


def test_a_shift_in_a_text_of_which_stretches_are_looked_at():
    pairs = corpus(RUNS * LINES + 2000)
    (found,) = looked(shifted(pairs, len(pairs) // 2))
    assert found.kind == "shifted"
    assert abs(found.first - len(pairs) // 2) < 3 * LINES


# ---- real text ----


def lines_of(part, language):
    path = Path(os.environ.get("ATTNLAB_DATA", "")) / "multi30k" / f"{part}.{language}.gz"
    return gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[:-1]


@pytest.mark.data
@pytest.mark.parametrize("languages", [("en", "de"), ("de", "fr")])
def test_faults_of_a_real_text(languages):
    pairs = [Pair(*both) for both in zip(*(lines_of("val", one) for one in languages), strict=True)]
    assert not looked(pairs)
    assert not mistaken(pairs, languages)
    assert mistaken([Pair(*pair[::-1]) for pair in pairs], languages) == languages[::-1]
    assert mistaken([Pair(pair.source, pair.source) for pair in pairs], languages) == languages[:1]
    assert looked(shifted(pairs, 600))[0].kind == "shifted"
    assert looked(shuffled(pairs, 400))[0].kind == "unrelated"
    for begin in range(0, 1000, 300):
        assert not looked(pairs[begin : begin + 100])


ENGLISH = "the man is in the house and he was with it at the door for an hour"
GERMAN = "der mann ist in dem haus und die frau und das kind sind nicht auf der straße mit einem hund"


def test_one_known_language_shows_on_which_side_it_stands():
    pairs = [Pair(ENGLISH, "zu bu ku"), Pair(ENGLISH, "bu zu")] * 5
    assert not mistaken(pairs, ("en", "xx"))
    assert mistaken([Pair(*pair[::-1]) for pair in pairs], ("en", "xx")) == ("xx", "en")
    assert mistaken(pairs, ("xx", "en")) == ("en", "xx")
    assert not mistaken(pairs, ("xx", "yy"))
    assert mistaken([Pair("我 有 一", ENGLISH), Pair("我们有一个的是在", ENGLISH)] * 9, ("en-GB", "zh")) == (
        "zh",
        "en-GB",
    )
    assert not mistaken([Pair(GERMAN, ENGLISH)] * 5, ("de", "en"))
    spelled = [Pair(" ".join(word), " ".join(word[::-1])) for word in ("piazzo", "wikozana", "adapero")] * 20
    assert not any(mistaken(spelled, languages) for languages in (("en", "de"), ("de", "pl"), ("xx", "en")))
