"""Samples of a batch: each way in which they can see each other is found, and told from the others."""

from __future__ import annotations

import pytest
import torch
from tests.doctor.bedside import HEADS, KEYS, VOCAB, Attention, Causal, D, examine
from torch import nn

from attnlab.doctor.influence.batch_independence import check_batch_independence
from attnlab.doctor.influence.causality import check_causality
from attnlab.doctor.influence.positions import check_positions


def only_error(module, **convention):
    (finding,) = check_batch_independence(examine(module, **convention))
    assert (finding.check, finding.severity) == ("batch-independence", "error")
    return finding


class Recurrent(nn.Module):
    def __init__(self, cell=nn.LSTM, batch_first=False):
        super().__init__()
        self.rnn = cell(D, D, batch_first=batch_first)

    def forward(self, x):
        return self.rnn(x)[0]


class BatchNormed(Attention):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(D)

    def forward(self, x, mask=None):
        return self.norm((x + super().forward(x)).mT).mT


class HiddenBatchNorm(Attention):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(D))
        self.register_buffer("spread", torch.ones(D))

    def forward(self, x, mask=None):
        stream = (x + super().forward(x)).mT
        return nn.functional.batch_norm(stream, self.mean, self.spread, training=self.training).mT


class OverBatch(Attention):
    def normalize(self, scores):
        return scores.softmax(0)


class Centered(Attention):
    def forward(self, x, mask=None):
        return super().forward(x - x.mean(0))


class Squeezing(Attention):
    def forward(self, x, mask=None):
        return super().forward(x).squeeze()


class AlongBatch(Attention):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, 1, D))

    def forward(self, x, mask=None):
        return super().forward(x + self.table[: x.size(0)])


class DividedByBatch(Attention):
    def forward(self, x, mask=None):
        return super().forward(x) / x.size(0)


class Pooled(Attention):
    def forward(self, x, mask=None):
        return super().forward(x).mean(1)


class PooledOverBatch(Attention):
    def forward(self, x, mask=None):
        return super().forward(x).transpose(0, 1).softmax(1).mean(0)


class Tokens(Attention):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)

    def forward(self, x, mask=None):
        return super().forward(self.embed(x))


class SharedExperts(nn.Module):
    """A mixture of experts: tokens are routed one by one, gathered over the batch."""

    def __init__(self):
        super().__init__()
        self.route, self.experts = nn.Linear(D, 3), nn.ModuleList(nn.Linear(D, D) for _ in range(3))

    def forward(self, x):
        best = self.route(x).argmax(-1)
        output = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            output[best == index] = expert(x[best == index])
        return output


class DroppingExperts(SharedExperts):
    """A mixture of experts with dropout behind each expert."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(D, D), nn.Dropout(0.2)) for _ in range(3))


@pytest.mark.parametrize(
    "module",
    [
        Attention(),
        Causal(),
        Pooled(),
        SharedExperts(),
        DroppingExperts(),
        Recurrent(nn.GRU, batch_first=True),
        nn.MultiheadAttention(D, HEADS, batch_first=True),
        nn.TransformerEncoderLayer(D, HEADS, 24, batch_first=True),
    ],
    ids=lambda module: type(module).__name__,
)
def test_independent_samples_are_left_in_peace(module):
    how = {"pooled": isinstance(module, Pooled)}
    if isinstance(module, nn.MultiheadAttention):
        module = Wrapped(module)
    assert not list(check_batch_independence(examine(module, **how)))


class Wrapped(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x, x, x)[0]


def test_declared_sequence_first_is_left_in_peace():
    assert not list(check_batch_independence(examine(Recurrent(), layout="sequence-first", layout_by="its docstring")))
    attention = Wrapped(nn.MultiheadAttention(D, 2))
    said = {"layout": "sequence-first", "layout_by": "its docstring"}
    assert not list(check_batch_independence(examine(attention, **said)))
    (question,) = check_batch_independence(examine(attention, layout="sequence-first"))
    assert question.severity == "warning"
    assert question.message.endswith("it is clean for (length, batch, d_model): which layout is meant?")


def test_tokens_and_masks_are_left_in_peace():
    assert not list(check_batch_independence(examine(Tokens(), takes="tokens", d_in=0, vocab_size=VOCAB)))
    assert not list(check_batch_independence(examine(Attention(), masks=(KEYS,))))


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_batch_read_as_time_is_named_with_its_layer(cell):
    finding = only_error(Recurrent(cell), layout_by="its docstring")
    assert "batch as time" in finding.message
    assert "`rnn`" in finding.message
    assert "batch_first=True to `rnn`" in finding.remedy


def test_attention_of_torch_with_the_length_first_is_named_beside_what_has_the_batch_first():
    class Hybrid(Recurrent):
        def __init__(self):
            super().__init__(nn.GRU, batch_first=True)
            self.right = nn.MultiheadAttention(D, HEADS)
            self.layers = nn.ModuleList(nn.ModuleDict({"far": nn.MultiheadAttention(D, HEADS)}) for _ in range(2))

        def forward(self, x):
            x = super().forward(x).transpose(0, 1)
            x = (x + self.right(x, x, x)[0]).transpose(0, 1)
            for layer in self.layers:
                x = x + layer["far"](x, x, x)[0]
            return x

    finding = only_error(Hybrid())
    assert "batch as time in `layers.0.far` (MultiheadAttention)" in finding.message
    named = "`layers.0.far`, `layers.1.far`"
    assert finding.remedy == f"give batch_first=True to {named}, or transpose before and after"


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_a_layout_that_nobody_declares_is_a_question(cell):
    (finding,) = check_batch_independence(examine(Recurrent(cell)))
    assert finding.severity == "warning"
    assert "which layout is meant?" in finding.message
    assert "--layout" in finding.remedy


class OnlyPositions(nn.Module):
    """A table of positions along the first axis, added to nothing but its input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("pe", torch.randn(64, 1, D))

    def forward(self, x):
        return x + self.pe[: x.size(0)]


