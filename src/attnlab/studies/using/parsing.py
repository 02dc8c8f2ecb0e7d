"""Sentences through models that write trees: in batches of like length, and nothing but trees comes out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from attnlab.models.decoding.bracketed import BracketedWriter
from attnlab.models.decoding.generation import EndMarks, beam_search
from attnlab.models.decoding.writers import Ensemble, device_of, writer_for
from attnlab.models.parsers.parser import AbstractParser
from attnlab.models.parsers.possible import MORE, TOKENS_A_WORD
from attnlab.tasks.codecs import TreeCodec
from attnlab.tasks.pairs import padded

BATCH = 64
"""Sentences that are parsed together; those of like length."""
LEAST = 3  # tokens of a tree beside its words: a bracket opened and closed, and the end


def parses(
    models: Sequence[nn.Module],
    codec: TreeCodec,
    sentences: Sequence[Sequence[str]],
    *,
    beam: int | None = None,
    cached: bool = True,
) -> list[str | None]:
    """Write the trees of sentences with models of one task; several as one by their mean probabilities.

    Brackets among the words of a sentence are given as ``-LRB-`` and ``-RRB-``. For each sentence there is its tree in
    brackets; None where there are no words, or more than the model reads or writes.
    """
    encoded = codec.encode(sentences)
    found: list[str | None] = [None] * len(sentences)
    numbers = sorted(fitting(codec, sentences, encoded), key=lambda one: len(sentences[one]))
    for first in range(0, len(numbers), BATCH):
        some = numbers[first : first + BATCH]
        words = [sentences[number] for number in some]
        written = _search(models, codec, words, [encoded[number] for number in some], beam=beam, cached=cached)
        for number, tokens in zip(some, written, strict=True):
            found[number] = codec.bracketed(tokens, sentences[number])
    return found


def fitting(codec: TreeCodec, sentences: Sequence[Sequence[str]], encoded: Sequence[Sequence[int]]) -> list[int]:
    """The numbers of the sentences that have words, and no more than models of a codec read and write."""
    fits = (
        0 < len(words) <= codec.max_length - LEAST and len(tokens) <= codec.max_length
        for words, tokens in zip(sentences, encoded, strict=True)
    )
    return list(itertools.compress(range(len(sentences)), fits))


def _search(
    models: Sequence[nn.Module],
    codec: TreeCodec,
    sentences: Sequence[Sequence[str]],
    encoded: Sequence[Sequence[int]],
    *,
    beam: int | None,
    cached: bool,
) -> list[tuple[int, ...]]:
    vocabulary, counts = codec.vocabulary, [len(words) for words in sentences]
    source = padded([np.asarray(tokens, dtype=np.int64) for tokens in encoded], codec.marks.pad)
    allowed = torch.zeros(len(sentences), max(counts), vocabulary.size, dtype=torch.bool)
    for row, words in zip(allowed, sentences, strict=True):
        for place, tokens in enumerate(codec.may_be(words)):
            row[place, list(tokens)] = True
    whole = [model for model in models if isinstance(model, AbstractParser)]
    if whole:
        others = [one for one in models if one is not whole[0]]
        return [tuple(tree) for tree in whole[0].trees_with(others, source.to(device_of(whole[0])), allowed)]
    opening = torch.zeros(vocabulary.size, dtype=torch.bool)
    opening[vocabulary.opening.start + 1 : vocabulary.opening.stop] = True  # not that of unknown labels
    limits = [min(codec.max_length, TOKENS_A_WORD * count + MORE) for count in counts]
    marks = EndMarks(codec.marks.begin, codec.marks.end)
    with torch.no_grad():
        writer = BracketedWriter(
            Ensemble([writer_for(one, source, cached=cached) for one in models]),
            allowed=allowed,
            words=counts,
            opening=opening,
            close=codec.close,
            marks=marks,
            limits=limits,
        )
        best = beam_search(
            writer, len(counts), marks, beam=codec.beam if beam is None else beam, alpha=0.0, max_length=limits
        )
    return [found[0].tokens for found in best]
