"""Recording and replaying: what is on a tape is what ran, and a change goes on to what follows from it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.inspection.tape.dependence import differs
from attnlab.inspection.tape.replay import replay
from attnlab.inspection.tape.tape import record


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(7, 7)
        self.attention = nn.MultiheadAttention(7, 1, batch_first=True)
        self.register_buffer("shift", torch.ones(7))

    def forward(self, x):
        y = torch.zeros_like(x)
        for at in range(x.shape[1]):
            y[:, at] = self.inner(x[:, at])
        y = self.attention(y, x, y)[0]
        y.relu_()
        y += x
        first, second = y.split([3, 4], -1)
        return torch.cat([second, first], -1) + self.shift


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Layers().double().eval()


@pytest.fixture
def x():
    return torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def called(module, x):
    with torch.no_grad():
        return module(x)


def test_recording_leaves_the_output_as_it_is(module, x):
    tape = record(module, lambda: called(module, x))
    assert torch.equal(tape.output, called(module, x))
    assert torch.equal(tape.events[-1].output, tape.output)


def test_every_operation_gives_what_is_written_down(module, x):
    tape = record(module, lambda: called(module, x))
    again = [event.step.again([value.clone() for value in event.inputs])[event.step.output] for event in tape.events]
    pairs = list(zip(tape.events, again, strict=True))  # inputs are copies, so their strides may be others
    assert not any(bool(differs(event.output, output).any()) for event, output in pairs)


def test_values_are_those_of_the_moment_not_of_the_end():
    def grows(x):
        y = x * 1
        y += 1
        y += 1
        return y

    zeros = torch.zeros(3)
    tape = record(nn.Identity(), lambda: grows(zeros))
    assert [float(event.output[0]) for event in tape.events] == [0.0, 1.0, 2.0]
    assert [event.parents for event in tape.events] == [(None,), (0,), (1,)]


def test_writing_into_a_view_counts_as_writing_into_the_whole():
    def filled(x):
        y = torch.zeros(2, 3)
        y[0] = x
        return y.sum()

    tape = record(nn.Identity(), lambda: filled(torch.ones(3)))
    total = next(event for event in tape.events if event.call == "sum")
    assert tape.events[total.parents[0]].call == "copy_"
    assert next(event.index for event in tape.events if event.call == "zeros") in tape.ancestors(total.index)


def test_parameters_buffers_and_submodules_have_their_names(module, x):
    tape = record(module, lambda: called(module, x))
    names = {name for event in tape.events for name in event.parameters if name}
    assert {"inner.weight", "inner.bias", "attention.in_proj_weight", "shift"} <= names
    assert "shift" not in tape.learned
    assert "inner.weight" in tape.learned
    assert {event.where for event in tape.events if "inner.weight" in event.parameters} == {"inner"}


def test_fused_attention_is_taken_apart_and_the_switch_put_back(x):
    torch.backends.mha.set_fastpath_enabled(True)
    layer = nn.TransformerEncoderLayer(7, 1, 5, batch_first=True).double().eval()
    tape = record(layer, lambda: called(layer, x))
    assert torch.backends.mha.get_fastpath_enabled()
    assert any("softmax" in event.call for event in tape.events)


def test_descendants_and_ancestors_are_each_other_reversed(module, x):
    tape = record(module, lambda: called(module, x))
    indices = range(len(tape.events))
    assert {(i, j) for i in indices for j in tape.descendants(i)} == {
        (i, j) for j in indices for i in tape.ancestors(j)
    }


@pytest.mark.parametrize("call", ["bmm", "_softmax", "addmm", "cat", "relu_", "add_"])
def test_a_change_goes_on_in_a_run_as_in_a_replay(module, x, call):
    tape = record(module, lambda: called(module, x))
    event = next(event for event in tape.events if event.call.removeprefix("_safe") == call)
    run = record(module, lambda: called(module, x), change=(event.index, lambda output: output * 1.5 + 1))
    replayed = replay(tape, {event.index: lambda output: output * 1.5 + 1})
    assert not torch.equal(run.output, tape.output)
    assert all(torch.allclose(a.output, b.output) for a, b in zip(run.events, replayed, strict=True))


def test_replaying_with_another_input_is_running_with_it(module, x):
    other = x.flip(1)
    tape = record(module, lambda: called(module, x))
    run = record(module, lambda: called(module, other))
    replayed = replay(tape, outside=lambda tensor: other if torch.equal(tensor, x) else tensor)
    assert not any(bool(differs(a.output, b.output).any()) for a, b in zip(run.events, replayed, strict=True))


def test_values_that_lie_otherwise_in_memory_are_viewed_as_others(x):
    tape = record(nn.Flatten(), lambda: x.view(len(x), -1) + 1)
    other = (x * 2).mT.contiguous().mT
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        other.view(len(x), -1)
    assert torch.equal(replay(tape, outside=lambda _: other)[-1].output, other.flatten(1) + 1)


def test_replaying_keeps_random_numbers(x):
    layer = nn.Dropout(0.5).double().train()
    tape = record(layer, lambda: called(layer, x))
    doubled = replay(tape, outside=lambda tensor: tensor * 2)
    assert torch.allclose(doubled[-1].output, tape.output * 2)
    assert (tape.output == 0).any()


def test_replaying_never_changes_the_tape_even_where_the_input_is_written_into(x):
    class Careless(nn.Module):
        def forward(self, x):
            y = torch.zeros_like(x)
            y[:, 1:] = x[:, 1:]
            x += 1
            y[:, :1] = x[:, :1].relu_()
            return y + x

    given = x.clone()
    tape = record(Careless(), lambda: called(Careless(), given))
    before = [[value.clone() for value in (*event.inputs, event.output)] for event in tape.events]
    replay(tape, outside=lambda tensor: tensor * 2)
    replay(tape, {2: torch.neg})
    after = [[*event.inputs, event.output] for event in tape.events]
    equal = [torch.equal(a, b) for old, new in zip(before, after, strict=True) for a, b in zip(old, new, strict=True)]
    assert all(equal)


@pytest.mark.parametrize("by_number", [True, False])
def test_how_many_were_chosen_stays_as_it_was_when_others_would_be(by_number):
    """As the tokens of an expert, of which other inputs would choose another number."""

    def routed(x):
        chosen = x[:, 0] > 0
        rows = chosen.nonzero().squeeze(1) if by_number else chosen
        out = torch.zeros_like(x)
        out[rows] = 2 * x[rows].reshape(int(chosen.sum()), -1)
        return out

    x = torch.tensor([[1.0, 2.0], [-1.0, 3.0], [-2.0, 5.0], [3.0, 7.0], [-5.0, 11.0]])
    tape = record(nn.Identity(), lambda: routed(x))
    assert torch.equal(replay(tape, outside=lambda tensor: -tensor)[-1].output, -tape.output)
