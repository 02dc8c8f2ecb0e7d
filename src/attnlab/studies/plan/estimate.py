"""How long steps and evaluations of a run take, estimated from a few batches that are timed; nothing is compiled."""

from __future__ import annotations

import contextlib
import functools
import time
import timeit
from typing import final

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch, StudyTask, typical_batches
from attnlab.core.machine import one_thread
from attnlab.inspection.cost import seconds_per_step

TIMED_STEPS = 3
TIMED_EVALUATION_S = 1.0
"""After so long the batches of an evaluation are counted only, and reckoned at the pace of those before."""
PRODUCT_SIZE = 1024
PRODUCTS = {"float32": (torch.float32,), "bf16": (torch.bfloat16,), "auto": (torch.float32, torch.bfloat16)}
"""Types in which a recipe's precision may have matrix products computed, the one that always works first."""


def step_seconds_on_one_thread(model: nn.Module, task: StudyTask, precision: str) -> float:
    """The median seconds of one forward and backward on a training batch of the task, not compiled."""
    first, *others = PRODUCTS[precision]
    with one_thread():
        found = [_seconds(model, task, first)]
        for other in others:
            with contextlib.suppress(RuntimeError):  # of a model that does not run in that type
                found.append(_seconds(model, task, other))
    return min(found)


def _seconds(model: nn.Module, task: StudyTask, products: torch.dtype) -> float:
    def seconds(batch: Batch) -> float:
        return seconds_per_step(
            model, batch.inputs, loss=lambda outputs: task.loss(outputs, batch), repeats=TIMED_STEPS, products=products
        )

    return sum(fraction * seconds(batch) for fraction, batch in typical_batches(task))


@functools.lru_cache(maxsize=len(PRODUCTS))
def flops_per_second_on_one_thread(precision: str) -> float:
    """How fast large matrix products are here."""
    with one_thread():
        return 2 * PRODUCT_SIZE**3 / min(map(_product_seconds, PRODUCTS[precision]))


def _product_seconds(products: torch.dtype) -> float:
    factor = torch.rand(PRODUCT_SIZE, PRODUCT_SIZE).to(products)
    return min(timeit.repeat(lambda: factor @ factor, number=1, repeat=TIMED_STEPS))


def evaluation_seconds_on_one_thread(model: nn.Module, task: StudyTask, part: str) -> float:
    """How long evaluating a held-out part takes."""
    first = _FirstBatches(model.eval())
    began = time.perf_counter()
    with one_thread(), torch.no_grad():
        task.evaluate(first, part)
    return time.perf_counter() - began + first.left_out * first.seconds / max(1, first.computed)


@final
class _FirstBatches:
    """Answer batches with a model for a while, later ones with zeros of the same shape; count positions of both."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.seconds, self.computed, self.left_out = 0.0, 0, 0
        self._read, self._answered = torch.Size(), torch.Size()

    def __call__(self, batch: Batch) -> Tensor:
        """The outputs for a batch."""
        read = batch.inputs[-1].shape[:2]
        if self.seconds > TIMED_EVALUATION_S:
            self.left_out += read.numel()
            sizes = zip(self._answered, self._read, read, strict=False)
            first_two = [now if size == before else size for size, before, now in sizes]
            return torch.zeros(()).expand(*first_two, *self._answered[2:])
        began = time.perf_counter()
        outputs = self._model(*batch.inputs)
        self.seconds += time.perf_counter() - began
        self.computed += read.numel()
        self._read, self._answered = read, outputs.shape
        return outputs
