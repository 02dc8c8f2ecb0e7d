"""Look at attention and gradients of a run while it trains, without changing a bit of its numbers.

A look is taken in the first step and in every `every`-th after it, so that it costs less than a thirtieth of the
training: a look calls a copy of the model on a few sequences of the step's batch and reads gradients and weights once.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Self, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.overrides import TorchFunctionMode

from attnlab.core.contracts import Batch
from attnlab.core.layouts import Scores
from attnlab.inspection.capture import capture
from attnlab.inspection.watch import Captured

LEAST_STEPS = 75  # between looks, which take as long as 0.1 to 0.9 steps of usual models, and 2.2 of the smallest
MOST_LOOKS = 200  # of a run: as many as a chart of usual width can show
ITEMS = 8  # sequences that are looked at
PAIRS = 2**19  # of queries and keys, over these sequences: so many numbers a head are kept for each layer
HIDDEN = -5e3  # scores below are masked: the smallest number that masks add is -1e4
UNDERFLOW = 80.0  # a score so far below the largest of its row may have a weight of exactly zero in float32
DIGITS = 5  # of what is written down
RECTIFIERS = frozenset({torch.relu, F.relu, Tensor.relu, torch.relu_, Tensor.relu_, F.relu_, F.relu6})

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
        with torch.no_grad(), capture(twin) as trace, _WatchRectifiers(twin) as rectified:
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
    return Batch(tuple(one[:items] for one in batch.inputs), batch.targets[:items])


def attention_seen(trace: Mapping[str, Captured]) -> Seen:
    """Entropy of the weights and size of the scores of every captured attention, by head.

    Notes
    -----
    The entropy of a query's weights is divided by that of equal weights on all keys that it may see, so that 1 is
    equal weights and 0 one key; queries that see one key do not count. Scores count where the key may be seen. That
    it may is read off the weights (one head of the layer gives it some), or off the score where the weight is so small
    that float32 has no number for it.
    """
    found: Seen = {"entropy": {}, "logit_max": {}, "logit_std": {}}
    for name, one in trace.items():
        if one.weights is None or one.scores is None:
            continue
        scores, weights = one.scores.float(), one.weights.float()
        visible = _visible(scores, weights)
        found["entropy"][name] = rounded(relative_entropy(weights, visible).nanmean((0, 2)))
        found["logit_max"][name] = rounded(scores.masked_fill(~visible, -math.inf).amax((0, 2, 3)))
        found["logit_std"][name] = rounded(_spread(scores, visible))
    return found if found["entropy"] else {}


def _visible(scores: Scores, weights: Scores) -> Bool[Tensor, "batch heads q_len k_len"]:
    """Which keys a query may see: those that some head of the layer weights, or gives too low a score to weight."""
    largest = scores.masked_fill(weights == 0, -math.inf).amax(-1, keepdim=True)
    some = (weights > 0) | ((scores < largest - UNDERFLOW) & (scores > HIDDEN))
    return some.any(1, keepdim=True).expand_as(scores)


def relative_entropy(weights: Float[Tensor, "*q_len k_len"], visible: Bool[Tensor, "*q_len k_len"]) -> Tensor:
    """The entropy of each query's weights, as a part of that of equal weights on what it may see; NaN for one key."""
    equal = visible.sum(-1).log()  # (*q_len)
    return (torch.special.entr(weights).sum(-1) / equal).masked_fill(equal <= 0, math.nan)


def dead_share(rectified: Float[Tensor, "*positions features"]) -> Float[Tensor, ""]:
    """The share of features that are zero at every position."""
    return (rectified == 0).flatten(0, -2).all(0).float().mean()


def _spread(scores: Scores, visible: Bool[Tensor, "batch heads q_len k_len"]) -> Float[Tensor, " heads"]:
    """The standard deviation of a head's scores where keys may be seen."""
    shown = scores.masked_fill(~visible, math.nan)
    mean = shown.nanmean((0, 2, 3), keepdim=True)
    return (shown - mean).square().nanmean((0, 2, 3)).sqrt()


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


@final
class _WatchRectifiers(TorchFunctionMode):
    """Count, by module, the features that a rectifier leaves at zero at every position, while the context is open.

    Parameters
    ----------
    model : nn.Module
        What runs.

    Attributes
    ----------
    dead : dict
        Share of the features, by name of the module that rectifies.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.dead: dict[str, Tensor] = {}
        self._model = model
        self._running: list[str] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        """Follow which module runs."""
        for name, module in self._model.named_modules():
            enter, leave = partial(self._enter, name or "model"), self._leave
            self._hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
        return super().__enter__()

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        """Leave nothing on the model."""
        super().__exit__(exc_type, exc_val, exc_tb)
        for hook in self._hooks:
            hook.remove()

    def _enter(self, name: str, *_: object) -> None:
        self._running.append(name)

    def _leave(self, *_: object) -> None:
        self._running.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch."""
        result = func(*args, **(kwargs or {}))
        if func in RECTIFIERS and result.ndim > 1 and self._running:
            self.dead[self._running[-1]] = dead_share(result)
        return result


def rounded(value: Tensor) -> Any:
    """Numbers as they are written down."""
    numbers = value.tolist()
    if isinstance(numbers, list):
        return [float(f"{one:.{DIGITS}g}") for one in numbers]
    return float(f"{numbers:.{DIGITS}g}")
