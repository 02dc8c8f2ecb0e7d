"""Little attentions that tests break in one place each, and the examination of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.doctor.examination import Examination
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.patient import Patient

SIZES = {"d_model": 48, "n_heads": 4}


class Base(nn.Module):
    """Right multi-head attention, each step a method that a test may replace."""

    def __init__(self, d_model: int = 48, n_heads: int = 4) -> None:
        super().__init__()
        self.h, self.d = n_heads, d_model // n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.h, self.d).transpose(1, 2)  # (batch, heads, length, d_head)

    split_q = split_k = split_v = split

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) / self.d**0.5

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def merge(self, out: Tensor) -> Tensor:
        return out.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split_q(self.q(x)), self.split_k(self.k(x)), self.split_v(self.v(x))
        return self.o(self.merge(self.weights(self.scores(q, k)) @ v))


def causal(scores: Tensor) -> Tensor:
    """Return True where a position is later than the query."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)


def examined(
    module: Callable[..., nn.Module] | nn.Module,
    *,
    sizes: Mapping[str, Any] = SIZES,
    text: str | None = None,
    **convention: Any,
) -> Examination:
    """Return the examination of a class that is built with `sizes`, or of a ready instance."""

    def build(changes: Mapping[str, Any]) -> nn.Module:
        try:
            return module(**(dict(sizes) | dict(changes)))
        except TypeError as error:
            raise SpecError(str(error)) from error

    ready = isinstance(module, nn.Module)
    torch.manual_seed(0)
    said = text if text is not None else "" if ready else inspect.getsource(module)
    patient = Patient("it", module if ready else build({}), None if ready else build, dict(sizes), said, "")
    given = {"kind": "layer", "takes": "embeddings", "d_in": sizes.get("d_model", 48)} | convention
    return Examination(patient, Convention(**({"d_out": given["d_in"]} | given)))