def test_positions_alone_that_lie_along_the_first_axis_ask_for_the_layout():
    (question,) = check_batch_independence(examine(OnlyPositions()))
    assert question.severity == "warning"
    assert question.message.endswith("it is clean for (length, batch, d_model): which layout is meant?")
    assert not list(check_positions(examine(OnlyPositions())))
    assert "its place in the batch" in only_error(OnlyPositions(), layout_by="its docstring").message
    (error,) = check_positions(examine(OnlyPositions(), layout_by="its docstring"))
    assert "laid along the batch" in error.message
    assert "its place in the batch" in only_error(AlongBatch()).message


def test_an_attention_over_the_batch_is_named():
    finding = only_error(Wrapped(nn.MultiheadAttention(D, HEADS)), layout_by="a shape comment")
    assert "`attention`" in finding.message
    assert "batch_first" in finding.remedy


@pytest.mark.parametrize("module", [BatchNormed(), HiddenBatchNorm()], ids=["module", "functional"])
def test_batch_norm_is_told_as_what_it_is_and_accused_where_the_future_is_hidden(module):
    (finding,) = check_batch_independence(examine(module))
    assert finding.severity == "warning"
    assert "training mode: batch norm" in finding.message
    assert "later positions enter what is meant to see none" in only_error(module, causal=True).message


def test_the_own_part_in_which_samples_meet_is_named():
    """A layer of torch, and what is written in the forward itself, has no class of one's own to name."""
    whole = only_error(nn.Sequential(nn.Linear(D, D), Centered()))
    assert (whole.samples_meet_in, whole.to_json()["samples_meet_in"]) == ("Centered", "Centered")
    for module, convention in ((Centered(), {}), (Recurrent(), {"layout": "batch-first", "layout_by": "a test"})):
        assert "samples_meet_in" not in only_error(module, **convention).to_json()


def test_a_softmax_over_the_batch_is_named():
    assert "softmax runs over the batch" in only_error(OverBatch()).message


@pytest.mark.parametrize("module", [Centered(), PooledOverBatch()], ids=["centered", "pooled"])
def test_any_other_sum_over_the_batch_is_found(module):
    assert "samples of a batch see each other" in only_error(module, pooled=isinstance(module, PooledOverBatch)).message


class Competing(nn.Module):
    """The first tokens of the batch that are positive pass, as many as there is room for."""

    def forward(self, x):
        flat = x.flatten(0, 1)
        passing = flat[:, 0] > 0
        room = passing & (passing.cumsum(0) <= len(flat) // 4)
        return (flat * room[:, None]).view_as(x)


def test_samples_that_compete_for_room_are_told_as_a_choice():
    (finding,) = check_batch_independence(examine(Competing()))
    assert finding.severity == "warning"
    assert "a choice among all of them in its own forward" in finding.message


class CompetingTokens(nn.Module):
    """A causal model of tokens that compete for room."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(VOCAB, D), Competing(), nn.Linear(D, VOCAB)
        self.embed.weight.data[:, 0] = torch.arange(VOCAB) % 3 - 1.5  # every third token passes while there is room

    def forward(self, tokens):
        return self.head(self.inner(self.embed(tokens)))


TOKENS = {"kind": "model", "takes": "tokens", "d_in": 0, "d_out": VOCAB, "vocab_size": VOCAB}


def test_a_choice_among_tokens_is_told_and_no_future():
    exam = examine(CompetingTokens(), causal=True, causal_means="always", **TOKENS)
    (finding,) = check_batch_independence(exam)
    assert "a choice among all of them" in finding.message
    assert list(check_causality(exam)) == []


def test_a_batch_of_one_that_is_squeezed_away_is_found():
    assert "not a batch of one" in only_error(Squeezing()).message


def test_what_depends_on_the_place_in_the_batch_is_found():
    assert "its place in the batch" in only_error(AlongBatch()).message


def test_what_depends_on_the_size_of_the_batch_is_found():
    assert "the size of the batch" in only_error(DividedByBatch()).message
