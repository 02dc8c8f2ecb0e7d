"""Signal and gradient by depth: shrinking, exploding, rank collapse, and what a skip does to them."""

from __future__ import annotations

import pytest
import torch
from tests.doctor.bedside import Attention, D, examine, severities
from torch import nn
from torch.nn import functional as F

from attnlab.doctor.checks.depth import check_gradient, check_signal
from attnlab.doctor.measures.stacks import measured


class Shrinking(nn.Module):
    """Attention, a linear layer and a rectifier, without skip."""

    def __init__(self):
        super().__init__()
        self.attention, self.linear = Attention(), nn.Linear(D, D)

    def forward(self, x):
        return F.relu(self.linear(x + self.attention(x)))


class Growing(Shrinking):
    def forward(self, x):
        return x + 4.0 * self.linear(F.gelu(self.attention(x) + x))


class Healthy(Shrinking):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)

    def forward(self, x):
        return x + F.gelu(self.linear(x + 0 * self.attention(self.norm(x)))) * 0.1


def layer(**options):
    return nn.TransformerEncoderLayer(D, 2, 2 * D, 0.0, batch_first=True, **options)


def exam_of(make, **convention):
    return examine(make(), build=lambda _changes: make(), text="", **({"kind": "block"} | convention))


def test_a_block_without_skip_shrinks_and_says_how_much_and_what_a_skip_does():
    exam = exam_of(Shrinking)
    shrinks, alike = check_signal(exam)
    assert (shrinks.severity, alike.severity) == ("warning", "warning")
    depths = measured(exam).plain
    assert f"to {depths.factor:.2f} of its size per block" in shrinks.message
    assert depths.factor == pytest.approx((depths.sizes[3] / depths.sizes[0]) ** (1 / 3))
    assert "rank collapse" in alike.message
    assert "with a skip around each" in shrinks.evidence
    assert severities(check_gradient(exam)) == ["warning"]


def test_a_block_that_grows():
    (finding,) = check_signal(exam_of(Growing))
    assert finding.severity == "warning"
    assert "blows the signal up" in finding.message


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_layers_of_torch_pass(norm_first):
    exam = exam_of(lambda: layer(norm_first=norm_first))
    assert severities(check_signal(exam)) == severities(check_gradient(exam)) == ["info"]


def test_a_clean_skip_is_taken_away_for_comparison():
    found = measured(exam_of(lambda: layer(norm_first=True)))
    assert found.has_skip
    assert found.other.sizes != found.plain.sizes
    assert measured(exam_of(lambda: layer(norm_first=False))).other is None


def test_bare_attention_is_told_not_warned():
    exam = exam_of(Attention, kind="layer")
    assert severities(check_signal(exam)) == ["info"]
    assert not list(check_gradient(exam))


def test_a_network_from_one_number_to_one_number_is_not_stacked():
    def network():
        return nn.Sequential(nn.Linear(1, D), nn.ReLU(), nn.Linear(D, 1))

    exam = examine(network(), build=lambda _changes: network(), text="", d_in=1, d_out=1)
    assert measured(exam) is not None
    assert not [*check_signal(exam), *check_gradient(exam)]


def test_each_number_is_shown_once_and_long_rows_are_cut():
    exam = exam_of(Shrinking)
    object.__setattr__(exam.options, "depth", 12)
    shrinks, alike = check_signal(exam)
    (gradient,) = check_gradient(exam)
    assert "cosine" not in shrinks.evidence
    assert "mean square" not in alike.evidence
    for finding in (shrinks, alike, gradient):
        assert finding.evidence.count("...") == 2
        assert len(finding.evidence) < 240


def test_an_instance_alone_is_stacked_with_its_own_weights_drawn_anew_where_that_can_be():
    def without_rule():
        module = Shrinking()
        module.extra = nn.Parameter(torch.ones(D, D))
        return module

    assert measured(examine(Shrinking(), kind="block", text="")).fresh
    assert not measured(examine(without_rule(), kind="block", text="")).fresh


def test_depth_is_what_was_asked_for():
    exam = exam_of(Shrinking)
    object.__setattr__(exam.options, "depth", 4)
    assert len(measured(exam).plain.gradients) == 4
    assert len(measured(exam).plain.sizes) == 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(17, D), nn.Linear(D, 17)
        self.layers = nn.ModuleList(Shrinking() for _ in range(5))

    def forward(self, tokens):
        x = self.embed(tokens)
        for one in self.layers:
            x = one(x)
        return self.head(x)


def test_a_model_is_measured_in_its_own_layers():
    exam = examine(Model(), kind="model", takes="tokens", d_in=0, d_out=17, vocab_size=17)
    assert measured(exam).plain.layers == 5
    assert "the model's stack of 5 blocks" in next(iter(check_signal(exam))).message


class SmallStart(Model):
    """Norms behind, and embeddings as small as they may start."""

    def __init__(self):
        super().__init__()
        nn.init.normal_(self.embed.weight, std=0.005)
        norms = (nn.LayerNorm(D) for _ in self.layers)
        self.layers = nn.ModuleList(nn.Sequential(Healthy(), norm) for norm in norms)


def test_small_embeddings_are_no_gradient_that_blows_up():
    exam = examine(SmallStart(), kind="model", takes="tokens", d_in=0, d_out=17, vocab_size=17)
    (finding,) = check_gradient(exam)
    assert (finding.severity, "passes the gradient on" in finding.message) == ("info", True)
    assert measured(exam).plain.ratio == pytest.approx(1.0, rel=0.5)


def test_what_cannot_be_stacked_is_left_out():
    exam = examine(nn.Linear(D, 7), d_out=7, text="")
    assert list(check_signal(exam)) == list(check_gradient(exam)) == []
