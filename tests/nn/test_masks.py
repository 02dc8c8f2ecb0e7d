from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlab.core.build import build
from attnlab.core.errors import ModuleError, SpecError
from attnlab.nn.axes.masks import MASKS, AbstractMask, Causal, Dilated, Full, Padding, Window, draw

WIDTHS = {"window": {"width": 2}, "dilated": {"width": 2, "dilation": 3}}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("k_len", [5, 7, 11])
def test_queries_are_the_last_positions(name: str, k_len: int) -> None:
    mask = build({"name": name, **WIDTHS.get(name, {})}, MASKS, axis="mask")
    allowed = mask.allowed(5, k_len)
    assert allowed.dtype == torch.bool
    assert torch.equal(allowed, mask.allowed(k_len, k_len)[-5:])
    assert torch.all(allowed.diagonal(k_len - 5))


def test_by_hand() -> None:
    for query in range(9):
        for key in range(9):
            assert Causal().allowed(9, 9)[query, key] == (key <= query)
            assert Window(3).allowed(9, 9)[query, key] == (abs(query - key) <= 2)
            assert Dilated(2, 3).allowed(9, 9)[query, key] == (abs(query - key) in (0, 3))
            assert Full().allowed(9, 9)[query, key]


leaves = st.sampled_from([Full(), Causal(), Window(2), Dilated(2, 2), Padding(torch.tensor([[True] * 4 + [False]]))])
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
        inner.map(lambda one: ~one),
    ),
    max_leaves=5,
)


@given(trees, trees)
def test_operators_are_those_of_the_matrices(left: AbstractMask, right: AbstractMask) -> None:
    a, b = left.allowed(5, 5), right.allowed(5, 5)
    assert torch.equal((left & right).allowed(5, 5), a & b)
    assert torch.equal((left | right).allowed(5, 5), a | b)
    assert torch.equal((~left).allowed(5, 5), ~a)


@given(trees)
def test_what_a_mask_says_of_itself_is_true(mask: AbstractMask) -> None:
    allowed = mask.allowed(5, 5)
    assert mask.kind != "full" or torch.all(allowed)
    assert mask.kind != "causal" or torch.equal(allowed, torch.ones(5, 5).bool().tril().expand_as(allowed))
    assert not mask.blocks_future or not torch.any(allowed.triu(1))


def test_kinds_that_need_no_matrix_are_found() -> None:
    assert (Causal() & Full() & Causal()).kind == "causal"
    assert (Full() & Full()).kind == "full"
    assert (Causal() & Window(3)).blocks_future
    assert not (Causal() | Window(3)).blocks_future


def test_a_rule_at_some_positions_is_a_part_of_the_matrix() -> None:
    padding = Padding(torch.tensor([[True] * 6 + [False], [True] * 2 + [False] * 5]))
    q_positions, k_positions = torch.tensor([[4], [6]]), torch.tensor([[1, 2, 5]])
    for mask in (Full(), Causal(), Window(3), Dilated(2, 3), padding, ~(Causal() & padding) | Window(2)):
        matrix = mask.allowed(7, 7)
        expected = matrix[..., q_positions, k_positions]
        assert torch.equal(mask.at(q_positions, k_positions).expand_as(expected), expected)


@given(trees)
def test_nothing_is_allowed_out_of_reach(mask: AbstractMask) -> None:
    back, ahead = mask.reach
    query, key = torch.arange(5)[:, None], torch.arange(5)
    allowed = mask.allowed(5, 5)
    if back is not None:
        assert not torch.any(allowed & (query - key > back))
    if ahead is not None:
        assert not torch.any(allowed & (key - query > ahead))


def test_reach_by_hand() -> None:
    padding = Padding(torch.ones(1, 5, dtype=torch.bool))
    assert Full().reach == (~Window(2)).reach == padding.reach == (None, None)
    assert Causal().reach == (None, 0)
    assert Window(3).reach == (2, 2)
    assert Dilated(3, 4).reach == (8, 8)
    assert (Causal() & Window(3) & padding).reach == (2, 0)
    assert (Window(3) | Dilated(2, 4)).reach == (4, 4)
    assert (Causal() | Window(3)).reach == (None, 2)


def test_prints_as_a_matrix() -> None:
    assert str(Causal() & Window(2)).splitlines()[:3] == ["■ · · · · · · ·", "■ ■ · · · · · ·", "· ■ ■ · · · · ·"]
    padding = Padding(torch.tensor([[True, True, False], [True, False, False]]))
    assert str(padding).splitlines() == ["■ ■ ·"] * 3 + [""] + ["■ · ·"] * 3
    assert str(Causal() & padding).splitlines()[:3] == ["■ · ·", "■ ■ ·", "■ ■ ·"]
    assert draw(~Full().allowed(1, 2)) == "· ·"


def test_repr_says_how_it_was_made() -> None:
    padding = Padding(torch.tensor([[True, False]]))
    assert repr(~(Causal() & Window(3)) | padding) == "(~(Causal() & Window(width=3)) | Padding([1] of 2))"


def test_padding_of_another_length() -> None:
    with pytest.raises(ModuleError, match="padding has 3 positions; got 5 keys"):
        Padding(torch.ones(2, 3, dtype=torch.bool)).allowed(5, 5)


def test_widths_must_be_positive() -> None:
    with pytest.raises(SpecError, match=r"mask 'window'.*got width=0"):
        build({"name": "window", "width": 0}, MASKS, axis="mask")
    with pytest.raises(SpecError, match="got dilation=-1"):
        Dilated(3, -1)
