"""How the loss changes around the weights that a model has: along random directions, scaled to its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.core.sizes import require_positive

DIRECTIONS, POINTS, REACH = 3, 15, 0.5


@final
@dataclass(frozen=True)
class Surface:
    """Hold the loss along lines through the weights of a model.

    Parameters
    ----------
    at : tuple of float
        Distances from the weights, as parts of their norm; the middle one is 0.
    loss : tuple of tuple of float
        For each line the loss at these distances.
    """

    at: tuple[float, ...]
    loss: tuple[tuple[float, ...], ...]


def loss_surface(
    model: nn.Module,
    loss: Callable[[], Tensor],
    *,
    directions: int = DIRECTIONS,
    points: int = POINTS,
    reach: float = REACH,
    seed: int = 0,
) -> Surface:
    """Measure the loss along random directions through the weights that a model has.

    Parameters
    ----------
    model : nn.Module
        The model; its weights are moved, and put back as they were, to the bit.
    loss : callable
        Computes the loss with the weights that the model has at that moment, a scalar.
    directions : int, default 3
        Number of lines.
    points : int, default 15
        Odd, 3 at least: evaluations along each line, as many to either side.
    reach : float, default 0.5
        How far a line goes to either side, as a part of the norm of the weights.
    seed : int, default 0
        Of the directions; models of the same shapes are moved along the same ones.

    Returns
    -------
    Surface
        Distances and losses.

    Raises
    ------
    SpecError
        If a number is not positive, or the number of points even or below 3.

    Notes
    -----
    Every row of a matrix, or filter of a convolution, moves along a random direction of its own norm; vectors, such as
    biases and gains, do not move. So lines of models whose weights differ in size can be held beside each other [1]_.
    A loss that is flat along them says nothing of other directions, and little of data that were not seen.

    References
    ----------
    .. [1] Li et al., 2018, arXiv:1712.09913, section 4 (filter-wise normalization).
    """
    require_positive("directions", directions)
    if points < 3 or points % 2 == 0:
        raise SpecError(f"points must be odd and 3 at least: one is where the weights are; got {points}")
    if not 0 < reach < float("inf"):
        raise SpecError(f"reach must be a positive number; got {reach}")
    half = points // 2
    at = tuple(reach * step / half for step in range(-half, half + 1))
    generator = torch.Generator().manual_seed(seed)
    kept = [(weight, weight.detach().clone()) for weight in model.parameters() if weight.ndim > 1]
    found = []
    try:
        for _ in range(directions):
            moves = [_direction(weight, generator) for _, weight in kept]
            found.append(tuple(_loss_at(distance, kept, moves, loss) for distance in at))
    finally:
        with torch.no_grad():
            for weight, original in kept:
                weight.copy_(original)
    return Surface(at, tuple(found))


def _direction(weight: Tensor, generator: torch.Generator) -> Tensor:
    """A random direction in which every row has the norm of that row of the weights."""
    drawn = torch.randn(weight.shape, generator=generator).to(weight)
    across = tuple(range(1, weight.ndim))
    size, own = (torch.linalg.vector_norm(one, dim=across, keepdim=True) for one in (drawn, weight))
    return drawn * (own / size)


@torch.no_grad()
def _loss_at(
    distance: float, kept: list[tuple[nn.Parameter, Tensor]], moves: list[Tensor], loss: Callable[[], Tensor]
) -> float:
    for (weight, original), move in zip(kept, moves, strict=True):
        weight.copy_(original + distance * move)
    return float(loss())
