"""Inputs that an exported model is made and tried with, and how far its answers may be from the model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.core.files import read_json
from attnlab.models.from_checkpoint import open_once, pretrained
from attnlab.models.table import MODELS
from attnlab.studies.define.assemble import build_task
from attnlab.studies.using.pretrained import NAME
from attnlab.studies.using.trained import Trained
from attnlab.training.keeping.runs import SPEC

Inputs = tuple[Tensor, ...]

TOLERANCE = 1e-4
"""Largest difference from the model's numbers, as a share of the largest of them (or of 1): rounding is far below."""


def spec_of(trained: Trained) -> Mapping[str, Any]:
    """What was run; of a checkpoint what a study would say of it."""
    if trained.task.name == NAME:
        return {"model": {"name": pretrained.__name__, "folder": str(trained.folder)}, "task": {"name": NAME}}
    return read_json(trained.folder / SPEC)


def longest_of(trained: Trained) -> int | None:
    """The longest sequence that the model was built for; None where it takes any."""
    model = spec_of(trained)["model"]
    if MODELS.get(model["name"]) is pretrained:  # a task may be shorter, which cuts nothing off a checkpoint
        return open_once(model["folder"]).spec["max_length"]
    return {**trained.task.model_arguments, **model}.get("max_length")


def example_inputs(trained: Trained, batch: int, lengths: Sequence[int]) -> Inputs:
    """Inputs of a size: random tokens, or what the task has where its inputs are no tokens."""
    known, longest = trained.task.model_arguments, longest_of(trained)
    sizes = [known[name] for name in ("source_vocab_size", "target_vocab_size", "vocab_size") if name in known]
    fitting = [min(length, longest or length) for length in lengths]
    if not sizes:
        given = build_task(spec_of(trained)["task"]).train_batch(0, 0).inputs
        return tuple(x[:batch, :length].contiguous() for x, length in zip(given, fitting, strict=False))
    generator = torch.Generator().manual_seed(batch)
    drawn = [
        torch.randint(size, (batch, length), generator=generator) for size, length in zip(sizes, fitting, strict=False)
    ]
    if len(drawn) > 1:
        drawn[0][0, 1:] = known.get("pad", 0)  # of one source little is read
    return tuple(drawn)


def size_of(inputs: Inputs) -> str:
    """The size of inputs in words."""
    return f"batch {inputs[0].shape[0]}, length {' and '.join(str(x.shape[1]) for x in inputs)}"


def difference_of(trained: Trained, inputs: Inputs, got: Tensor, expected: Tensor) -> float:
    """The largest difference of two answers, or a `ModuleError` where it is more than rounding."""
    difference = (got - expected).abs().max().item()
    if not difference <= TOLERANCE * max(1.0, expected.abs().max().item()):
        raise ModuleError(
            f"{type(trained.model).__name__} of {trained.folder} gives other numbers after its export: they differ by "
            f"{difference:.3g} at {size_of(inputs)}; please report this model as a fault of attnlab"
        )
    return difference
