"""What looks wrong and is meant: by an argument of the constructor, by what a softmax runs over, by how torch packs."""

from __future__ import annotations

import pytest
import torch
from tests.doctor.little import Base, examined
from torch import nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.checks.dead_parts import check_dead_parts
from attnlab.doctor.checks.dtype_device import check_dtype_device
from attnlab.doctor.checks.normalization import check_normalization
from attnlab.doctor.checks.overfit import check_overfit
from attnlab.doctor.checks.residual import check_residual
from attnlab.doctor.checks.scale import check_scale


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


class Tied(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.k.weight = self.q.weight


def test_projections_that_the_source_ties_are_meant():
    (finding,) = check_dead_parts(examined(Tied))
    assert finding.accepted
    assert 'its source sets: "self.k.weight = self.q.weight"' in finding.evidence


class Reversible(Base):
    def forward(self, x):
        with torch.no_grad():
            return x + super().forward(x)

    def backward_pass(self, gradient):
        return gradient


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (check_dead_parts, "left to its method `backward_pass`, which nothing calls here"),
        (check_overfit, "no gradient: see what `dead-parts` says"),
    ],
)
def test_gradients_that_a_method_of_its_own_gives_are_not_missed(check, said):
    with pytest.raises(ModuleError, match=said):
        list(check(examined(Reversible)))


class Gated(Base):
    """Two units of a rectifier, both closed at the start, and the map behind them."""

    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.narrow, self.wide = nn.Linear(d_model, 2), nn.Linear(2, d_model)
        nn.init.constant_(self.narrow.bias, -1.5)

    def forward(self, x):
        return super().forward(x) * self.wide(self.narrow(x.square().mean(1, keepdim=True)).relu()).sigmoid()


def test_rectifiers_that_are_closed_by_chance_are_not_dead():
    exam = examined(Gated)
    assert not exam.eval_module.narrow(exam.inputs().square().mean(1)).relu().any()
    assert list(check_dead_parts(exam)) == []
