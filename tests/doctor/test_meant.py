"""What looks wrong and is meant: by an argument of the constructor, by what a softmax runs over, by how torch packs."""

from __future__ import annotations

import torch
from tests.doctor.little import Base, examined
from torch import nn

from attnlab.doctor.checks.dead_parts import check_dead_parts
from attnlab.doctor.checks.dtype_device import check_dtype_device
from attnlab.doctor.checks.normalization import check_normalization
from attnlab.doctor.checks.residual import check_residual
from attnlab.doctor.checks.scale import check_scale
from attnlab.doctor.influence.batch_independence import check_batch_independence


class ScaledIfAsked(Base):
    def __init__(self, d_model=48, n_heads=4, *, scale=False):
        super().__init__(d_model, n_heads)
        self.factor = self.d**-0.5 if scale else 1.0

    def scores(self, q, k):
        return q @ k.mT * self.factor


class NeverScaled(ScaledIfAsked):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)


def test_a_scale_that_an_argument_switches_off_is_accepted_and_one_that_nothing_does_is_not():
    (asked,), (never,) = (list(check_scale(examined(kind))) for kind in (ScaledIfAsked, NeverScaled))
    assert (asked.severity, asked.accepted, never.severity, never.accepted) == ("error", True, "error", False)
    assert 'it is built with: "scale=False"' in asked.evidence


class NormOfBatch(Base):
    def __init__(self, d_model=48, n_heads=4, norm="BatchNorm"):
        super().__init__(d_model, n_heads)
        self.norm = nn.BatchNorm1d(d_model) if norm == "BatchNorm" else nn.LayerNorm(d_model)

    def forward(self, x):
        return self.norm((x + super().forward(x)).transpose(1, 2)).transpose(1, 2)


class AlwaysOfBatch(NormOfBatch):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)


def test_batch_norm_that_an_argument_names_is_accepted_and_one_without_a_choice_is_not():
    found = [next(check_batch_independence(examined(kind))) for kind in (NormOfBatch, AlwaysOfBatch)]
    assert [one.accepted for one in found] == [True, False]


class Efficient(Base):
    """Linear attention: a softmax over the features of queries, one over positions of keys."""

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        summary = k.softmax(-2).mT @ v  # (batch, heads, d_head, d_head)
        return self.o(self.merge(q.softmax(-1) * self.d**-0.5 @ summary))


def test_a_softmax_over_features_need_neither_sum_to_one_nor_be_scaled():
    exam = examined(Efficient)
    assert [*check_normalization(exam), *check_scale(exam)] == []


class Shrunk(Base):
    def weights(self, scores):
        return scores.softmax(-1) * 0.35


def test_weights_of_keys_that_do_not_sum_to_one_stay_an_error():
    assert [finding.severity for finding in check_normalization(examined(Shrunk))] == ["error"]


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(48, 48, batch_first=True)

    def forward(self, x):
        lengths = torch.full((x.size(0),), x.size(1), device="cpu")
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


def test_lengths_of_a_packed_sequence_are_meant_to_stay_on_the_cpu():
    assert not [one for one in check_dtype_device(examined(Packed())) if one.severity == "error"]


class Block(nn.Module):
    """A block whose values are its skip."""

    def __init__(self, d_model=48):
        super().__init__()
        self.norm, self.v = nn.LayerNorm(d_model), nn.Linear(d_model, d_model)
        self.attend = Base(d_model)
        self.mlp = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, 96), nn.GELU(), nn.Linear(96, d_model))

    def forward(self, x):
        v = self.v(self.norm(x))
        y = v + self.attend(v)
        return y + self.mlp(y)


class FromOneWidthToAnother(Block):
    def __init__(self, dim=48, in_dim=48):
        super().__init__(dim)
        self.norm, self.v = nn.LayerNorm(in_dim), nn.Linear(in_dim, dim)


def test_a_block_that_changes_the_width_needs_no_identity_path_and_another_one_does():
    one = examined(Block, sizes={"d_model": 48}, kind="block")
    other = examined(FromOneWidthToAnother, sizes={"dim": 48, "in_dim": 48}, kind="block", d_in=48)
    assert [finding.severity for finding in check_residual(one)] == ["error"]
    assert list(check_residual(other)) == []


class Stabilized(Base):
    def weights(self, scores):
        scores = (scores - scores.amax(-1, keepdim=True).detach()).exp() + 1e-1
        return scores / scores.sum(-1, keepdim=True)


class Stopped(Base):
    def weights(self, scores):
        return scores.softmax(-1).detach()


def test_a_largest_score_that_gets_no_gradient_is_no_cut_and_weights_without_one_are():
    assert list(check_dead_parts(examined(Stabilized))) == []
    assert [finding.severity for finding in check_dead_parts(examined(Stopped))] == ["error"]
