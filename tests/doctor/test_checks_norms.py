"""Norms: unused ones, thrown away results, and wrong axes are errors; the placement is told."""

from __future__ import annotations

import pytest
import torch
from tests.doctor.bedside import Attention, D, examine, severities
from torch import nn
from torch.nn import functional as F

from attnlab.doctor.checks.dead_parts import check_dead_parts
from attnlab.doctor.checks.norm_placement import check_norm_placement


class HandNorm(nn.Module):
    def __init__(self, axes=-1):
        super().__init__()
        self.gain, self.axes = nn.Parameter(torch.ones(D)), axes

    def forward(self, x):
        return (x - x.mean(self.axes, keepdim=True)) / (x.std(self.axes, keepdim=True) + 1e-6) * self.gain


class RootNorm(nn.Module):
    def __init__(self, axes=-1):
        super().__init__()
        self.gain, self.axes = nn.Parameter(torch.ones(D)), axes

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(self.axes, keepdim=True) + 1e-6) * self.gain


class Block(nn.Module):
    def __init__(self, first=None):
        super().__init__()
        torch.manual_seed(13)
        self.attention, self.up, self.down = Attention(), nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.n1, self.n2 = first or nn.LayerNorm(D), nn.LayerNorm(D)

    def f(self, x):
        return self.down(F.gelu(self.up(x)))

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.f(self.n2(x))


class Post(Block):
    def forward(self, x):
        x = self.n1(x + self.attention(x))
        return self.n2(x + self.f(x))


class Literal(Block):
    def forward(self, x):
        return F.relu(self.down(F.relu(self.up(self.n1(x + self.attention(x))))))


class Sandwich(Block):
    def forward(self, x):
        x = x + self.n2(self.attention(self.n1(x)))
        return x + self.f(self.n1(x))


class Stack(nn.Module):
    def __init__(self, layer=Block):
        super().__init__()
        self.layers, self.last = nn.Sequential(layer(), layer()), nn.LayerNorm(D)

    def forward(self, x):
        return self.last(self.layers(x))


class Mixed(Block):
    def forward(self, x):
        x = self.n1(x + self.attention(x))
        return x + self.f(self.n2(x))


class MixedOfThree(Block):
    def __init__(self):
        super().__init__()
        self.n3 = nn.LayerNorm(D)

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        x = x + self.f(self.n2(x))
        return self.n3(x + self.f(x))


class NoNorm(Block):
    def __init__(self):
        super().__init__()
        del self.n1, self.n2

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.f(x)


def found(module, text="a block with norm", **convention):
    return list(check_norm_placement(examine(module, text=text, **({"kind": "block"} | convention))))


def errors(module, **convention):
    return [finding for finding in found(module, **convention) if finding.severity == "error"]


@pytest.mark.parametrize(
    ("module", "word"),
    [
        (Block(), "is pre-norm"),
        (Block(HandNorm()), "is pre-norm"),
        (Block(RootNorm()), "is pre-norm"),
        (Post(), "is post-norm"),
        (Post(RootNorm()), "is post-norm"),
        (Sandwich(), "sandwich"),
        (Literal(), "is post-norm"),
        (NoNorm(), "without norm"),
        (Stack(), "is pre-norm with a norm at the end"),
        (Mixed(), "both pre- and post-norm"),
        (MixedOfThree(), "both pre- and post-norm"),
    ],
)
def test_the_placement_is_told(module, word):
    (finding,) = [one for one in found(module) if one.severity == "info"]
    assert word in finding.message
    assert [one for one in errors(module) if "'n2'" not in one.message] == []


@pytest.mark.parametrize("axes", [1, 0, (1, 2)])
@pytest.mark.parametrize("kind", [HandNorm, RootNorm])
def test_a_norm_over_the_wrong_axis(kind, axes):
    (finding,) = errors(Block(kind(axes)))
    assert f"normalizes over the {'samples' if axes == 0 else 'positions'}" in finding.message


def test_a_layer_norm_over_length_and_features():
    (finding,) = errors(Block(nn.LayerNorm((11, D))), any_length=False)
    assert "'n1' normalizes over the positions" in finding.message


@pytest.mark.parametrize("width", [11, 12])
def test_a_width_that_is_the_length_by_chance_is_no_axis_of_positions(width):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.leave = nn.Linear(D, width), nn.Linear(width, D)
            self.n1 = nn.LayerNorm(width)

        def forward(self, x):
            return self.leave(self.n1(self.enter(x).mean(1)))

    assert errors(Pooled(), kind="model", pooled=True) == []


