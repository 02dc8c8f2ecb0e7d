"""Call a copy of the patient in one way or another, and see what depends on what."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.strangers.usage import Usage

BATCH = 3  # unlike lengths, widths and numbers of heads, so that axes cannot be mistaken for each other
NOTHING = 1e-6  # of the size of the output: less is rounding of float32 sums
_SEED = 20  # of the inputs; any


@dataclass(frozen=True)
class Trial:
    """Hold a copy of the patient that is used for nothing else.

    Parameters
    ----------
    module : nn.Module
        The copy, in evaluation mode.
    """

    module: nn.Module

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its parameters."""
        floating = (p.dtype for p in self.module.parameters() if p.is_floating_point())
        return next(floating, torch.get_default_dtype())

    def inputs(self, usage: Usage, *, length: int | None = None, batch: int = BATCH, seed: int = 0) -> Tensor:
        """Random inputs."""
        generator = torch.Generator().manual_seed(_SEED + seed)
        length = length or usage.length
        if usage.takes == "tokens":
            return torch.randint(usage.vocab_size or 2, (batch, length), generator=generator)
        return torch.randn((batch, length, usage.d_in), generator=generator).to(self.dtype)

    def run(self, usage: Usage, x: Tensor, **how: Any) -> Tensor:
        """The output, with the same random numbers at every call."""
        _seed()
        with _kept(self.module):
            return usage.call(self.module, x, **how)

    def returned(self, usage: Usage, x: Tensor) -> Any:
        """Everything the module returned."""
        _seed()
        with _kept(self.module):
            return usage.returned(self.module, x)

    def runs(self, usage: Usage, *, length: int | None = None, batch: int = BATCH) -> bool:
        """Whether a call ends with an output of the right shape."""
        try:
            self.run(usage, self.inputs(usage, length=length, batch=batch))
        except ModuleError:
            return False
        return True

    def reaction(self, usage: Usage, positions: Any, *, x: Tensor | None = None, **how: Any) -> Tensor:
        """How much the output changes when the inputs at some positions are replaced in every sample.

        (batch, length), or (batch, 1) where the output is pooled, relative to the size of the output; NaN where it
        cannot be told.
        """
        x = self.inputs(usage) if x is None else x
        before, after = self.run(usage, x, **how), self.run(usage, replaced(self, usage, x, positions), **how)
        size = before[before.isfinite()].abs().max() if before.isfinite().any() else torch.ones(())
        change = (after - before).abs().amax(-1) / size.clamp_min(1e-30)
        return change if change.dim() == 2 else change[:, None]


def replaced(trial: Trial, usage: Usage, x: Tensor, positions: Any) -> Tensor:
    """Inputs with those at some positions replaced by others, each by one that differs."""
    other = trial.inputs(usage, length=x.size(1), batch=x.size(0), seed=1)
    return usage.replaced(x, other, (slice(None), positions))


def _seed() -> None:
    """Start all generators a module may draw from anew; `quiet` puts their states back."""
    torch.default_generator.manual_seed(_SEED)
    random.seed(_SEED)
    np.random.seed(_SEED)


@contextlib.contextmanager
def _kept(module: nn.Module) -> Iterator[None]:
    """Put back the tensors and plain attributes that a call leaves on a module, so that calls do not see each other."""
    before = [(part, dict(vars(part)), dict(part._buffers)) for part in module.modules()]
    try:
        yield
    finally:
        for part, attributes, buffers in before:
            vars(part).clear()
            vars(part).update(attributes)
            part._buffers.clear()
            part._buffers.update(buffers)
