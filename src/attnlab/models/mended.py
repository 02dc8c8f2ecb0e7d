"""A whole model of a person's own with one fault removed, as `attnlab.nn.mended` removes it from a mixer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self, final

from torch import Tensor, nn

from attnlab.core.build import Spec
from attnlab.nn.exchanged import put_in
from attnlab.nn.mended import Mending


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
        return self.mending.call(self.part, *inputs, training=self.training)

    def extra_repr(self) -> str:
        """What is changed, for printing."""
        return str(self.mending)
