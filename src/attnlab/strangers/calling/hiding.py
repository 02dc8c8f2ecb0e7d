"""How much of a position's weight is left when a mask argument hides it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.masking import LENGTHS, Masking
from attnlab.strangers.calling.trial import BATCH, NOTHING, Trial, replaced
from attnlab.strangers.usage import Usage

Place = Literal["within", "end"]
"""Where positions are hidden: one near the beginning, or the last ones."""

_WITNESS = 0  # sees everything under a mask over pairs and is seen by none: a square mask read by its first row shows
_WITHIN = 1  # the hidden position
_VISIBLE = 2  # one that is not hidden
_SAME = 1e-3  # of the size of an output: more than rounding of another path through the code
_AT_END = 2  # positions hidden at the end


class Hiding:
    """Hide positions of one patient by one mask or another, and measure.

    Parameters
    ----------
    trial : Trial
        A copy of the patient.
    usage : Usage
        A call that runs.
    """

    def __init__(self, trial: Trial, usage: Usage) -> None:
        self.trial = trial
        self.usage = usage
        self.x = trial.inputs(usage)

    def left(self, masking: Masking, place: Place = "within") -> float | None:
        """What hidden positions weigh in the outputs of the others, relative to visible ones."""
        told = self._with(masking)
        length = self.usage.length
        at_end = place == "end" or masking.encoding == LENGTHS
        hidden = list(range(length - _AT_END, length)) if at_end else [_WITHIN]
        late = hidden[0] - 1 if at_end else length - 1
        how = self._how(masking, hidden)
        aside = [_WITNESS, *hidden] if masking.over == "pairs" else hidden
        try:
            before = self.trial.run(told, self.x, **how)
            weight = self._weight(told, before, hidden, aside, how)
            first = self._weight(told, before, [_VISIBLE], [_VISIBLE, *aside], how)
            last = self._weight(told, before, [late], [late, *aside] if self._sees_later else aside, how)
        except ModuleError:
            return None
        visible = min(first, last)
        return weight / visible if math.isfinite(weight + visible) and visible > NOTHING else math.inf

    def changes_nothing(self, masking: Masking) -> bool:
        """Whether a mask that hides nothing leaves the output as it is without a mask."""
        told = self._with(replace(masking, required=True))
        try:
            output = self.trial.run(told, self.x)
        except ModuleError:
            return False
        if masking.required:
            return True
        return bool((output - self._plain).abs().max() <= _SAME * self._plain.abs().max())

    def _with(self, masking: Masking) -> Usage:
        """The usage with one mask given in one way."""
        others = (mask for mask in self.usage.masks if mask.parameter != masking.parameter)
        return replace(self.usage, masks=(*others, masking))

    @functools.cached_property
    def _plain(self) -> Tensor:
        """The output with nothing hidden."""
        return self.trial.run(self.usage, self.x)

    @functools.cached_property
    def _sees_later(self) -> bool:
        """Whether, with nothing hidden, a position sees later ones."""
        last = [self.usage.length - 1]
        return self._weight(self.usage, self._plain, last, last, {}) > NOTHING

    def _weight(
        self, usage: Usage, before: Tensor, moved: Sequence[int], aside: Sequence[int], how: dict[str, Any]
    ) -> float:
        """The largest change of an output when some inputs are replaced, some outputs left aside."""
        after = self.trial.run(usage, replaced(self.trial, usage, self.x, list(moved)), **how)
        if not usage.pooled:
            kept = torch.ones(before.size(1), dtype=torch.bool)
            kept[list(aside)] = False
            before, after = before[:, kept], after[:, kept]
        return float((after - before).abs().max() / before.abs().max().clamp_min(1e-30))

    def _how(self, masking: Masking, hidden: Sequence[int]) -> dict[str, Any]:
        """What tells a call that positions are hidden."""
        length = self.usage.length
        real = torch.ones(BATCH, length, dtype=torch.bool)
        real[:, hidden] = False
        if masking.over == "keys":
            return {"padding": real}
        allowed = real[:, None].repeat(1, length, 1)
        allowed[:, :, _WITNESS] = False
        allowed[:, _WITNESS] = True
        return {"allowed": allowed | torch.eye(length, dtype=torch.bool)}
