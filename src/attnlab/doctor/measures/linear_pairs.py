"""Pairs of linear layers that are one: the second gets what the first gives as it is, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeGuard

import torch
from torch import Tensor, nn

from attnlab.inspection.tape.tape import ModuleCall, Tape


def widened_for_nothing(module: nn.Module, tape: Tape) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    """Yield the names and widths of two such layers with a wider vector between them than before and behind.

    A narrower one makes a matrix of lower rank, which is often meant.
    """
    parts = ((call, module.get_submodule(call.name)) for call in tape.calls)
    linear = [(call, part) for call, part in parts if _is_plain(part)]
    for (first, start), (second, end) in pairwise(linear):
        widths = (start.in_features, start.out_features, end.out_features)
        if widths[1] > max(widths[0], widths[2]) and _hands_on(tape, first, second) and not _is_told(tape, first):
            yield first.name, second.name, widths


def _is_plain(part: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a part is a linear layer and does nothing else."""
    return isinstance(part, nn.Linear) and type(part).forward is nn.Linear.forward


def _is_told(tape: Tape, first: ModuleCall) -> bool:
    """Whether a part around a layer returns what it gives, beside what is made of it."""
    given = first.returned[0]

    def is_among(tensors: tuple[Tensor, ...]) -> bool:
        return any(one.shape == given.shape and torch.equal(one, given) for one in tensors)

    others = (call for call in tape.calls if call is not first)
    return any(is_among(call.returned) and not is_among(call.given) for call in others)


def _hands_on(tape: Tape, first: ModuleCall, second: ModuleCall) -> bool:
    """Whether what one layer gives is what the other gets, and goes nowhere else."""
    given, returned = second.given[0], first.returned[0]
    if given.shape != returned.shape or not torch.equal(given, returned):
        return False
    if sum(call.name == first.name for call in tape.calls) > 1:
        return False  # events do not tell of which of its calls they are
    *_, last = (event.index for event in tape.events if event.where == first.name)
    readers = tape.children(last)
    return bool(readers) and all(tape.events[index].where == second.name for index in readers)
