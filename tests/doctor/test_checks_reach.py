"""Receptive field: how far an output sees, and when that is worth a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.doctor.bedside import Attention, Causal, D, examine
from torch import nn

from attnlab.doctor.influence.receptive_field import check_receptive_field
from attnlab.strangers.calling.sources import Argument


class Convolutions(nn.Module):
    def __init__(self, layers=5, width=5):
        super().__init__()
        steps = [nn.Conv1d(D, D, width, padding=width // 2) for _ in range(layers)]
        self.net = nn.Sequential(
            *(step for pair in zip(steps, (nn.ReLU() for _ in steps), strict=True) for step in pair)
        )

    def forward(self, x):
        return self.net(x.mT).mT


class Pooled(Convolutions):
    def forward(self, x):
        return super().forward(x)[:, 0]


def only(module, text="", **convention):
    (finding,) = check_receptive_field(examine(module, text=text, **convention))
    assert finding.check == "receptive-field"
    return finding


def test_five_convolutions_of_width_five_see_21_of_100():
    finding = only(Convolutions())
    assert "sees 21 of 100 positions" in finding.message
    assert (finding.severity, finding.weighs) == ("warning", "set-up")
    assert "10 positions before and 10 after" in finding.evidence


def test_a_declared_window_is_a_fact():
    assert only(Convolutions(), text="looks at a local window").accepted


def test_a_single_convolution_is_local_by_nature():
    assert only(Convolutions(layers=1)).severity == "info"


@pytest.mark.parametrize(("module", "words"), [(Attention(), "the whole input"), (Causal(), "everything before it")])
def test_attention_sees_everything(module, words):
    finding = only(module)
    assert finding.severity == "info"
    assert words in finding.message


def test_a_layer_that_never_mixes():
    finding = only(nn.Sequential(nn.Linear(D, D), nn.ReLU()))
    assert "sees 1 of 100 positions: no position sees another" in finding.message
    assert finding.severity == "warning"
    assert only(nn.Linear(D, D), text="a feed-forward layer").accepted


class LooksAtOthers(nn.Module):
    """Cross attention over keys of their own width."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(D, D), nn.Linear(8, D)

    def forward(self, query, key):
        return (self.q(query) @ self.k(key).mT).softmax(-1) @ self.k(key)


def test_what_looks_at_another_sequence_uses_context():
    given = (Argument("query", "x", by_name=False), Argument("key", "another sequence", value=8))
    exam = examine(LooksAtOthers())
    assert list(check_receptive_field(exam.relying_on(replace(exam.convention, arguments=given)))) == []


def test_a_pooled_output_and_a_limited_length():
    finding = only(Pooled(), pooled=True, longest=40)
    assert "the output sees 11 of 40 positions" in finding.message


class BatchAsTime(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(D, D)

    def forward(self, x):
        return self.rnn(x)[0]


def test_what_reads_the_batch_as_time_is_left_to_another_check():
    assert not list(check_receptive_field(examine(BatchAsTime(), text="")))


def test_a_single_position_has_nothing_to_see():
    assert not list(check_receptive_field(examine(Attention(), length=1, any_length=False)))


def test_strides_in_the_source_are_no_declared_window():
    assert only(Convolutions(), text="nn.Conv1d(1, 64, ks, stride=stride)").severity == "warning"
    assert only(Convolutions(), text="strided attention").accepted


def test_who_sees_nothing_ahead_is_told_where_else_a_leak_may_be():
    assert "look at the split" in only(Causal()).message
    assert "look at the split" not in only(Attention()).message


def test_facts_carry_no_remedy():
    for module, text in [(Causal(), ""), (Attention(), ""), (Convolutions(layers=1), "")]:
        assert only(module, text).remedy == ""
    assert only(Convolutions()).remedy


class OffByOne(Causal):
    blocked = staticmethod(lambda length: torch.ones(length, length, dtype=torch.bool).triu(2))


class Strict(Attention):
    def forward(self, x):
        return self.out(x.cumsum(1) - x)


class NaNs(Attention):
    def forward(self, x):
        return super().forward(x) / 0 * 0


@pytest.mark.parametrize("causal", [True, None])
@pytest.mark.parametrize("module", [OffByOne(), Strict(), NaNs()])
def test_a_fault_of_the_mask_or_of_numbers_is_no_window(module, causal):
    assert not list(check_receptive_field(examine(module, text="", causal=causal)))


class CausalButOpen(Causal):
    blocked = staticmethod(lambda length: torch.zeros(length, length, dtype=torch.bool))


def test_what_is_meant_to_be_causal_and_is_not_is_left_to_another_check():
    assert not list(check_receptive_field(examine(CausalButOpen(), text="", causal=True)))
    assert "the whole input" in only(CausalButOpen()).message


class WithoutGradient(Attention):
    """Every second value is read without a gradient."""

    def forward(self, x):
        mean = torch.cat([x[:, ::2], x[:, 1::2].detach()], 1).mean(1, keepdim=True)
        return self.out(x + mean)


def test_what_is_cut_off_from_the_gradient_is_seen_all_the_same():
    assert "the whole input" in only(WithoutGradient()).message


class Dilated(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Conv1d(D, D, 3, padding=10, dilation=10)

    def forward(self, x):
        return self.net(x.mT).mT


def test_a_count_with_gaps_says_so():
    finding = only(Dilated())
    assert "sees 3 of 100 positions" in finding.message
    assert "10 positions before and 10 after it, with gaps" in finding.evidence
    assert "with gaps" not in only(Convolutions()).evidence


class ChoosesEachOnce(Attention):
    """Later positions have fewer to choose from, as where what was taken is taken no more."""

    def mask(self, scores, mask):
        length = scores.size(-1)
        return scores.masked_fill(torch.ones(length, length, dtype=torch.bool).tril(-length // 2 - 1), float("-inf"))


def test_what_has_nothing_left_to_choose_from_by_its_end_has_no_window():
    assert not list(check_receptive_field(examine(ChoosesEachOnce(), text="")))
