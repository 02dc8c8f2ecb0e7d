"""Sentences through translation models: in batches of like length, and the scores of what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from attnlab.contracts import Judge, StudyTask
from attnlab.errors import DataError
from attnlab.models.generation import Hypothesis, Marks, beam_search
from attnlab.models.writers import Ensemble, writer_for
from attnlab.tasks.translation import Translation, padded

BATCH = 64
"""Sentences that are translated together; those of like length."""
LONGEST_FACTOR, LONGEST_MORE = 2, 10
"""A translation may have so many times the tokens of its source, and so many more."""


def judge_of(task: StudyTask) -> Judge | None:
    """Return what measures a trained model as a whole on a task.

    Parameters
    ----------
    task : StudyTask
        The task.

    Returns
    -------
    callable or None
        From a model to the metrics ``task.judged``; None where there are none.
    """
    if not isinstance(task, Translation) or not task.judged:
        return None

    def judge(model: nn.Module) -> dict[str, float]:
        found: dict[str, float] = {}
        for part in task.parts:
            sources = [pair.source for pair in task.data.sentences(part)]
            found |= task.score(part, translations([model], task, sources, beam=task.search_beam, alpha=task.alpha))
        return found

    return judge


def with_translations(model: nn.Module, task: StudyTask, predictions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's examples; where they are pairs of sentences, with what the model writes by itself.

    Parameters
    ----------
    model : nn.Module
        In evaluation mode.
    task : StudyTask
        The task.
    predictions : mapping
        What ``task.examples`` returned.

    Returns
    -------
    dict
        Each pair has a ``translation`` more.
    """
    if not isinstance(task, Translation):
        return dict(predictions)
    pairs = predictions["pairs"]
    sources = [pair["source"] for pair in pairs]
    written = translations([model], task, sources, beam=task.search_beam, alpha=task.alpha)
    return {
        **predictions,
        "pairs": [{**pair, "translation": text} for pair, text in zip(pairs, written, strict=True)],
    }


def translations(
    models: Sequence[nn.Module],
    task: Translation,
    sentences: Sequence[str],
    *,
    beam: int,
    alpha: float,
    batch: int = BATCH,
    cached: bool = True,
) -> list[str]:
    """Translate sentences with models of one task; several as one by their mean probabilities.

    Parameters
    ----------
    models : sequence of nn.Module
        In evaluation mode.
    task : Translation
        With the models' tokenizer.
    sentences, beam, alpha, batch, cached
        As `attnlab.studies.trained.translate` takes them.

    Returns
    -------
    list of str
        One translation per sentence.

    Raises
    ------
    DataError
        If a sentence is longer than the models' longest.
    """
    encoded = task.data.tokenizer.encode(sentences)
    for number, tokens in enumerate(encoded, start=1):
        if len(tokens) > task.max_length:
            raise DataError(
                f"sentence {number} has {len(tokens)} tokens and this model reads at most {task.max_length}: "
                f"{sentences[number - 1][:60]!r}...; cut it into sentences"
            )
    best: dict[int, Sequence[int]] = {}
    ordered = sorted((number for number, tokens in enumerate(encoded) if tokens), key=lambda one: len(encoded[one]))
    for some in _in_batches(ordered, batch):
        hypotheses = _search(models, task, [encoded[one] for one in some], beam=beam, alpha=alpha, cached=cached)
        for number, found in zip(some, hypotheses, strict=True):
            best[number] = found[0].tokens
    return task.data.tokenizer.decode([best.get(number, ()) for number in range(len(sentences))])


def _in_batches(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for first in range(0, len(numbers), size):
        yield numbers[first : first + size]


def _search(
    models: Sequence[nn.Module],
    task: Translation,
    sources: Sequence[Sequence[int]],
    *,
    beam: int,
    alpha: float,
    cached: bool,
) -> list[list[Hypothesis]]:
    source = padded([np.asarray(tokens, dtype=np.int64) for tokens in sources], task.marks.pad)
    with torch.no_grad():
        writer = Ensemble([writer_for(one, source, cached=cached) for one in models])
        longest = min(task.max_length, LONGEST_FACTOR * source.shape[1] + LONGEST_MORE)
        marks = Marks(task.marks.begin, task.marks.end)
        return beam_search(writer, len(sources), marks, beam=beam, alpha=alpha, max_length=longest)
