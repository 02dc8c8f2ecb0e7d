"""Whether attention puts the positions that it looks at in the order in which they matter to what a model answers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.contracts import Batch
from attnlab.core.errors import ModuleError, SpecError
from attnlab.inspection.attribution.calls import answer_of
from attnlab.inspection.attribution.gradients import gradient_times_input
from attnlab.inspection.attribution.rollout import agreement
from attnlab.inspection.capture import capture
from attnlab.inspection.interventions.ablation import ablate
from attnlab.studies.using.translating import sides_of_maps

SEQUENCES = 4
QUERIES = 12
"""Positions of each sequence that are asked at most: as many gradients are taken."""
KEYS = 32
"""Positions that are put in order at most: as many are hidden from each attention, one at a time."""


@final
@dataclass(frozen=True)
class Orders:
    """Hold Kendall's tau between three orders of the keys of one attention, means over queries."""

    gradient: float  # its weights, against gradient times input
    hidden: float  # its weights, against how far the answer moves when a key is hidden from it
    between: float  # these two against each other


def orders(model: nn.Module, batch: Batch) -> dict[str, Orders]:
    """Compare the order in which attention puts keys with the order in which they matter to the answer.

    The first few sequences of a batch are read by a model in evaluation mode. What is found is by attention, of those
    whose queries stand where the model answers, whose keys can be hidden, and whose input has gradients.

    Notes
    -----
    The weights of a layer are the mean over its heads. The answer is the largest number at the query, such as the logit
    of the likeliest token. Keys without weight are left out. A key is hidden from all queries of the layer, and the
    others share its weight. Low tau is no proof that weights say nothing [2]_: the last of the three tells how well two
    other ways agree on the same keys.

    References
    ----------
    .. [1] Jain, Wallace, 2019, arXiv:1902.10186, section 4.1 (gradients, and leaving an input out).
    .. [2] Wiegreffe, Pinter, 2019, arXiv:1908.04626.
    """
    inputs = tuple(one[:SEQUENCES] for one in batch.inputs)
    with torch.no_grad(), capture(model) as trace:
        answer = answer_of(model(*inputs))  # (batch, length, numbers)
    if answer.ndim != 3:  # one answer for a whole sequence: no query stands where it is given
        return {}
    length = answer.shape[1]
    queries = _spread(length, QUERIES)
    asked = _Asked(model, inputs, queries, answer[:, queries].argmax(dim=-1))
    gradients, sides = functools.cache(asked.gradients), sides_of_maps(model, trace)
    found = {}
    for name, captured in trace.items():
        asks, looked_at = sides.get(name, (0, 0))
        over = (length, inputs[looked_at].shape[1])
        keys = _spread(over[1], KEYS)
        if captured.weights is not None and asks == len(inputs) - 1 and captured.weights.shape[2:] == over:
            with contextlib.suppress(ModuleError, SpecError):
                weights = captured.weights.mean(dim=1)[:, queries][..., keys]  # (batch, queries, keys)
                found[name] = _compared(weights, gradients(looked_at)[..., keys], asked.moved(name, keys))
    return found


def _spread(length: int, most: int) -> list[int]:
    """At most so many positions, evenly spread, the last among them."""
    return sorted({length - 1 - length * step // most for step in range(most)})


def _compared(*orders: Float[Tensor, "batch queries keys"]) -> Orders:
    weights, gradients, moved = (one.where(orders[0] != 0, 0) for one in orders)
    pairs = ((weights, gradients), (weights, moved), (gradients, moved))
    return Orders(*(agreement(*pair).mean for pair in pairs))


@final
@dataclass(frozen=True)
class _Asked:
    """Ask for the same answers again and again."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    queries: Sequence[int]
    likeliest: Int[Tensor, "batch queries"]

    @torch.no_grad()
    def answers(self) -> Float[Tensor, "batch queries"]:
        """The number of each answer that was the largest of the model as it is."""
        answer = answer_of(self.model(*self.inputs))[:, self.queries]
        return answer.gather(-1, self.likeliest[..., None])[..., 0]

    def gradients(self, looked_at: int) -> Float[Tensor, "batch queries k_len"]:
        """Gradient times one of the inputs, of each answer."""
        rows = [
            gradient_times_input(self.model, *alone, position=query, token=int(token), of=looked_at).scores
            for tokens, *alone in zip(self.likeliest, *(one.split(1) for one in self.inputs), strict=True)
            for query, token in zip(self.queries, tokens, strict=True)
        ]
        return torch.cat(rows).unflatten(0, self.likeliest.shape)

    def moved(self, name: str, keys: Sequence[int]) -> Float[Tensor, "batch queries keys"]:
        """How far each answer moves without each of some keys of an attention."""
        before, without = self.answers(), []
        for key in keys:
            with ablate(self.model, f"{name}:*:*->{key}", "hide"):
                without.append(self.answers())
        return (torch.stack(without, dim=-1) - before[..., None]).abs()
