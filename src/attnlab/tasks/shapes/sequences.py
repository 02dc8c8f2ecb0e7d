"""Sequences of triangles and boxes, and of the same shapes with averaged heights.

The generator of the `shapes` task, without normalization or batching, which are in `shapes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab.core.generators import generator_for

LENGTH = 100  # positions of a sequence, as in the source
HEIGHTS = (1.0, 25.0)
WIDTHS = (5.0, 11.0)
PER_KIND = 2  # two triangles and two boxes
SMALLEST_DIFFERENCE = 4.0  # in height: below, averaging would change too little to be a task
PLATEAU = 0.5  # positions to each side of a triangle's center that have its full height
CANDIDATES = 8192  # drawn at a time; about one in nine is kept


@final
@dataclass(frozen=True)
class ShapeParameters:
    """Hold the shapes of several sequences: first `PER_KIND` triangles, then `PER_KIND` boxes."""

    centers: Float[Tensor, "count shape"]
    heights: Float[Tensor, "count shape"]
    widths: Float[Tensor, "count shape"]
    """In positions, in units of the signal, and in positions; each (count, shape)."""

    def select(self, keep: Bool[Tensor, " count"]) -> ShapeParameters:
        """Some of the sequences."""
        return ShapeParameters(self.centers[keep], self.heights[keep], self.widths[keep])

    def with_heights(self, heights: Float[Tensor, "count shape"]) -> ShapeParameters:
        """The same shapes with other heights."""
        return ShapeParameters(self.centers, heights, self.widths)


def generate(
    group: str, count: int, *, noise: float, seed: int
) -> tuple[Float[Tensor, "count length"], Float[Tensor, "count length"]]:
    """Draw noisy sequences of shapes and what they become when heights are averaged.

    Parameters
    ----------
    group : {"shape", "place"}
        Whose heights are averaged: those of one kind, or those of the two left-most and of the two
        right-most shapes.
    count : int
        How many sequences.
    noise : float
        Total width of the uniform noise on inputs and, independently, on targets.
    seed : int
        Seed of a generator of its own. More sequences of a seed begin with the same ones.

    Returns
    -------
    inputs : Tensor
        The shapes with noise, (count, length).
    targets : Tensor
        The same shapes with averaged heights and other noise, (count, length).

    Notes
    -----
    Centers, heights and widths are uniform. Candidates are rejected where two shapes, of whatever
    kind, touch the same or adjacent positions, and where the two heights that are to be averaged
    (``shape``) or the two averages (``place``) differ by at most `SMALLEST_DIFFERENCE`.

    Differs from [1]_ in two flaws that are not reproduced: it tests the difference of the triangles
    twice and that of the boxes never, so its boxes are often averaged where they were nearly equal
    already; and where it draws more candidates to replace rejected ones it forgets how to group, so
    most targets of its ``place`` data are averaged by shape.

    References
    ----------
    .. [1] F. Fleuret, 2020, a toy sequence-to-sequence task for attention (attentiontoy1d), written
       anew here from its description.
    """
    chunks: list[tuple[Tensor, Tensor]] = []
    kept = 0
    for shapes, generator in _valid_candidates(group, seed):
        averaged = shapes.with_heights(average_heights(shapes, group))
        chunks.append((_noisy(render(shapes), noise, generator), _noisy(render(averaged), noise, generator)))
        kept += len(shapes.centers)
        if kept >= count:
            break
    inputs, targets = (torch.cat(parts)[:count] for parts in zip(*chunks, strict=True))
    return inputs, targets


def _valid_candidates(group: str, seed: int) -> Iterator[tuple[ShapeParameters, torch.Generator]]:
    """What is kept of endless chunks of candidates, with the generator to go on with."""
    generator = generator_for(seed)
    while True:
        shapes = draw(CANDIDATES, generator)
        yield shapes.select(~overlapping(shapes) & differs_enough(shapes, group)), generator


def draw(count: int, generator: torch.Generator) -> ShapeParameters:
    """Draw shapes without regard to overlap."""
    margin = WIDTHS[1] / 2
    size = (count, 2 * PER_KIND)
    return ShapeParameters(
        torch.empty(size).uniform_(margin, LENGTH - margin, generator=generator),
        torch.empty(size).uniform_(*HEIGHTS, generator=generator),
        torch.empty(size).uniform_(*WIDTHS, generator=generator),
    )


def overlapping(shapes: ShapeParameters) -> Bool[Tensor, " count"]:
    """Which sequences have two shapes on the same or on adjacent positions."""
    reach = shapes.widths / 2
    reach[:, :PER_KIND] += PLATEAU
    order = shapes.centers.argsort(dim=1)
    first = (torch.floor(shapes.centers - reach) + 1).gather(1, order)  # occupied: |position - center| < reach
    last = (torch.ceil(shapes.centers + reach) - 1).gather(1, order)
    # Shapes sorted by center may be nested, so a shape is compared with the farthest end so far.
    return (first[:, 1:] - last.cummax(dim=1).values[:, :-1] < 2).any(dim=1)


def differs_enough(shapes: ShapeParameters, group: str) -> Bool[Tensor, " count"]:
    """Which sequences have heights worth averaging."""
    if group == "place":
        averaged = average_heights(shapes, group)
        return averaged.amax(dim=1) - averaged.amin(dim=1) > SMALLEST_DIFFERENCE
    pairs = shapes.heights.unflatten(1, (2, PER_KIND))  # (count, kind, shape)
    return ((pairs[..., 0] - pairs[..., 1]).abs() > SMALLEST_DIFFERENCE).all(dim=1)


def average_heights(shapes: ShapeParameters, group: str) -> Float[Tensor, "count shape"]:
    """Each shape's height averaged over its group."""
    if group == "shape":
        pairs = shapes.heights.unflatten(1, (2, PER_KIND))  # (count, kind, shape)
        return pairs.mean(dim=2, keepdim=True).expand_as(pairs).flatten(1)
    order = shapes.centers.argsort(dim=1)
    pairs = shapes.heights.gather(1, order).unflatten(1, (2, PER_KIND))  # (count, side, shape)
    averaged = pairs.mean(dim=2, keepdim=True).expand_as(pairs).flatten(1)
    return torch.empty_like(averaged).scatter(1, order, averaged)


def render(shapes: ShapeParameters) -> Float[Tensor, "count length"]:
    """Draw shapes on positions ``0..LENGTH-1`` without noise.

    Notes
    -----
    At distance ``d`` from the center, a box of height h and width w has height h where ``d < w/2``, a
    triangle ``max(0, h - max(0, d - 1/2) * 2h/w)``.
    """
    distance = (torch.arange(LENGTH) - shapes.centers[..., None]).abs()  # (count, shape, length)
    height, half_width = shapes.heights[..., None], shapes.widths[..., None] / 2
    slope = 1 - (distance[:, :PER_KIND] - PLATEAU).clamp_min(0) / half_width[:, :PER_KIND]
    triangles = height[:, :PER_KIND] * slope.clamp_min(0)
    boxes = height[:, PER_KIND:] * (distance[:, PER_KIND:] < half_width[:, PER_KIND:])
    return torch.cat((triangles, boxes), dim=1).amax(dim=1)


def _noisy(
    sequences: Float[Tensor, "count length"], noise: float, generator: torch.Generator
) -> Float[Tensor, "count length"]:
    """Sequences with uniform noise around zero of a total width."""
    return sequences + (torch.rand(sequences.shape, generator=generator) - 0.5) * noise
