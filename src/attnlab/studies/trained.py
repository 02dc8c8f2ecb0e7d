"""Trained models of a study put to use: sentences translated, texts continued."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from attnlab.contracts import StudyTask
from attnlab.errors import DataError, RunError
from attnlab.models.generation import Chooser, Hypothesis, Marks, beam_search, sample
from attnlab.models.writers import Ensemble, TextWriter, writer_for
from attnlab.studies.assemble import build_model, build_task
from attnlab.tasks.char_lm import CharLM
from attnlab.tasks.translation import Translation, padded
from attnlab.training.atomic import read_json
from attnlab.training.checkpoints import load_model_weights

BATCH = 64
"""Sentences that are translated together; those of like length."""
LONGEST_FACTOR, LONGEST_MORE = 2, 10
"""A translation may have so many times the tokens of its source, and so many more."""


@dataclass(frozen=True)
class Trained:
    """Hold a trained model and the task it was trained on.

    Parameters
    ----------
    folder : Path
        Where it comes from.
    model : nn.Module
        In evaluation mode.
    task : StudyTask
        With the tokenizer of the run.
    """

    folder: Path
    model: nn.Module
    task: StudyTask


def load_trained(folder: Path, *, which: str = "best", device: str = "cpu") -> Trained:
    """Return the model of a run with its weights.

    Parameters
    ----------
    folder : Path
        Folder of a run: ``runs/STUDY/VARIANT/seed-0``.
    which : {"best", "last"}
        The weights of the best evaluation, or those at the end.
    device : str
        Where to put the model.

    Returns
    -------
    Trained
        Model and task.

    Raises
    ------
    RunError
        If the folder is no run, has no such weights, or they are damaged.
    """
    path = folder / "spec.json"
    if not path.is_file():
        runs = sorted(str(one.parent) for one in folder.glob("*/seed-*/spec.json"))
        hint = f"; runs in it: {', '.join(runs)}" if runs else ""
        raise RunError(f"{folder} is no run (no spec.json in it){hint}")
    spec = read_json(path)
    task = build_task(spec["task"])
    model = build_model(spec["model"], task)
    load_model_weights(model, folder, which=which)
    return Trained(folder, model.to(device).eval(), task)


def translate(
    trained: Sequence[Trained],
    sentences: Sequence[str],
    *,
    beam: int = 4,
    alpha: float = 0.6,
    batch: int = BATCH,
    cached: bool = True,
) -> list[str]:
    """Translate sentences; several models as one by their mean probabilities.

    Parameters
    ----------
    trained : sequence of Trained
        Translation models of one tokenizer.
    sentences : sequence of str
        Any number, in any order; an empty one stays empty.
    beam : int
        Beginnings that are kept of each translation; 1 is greedy.
    alpha : float
        Exponent of the length penalty.
    batch : int
        Sentences that are translated together.
    cached : bool
        Whether keys and values are kept; without, the result is the same and takes longer.

    Returns
    -------
    list of str
        One translation per sentence.

    Raises
    ------
    RunError
        If a run is none of translation, or the runs have different tokenizers.
    DataError
        If a sentence is longer than the model's longest.
    """
    task = _translation_task(trained)
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
        hypotheses = _search(trained, task, [encoded[one] for one in some], beam=beam, alpha=alpha, cached=cached)
        for number, found in zip(some, hypotheses, strict=True):
            best[number] = found[0].tokens
    return task.data.tokenizer.decode([best.get(number, ()) for number in range(len(sentences))])


def _translation_task(trained: Sequence[Trained]) -> Translation:
    for one in trained:
        if not isinstance(one.task, Translation):
            raise RunError(f"{one.folder} is no translation run: its task is '{one.task.name}'")
    first, *others = (cast(Translation, one.task).data.tokenizer.to_json() for one in trained)
    for one, other in zip(trained[1:], others, strict=True):
        if other != first:
            raise RunError(f"{one.folder} has another tokenizer than {trained[0].folder}: they cannot write together")
    return cast(Translation, trained[0].task)


def _in_batches(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for first in range(0, len(numbers), size):
        yield numbers[first : first + size]


def _search(
    trained: Sequence[Trained],
    task: Translation,
    sources: Sequence[Sequence[int]],
    *,
    beam: int,
    alpha: float,
    cached: bool,
) -> list[list[Hypothesis]]:
    source = padded([np.asarray(tokens, dtype=np.int64) for tokens in sources], task.marks.pad)
    with torch.no_grad():
        writer = Ensemble([writer_for(one.model, source, cached=cached) for one in trained])
        longest = min(task.max_length, LONGEST_FACTOR * source.shape[1] + LONGEST_MORE)
        marks = Marks(task.marks.begin, task.marks.end)
        return beam_search(writer, len(sources), marks, beam=beam, alpha=alpha, max_length=longest)


def generate(
    trained: Trained,
    prompt: str,
    *,
    length: int,
    samples: int = 1,
    seed: int = 0,
    **choice: Any,
) -> list[str]:
    """Continue a text.

    Parameters
    ----------
    trained : Trained
        A language model.
    prompt : str
        What the text begins with; at least one character.
    length : int
        Characters to write.
    samples : int
        Number of texts.
    seed : int
        Seed of the random choices.
    **choice
        ``temperature``, ``top_k``, ``top_p`` of `attnlab.models.generation.Chooser`.

    Returns
    -------
    list of str
        The texts, prompt included.

    Raises
    ------
    RunError
        If the run is none of a language model.
    DataError
        If the prompt is empty or has a character that the model does not know.
    """
    task = trained.task
    if not isinstance(task, CharLM):
        raise RunError(f"{trained.folder} is no language model: its task is '{task.name}'")
    if not prompt:
        raise DataError("a prompt of at least one character is needed, such as a line break")
    tokens = task.encode(prompt).expand(samples, -1)
    choose = Chooser(generator=torch.Generator().manual_seed(seed), **choice)
    with torch.no_grad():
        writer = TextWriter(trained.model, task.context)
        writer.read(tokens[:, :-1])
        written = sample(writer, tokens[:, -1], length=length, choose=choose)
    return [prompt + task.decode(row) for row in written]
