"""What the heads of attentions computed of one input, as JSON types."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnlab.core.errors import SpecError
from attnlab.core.files import finite
from attnlab.inspection import Captured
from attnlab.inspection.maps import LARGEST_BYTE, calls_of_maps

THUMBNAIL = 32  # rows and columns of a small map at most


@final
@dataclass(frozen=True)
class Heads:
    """Hold what the heads of an attention computed of one sequence."""

    weights: Float[Tensor, "heads q_len k_len"]  # what came out of the normalizer
    scores: Float[Tensor, "heads q_len k_len"] | None = None  # what went into it; None where it could not be seen
    values: Float[Tensor, "kv_heads k_len d_v"] | None = None  # likewise

    @classmethod
    def of(cls, seen: Captured, weights: Tensor) -> Heads:
        """The heads of the only sequence of a batch; a module may have folded them into the batch."""
        scores, values = (None if one is None else one.flatten(0, 1) for one in (seen.scores, seen.v))
        return cls(weights.flatten(0, 1), scores, values)

    @classmethod
    def joined(cls, steps: Sequence[Heads]) -> Heads:
        """The steps of a decoder, one query each, as one attention; of a single call that one, which is not copied."""
        if len(steps) == 1:
            return steps[0]
        scores = [one.scores for one in steps if one.scores is not None]
        return cls(
            torch.cat([one.weights for one in steps], dim=1),
            torch.cat(scores, dim=1) if len(scores) == len(steps) else None,
            steps[0].values,
        )

    def visible_scores(self, head: int) -> Float[Tensor, "q_len k_len"] | None:
        """The scores of a head, NaN where no weight came of them."""
        return None if self.scores is None else self.scores[head].masked_fill(self.weights[head] == 0, torch.nan)

    def norms(self, head: int) -> list[float] | None:
        """The length of each key's value vector; several heads may share them."""
        count, values = len(self.weights), self.values
        if values is None or values.shape[1] != self.weights.shape[2] or count % len(values):
            return None
        return values[head * len(values) // count].float().norm(dim=-1).tolist()


def heads_of(trace: Mapping[str, Captured]) -> dict[str, Heads]:
    """What was seen, by name of the map."""
    seen = {name: Heads.of(one, one.weights) for name, one in trace.items() if one.weights is not None}
    maps = calls_of_maps({name: one.weights for name, one in seen.items()})
    return {name: Heads.joined([seen[call] for call in calls]) for name, calls in maps.items()}


def small_maps(name: str, heads: Heads, axes: Sequence[int | None]) -> dict[str, Any]:
    """An attention with small maps of all its heads."""
    sizes = heads.weights.abs()
    if not sizes.sum().isfinite():
        sizes = sizes.nan_to_num(nan=0.0, posinf=0.0)
    _, *shape = sizes.shape
    rows, columns = (min(THUMBNAIL, length) for length in shape)
    pooled = F.adaptive_max_pool2d(sizes, (rows, columns))
    largest = float(pooled.max())
    return {
        "name": name,
        "sides": axes,
        "shape": list(sizes.shape),
        "max": largest,
        "thumbnail": [rows, columns],
        "thumbnails": _base64((pooled * (LARGEST_BYTE / (largest or 1))).round().byte().cpu().numpy()),
    }


def full_map(name: str, heads: Heads, head: int, shown: str) -> dict[str, Any]:
    """The whole map of one head."""
    require_head(name, heads, head)
    values = heads.weights[head] if shown == "weights" else heads.visible_scores(head)
    data = None if values is None else _base64(values.float().cpu().numpy().astype("<f4"))
    return {"shape": list(heads.weights.shape[1:]), "values": data, "norms": finite(heads.norms(head))}


def require_head(name: str, heads: Heads, head: int) -> None:
    """Raise `SpecError` unless an attention has a head of this number."""
    if not 0 <= head < len(heads.weights):
        raise SpecError(f"{name} has no head {head}, only {len(heads.weights)}, counted from 0")


def _base64(numbers: Any) -> str:
    return base64.b64encode(numbers.tobytes()).decode("ascii")
