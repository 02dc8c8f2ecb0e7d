"""Layouts of a sequence: the order of its axes, and the way there and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from attnlab.core.errors import ModuleError


@final
@dataclass(frozen=True)
class AxisOrder:
    """Say how a sequence lies in a tensor; what comes back unbatched has been stacked to a batch."""

    axes: str  # the axes, in words
    laid_out: Callable[[Tensor], Tensor]  # from (batch, length, d_model) to the layout
    batch_first: Callable[[Tensor], Tensor]  # from the layout to (batch, length, d_model)
    dims: int = 3  # number of axes


def _swapped(first: int, second: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x.transpose(first, second).contiguous()


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(2, (HEADS, -1)) if x.size(2) % HEADS == 0 else x.unsqueeze(2)


def _grid(x: Tensor) -> Tensor:
    height = next(side for side in range(max(1, math.isqrt(x.size(1))), 0, -1) if x.size(1) % side == 0)
    return x.unflatten(1, (height, -1))  # (batch, height, width, d_model)


def _film(frames: int, channels: int) -> AxisOrder:
    """Frames one after the other, the channels at one of two axes."""

    def laid_out(x: Tensor) -> Tensor:
        if x.size(1) % frames:
            text = f"{x.size(1)} positions are no {frames} frames of one size"
            raise ModuleError(text) from ValueError(text)
        of_each = _grid(x.unflatten(1, (frames, -1)).flatten(0, 1)).unflatten(0, (-1, frames))
        return of_each.movedim(-1, channels).contiguous()

    axes = "(batch, frames, d_model, height, width)" if channels == 2 else "(batch, d_model, frames, height, width)"
    return AxisOrder(axes, laid_out, lambda x: x.movedim(channels, -1).flatten(1, 3), dims=5)


FRAMES = (6, 8, 16, 4, 10, 12, 32)
"""How long a film may be, in frames: first unlike batches and numbers of heads, and divided by 2 and 3."""

HEADS = 4
"""Heads that an input is split into, where its width allows."""

LAYOUTS: dict[str, AxisOrder] = {
    "batch-first": AxisOrder("(batch, length, d_model)", lambda x: x, lambda x: x),
    "channels-first": AxisOrder("(batch, d_model, length)", _swapped(1, 2), _swapped(1, 2)),
    "sequence-first": AxisOrder("(length, batch, d_model)", _swapped(0, 1), _swapped(0, 1)),
    "heads, then length": AxisOrder(
        "(batch, heads, length, d_head)",
        lambda x: _heads(x).transpose(1, 2).contiguous(),
        lambda x: x.transpose(1, 2).flatten(2),
        dims=4,
    ),
    "length, then heads": AxisOrder("(batch, length, heads, d_head)", _heads, lambda x: x.flatten(2), 4),
    "unbatched": AxisOrder("(length, d_model), one sequence at a time", lambda x: x[0], lambda x: x),
    "image": AxisOrder(
        "(batch, d_model, height, width)",
        lambda x: _grid(x).movedim(-1, 1).contiguous(),
        lambda x: x.flatten(2).transpose(1, 2),
        dims=4,
    ),
    "image, channels last": AxisOrder("(batch, height, width, d_model)", _grid, lambda x: x.flatten(1, 2), 4),
    "image, batch third": AxisOrder(
        "(height, width, batch, d_model)",
        lambda x: _grid(x).permute(1, 2, 0, 3).contiguous(),
        lambda x: x.permute(2, 0, 1, 3).flatten(1, 2),
        dims=4,
    ),
    **{f"film of {frames} frames": _film(frames, 2) for frames in FRAMES},
    **{f"film of {frames} frames, channels first": _film(frames, 1) for frames in FRAMES},
}
"""From the usual layouts to the rarest."""

SPLIT = ("heads, then length", "length, then heads")
"""Layouts of inputs that are split into heads already."""

STILLS = ("image", "image, channels last", "image, batch third")
"""Layouts of one image."""

FILMS = tuple(layout for layout in LAYOUTS if layout.startswith("film"))
"""Layouts of as many images as their name says."""

BATCH_INSIDE = ("image, batch third",)
"""Layouts whose batch stands behind two axes of positions."""

IMAGES = (*STILLS, *FILMS)
"""Layouts whose length is a grid, and which hold no tokens."""
