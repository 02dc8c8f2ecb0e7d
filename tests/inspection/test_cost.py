"""Costs must be those one counts by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.inspection import cost, count_parameters, seconds_per_step
from attnlab.inspection.cost import parameters_of

BATCH, LENGTH, D_IN, D_OUT = 2, 7, 3, 5
FORWARD_AND_BACKWARD = 3  # the backward pass multiplies twice for each product


class NeedsValues(nn.Module):
    """Looks at a value, which the meta device has none of; its parts are those of another module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * (1 if x.sum().item() > 0 else 2)


class SelfAttention(nn.Module):
    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        x = (x * self.scale).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (batch, heads, length, d_head)
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def x() -> Tensor:
    return torch.ones(BATCH, LENGTH, D_IN)


def test_tied_parameters_count_once() -> None:
    embedding, logits = nn.Embedding(11, D_IN), nn.Linear(D_IN, 11, bias=False)
    logits.weight = embedding.weight
    model = nn.Sequential(embedding, logits)
    assert count_parameters(model) == 11 * D_IN
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    assert cost(model, (tokens,)).parameters == cost(lambda: model, (tokens,)).parameters == 11 * D_IN


def test_linear_layer() -> None:
    layer = nn.Sequential(nn.Linear(D_IN, D_OUT), nn.Linear(D_OUT, D_OUT))
    measured = cost(layer, (x(),))
    assert measured.parameters == D_IN * D_OUT + D_OUT + D_OUT * D_OUT + D_OUT
    weights_only = 2 * 2 * D_IN * D_OUT  # the first layer needs no gradient of its input
    assert measured.flops_per_token == weights_only + FORWARD_AND_BACKWARD * 2 * D_OUT * D_OUT
    assert measured.notes == ()


def test_attention_counts_in_full_though_causal() -> None:
    heads, d_head = 3, 2
    measured = cost(SelfAttention(heads), (torch.ones(BATCH, LENGTH, heads * d_head),))
    products = 2  # of queries with keys, and of weights with values
    assert measured.flops_per_token == FORWARD_AND_BACKWARD * products * 2 * LENGTH * d_head * heads


def lstm_flops_per_step(d_in: int, hidden: int) -> int:
    return 2 * 4 * hidden * (d_in + hidden)


@pytest.mark.parametrize("directions", [1, 2])
def test_lstm(directions: int) -> None:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(D_IN, D_IN)
            self.lstm = nn.LSTM(D_IN, D_OUT, batch_first=True, bidirectional=directions == 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(self.before(x))[0]

    measured = cost(Read(), (x(),)).flops_per_token
    linear = 2 * 2 * D_IN * D_IN
    full = FORWARD_AND_BACKWARD * directions * lstm_flops_per_step(D_IN, D_OUT)
    no_gradient_of_first_state = 2 * 4 * D_OUT * D_OUT * directions / LENGTH
    assert measured == pytest.approx(linear + full - no_gradient_of_first_state)


@pytest.mark.parametrize(
    "inner", [nn.Linear(6, 5), SelfAttention(3), nn.Conv1d(LENGTH, 2, 3)], ids=["linear", "attention", "convolution"]
)
def test_what_cannot_run_without_values_is_counted_on_the_cpu(inner: nn.Module) -> None:
    batch = (torch.ones(BATCH, LENGTH, 6),)
    plain, fallen_back = cost(inner, batch), cost(NeedsValues(inner), batch)
    assert fallen_back.flops_per_token == plain.flops_per_token
    (note,) = fallen_back.notes
    assert note.startswith("counted on the CPU, as the model does not run on the meta device, which is no fault (")


def test_the_cpu_count_sees_lstms() -> None:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(D_IN, D_OUT, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0]

    assert cost(NeedsValues(Read()), (x(),)).flops_per_token == cost(Read(), (x(),)).flops_per_token > 0


def test_a_factory_is_built_on_the_meta_device() -> None:
    devices = []

    def factory() -> nn.Module:
        layer = nn.Linear(D_IN, D_OUT)
        devices.append(layer.weight.device.type)
        return layer

    assert cost(factory, (x(),)) == cost(nn.Linear(D_IN, D_OUT), (x(),))
    assert devices == ["meta"]


def test_parameters_are_counted_on_the_meta_device_or_where_a_model_can_be_built() -> None:
    def drawn_where_it_is_asked() -> nn.Module:
        devices.append(torch.get_default_device().type)
        layer = nn.Linear(D_IN, D_OUT)
        layer.weight.data.clamp_(max=layer.weight.max().item())
        return layer

    devices: list[str] = []
    before = torch.get_rng_state()
    assert parameters_of(lambda: nn.Linear(D_IN, D_OUT)) == D_IN * D_OUT + D_OUT
    assert torch.equal(torch.get_rng_state(), before)
    assert parameters_of(drawn_where_it_is_asked) == D_IN * D_OUT + D_OUT
    assert torch.equal(torch.get_rng_state(), before)
    assert devices == ["meta", "cpu"]


def test_the_model_and_the_random_numbers_stay() -> None:
    layer, state = nn.Linear(D_IN, D_OUT).eval(), torch.get_rng_state()
    cost(NeedsValues(nn.Sequential(nn.Dropout(0.5), layer)), (x(),))
    assert layer.weight.device.type == "cpu"
    assert layer.weight.grad is None
    assert not layer.training
    assert torch.equal(torch.get_rng_state(), state)


def test_a_batch_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ModuleError, match="the model cannot be run on this batch: RuntimeError: mat1 and mat2"):
        cost(nn.Linear(D_IN + 1, D_OUT), (x(),))


def test_what_no_weight_changes_is_an_error() -> None:
    with pytest.raises(ModuleError, match="cannot be trained: its loss depends on no weight that has a gradient"):
        cost(nn.Identity(), torch.zeros(2, 3, 5))


def test_tokens_can_be_given() -> None:
    layer = nn.Linear(D_IN, D_OUT)
    assert cost(layer, (x(),), tokens=1).flops_per_token == BATCH * LENGTH * cost(layer, (x(),)).flops_per_token


def test_the_loss_keeps_memory_too() -> None:
    layer = nn.Linear(D_IN, D_OUT)
    squared = cost(layer, (x(),), loss=lambda y: y.square().sum())
    assert squared.activation_bytes == cost(layer, (x(),)).activation_bytes + BATCH * LENGTH * D_OUT * 4


def test_time_is_measured_without_touching_the_model() -> None:
    layer = nn.Linear(D_IN, D_OUT)
    assert seconds_per_step(layer, (x(),), repeats=1) > 0
    seen = []
    seconds_per_step(layer, (x(),), repeats=1, products=torch.bfloat16, loss=lambda y: seen.append(y) or y.sum())
    assert {y.dtype for y in seen} == {torch.float32}
    assert not torch.equal(seen[0], layer(x()))  # rounded to bf16 on the way
    assert layer.weight.grad is None
