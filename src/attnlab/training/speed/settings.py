"""How training steps are computed: in float32 or bf16, compiled or not."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import final

import torch


@final
@dataclass(frozen=True)
class Setting:
    """Say how a model is computed.

    Notes
    -----
    In bf16 the parameters, their gradients, the optimizer and the loss stay in float32; torch's autocast computes
    the matrix products in bfloat16.
    """

    precision: str = "float32"  # what matrix products are computed in
    compile: bool = False  # whether ``torch.compile`` is used

    def __str__(self) -> str:
        return self.precision + (", compiled" if self.compile else "")

    @classmethod
    def parse(cls, text: str) -> Setting:
        """The setting whose words these are, as `str` gives them."""
        precision, _, compiled = text.partition(", ")
        return cls(precision, compile=bool(compiled))

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """The context in which forward passes are computed on a device."""
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)

    def eager(self) -> Setting:
        """The same precision, not compiled."""
        return replace(self, compile=False)

    def compiled(self) -> Setting:
        """The same precision, compiled."""
        return replace(self, compile=True)


@final
@dataclass(frozen=True)
class Choice:
    """Record a chosen setting, why it was chosen, and what choosing cost."""

    setting: Setting  # what was chosen
    reason: str  # why, in words
    seconds: float = 0.0  # time spent on trying it out and compiling


@final
@dataclass(frozen=True)
class Remaining:
    """Say what is left of a budget: steps, or seconds."""

    steps: int | None = None  # steps; None where the budget is in seconds
    seconds: float = 0.0  # seconds, where `steps` is None

    def steps_at(self, step_seconds: float) -> float:
        """How many steps that is, where one takes so long."""
        if self.steps is not None:
            return float(self.steps)
        return max(0.0, self.seconds) / max(step_seconds, 1e-9)


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was asked for; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
