"""Kept memory is what autograd holds, each piece once; stand-ins have the shapes and FLOPs of what they replace."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnlab.inspection.memory import FusedAttention, FusedRecurrence, kept_bytes

BATCH, LENGTH, HEADS, D_HEAD = 2, 7, 3, 5
D_IN, HIDDEN = 3, 5
FLOAT_BYTES = 4
ACTIVATION = BATCH * HEADS * LENGTH * D_HEAD * FLOAT_BYTES


def kept(function, *inputs: Tensor, model: nn.Module | None = None) -> int:
    with kept_bytes(model or nn.Identity()) as total:
        function(*inputs)
    return total()


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


# ---- stand-ins ----

LAYERS = {
    "lstm": lambda **more: nn.LSTM(D_IN, HIDDEN, **more),
    "gru": lambda **more: nn.GRU(D_IN, HIDDEN, **more),
    "rnn": lambda **more: nn.RNN(D_IN, HIDDEN, **more),
    "relu rnn": lambda **more: nn.RNN(D_IN, HIDDEN, nonlinearity="relu", **more),
}
FORMS = [{}, {"batch_first": True}, {"bidirectional": True}, {"num_layers": 2, "bias": False}]


def shapes(returned: object) -> list[torch.Size]:
    output, states = returned
    return [output.shape, *(state.shape for state in (states if type(states) is tuple else (states,)))]


def flops_step_by_step(layer: nn.Module, x: Tensor) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        layer(x)[0].sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("requires_grad", [True, False])
def test_recurrent_layers(kind: str, form: dict[str, object], *, requires_grad: bool) -> None:
    layer = LAYERS[kind](**form).to("meta")
    x = torch.zeros(BATCH, LENGTH, D_IN, device="meta", requires_grad=requires_grad)
    expected, recurrence = shapes(layer(x)), FusedRecurrence()
    with recurrence:
        assert shapes(layer(x)) == expected
    assert recurrence.flops == flops_step_by_step(layer, x)


def test_gradients_pass_through() -> None:
    layer = nn.LSTM(D_IN, HIDDEN).to("meta")
    x = torch.zeros(BATCH, LENGTH, D_IN, device="meta", requires_grad=True)
    with FusedRecurrence():
        layer(x)[0].sum().backward()
    assert x.grad.shape == x.shape
    assert all(parameter.grad.shape == parameter.shape for parameter in layer.parameters())


def test_real_values_are_left_alone() -> None:
    layer, x, recurrence = nn.LSTM(D_IN, HIDDEN), torch.ones(BATCH, LENGTH, D_IN), FusedRecurrence()
    with recurrence:
        output, _ = layer(x)
    assert torch.equal(output, layer(x)[0])
    assert recurrence.flops == 0


def test_attention_keeps_its_shape() -> None:
    q = torch.zeros(BATCH, 4, LENGTH, 5, device="meta")
    k = torch.zeros(BATCH, 2, LENGTH + 1, 5, device="meta")
    v = torch.zeros(BATCH, 2, LENGTH + 1, 3, device="meta")
    with FusedAttention():
        output = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert output.shape == (BATCH, 4, LENGTH, 3)
