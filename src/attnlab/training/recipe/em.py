"""Expectation maximization step by step: expected counts are gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

import torch
from torch import nn

LEAST = 1e-12
"""No count falls below it, so that what is met late can still be learned."""


@final
class StepwiseEm(torch.optim.Optimizer):
    """Move counts towards what a batch is expected to add to them.

    Parameters
    ----------
    parameters : iterable of nn.Parameter
        Counts, none negative, which a model turns into probabilities by dividing them by their sums, and these sums it
        takes for constants.
    lr : float
        Share of the counts that is replaced, times `times` and ``step ** -power``; at most 1.
    power : float
        How fast older batches cease to be forgotten: 0 forgets at one rate, 1 counts all alike.
    times : float
        See above.

    Notes
    -----
    The gradient of minus the log likelihood by a count ``c`` is ``-e / c`` with the expected count ``e``, so that
    ``c (1 - r - r g)`` is ``(1 - r) c + r e`` at a rate r. Nothing is kept but the number of steps.

    References
    ----------
    .. [1] Liang, Klein, 2009, "Online EM for unsupervised models", section 3.
    .. [2] Eisner, 2016, "Inside-outside and forward-backward algorithms are just backprop".
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: float, power: float, times: float = 1.0) -> None:
        super().__init__(parameters, {"lr": lr, "power": power, "times": times})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all counts."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for counts in group["params"]:
                state = self.state[counts]
                state["step"] = state.get("step", torch.zeros(())) + 1
                rate = min(1.0, group["lr"] * group["times"] * float(state["step"]) ** -group["power"])
                gradient = 0.0 if counts.grad is None else counts.grad
                counts.mul_((1 - rate) - rate * gradient).clamp_(min=LEAST)
        return loss
