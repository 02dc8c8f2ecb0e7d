"""Trained models of a study put to use: sentences translated, texts continued."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from attnlab.contracts import StudyTask
from attnlab.errors import DataError, RunError
from attnlab.models.generation import Chooser, sample
from attnlab.models.writers import TextWriter
from attnlab.studies.assemble import build_model, build_task
from attnlab.studies.translating import BATCH, translations
from attnlab.tasks.arguments import require_known
from attnlab.tasks.char_lm import CharLM
from attnlab.tasks.translation import Translation
from attnlab.tasks.translation_scores import Score, all_scores
from attnlab.training.atomic import read_json
from attnlab.training.checkpoints import load_model_weights


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


def load_trained(folder: Path, *, which: str = "last", device: str = "cpu") -> Trained:
    """Return the model of a run with its weights.

    Parameters
    ----------
    folder : Path
        Folder of a run: ``runs/STUDY/VARIANT/seed-0``.
    which : {"last", "best"}
        The weights at the end, which a study judges, or those of the best evaluation.
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
    beam: int | None = None,
    alpha: float | None = None,
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
    beam : int, optional
        Beginnings that are kept of each translation; 1 is greedy. Unless given, as the first run's task has it.
    alpha : float, optional
        Exponent of the length penalty; likewise.
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
    task, models = _translation_task(trained), [one.model for one in trained]
    beam = task.search_beam if beam is None else beam
    alpha = task.alpha if alpha is None else alpha
    return translations(models, task, sentences, beam=beam, alpha=alpha, batch=batch, cached=cached)


@dataclass(frozen=True)
class Scored:
    """Hold the translations of a held-out part and what they are worth.

    Parameters
    ----------
    translations : list of str
        In the order of the part.
    seconds : float
        What translating took.
    scores : list of Score
        BLEU, chrF and others, with signatures.
    """

    translations: list[str]
    seconds: float
    scores: list[Score]


def score(trained: Sequence[Trained], part: str = "", **search: Any) -> Scored:
    """Translate a held-out part and compare with the translations of people.

    Parameters
    ----------
    trained : sequence of Trained
        Translation models of one tokenizer.
    part : str
        ``validation`` or ``test``; the last that the first run's task has, unless given.
    **search
        ``beam``, ``alpha``, ``batch``, ``cached`` of `translate`.

    Returns
    -------
    Scored
        Translations, time, scores.

    Raises
    ------
    RunError
        As in `translate`.
    SpecError
        If the task has no such part.
    """
    task = _translation_task(trained)
    part = part or task.parts[-1]
    require_known("part", part, task.parts)
    pairs = task.data.sentences(part)
    began = time.perf_counter()
    found = translate(trained, [pair.source for pair in pairs], **search)
    seconds = time.perf_counter() - began
    return Scored(found, seconds, all_scores(found, [pair.target for pair in pairs], task.data.languages[1]))


def _translation_task(trained: Sequence[Trained]) -> Translation:
    for one in trained:
        if not isinstance(one.task, Translation):
            raise RunError(f"{one.folder} is no translation run: its task is '{one.task.name}'")
    first, *others = (cast(Translation, one.task).data.tokenizer.to_json() for one in trained)
    for one, other in zip(trained[1:], others, strict=True):
        if other != first:
            raise RunError(f"{one.folder} has another tokenizer than {trained[0].folder}: they cannot write together")
    return cast(Translation, trained[0].task)


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
