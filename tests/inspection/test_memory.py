"""Kept memory must be what autograd holds, each piece once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.inspection.memory import KeptBytes

BATCH, LENGTH, HEADS, D_HEAD = 2, 7, 3, 5
FLOAT_BYTES = 4
ACTIVATION = BATCH * HEADS * LENGTH * D_HEAD * FLOAT_BYTES


def kept(function, *inputs: Tensor, model: nn.Module | None = None) -> int:
    counter = KeptBytes(model or nn.Identity())
    with counter:
        function(*inputs)
    return counter.total()


@pytest.fixture(params=["cpu", "meta"])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def test_shared_memory_counts_once(device: str) -> None:
    x = torch.ones(LENGTH, D_HEAD, device=device, requires_grad=True)
    assert kept(torch.mul, x, x.view(-1, 1).view(LENGTH, D_HEAD)) == LENGTH * D_HEAD * FLOAT_BYTES


def test_parameters_do_not_count(device: str) -> None:
    layer = nn.Linear(D_HEAD, HEADS, device=device)
    x = torch.ones(LENGTH, D_HEAD, device=device, requires_grad=True)
    assert kept(layer, x, model=layer) == LENGTH * D_HEAD * FLOAT_BYTES


def test_fused_attention_keeps_no_weights(device: str) -> None:
    q, k, v = (torch.ones(BATCH, HEADS, LENGTH, D_HEAD, device=device, requires_grad=True) for _ in range(3))
    one_number_per_query = BATCH * HEADS * LENGTH * FLOAT_BYTES
    expected = 4 * ACTIVATION + one_number_per_query  # q, k, v, output
    assert kept(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)) == expected
    assert kept(lambda: F.scaled_dot_product_attention(query=q, key=k, value=v)) == expected


def test_attention_with_dropout_keeps_its_weights() -> None:
    q, k, v = (torch.ones(BATCH, HEADS, LENGTH, D_HEAD, device="meta", requires_grad=True) for _ in range(3))
    weights = BATCH * HEADS * LENGTH * LENGTH * FLOAT_BYTES
    assert kept(lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)) >= 3 * ACTIVATION + weights


def test_recurrence_keeps_gates_and_states_of_every_step() -> None:
    hidden, gates = 5, 4
    layer = nn.LSTM(D_HEAD, hidden).to("meta")
    x = torch.ones(LENGTH, BATCH, D_HEAD, device="meta", requires_grad=True)
    first_states = 2  # hidden and cell
    per_step = D_HEAD + hidden + gates * hidden + hidden  # input, output, gates, cell
    expected = (LENGTH * BATCH * per_step + first_states * BATCH * hidden) * FLOAT_BYTES
    assert kept(layer, x, model=layer) == expected
