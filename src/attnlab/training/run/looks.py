"""Look at attention and gradients of a run while it trains, without changing a bit of its numbers.

A look is taken in the first step and in every `every`-th after it, so that it costs less than a thirtieth of the
training: a look calls a copy of the model on a few sequences of the step's batch and reads gradients and weights once.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from attnlab.core.contracts import Batch
from attnlab.inspection.activity import WatchRectifiers, relative_entropy, spread, visible_pairs
from attnlab.inspection.capture import capture
from attnlab.inspection.watch import Captured

LEAST_STEPS = 75  # between looks, which take as long as 0.1 to 0.9 steps of usual models, and 2.2 of the smallest
MOST_LOOKS = 200  # of a run: as many as a chart of usual width can show
ITEMS = 8  # sequences that are looked at
PAIRS = 2**19  # of queries and keys, over these sequences: so many numbers a head are kept for each layer
DIGITS = 5  # of what is written down

Seen = dict[str, Any]
"""What a look has found: by name of a quantity, by layer, one number or one for each head; see ``events.py``."""


@final
class Looks:
    """Look into a model in some of its training steps.

    Parameters
    ----------
    model : nn.Module
        The model, which is never called.
    wanted : collection of {"attention", "gradients"}
        What is looked at; nothing where it is empty.
    total_steps : int or None
        Steps of the run; None where its budget is in seconds.
    """

    def __init__(self, model: nn.Module, wanted: Collection[str], total_steps: int | None) -> None:
        self._model, self._wanted = model, wanted
        self._every = max(LEAST_STEPS, math.ceil((total_steps or 0) / MOST_LOOKS))
        self._steps: dict[str, _LayerStep] = {}
        self._twin = _Twin(model)
        self._note = ""
        self._is_blind = False  # whether nothing can be seen inside

    def is_due(self, step: int) -> bool:
        """Whether the step after so many others is looked at."""
        return bool(self._wanted) and step % self._every == 0

    def before_update(self) -> None:
        """Note gradients, before they are clipped, and weights."""
        if "gradients" in self._wanted:
            by_layer: dict[str, list[nn.Parameter]] = defaultdict(list)
            for name, parameter in self._model.named_parameters():
                if parameter.grad is not None:
                    by_layer[_layer_of(name)].append(parameter)
            self._steps = {layer: _LayerStep(parameters) for layer, parameters in by_layer.items()}

    def after_update(self, call: Callable[[nn.Module, Batch], object], batch: Batch) -> Seen:
        """What the update did to the weights, and what a copy of the model does with a few sequences of the batch.

        Parameters
        ----------
        call : callable
            Calls a model on a batch.
        batch : Batch
            The batch of the step.
        """
        seen: Seen = {}
        if "gradients" in self._wanted:
            seen["gradient_norm"] = {layer: rounded(step.gradient) for layer, step in self._steps.items()}
            seen["update_ratio"] = {layer: rounded(step.update_ratio()) for layer, step in self._steps.items()}
        if not self._is_blind:
            try:
                seen |= self._seen_inside(call, batch)
            except Exception as error:  # what a copy of a person's module does may fail in any way
                self._note = f"{type(self._model).__name__} cannot be looked into: {error}".splitlines()[0]
                self._is_blind = True
        self._steps = {}
        return seen | ({"note": self._note} if self._note else {})

    def _seen_inside(self, call: Callable[[nn.Module, Batch], object], batch: Batch) -> Seen:
        twin = self._twin.now()
        with torch.no_grad(), capture(twin) as trace, WatchRectifiers() as rectified:
            call(twin, few(batch))
        seen: Seen = {}
        if "attention" in self._wanted:
            seen |= attention_seen(trace)
            self._is_blind = not seen and "gradients" not in self._wanted
            others = "nothing is watched" if self._is_blind else "gradients alone are watched"
            self._note = "" if seen else f"no attention was seen in {type(self._model).__name__}: {others}"
        if "gradients" in self._wanted and rectified.dead:
            seen["dead_share"] = {name: rounded(share) for name, share in rectified.dead.items()}
        return seen


@final
class _Twin:
    """Keep a copy of a model, so that what is done with it leaves no trace in the model itself.

    Parameters
    ----------
    model : nn.Module
        The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._copy: nn.Module | None = None

    def now(self) -> nn.Module:
        """The copy as the model is now, in evaluation mode."""
        tensors, own = _tensors(self._model), _tensors(self._copy)
        if self._copy is None or [one.shape for one in own] != [one.shape for one in tensors]:
            self._copy = copy.deepcopy(self._model).eval()
            return self._copy
        with torch.no_grad():
            for mine, theirs in zip(own, tensors, strict=True):
                mine.copy_(theirs)
        return self._copy


def _tensors(model: nn.Module | None) -> list[Tensor]:
    return [] if model is None else [*model.parameters(), *model.buffers()]


def few(batch: Batch) -> Batch:
    """The first sequences of a batch, as many as a look can keep the pairs of."""
    length = max((one.shape[1] for one in batch.inputs if one.ndim > 1), default=1)
    items = max(1, min(ITEMS, PAIRS // length**2))
    return batch.rows(0, items)


def attention_seen(trace: Mapping[str, Captured]) -> Seen:
    """Entropy of the weights and size of the scores of every captured attention, by head.

    Notes
    -----
    The entropy of a query's weights is divided by that of equal weights on all keys that it may see, so that 1 is
    equal weights and 0 one key; queries that see one key do not count. Scores count where the key may be seen, as
    `visible_pairs` has it.
    """
    found: Seen = {"entropy": {}, "logit_max": {}, "logit_std": {}}
    for name, one in trace.items():
        if one.weights is None or one.scores is None:
            continue
        scores, weights = one.scores.float(), one.weights.float()
        visible = visible_pairs(scores, weights)
        found["entropy"][name] = rounded(relative_entropy(weights, visible).nanmean((0, 2)))
        found["logit_max"][name] = rounded(scores.masked_fill(~visible, -math.inf).amax((0, 2, 3)))
        found["logit_std"][name] = rounded(spread(scores, visible))
    return found if found["entropy"] else {}


@final
class _LayerStep:
    """Hold the gradient of a layer, and its weights before the update."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._before = [parameter.detach().clone() for parameter in parameters]
        self.gradient = get_total_norm([one.grad for one in parameters if one.grad is not None])

    def update_ratio(self) -> Tensor:
        """The size of the update as a part of the size of the weights."""
        pairs = zip(self._parameters, self._before, strict=True)
        return get_total_norm([now.detach() - before for now, before in pairs]) / get_total_norm(self._before)


def _layer_of(parameter: str) -> str:
    """The layer of a parameter: the path to the first item of a list on the way to it, else the first part."""
    *path, _ = parameter.split(".")
    end = next((place for place, part in enumerate(path) if part.isdigit()), 0)
    return ".".join(path[: end + 1]) or "model"


def rounded(value: Tensor) -> Any:
    """Numbers as they are written down."""
    numbers = value.tolist()
    if isinstance(numbers, list):
        return [float(f"{one:.{DIGITS}g}") for one in numbers]
    return float(f"{numbers:.{DIGITS}g}")
