from __future__ import annotations

import pytest
import torch

from attnlab.core.build import build
from attnlab.core.errors import SpecError
from attnlab.nn.axes.heads import HEADS, FullWidthHeads, GroupedHeads, MultiQueryHeads, SplitHeads


@pytest.mark.parametrize("name", HEADS)
def test_memory_of_itself_is_self_attention(name: str) -> None:
    heads, x = build(name, HEADS, axis="heads", offered={"d_model": 12, "n_heads": 4}), torch.randn(2, 5, 12)
    for own, other in zip(heads.project(x), heads.project(x, x), strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("name", HEADS)
def test_layout(name: str) -> None:
    heads = build(name, HEADS, axis="heads", offered={"d_model": 12, "n_heads": 4})
    q, k, v = heads.project(torch.randn(2, 5, 12), torch.randn(2, 7, 12))
    assert q.shape == (2, 4, 5, heads.d_head)
    assert k.shape == (2, heads.n_kv_heads, 7, heads.d_head)
    assert v.shape == (2, heads.n_kv_heads, 7, heads.d_v)


def test_head_h_is_the_h_th_block_of_rows() -> None:
    heads, x = SplitHeads(6, 2, d_head=5, d_v=7), torch.randn(3, 4, 6)
    q, k, v = heads.project(x)
    weight, bias = heads.packed.linear.weight, heads.packed.linear.bias
    torch.testing.assert_close(q[:, 1], x @ weight[5:10].T + bias[5:10])
    torch.testing.assert_close(k[:, 0], x @ weight[10:15].T + bias[10:15])
    torch.testing.assert_close(v[:, 1], x @ weight[27:34].T + bias[27:34])


def test_without_bias() -> None:
    heads = SplitHeads(6, 2, bias=False)
    assert heads.packed.linear.bias is None
    assert all(torch.all(part == 0) for part in heads.project(torch.zeros(2, 3, 6), torch.zeros(2, 5, 6)))


def test_parameters() -> None:
    def count(heads: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in heads.parameters())

    split = count(SplitHeads(8, 4, bias=False))
    assert split == 3 * 8 * 8
    assert count(FullWidthHeads(8, 4, bias=False)) == 4 * split
    assert count(GroupedHeads(8, 4, n_kv_heads=2, bias=False)) == 8 * 8 + 2 * (2 * 2 * 8)
    assert count(MultiQueryHeads(8, 4, bias=False)) == 8 * 8 + 2 * (2 * 8)


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(SpecError, match="n_heads must divide d_model; got d_model=10, n_heads=3"):
        SplitHeads(10, 3)
    assert SplitHeads(10, 3, d_head=7).d_v == 7
    with pytest.raises(SpecError, match="n_kv_heads must divide n_heads; got n_heads=4, n_kv_heads=3"):
        GroupedHeads(12, 4, n_kv_heads=3)


@pytest.mark.parametrize("sizes", [(0, 1), (4, 0), (-4, 2)])
def test_sizes_must_be_positive(sizes: tuple[int, int]) -> None:
    with pytest.raises(SpecError, match=r"sizes must be positive integers; got (d_model|n_heads)="):
        SplitHeads(*sizes)
