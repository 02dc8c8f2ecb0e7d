"""Calls beside the usual: one vector that asks a sequence, vectors for distances, arguments handed on, a reset."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.interview import interview
from attnlab.strangers.calling.roles import role_of
from attnlab.strangers.patient import Patient

WIDTH, STATE = 24, 10


def asked(module: nn.Module) -> Convention:
    return interview(Patient("it", module, None, {}, "", ""))


class StateAsks(nn.Module):
    """Additive attention as in a decoder of one step: what it returns beside the context are weights."""

    def __init__(self):
        super().__init__()
        self.hidden, self.score = nn.Linear(WIDTH + STATE, STATE), nn.Linear(STATE, 1)

    def forward(self, hidden, encoder_outputs):
        asking = hidden.unsqueeze(1).repeat(1, encoder_outputs.size(1), 1)
        energy = torch.tanh(self.hidden(torch.cat([asking, encoder_outputs], 2)))
        weights = self.score(energy).squeeze(2).softmax(1)  # (batch, length)
        return weights, (weights.unsqueeze(1) @ encoder_outputs).squeeze(1)


def test_one_vector_asks_a_sequence_and_its_context_is_the_output():
    convention = asked(StateAsks())
    assert convention.assumptions["called as"].startswith("forward(hidden=one fixed vector per sequence")
    assert (convention.d_in, convention.pooled, convention.output) == (WIDTH, True, 1)


class Distances(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, pos_embs):
        length = x.size(1)
        assert pos_embs.shape == (1, 2 * length - 1, WIDTH)
        self.told = pos_embs
        return self.map(x) + pos_embs[:, length - 1 :]


def test_a_distance_has_the_same_vector_at_every_length():
    module = Distances()
    convention = asked(module)
    told = {}
    for length in (5, 8):
        convention.call(module, torch.randn(3, length, WIDTH))
        told[length] = module.told[:, length - 5 : length + 4]
    assert torch.equal(told[5], told[8])


class HandedOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, *arguments, context=None):
        return self.map(*arguments) if context is None else self.map(context)


def test_arguments_that_are_handed_on_hold_the_input():
    assert asked(HandedOn()).in_words == "forward(x)"


class OneOfAStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.map(x).unsqueeze(0)


def test_the_last_layer_of_a_stack_is_the_output():
    assert asked(OneOfAStack()).call(OneOfAStack(), torch.randn(3, 5, WIDTH)).shape == (3, 5, WIDTH)


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)
        self.reset()

    def reset(self):
        self.kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = self.map(x)
        return self.kept


def test_what_can_be_reset_is_reset_before_every_call():
    module = Remembers()
    convention = asked(module)
    calls = [convention.call(module, torch.full((3, 5, WIDTH), value)) for value in (1.0, 2.0)]
    assert not torch.equal(*calls)


class DecoderLayer(nn.Module):
    """Self-attention and attention to a memory, of torch's layers, which take the sequence first."""

    def __init__(self):
        super().__init__()
        self.own, self.other = (nn.MultiheadAttention(WIDTH, 2) for _ in range(2))

    def forward(self, tgt, memory, tgt_mask=None):
        tgt = tgt + self.own(tgt, tgt, tgt, attn_mask=tgt_mask)[0]
        return tgt + self.other(tgt, memory, memory)[0]


def test_a_memory_stays_apart_where_the_sequence_turns_out_to_come_first():
    convention = asked(DecoderLayer())
    assert convention.layout == "sequence-first"
    assert "memory=a fixed memory of length 7" in convention.in_words
    assert convention.pair_mask is not None
    assert convention.pair_mask.obeyed


@pytest.mark.parametrize(
    ("name", "role"), [("enc_len", "lengths"), ("src_length", "lengths"), ("seq_len", "length"), ("max_len", "length")]
)
def test_the_length_of_a_named_sequence_is_one_for_each_sample(name, role):
    assert role_of(name) == role
