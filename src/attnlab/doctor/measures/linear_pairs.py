"""Pairs of linear layers that are one: the second reads what the first gives as it is, and nothing else reads that."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import nn

from attnlab.inspection.tape.tape import ModuleCall, Tape


def widened_for_nothing(module: nn.Module, tape: Tape) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    """Yield the names and widths of two such layers with a wider vector between them than before and behind.

    A narrower one makes a matrix of lower rank, which is often meant.
    """
    parts = ((call, module.get_submodule(call.name)) for call in tape.calls)
    linear = [(call, part) for call, part in parts if isinstance(part, nn.Linear)]
    for (first, start), (second, end) in pairwise(linear):
        widths = (start.in_features, start.out_features, end.out_features)
        if widths[1] > max(widths[0], widths[2]) and _hands_on(tape, first, second):
            yield first.name, second.name, widths


def _hands_on(tape: Tape, first: ModuleCall, second: ModuleCall) -> bool:
    """Whether what one layer gives is what the other gets, and goes nowhere else."""
    given, returned = second.given[0], first.returned[0]
    if given.shape != returned.shape or not torch.equal(given, returned):
        return False
    *_, last = (event.index for event in tape.events if event.where == first.name)
    readers = tape.children(last)
    return bool(readers) and all(tape.events[index].where == second.name for index in readers)
