from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.benchmarks.measuring.passes import GIB, Footprint, Limits, Passes, compare_passes

LENGTH, WIDTH = 61, 7
FLOAT = 4


class Holding(nn.Module):
    """Hold a known number of numbers for a moment, and nothing afterwards."""

    def __init__(self, numbers: int, held: int = 0) -> None:
        super().__init__()
        self.numbers = numbers
        self.register_buffer("held", torch.zeros(held))

    def forward(self, x):
        torch.zeros(self.numbers)
        return x * 2


def test_a_pass_gives_the_gradients_of_input_and_weights():
    passes = Passes(nn.Linear(WIDTH, WIDTH), LENGTH, WIDTH)
    passes.run()
    once = passes.layer.weight.grad.clone()
    passes.run()
    assert torch.equal(passes.layer.weight.grad, once)  # forgotten in between, not added up
    expected = passes.direction @ passes.layer.weight
    torch.testing.assert_close(passes.x.grad, expected)


def test_what_a_pass_holds_is_counted_also_if_it_is_gone_at_the_end():
    base = Passes(Holding(0), LENGTH, WIDTH).peak_bytes()
    activation = LENGTH * WIDTH * FLOAT
    assert base == pytest.approx(2 * activation, abs=64)  # the output and the gradient of the input
    assert Passes(Holding(100_000), LENGTH, WIDTH).peak_bytes() == pytest.approx(100_000 * FLOAT, rel=0.01)


def test_buffers_count():
    base = Passes(Holding(0), LENGTH, WIDTH).peak_bytes()
    assert Passes(Holding(0, held=1000), LENGTH, WIDTH).peak_bytes() == base + 1000 * FLOAT


def test_memory_is_the_same_each_time():
    passes = Passes(nn.Linear(WIDTH, WIDTH), LENGTH, WIDTH)
    assert len({passes.peak_bytes() for _ in range(3)}) == 1


def test_bf16_computes_matrix_products_in_bf16():
    seen = []
    layer = nn.Linear(WIDTH, WIDTH)
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    Passes(layer, LENGTH, WIDTH, precision="bf16").run()
    assert seen == [torch.bfloat16]
    assert layer.weight.grad.dtype == torch.float32


def test_layers_are_compared_with_their_memory():
    passes = {name: Passes(nn.Linear(WIDTH, WIDTH), LENGTH, WIDTH) for name in ("one", "other")}
    comparison = compare_passes("linear layers", passes, reference="other", rounds=2)
    assert [len(times) for times in comparison.rows.values()] == [2, 2]
    assert all(time > 0 for times in comparison.rows.values() for time in times)
    assert comparison.details["one"] == comparison.details["other"] == {"peak_bytes": passes["one"].peak_bytes()}
    assert "peak memory" in str(comparison)


@pytest.mark.parametrize(
    ("seconds", "peak_bytes", "reason"),
    [
        (0.5, GIB, ""),
        (3.0, 0, "would take up to 48 s a pass, judged by 3 s at 512"),
        (0.5, 2 * GIB, "would take up to 32 GiB, judged by its need at 512"),
    ],
)
def test_what_costs_too_much_is_foreseen_from_a_shorter_length(seconds, peak_bytes, reason):
    limits = Limits(seconds=10.0, gibibytes=20.0)
    assert limits.excess(2048, Footprint(512, seconds, peak_bytes)) == reason


def test_the_limits_of_a_machine_leave_half_its_memory():
    limits = Limits.of("cpu")
    assert 0 < limits.gibibytes < 10_000
    assert limits.seconds == Limits().seconds
