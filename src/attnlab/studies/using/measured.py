"""A trained model and the held-out data it is measured on: a run and its task, or a checkpoint and a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from attnlab.core.contracts import StudyTask
from attnlab.core.errors import DataError, SpecError
from attnlab.core.files import read_json
from attnlab.core.generators import seed_generators
from attnlab.models.from_checkpoint import TOKENIZER, open_once
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.using.trained import Trained

WINDOW = 256
"""Tokens of a text that a checkpoint reads at once, at most: maps of all heads are kept."""
WINDOWS = 8  # a batch


@final
@dataclass(frozen=True)
class MeasuredModel:
    """Hold a model that is to be measured."""

    folder: Path  # of the run or checkpoint
    model: nn.Module  # in evaluation mode
    task: StudyTask  # whose held-out parts it is measured on
    spec: Mapping[str, Any]  # of the model
    of_task: Mapping[str, Any]  # likewise
    which: str = "last"  # weights: ``last`` or ``best``

    @property
    def untrained(self) -> dict[str, Any]:
        """The specification of the same model before its first step."""
        pretrained = self.spec["name"] == "pretrained"
        return {**self.spec, "weights": "fresh"} if pretrained else dict(self.spec)

    def built_untrained(self) -> nn.Module:
        """The same model before its first step, in evaluation mode; the same one at every call."""
        with torch.random.fork_rng(devices=[]):
            seed_generators(0)
            return build_model(self.untrained, self.task).eval()


def measured_run(trained: Trained, which: str = "last") -> MeasuredModel:
    """The model of a run, on its own task; a `DataError` where its data are not here."""
    spec = read_json(trained.folder / "spec.json")
    return MeasuredModel(trained.folder, trained.model, build_task(spec["task"]), spec["model"], spec["task"], which)


def longest_text(folder: Path) -> int:
    """How many tokens a checkpoint that continues texts reads at most; `measured_checkpoint` says what it raises."""
    made = open_once(str(folder)).spec
    if made["name"] != "decoder":
        raise SpecError(f"{folder} does not continue texts as a GPT-2 or a Llama does: heads cannot be measured on one")
    if not (folder / TOKENIZER).is_file():
        raise DataError(f"{folder} has no {TOKENIZER}, so that it reads no text")
    return made["max_length"]


def measured_checkpoint(folder: Path, text: Path) -> MeasuredModel:
    """A checkpoint of transformers that continues texts, on a text that is held out as a whole.

    Raises
    ------
    DataError
        If the text or the checkpoint cannot be read, or the checkpoint has no tokenizer.
    SpecError
        If it does not continue texts.
    """
    sizes = {"context": min(WINDOW, longest_text(folder)), "batch": WINDOWS}
    of_task = {"name": "lm", "text": str(text), "validation": str(text), "tokenizer": str(folder), **sizes}
    spec, task = {"name": "pretrained", "folder": str(folder)}, build_task(of_task)
    return MeasuredModel(folder, build_model(spec, task).eval(), task, spec, of_task)
