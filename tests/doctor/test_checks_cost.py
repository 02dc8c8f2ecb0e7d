"""Cost: what does not depend on the machine is judged, times are only said."""

from __future__ import annotations

import math
import re

import pytest
import torch
from tests.doctor.bedside import D
from tests.doctor.bedside import examine as examined
from torch import nn

from attnlab.doctor.checks import cost
from attnlab.doctor.checks.cost import check_cost


def examine(module, **convention):
    return examined(module, text="", **{"length": 7} | convention)


def findings(module, **convention):
    return list(check_cost(examine(module, **convention)))


class Attention(nn.Module):
    def __init__(self, heads=2):
        super().__init__()
        self.heads, self.packed = heads, nn.Linear(D, 3 * D)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.packed(x).chunk(3, dim=-1))
        weights = (q @ k.transpose(-2, -1) / math.sqrt(D / self.heads)).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class Fused(Attention):
    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.packed(x).chunk(3, dim=-1))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x):
        state, states = torch.zeros_like(x[:, 0]), []
        for position in range(x.size(1)):
            state = torch.tanh(self.linear(x[:, position] + state))
            states.append(state)
        return torch.stack(states, 1)


def largest_exponent(finding):
    return float(re.search(r"largest tensor (grows )?with (about the power )?(-?\d\.\d)", finding.message).group(3))


def test_written_out_attention_keeps_the_square_of_the_length():
    (fact,) = findings(Attention())
    assert fact.severity == "info"
    assert largest_exponent(fact) == 2.0
    size = re.search(r"largest tensor (\d+) MiB at length (\d+)", fact.evidence)
    assert int(size[1]) == 2 * int(size[2]) ** 2 * 4 / 1024**2  # heads, positions squared, bytes of a float32
    assert "times scaled_dot_product_attention" in fact.evidence


def test_fused_attention_keeps_no_square():
    (fact,) = findings(Fused())
    assert largest_exponent(fact) == 1.0


def test_a_loop_over_positions_is_a_known_effect():
    warning, fact = findings(Loop())
    assert (warning.severity, fact.severity) == ("warning", "info")
    assert "position by position" in warning.message


def test_recurrent_layers_of_torch_are_meant_to_go_step_by_step():
    (fact,) = findings(nn.GRU(D, D, batch_first=True))
    assert fact.severity == "info"


def test_lengths_stay_below_the_longest():
    (fact,) = findings(Attention(), longest=300)
    assert "at length 300" in fact.evidence


def test_short_lengths_say_nothing_of_growth():
    assert findings(Attention(), longest=40) == []
    assert findings(Attention(), longest=100) == []


def timings(*milliseconds):
    return {64 * 2**index: time / 1e3 for index, time in enumerate(milliseconds)}


def test_time_that_hardly_grows_has_no_power():
    growths = [timings(1, 1.1, 1.5, 4.9), timings(1, 2, 8, 32)]
    hardly, squared = (cost._growth(seconds, {256: 100, 512: 200}, None).message for seconds in growths)
    assert "time hardly" in hardly
    assert "time grows with about the power 2.0" in squared


def test_tensors_of_operations_with_several_outputs_count():
    layer = nn.MultiheadAttention(D, 2, batch_first=True).requires_grad_(False).eval()
    exam = examine(layer)
    with cost.Meter() as meter, torch.no_grad():
        layer(*(exam.inputs().float(),) * 3, need_weights=False)
    assert meter.largest > 0


def test_modules_of_one_length_are_not_asked():
    assert findings(Attention(), any_length=False) == []
    assert findings(Attention(), longest=11) == []


def test_blocks_are_not_held_against_one_attention():
    (fact,) = findings(nn.TransformerEncoderLayer(D, 2, dim_feedforward=30, batch_first=True), kind="block")
    assert "scaled_dot" not in fact.evidence


def test_fused_reference_has_the_sizes_of_what_was_found():
    exam = examine(Attention())
    (found,) = cost.attentions(exam.usual_tape, exam.convention)
    with torch.no_grad():
        assert cost._fused(exam, found, 13)().shape == (1, 13, D)


def test_budget_stops_before_the_next_length(monkeypatch):
    monkeypatch.setattr(cost, "BUDGET_S", 0.0)
    exam = examine(Attention())
    assert [length for length, _ in cost._timed(exam, exam.copy(dtype=torch.float32), [8, 16])] == [8]
    assert findings(Attention()) == []


def test_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), cost.one_thread():
        raise ZeroDivisionError
    assert torch.get_num_threads() == before
