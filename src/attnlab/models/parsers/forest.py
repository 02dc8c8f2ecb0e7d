"""Many trees in one: nodes, and the ways in which each may be made of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

Probabilities = Callable[[Tensor], Tensor]
"""From the numbers of rules to their probabilities by kinds of the parent and of each child, in float64."""


@final
class Level(NamedTuple):
    """Hold nodes that are made of earlier ones.

    Parameters
    ----------
    size : int
        How many nodes there are.
    unary : Tensor
        Ways with one child: node within the level, child, number of the rule, (ways, 3).
    binary : Tensor
        Ways with two: node within the level, left child, right child, number of the rule, (ways, 4).
    """

    size: int
    unary: Int[Tensor, "ways 3"]
    binary: Int[Tensor, "ways 4"]


def inside(
    leaves: Float[Tensor, "leaves kinds"],
    levels: Sequence[Level],
    *,
    unary: Probabilities,
    binary: Probabilities,
    weights: Float[Tensor, " nodes"],
) -> Float[Tensor, "nodes kinds"]:
    """What all trees below each node come to, by its kind; leaves first, then level by level.

    Parameters
    ----------
    leaves : Tensor
        Of words under their tags.
    levels : sequence of Level
        The nodes of each are numbered behind those before it.
    unary, binary : callable
        Give probabilities of rules.
    weights : Tensor
        What each node is multiplied by: the derivative of a root's logarithm by it, at 1, is the node's posterior.

    Returns
    -------
    Tensor
        Products of probabilities as they are: a leaf should be far above 1, or those of long sentences vanish.

    References
    ----------
    .. [1] Baker, 1979, "Trainable grammars for speech recognition".
    .. [2] Eisner, 2016, "Inside-outside and forward-backward algorithms are just backprop".
    """
    values = leaves * weights[: len(leaves), None]
    for level in levels:
        found = values.new_zeros(level.size, values.shape[1])
        node, child, rule = level.unary.T
        found = found.index_add(0, node, torch.einsum("exy,ey->ex", unary(rule), values[child]))
        node, left, right, rule = level.binary.T
        over_right = torch.einsum("exyz,ez->exy", binary(rule), values[right])
        found = found.index_add(0, node, torch.einsum("exy,ey->ex", over_right, values[left]))
        values = torch.cat((values, found * weights[len(values) : len(values) + level.size, None]))
    return values