def test_norms_that_mix_by_design_are_not_judged_here():
    class Batch(Block):
        def forward(self, x):
            x = x + self.attention(self.n1(x.mT).mT)
            return x + self.f(self.n2(x))

    assert errors(Batch(nn.BatchNorm1d(D))) == []
    assert errors(Batch(nn.GroupNorm(2, D))) == []


def test_a_norm_by_hand_over_the_positions():
    class Inline(Block):
        def forward(self, x):
            normed = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
            x = x + self.attention(self.n1(normed))
            return x + self.f(self.n2(x))

    (finding,) = errors(Inline())
    assert "over the positions" in finding.message


@pytest.mark.parametrize("squared", [lambda x: x.pow(2), lambda x: x * x, torch.square])
@pytest.mark.parametrize(("axis", "rooted", "wrong"), [(1, True, 1), (-1, True, 0), (1, False, 0)])
def test_a_root_of_mean_squares_by_hand_over_the_positions(squared, axis, rooted, wrong):
    class Inline(Block):
        def forward(self, x):
            size = squared(x).mean(axis, keepdim=True) + 1e-6
            normed = x * size.rsqrt() if rooted else x * size  # without a root it is a gate
            x = x + self.attention(self.n1(normed))
            return x + self.f(self.n2(x))

    findings = [one for one in found(Inline()) if "over the positions" in one.message]
    assert [one.severity for one in findings] == ["warning"] * wrong  # scales of whole series are made so, too


def test_a_spread_that_divides_nothing_is_no_norm():
    class Spread(Block):
        def forward(self, x):
            return super().forward(x) + self.f(x.std(1, keepdim=True))

    assert errors(Spread()) == []


class ThrownAway(Block):
    def forward(self, x):
        self.n1(x)
        x = x + self.attention(x)
        return x + self.f(self.n2(x))


class NeverCalled(Block):
    def forward(self, x):
        x = x + self.attention(self.n2(x))
        return x + self.f(x)


class OnRequest(Block):
    def forward(self, x, memory=None):
        if memory is not None:
            x = x + self.n1(memory)
        x = x + self.attention(self.n2(x))
        return x + self.f(x)


class BySetting(Block):
    def __init__(self, first=False):
        super().__init__()
        self.early = first

    def forward(self, x):
        x = x + self.attention(self.n2(x))
        return x + self.f(self.n1(x) if self.early else x)


class ByWeight(Block):
    def forward(self, x):
        x = x + self.attention(F.layer_norm(x, (D,), self.n1.weight, self.n1.bias))
        return x + self.f(self.n2(x))


def test_unused_norms():
    (thrown,), (never,) = errors(ThrownAway()), errors(NeverCalled())
    assert thrown.message == "the norm 'n1' is computed, but its result is thrown away."
    assert never.message == "the norm 'n1' is built, but never called."
    assert errors(OnRequest()) == errors(ByWeight()) == errors(BySetting()) == []


def test_a_norm_built_in_forward():
    class Anew(Block):
        def forward(self, x):
            x = x + self.attention(nn.LayerNorm(D).to(x)(self.n1(x)))
            return x + self.f(self.n2(x))

    (finding,) = errors(Anew())
    assert "built anew at every call" in finding.message


class Shared(Block):
    def __init__(self):
        super().__init__()
        del self.n2

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.f(self.n1(x))


def test_one_norm_at_two_places_is_a_warning():
    source = "x + self.attention(self.n1(x)); x + self.f(self.n1(x))"
    assert severities(found(Shared(), text=source)) == ["warning", "info"]
    assert [f.accepted for f in found(Shared(), text=source + " # the norm is shared")] == [True, False]


def test_a_claim_that_does_not_hold_is_a_warning():
    assert severities(found(Post(), text="A pre-norm block.")) == ["info", "warning"]
    assert severities(found(Post(), text="A post-norm block.")) == ["info"]


def test_a_norm_without_use_is_told_once():
    assert not [finding for finding in check_dead_parts(examine(NeverCalled())) if "n1" in finding.message]
    assert not [finding for finding in check_dead_parts(examine(ThrownAway())) if "n1" in finding.message]


def test_a_norm_of_another_result_is_used():
    class Two(Block):
        def forward(self, x):
            return x + self.attention(x), self.n2(x + self.f(x))

    assert not any("'n2'" in found.message for found in check_norm_placement(examine(Two())))
