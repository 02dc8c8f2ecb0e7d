"""A whole model of a person's own with one fault removed, as `attnlab.nn.mended` removes it from a mixer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from attnlab.core.build import Spec
from attnlab.nn.exchanged import put_in
from attnlab.nn.mended import Mending


@final
class _Levels(nn.Module):
    """Add what inputs hold, and have held on average so far, to answers; nothing of it at the start."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.map = nn.Linear(2 * d_in, d_out)
        nn.init.zeros_(self.map.weight)
        nn.init.zeros_(self.map.bias)

    def forward(self, x: Tensor, answers: Tensor) -> Tensor:
        """The answers with it: at each position, or its mean where there is one for all."""
        x = x.unsqueeze(-1) if x.ndim == 2 else x  # (batch, length, d_in)
        so_far = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        told = self.map(torch.cat((x, so_far), -1))  # (batch, length, d_out)
        return answers + (told if answers.ndim == told.ndim else told.mean(1)).reshape(answers.shape)


@final
class MendedModel(nn.Module):
    """Call another model with a fault removed.

    Parameters
    ----------
    part : Spec
        The model; entry of `MODELS` or ``path.py:Class``.
    mending : mapping, optional
        What is removed: arguments of `Mending`.
    slots : mapping, optional
        By name of its part what stands in its place: arguments of `Slot`.
    **offered
        What the task offers, for the model within.

    Raises
    ------
    SpecError
        If the model cannot be built, or there is no such mending.

    Notes
    -----
    Scores are what is normalized over its last axis and has two equal last axes. A model that normalizes by code of its
    own (an exponential over its sum) is not reached.
    """

    same_draws_as = "part"

    def __init__(
        self,
        part: Spec,
        *,
        mending: Mapping[str, Any] | None = None,
        slots: Mapping[str, Mapping[str, Any]] | None = None,
        **offered: Any,
    ) -> None:
        from attnlab.models.table import build_any_model

        super().__init__()
        self.mending = Mending.of(mending)
        self.part = build_any_model(part, offered)
        self.levels = _Levels(offered["d_in"], offered["d_out"]) if self.mending.levels else None
        put_in(self.part, slots or {})
        self.mending.start(self.part)
        within = [module for module in self.part.modules() if getattr(module, "batch_first", True) is False]
        if (
            self.mending.swapped and within
        ):  # these alone are given the other layout: what stands around them reads it right
            self.mending = replace(self.mending, swapped=False)
            for module in within:
                module.batch_first = True  # pyrefly: ignore

    def train(self, mode: bool = True) -> Self:
        """Put it in training or evaluation; what is settled stays as it is in evaluation."""
        super().train(mode)
        self.mending.settle(self.part)
        return self

    def forward(self, *inputs: Tensor) -> Tensor:
        """What the model gives without the fault."""
        answers = self.mending.call(self.part, *inputs, training=self.training)
        return answers if self.levels is None else self.levels(inputs[0], answers)

    def extra_repr(self) -> str:
        """What is changed, for printing."""
        return str(self.mending)
