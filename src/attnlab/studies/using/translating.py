"""Sentences through translation models: in batches of like length, and the scores of what comes out."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, final

import numpy as np
import torch
from torch import nn

from attnlab.core.contracts import Judge, JudgedTask, Judgement, StudyTask
from attnlab.core.errors import DataError, SpecError
from attnlab.core.sizes import require_not_negative, require_positive
from attnlab.models.decoding.generation import EndMarks, Hypothesis, beam_search
from attnlab.models.decoding.writers import Ensemble, Without, writer_for
from attnlab.models.encoder_decoder import EncoderDecoder
from attnlab.studies.using.alignment import by_coverage
from attnlab.studies.using.parsing import parses
from attnlab.studies.using.unknown_words import check_replaces, with_known_words
from attnlab.tasks.codecs import Codec, SentenceCodec, codec_of
from attnlab.tasks.pairs import padded

BATCH = 64
"""Sentences that are translated together; those of like length."""
LONGEST_FACTOR, LONGEST_MORE = 2, 10
"""A translation may have so many times the tokens of its source, and so many more."""
TooLong = Literal["refuse", "skip", "cut"]
"""What becomes of a sentence that is longer than a model reads: an error, an empty translation, or its beginning."""
MOST_NAMED = 10  # sentences in a warning
NOTHING = Hypothesis((), 0.0, 0.0, ended=True)
"""The translation of nothing."""


@final
@dataclass(frozen=True)
class Search:
    """Say how translations are searched for; what is None is as the task of the run has it."""

    beam: int | None = None  # beginnings that are kept of each translation; 1 is greedy
    alpha: float | None = None  # exponent of the length penalty
    coverage: float | None = None  # weight of the penalty for passing over some of the source
    replace_unknown: bool | None = None  # whether unknown words become translations of what they stand for
    batch: int = BATCH  # sentences that are translated together
    cached: bool = True  # whether keys and values are kept
    first: int = 1  # number of the first sentence, in what is said of sentences
    too_long: TooLong = "refuse"  # see `TooLong`


def judge_of(task: StudyTask) -> Judge | None:
    """What measures a trained model as a whole on a task."""
    codec = codec_of(task)
    if not task.judged or codec is None:
        return None
    judged = cast(JudgedTask, task)

    def judge(model: nn.Module) -> Judgement:
        counts: list[int] = []

        def write(sources: Sequence[str]) -> list[str]:
            counts.append(len(sources))
            return _written(model, codec, sources)

        metrics = judged.judge(write)
        return Judgement(metrics, sum(counts))

    return judge


def with_translations(model: nn.Module, task: StudyTask, predictions: Mapping[str, Any]) -> dict[str, Any]:
    """A task's examples; where they are sentences and what is to be written, with what the model writes by itself."""
    codec = codec_of(task)
    if codec is None or codec.kind not in ("sentences", "trees"):
        return dict(predictions)
    pairs = predictions["pairs"]
    written = _written(model, codec, [pair["source"] for pair in pairs])
    found = [{**pair, "translation": one} for pair, one in zip(pairs, written, strict=True)]
    if codec.kind == "trees":
        found = [{**pair, "pieces": codec.beside(pair["translation"], pair["target"])} for pair in found]
    return {**predictions, "pairs": found}


def _written(model: nn.Module, codec: Codec, sources: Sequence[str]) -> list[str]:
    """What a model writes by itself for sentences: translations, or trees over their words."""
    if codec.kind == "trees":
        return [tree or "" for tree in parses([model], codec, [source.split(" ") for source in sources])]
    if codec.kind != "sentences":
        raise SpecError("this task judges what is written, and does not say how its models write")
    return [one.text for one in translations([model], codec, sources, Search())]


@final
@dataclass(frozen=True)
class Written:
    """Hold a translation."""

    text: str  # what was written
    ended: bool  # whether it came to an end by itself; else it was cut at the longest length
    tokens: tuple[int, ...]  # the same, without begin and end


def translations(
    models: Sequence[nn.Module], codec: SentenceCodec, sentences: Sequence[str], how: Search
) -> list[Written]:
    """Translate sentences with models of one task; several as one by their mean probabilities."""
    require_positive("batch", how.batch)
    coverage = codec.coverage if how.coverage is None else how.coverage
    require_not_negative("coverage", coverage)
    if replaces := codec.replace_unknown if how.replace_unknown is None else how.replace_unknown:
        check_replaces(codec)
    encoded = codec.encode(sentences)
    longer = [number for number, tokens in enumerate(encoded) if len(tokens) > codec.max_length]
    for number in longer:
        if how.too_long == "refuse":
            raise DataError(
                f"sentence {how.first + number} has {len(encoded[number])} tokens and this model reads at most "
                f"{codec.max_length}: {sentences[number][:60]!r}...; cut it into sentences"
            )
        encoded[number] = encoded[number][: codec.max_length] if how.too_long == "cut" else []
    if longer:
        what = "read up to there" if how.too_long == "cut" else "left out: an empty line stands in its place"
        warnings.warn(
            f"longer than the {codec.max_length} tokens that this model reads, and {what}: "
            f"sentence {listed([how.first + number for number in longer])}",
            stacklevel=2,
        )
    beam, alpha = codec.beam if how.beam is None else how.beam, codec.alpha if how.alpha is None else how.alpha
    best = [NOTHING] * len(sentences)
    ordered = sorted((number for number, tokens in enumerate(encoded) if tokens), key=lambda one: len(encoded[one]))
    for begin in range(0, len(ordered), how.batch):
        some = ordered[begin : begin + how.batch]
        sources = [encoded[one] for one in some]
        hypotheses = _search(models, codec, sources, beam=beam, alpha=alpha, cached=how.cached)
        if coverage:
            hypotheses = by_coverage(models, codec, sources, hypotheses, coverage)
        for number, found in zip(some, hypotheses, strict=True):
            best[number] = found[0]
    written = [one.tokens for one in best]
    texts = with_known_words(models, codec, sentences, written) if replaces else codec.tokenizer.decode(written)
    return [Written(text, one.ended, one.tokens) for text, one in zip(texts, best, strict=True)]


def listed(numbers: Sequence[int]) -> str:
    """The first of some numbers, for a text."""
    return ", ".join(map(str, numbers[:MOST_NAMED])) + (", ..." if len(numbers) > MOST_NAMED else "")


def sides_of_maps(model: nn.Module, layers: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Which sequence asks and which is looked at in the layers of an encoder-decoder."""
    if not isinstance(model, EncoderDecoder):
        return {}
    return {name: _sides(name.split(".")) for name in layers}


def _sides(place: Sequence[str]) -> tuple[int, int]:
    if "cross" in place:
        return 1, 0
    return (1, 1) if place[0] == "decoder" else (0, 0)


def _search(
    models: Sequence[nn.Module],
    codec: SentenceCodec,
    sources: Sequence[Sequence[int]],
    *,
    beam: int,
    alpha: float,
    cached: bool,
) -> list[list[Hypothesis]]:
    source = padded([np.asarray(tokens, dtype=np.int64) for tokens in sources], codec.marks.pad)
    longest = [min(codec.max_length, LONGEST_FACTOR * len(tokens) + LONGEST_MORE) for tokens in sources]
    with torch.no_grad():
        writer = Without(Ensemble([writer_for(one, source, cached=cached) for one in models]), codec.banned)
        marks = EndMarks(codec.marks.begin, codec.marks.end)
        return beam_search(writer, len(sources), marks, beam=beam, alpha=alpha, max_length=longest)
