"""Weights that are no softmax over the keys are errors, unless something else is meant."""

from __future__ import annotations

import pytest
import torch
from tests.doctor.bedside import examine
from tests.doctor.little import Base, causal, examined
from torch import nn
from torch.nn import functional as F

from attnlab.doctor.checks.normalization import check_normalization
from attnlab.strangers.calling.masking import Masking


class OverQueries(Base):
    def weights(self, scores):
        return scores.softmax(-2)


class OverHeads(Base):
    def weights(self, scores):
        return scores.softmax(1)


class OverBatch(Base):
    def weights(self, scores):
        return scores.softmax(0)


class OverPairs(Base):
    def weights(self, scores):
        return scores.flatten(2).softmax(-1).view_as(scores)


class WrittenOverQueries(Base):
    def weights(self, scores):
        return scores.exp() / scores.exp().sum(-2, keepdim=True)


class MaskedAfter(Base):
    def weights(self, scores):
        return scores.softmax(-1).masked_fill(causal(scores), 0.0)


class MultipliedAfter(Base):
    def weights(self, scores):
        return scores.softmax(-1) * (~causal(scores)).to(scores.dtype)


class BufferedAfter(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.register_buffer("allowed", torch.ones(64, 64).tril())

    def weights(self, scores):
        return scores.softmax(-1) * self.allowed[: scores.shape[-2], : scores.shape[-1]]


class RenormalizedOverQueries(Base):
    def weights(self, scores):
        weights = scores.softmax(-1).masked_fill(causal(scores), 0.0)
        return weights / weights.sum(-2, keepdim=True)


class Clamped(Base):
    def weights(self, scores):
        return scores.clamp(0, 1).masked_fill(causal(scores), -1e9).softmax(-1)


class OfSigmoids(Base):
    def weights(self, scores):
        return scores.sigmoid().softmax(-1)


class Twice(Base):
    def weights(self, scores):
        return scores.softmax(-1).softmax(-1)


class Logarithms(Base):
    def weights(self, scores):
        return F.log_softmax(scores, -1)


class ScaledAfter(Base):
    def scores(self, q, k):
        return q @ k.mT

    def weights(self, scores):
        return scores.softmax(-1) / self.d**0.5


class Unapplied(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.softmax = nn.Softmax(-1)

    def weights(self, scores):
        return scores.masked_fill(causal(scores), 0.0)


class Undivided(Base):
    """softmax(Q K^T) V"""

    def weights(self, scores):
        return (scores - scores.amax(-1, keepdim=True)).exp()


BROKEN = {
    OverQueries: "queries",
    OverHeads: "heads",
    OverBatch: "batch",
    OverPairs: "several",
    WrittenOverQueries: "queries",
    MaskedAfter: "mask",
    MultipliedAfter: "mask",
    BufferedAfter: "mask",
    RenormalizedOverQueries: "mask",
    Twice: "two softmaxes",
    Clamped: "stay within 1 of each other",
    OfSigmoids: "stay within 1 of each other",
    Logarithms: "logarithms",
    ScaledAfter: "multiplied by 0.289",
    Unapplied: "none is applied",
    Undivided: "none is applied",
}


@pytest.mark.parametrize("written", BROKEN)
def test_broken_weights_are_one_error_that_says_what_happened(written):
    (found,) = check_normalization(examined(written))
    assert (found.check, found.severity) == ("normalization", "error")
    assert BROKEN[written] in found.message
    assert "11 keys" in found.evidence
    assert found.remedy
    assert found.source


class TalkingHeads(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.before, self.after = nn.Linear(n_heads, n_heads), nn.Linear(n_heads, n_heads)

    def weights(self, scores):
        mixed = self.before(scores.movedim(1, -1)).movedim(-1, 1)
        return self.after(mixed.softmax(-1).movedim(1, -1)).movedim(-1, 1)


class OneMore(Base):
    def weights(self, scores):
        powers = scores.exp()
        return powers / (1 + powers.sum(-1, keepdim=True))


class PaddedWithZero(Base):
    def weights(self, scores):
        return F.pad(scores, (1, 0)).softmax(-1)[..., 1:]


class LearnedLogit(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.extra = nn.Parameter(torch.zeros(n_heads))

    def weights(self, scores):
        extra = self.extra[:, None, None].expand(*scores.shape[:3], 1)
        return torch.cat([scores, extra], -1).softmax(-1)[..., :-1]


class GatedAfter(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.gate = nn.Linear(d_model, n_heads)

    def forward(self, x):
        self.gates = self.gate(x).sigmoid().transpose(1, 2)[..., None]
        return super().forward(x)

    def weights(self, scores):
        return scores.softmax(-1) * self.gates


class HeadGains(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.gains = nn.Parameter(torch.full((n_heads, 1, 1), 0.5))

    def weights(self, scores):
        return scores.softmax(-1) * self.gains


class Renormalized(Base):
    def weights(self, scores):
        weights = scores.softmax(-1).masked_fill(causal(scores), 0.0)
        return weights / (weights.sum(-1, keepdim=True) + 1e-9)


class Slots(Base):
    def weights(self, scores):
        weights = scores.softmax(-2)
        return weights / weights.sum(-1, keepdim=True)


class LargestThree(Base):
    def weights(self, scores):
        weights = scores.softmax(-1)
        return weights * (weights >= weights.topk(3, -1).values[..., -1:])


class ThroughLogarithms(Base):
    def weights(self, scores):
        return F.log_softmax(scores, -1).exp()


class Difference(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.share = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
        weights = self.scores(q1, k1).softmax(-1) - self.share * self.scores(q2, k2).softmax(-1)
        return self.o(self.merge(weights @ v))


class Sigmoid(Base):
    def weights(self, scores):
        return (scores - 2.0).sigmoid()


class SquaredReLU(Base):
    """Instead of a softmax, squared rectified scores."""

    def weights(self, scores):
        return scores.relu().square() / scores.shape[-1]


class Retention(Base):
    def weights(self, scores):
        at = torch.arange(scores.shape[-1])
        return scores * (0.9 ** (at[:, None] - at)).tril()


class Linear(Base):
    def forward(self, x):
        q, k, v = (F.elu(self.split(part(x))) + 1 for part in (self.q, self.k, self.v))
        return self.o(self.merge(q @ (k.mT @ v) / (q @ k.sum(2)[..., None])))


class StrictlyEarlier(Base):
    """The first position sees nothing and gives zero."""

    def weights(self, scores):
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1)
        return scores.masked_fill(~allowed, float("-inf")).softmax(-1).nan_to_num(0.0)


class DropoutAfter(Base):
    def weights(self, scores):
        return F.dropout(scores.softmax(-1), 0.3, self.training)


class KeysFirst(Base):
    """Scores are (keys, queries), so the softmax over axis 2 is right."""

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = (k @ q.mT / self.d**0.5).softmax(2)
        return self.o(self.merge((v.mT @ weights).mT))


class Capped(Base):
    def weights(self, scores):
        return (5 * torch.tanh(scores / 5)).softmax(-1)


class Sharpened(OfSigmoids):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.sharpness = nn.Parameter(torch.ones(()))

    def weights(self, scores):
        return (self.sharpness * scores.sigmoid()).softmax(-1)


RIGHT = (
    *(Base, TalkingHeads, OneMore, PaddedWithZero, LearnedLogit, GatedAfter, HeadGains, Renormalized, Slots),
    *(LargestThree, ThroughLogarithms, Difference, Sigmoid, SquaredReLU, Retention, Linear, StrictlyEarlier),
    *(DropoutAfter, KeysFirst, Capped, Sharpened),
)


@pytest.mark.parametrize("written", RIGHT)
def test_what_is_meant_so_is_no_finding(written):
    assert list(check_normalization(examined(written))) == []


class BlindRows(Base):
    """The first queries look at nothing: their scores are zero, and their weights are taken away."""

    def weights(self, scores):
        blind = torch.arange(scores.shape[-2])[:, None] < 3
        return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def test_rows_that_look_at_nothing_are_no_mask_behind_the_softmax():
    assert list(check_normalization(examined(BlindRows))) == []


class PaddedAfter(Base):
    def forward(self, x, key_padding_mask=None):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = self.scores(q, k).softmax(-1)
        if key_padding_mask is not None:
            weights = weights.masked_fill(key_padding_mask[:, None, None], 0.0)
        return self.o(self.merge(weights @ v))


class PaddedBefore(Base):
    def forward(self, x, key_padding_mask=None):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = self.scores(q, k)
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None], float("-inf"))
        weights = scores.softmax(-1)
        if key_padding_mask is not None:  # padded queries give zero
            weights = weights.masked_fill(key_padding_mask[:, None, :, None], 0.0)
        return self.o(self.merge(weights @ v))


@pytest.mark.parametrize(("written", "count"), [(PaddedAfter, 1), (PaddedBefore, 0)])
def test_masks_that_only_a_call_with_padding_shows(written, count):
    mask = Masking("key_padding_mask", "keys", "bool, True = blocked", "(batch, k_len)")
    assert len(list(check_normalization(examined(written, masks=(mask,))))) == count


def test_dropout_on_scores_is_a_warning():
    class Dropped(Base):
        def weights(self, scores):
            return F.dropout(scores, 0.3, self.training).softmax(-1)

    (found,) = check_normalization(examined(Dropped))
    assert (found.severity, found.nature) == ("warning", None)
    assert "Dropout" in found.message


class UnitVectors(Base):
    """Scores are cosines, ten times as large."""

    axis = -1

    def scores(self, q, k):
        return 10 * F.normalize(q, dim=self.axis) @ F.normalize(k, dim=self.axis).mT


class UnitFeatures(UnitVectors):
    axis = -2


@pytest.mark.parametrize(("written", "count"), [(UnitVectors, 0), (UnitFeatures, 1)])
def test_queries_and_keys_are_normalized_over_their_features(written, count):
    findings = list(check_normalization(examined(written)))
    assert [one.severity for one in findings] == ["error"] * count
    assert all("over the positions, not over their features" in one.message for one in findings)


class Slots(nn.Module):
    """Reads from learned slots."""

    def __init__(self, axis, mixes_heads=False):
        super().__init__()
        torch.manual_seed(4)
        self.axis, self.mixes_heads = axis, mixes_heads
        self.ask, self.mix = nn.Linear(48, 16), nn.Linear(4, 4)
        self.slots = nn.Parameter(torch.randn(16, 48))

    def forward(self, x):
        if self.mixes_heads:
            heads = x.unflatten(-1, (4, 12)).transpose(1, 2)
            weights = (heads @ heads.mT / 12**0.5).softmax(-1)
            weights = self.mix(weights.movedim(1, -1)).movedim(-1, 1)
            return (weights @ heads).transpose(1, 2).flatten(2)
        return x + self.ask(x).softmax(self.axis) @ self.slots


@pytest.mark.parametrize(("axis", "words"), [(-1, ""), (1, "over axis 1"), (0, "over axis 0")])
def test_weights_of_learned_slots_sum_to_one_over_the_slots(axis, words):
    findings = list(check_normalization(examine(Slots(axis), d_in=48, d_out=48)))
    assert len(findings) == bool(words)
    assert all(words in one.evidence and "16 learned vectors" in one.evidence for one in findings)


def test_a_mixture_of_heads_is_no_memory():
    findings = check_normalization(examine(Slots(-1, mixes_heads=True), d_in=48, d_out=48))
    assert not [one for one in findings if "learned vectors" in one.message]


class Categories(nn.Module):
    """Four groups of four categories, or as many numbers of each position that sum to one over something."""

    def __init__(self, axis, matrix):
        super().__init__()
        torch.manual_seed(5)
        self.axis, self.ask, self.read = axis, nn.Linear(48, 16), nn.Linear(16, 48, bias=matrix == "layer with a bias")
        self.codes = nn.Parameter(torch.randn(16, 48)) if matrix == "parameter" else None

    def forward(self, x):
        weights = self.ask(x).unflatten(-1, (4, -1)).softmax(self.axis).flatten(-2)
        return x + (self.read(weights) if self.codes is None else weights @ self.codes)


@pytest.mark.parametrize("matrix", ["parameter", "layer", "layer with a bias"])
@pytest.mark.parametrize("axis", [1, -1])
def test_groups_of_categories_and_features_that_a_layer_reads_are_no_slots(matrix, axis):
    findings = list(check_normalization(examine(Categories(axis, matrix), d_in=48, d_out=48)))
    assert ["16 learned vectors" in one.evidence for one in findings] == [True] * (
        axis == 1 and matrix != "layer with a bias"
    )
