"""Call a copy of a module in one way or another, and see what depends on what."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.convention import Convention, Label
from attnlab.strangers.containment import seed_all

BATCH = 3  # unlike lengths, widths and numbers of heads, so that axes cannot be mistaken for each other
NOTHING = 1e-6  # of the size of the output: less is rounding of float32 sums
_SEED = 20  # of the inputs; any
_LEAK = 0.02  # of what an earlier position weighs: less is a leak in something meant to be causal
_ALIKE = 0.2  # of what earlier positions weigh: both sides are meant to be seen
_CLEARLY = 1e-3  # of the largest weight: what is seen on one side alone, and weighs less, may have decayed
_PROBED = 16  # positions up to which every one is replaced

Sight = Literal["past", "all", "itself", "unclear"]
"""Earlier positions (nearly) alone; both sides alike; no other position; anything else."""


@final
@dataclass(frozen=True)
class Trial:
    """Hold a copy of the patient that is used for nothing else."""

    module: nn.Module  # the copy, in evaluation mode

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its parameters."""
        floating = (p.dtype for p in self.module.parameters() if p.is_floating_point())
        return next(floating, torch.get_default_dtype())

    def inputs(self, convention: Convention, *, length: int | None = None, batch: int = BATCH, seed: int = 0) -> Tensor:
        """Random inputs."""
        generator = torch.Generator().manual_seed(_SEED + seed)
        length = length or convention.length
        if convention.takes == "tokens":
            return torch.randint(convention.vocab_size or 2, (batch, length), generator=generator)
        return torch.randn((batch, length, convention.d_in), generator=generator).to(self.dtype)

    def run(
        self,
        convention: Convention,
        x: Tensor,
        *,
        causal: bool | None = None,
        padding: Tensor | None = None,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """The output, with the same random numbers at every call."""
        seed_all(_SEED)
        with _kept(self.module):
            return convention.call(self.module, x.clone(), causal=causal, padding=padding, allowed=allowed)

    def returned(self, convention: Convention, x: Tensor, *, label: Label | None = None) -> Any:
        """Everything the module returned."""
        seed_all(_SEED)
        with _kept(self.module):
            return convention.returned(self.module, x.clone(), label=label)

    def runs(self, convention: Convention, *, length: int | None = None, batch: int = BATCH) -> bool:
        """Whether a call ends with an output of the right shape."""
        try:
            self.run(convention, self.inputs(convention, length=length, batch=batch))
        except ModuleError:
            return False
        return True

    def reaction(
        self, convention: Convention, positions: Any, *, x: Tensor | None = None, causal: bool | None = None
    ) -> Tensor:
        """How much the output changes when the inputs at some positions are replaced in every sample.

        (batch, length), or (batch, 1) where the output is pooled, relative to the size of the output; NaN where it
        cannot be told.
        """
        x = self.inputs(convention) if x is None else x
        before, after = (
            self.run(convention, x, causal=causal),
            self.run(convention, replaced(self, convention, x, positions), causal=causal),
        )
        size = before[before.isfinite()].abs().max() if before.isfinite().any() else torch.ones(())
        change = (after - before).abs().amax(-1) / size.clamp_min(1e-30)
        return change if change.dim() == 2 else change[:, None]


def replaced(trial: Trial, convention: Convention, x: Tensor, positions: Any) -> Tensor:
    """Inputs with those at some positions replaced by others, each by one that differs."""
    other = trial.inputs(convention, length=x.size(1), batch=x.size(0), seed=1)
    return convention.replaced(x, other, (slice(None), positions))


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


def sight_of(trial: Trial, convention: Convention, *, causal: bool = False) -> Sight:
    """Which positions a position sees when nothing is hidden from it."""
    if convention.pooled or convention.length < 2:
        return "unclear"
    try:
        seen = influences(trial, convention, causal=causal)
    except ModuleError:
        return "unclear"
    seen = seen.nan_to_num(0.0)
    past, future = seen.tril(-1).max(), seen.triu(1).max()
    if max(past, future) <= NOTHING:
        return "itself"
    if future <= _LEAK * past:
        return "past"
    return "all" if _symmetric(seen) else "unclear"


def influences(trial: Trial, convention: Convention, *, causal: bool = False) -> Float[Tensor, "q_len k_len"]:
    """How much each position's output changes when another position's input is replaced."""
    length = convention.length
    probed = len(range(0, length, max(1, length // _PROBED)))
    # of many positions no even steps: they would fall on the first of every row of an image
    positions = torch.linspace(0, length - 1, probed).round().int().tolist()
    seen = torch.full((length, length), float("nan"))
    x = trial.inputs(convention)
    for position in positions:
        seen[:, position] = (
            trial.reaction(convention, slice(position, position + 1), x=x, causal=causal).amax(0).float()
        )
    return seen


def _symmetric(seen: Tensor) -> bool:
    """Whether both sides weigh alike, and nothing is seen at a distance on one side alone."""
    length = seen.size(0)
    before = torch.stack([seen.diagonal(-distance).mean() for distance in range(1, length)])
    after = torch.stack([seen.diagonal(distance).mean() for distance in range(1, length)])
    clearly = torch.maximum(before, after) > _CLEARLY * seen.max()
    one_sided = clearly & (torch.minimum(before, after) <= NOTHING)
    return not bool(one_sided.any()) and bool(after.sum() >= _ALIKE * before.sum())
