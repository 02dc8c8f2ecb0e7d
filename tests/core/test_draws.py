from __future__ import annotations

import itertools
from typing import ClassVar

import pytest
import torch
from torch import nn

from attnlab.core.draws import drawn_by_name


def two_layers(width: int = 4, *, extra: bool = False) -> nn.Module:
    parts = {"first": nn.Linear(3, 5), **({"extra": nn.Linear(2, 7)} if extra else {})}
    return nn.ModuleDict(parts | {"between": nn.Linear(5, width), "last": nn.Linear(5, 5)})


def same(one: nn.Module, other: nn.Module) -> dict[str, bool]:
    theirs = dict(other.named_parameters())
    return {name: torch.equal(p, theirs[name]) for name, p in one.named_parameters() if p.shape == theirs[name].shape}


def test_what_two_models_have_in_common_starts_alike_whatever_else_they_have():
    plain, other = drawn_by_name(two_layers, 3), drawn_by_name(lambda: two_layers(9, extra=True), 3)
    assert same(plain, other) == {"first.weight": True, "first.bias": True, "last.weight": True, "last.bias": True}
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(3))


def test_seeds_and_tensors_of_one_shape_differ():
    model = drawn_by_name(lambda: nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), 0)
    for one, other in itertools.combinations(model.parameters(), 2):
        assert not torch.equal(one, other)
    assert not any(same(drawn_by_name(two_layers, 0), drawn_by_name(two_layers, 1)).values())


def test_draws_are_distributed_as_without_names():
    torch.manual_seed(0)
    usual, model = nn.Linear(300, 200), drawn_by_name(lambda: nn.Linear(300, 200), 0)
    for one, other in ((model.weight.std(), usual.weight.std()), (model.weight.max(), usual.weight.max())):
        assert one.item() == pytest.approx(other.item(), rel=0.01)


class Counts(nn.Module):
    """Draw something else every time it is built."""

    built = itertools.count(1)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(next(self.built)))


def test_a_model_that_draws_otherwise_every_time_is_drawn_as_one_stream():
    model = drawn_by_name(Counts, 5)
    assert torch.equal(model.weight, torch.randn(len(model.weight), generator=torch.Generator().manual_seed(5)))


class Learns(nn.Module):
    """Draw for itself at the first call, as a person's own module is tried out once, and keep what came of it."""

    known: ClassVar[list[torch.Tensor]] = []

    def __init__(self) -> None:
        super().__init__()
        if not self.known:
            with torch.random.fork_rng(devices=[]):
                self.known.append(torch.randn(3))
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)


def test_what_a_first_call_finds_out_and_keeps_changes_no_draw(monkeypatch):
    monkeypatch.setattr(Learns, "known", [])
    first = drawn_by_name(Learns, 5).state_dict()
    later = drawn_by_name(Learns, 5).state_dict()
    assert all(torch.equal(first[name], later[name]) for name in later)


class Factors(nn.Module):
    """Fill a matrix with a product of draws that end up in no tensor of the model, and share a table."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 2) @ torch.randn(2, 4))
        self.table = nn.Embedding(6, 4)
        self.out = nn.Linear(4, 6)
        self.out.weight = self.table.weight


def test_factors_and_tied_tensors_come_again():
    one, other = drawn_by_name(Factors, 2), drawn_by_name(Factors, 2)
    assert all(same(one, other).values())
    assert one.out.weight is one.table.weight
    assert torch.linalg.matrix_rank(one.weight) == 2
