"""How long the steps of a run take, estimated from a few that are timed; nothing is compiled for it."""

from __future__ import annotations

import functools
import math
import timeit

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch, StudyTask
from attnlab.core.machine import one_thread
from attnlab.inspection.cost import seconds_per_step

TIMED_STEPS = 3
PRODUCT_SIZE = 1024
PRODUCTS = {"float32": (torch.float32,), "bf16": (torch.bfloat16,), "auto": (torch.float32, torch.bfloat16)}
"""Types in which a recipe's precision may have matrix products computed, the one that always works first."""


def step_seconds(model: nn.Module, task: StudyTask, precision: str = "float32") -> float:
    """The median seconds of one forward and backward on a training batch of the task, not compiled."""
    first, *others = PRODUCTS[precision]
    return min([_seconds(model, task, first), *(_seconds_if_possible(model, task, other) for other in others)])


def _seconds(model: nn.Module, task: StudyTask, products: torch.dtype) -> float:
    batch: Batch = task.train_batch(0, 0)

    def loss(outputs: Tensor) -> Tensor:
        return task.loss(outputs, batch)

    return seconds_per_step(model, batch.inputs, loss=loss, repeats=TIMED_STEPS, products=products)


def _seconds_if_possible(model: nn.Module, task: StudyTask, products: torch.dtype) -> float:
    """The seconds of a step, infinity for a model that does not run in a type."""
    try:
        return _seconds(model, task, products)
    except RuntimeError:
        return math.inf


@functools.lru_cache(maxsize=len(PRODUCTS))
def flops_per_second_on_one_thread(precision: str) -> float:
    """How fast large matrix products are here."""
    with one_thread():
        return 2 * PRODUCT_SIZE**3 / min(map(_product_seconds, PRODUCTS[precision]))


def _product_seconds(products: torch.dtype) -> float:
    factor = torch.rand(PRODUCT_SIZE, PRODUCT_SIZE).to(products)
    return min(timeit.repeat(lambda: factor @ factor, number=1, repeat=TIMED_STEPS))


def step_seconds_on_one_thread(model: nn.Module, task: StudyTask, precision: str) -> float:
    """What `step_seconds` returns with a single CPU thread."""
    with one_thread():
        return step_seconds(model, task, precision)
