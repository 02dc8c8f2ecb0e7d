"""Elements keep their places through what turns pairs of real numbers into complex ones and back."""

from __future__ import annotations

import torch
from torch import nn

from attnlab.inspection.tape.tape import record
from attnlab.inspection.tape.tracing import places_in


def traced(function, x, *, start, end):
    """Return where in the output of the first `start` each element of the input of the last `end` comes from."""
    tape = record(nn.Identity(), lambda: function(x))
    first = next(event.index for event in tape.events if event.call == start)
    last = max(event.index for event in tape.events if event.call == end)
    return places_in(tape, first, (last, 0))


def turned(x):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2))).conj()
    return torch.view_as_real((pairs * torch.full((3,), 1j)).resolve_conj()).flatten(-2)


def test_pairs_that_are_turned_as_complex_numbers_keep_their_places():
    x = torch.randn(4, 6)
    places = traced(lambda x: turned((x + 1).flip(0)).transpose(0, 1) @ x, x, start="add", end="mm")
    assert torch.equal(places, torch.arange(24).view(4, 6).flip(0).T)


def test_both_parts_of_a_complex_result_come_from_its_place():
    x = torch.randn(4, 4, dtype=torch.complex64)
    places = traced(lambda x: torch.view_as_real(x @ x).sum(-1), x, start="mm", end="sum")
    assert torch.equal(places, torch.arange(16).view(4, 4, 1).expand(4, 4, 2))


def test_a_trace_that_ends_at_complex_numbers_has_no_single_places():
    x = torch.randn(4, 4, 2)
    assert traced(lambda x: torch.view_as_complex(x + 1).exp().sum(), x, start="add", end="sum") is None
