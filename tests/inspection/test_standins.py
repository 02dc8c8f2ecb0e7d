"""Stand-ins must have the shapes and the FLOPs of what they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnlab.inspection.standins import FusedAttention, FusedRecurrence

BATCH, LENGTH, D_IN, HIDDEN = 2, 7, 3, 5

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
