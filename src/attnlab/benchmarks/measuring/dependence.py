"""What has to happen one after another: operations inside a layer, and layers until a signal has crossed a sequence."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnlab.core.errors import AttnlabError


def longest_chain(output: Tensor) -> int:
    """How many operations at most had to wait for each other to compute a tensor.

    Examples
    --------
    >>> x = torch.ones(2, requires_grad=True)
    >>> longest_chain((x * 2).exp() + x)
    3
    """
    lengths: dict[torch.autograd.graph.Node, int] = {}
    stack = [] if output.grad_fn is None else [output.grad_fn]
    while stack:
        earlier = [node for node, _ in stack[-1].next_functions if node is not None]
        unknown = [node for node in earlier if node not in lengths]
        if unknown:
            stack += unknown
        else:
            lengths[stack.pop()] = 1 + max((lengths[node] for node in earlier), default=-1)  # a leaf computes nothing
    return max(lengths.values(), default=0)


def layers_until_seen(make_layer: Callable[[int], nn.Module], length: int, d_model: int) -> int:
    """How many layers have to be stacked until the last output depends on the first input.

    Notes
    -----
    The Jacobian of a stack is the product of those of its layers. It is followed by autograd, in float64, from the
    last output down, one layer at a time. After every layer only where it is not zero is kept: the product
    itself is too small to be told from zero after a few hundred layers. Inside a layer nothing is kept up:
    what an LSTM has forgotten completely counts as zero, which begins at about a thousand positions.
    """
    generator = torch.Generator().manual_seed(0)
    reached = torch.zeros(1, length, 1, dtype=torch.bool)
    reached[:, -1] = True
    for depth in range(length):
        layer = make_layer(depth).double()
        x, direction = torch.randn(2, 1, length, d_model, generator=generator, dtype=torch.float64)
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(layer(x), x, direction * reached)
        reached = (gradient != 0).any(dim=-1, keepdim=True)
        if reached[0, 0]:
            return depth + 1
    raise AttnlabError(f"the last of {length} outputs does not depend on the first input after {length} layers")
