"""Measures that several checks share: samples that meet, parts that are thrown away, rectifiers closed by chance."""

from __future__ import annotations

import torch
from tests.doctor.bedside import KEYS, Attention, D, examine
from torch import nn

from attnlab.doctor.checks.dead_parts import check_dead_parts
from attnlab.doctor.checks.norm_placement import check_norm_placement
from attnlab.doctor.influence.influence import of_samples
from attnlab.doctor.influence.masks import check_mask_polarity
from attnlab.doctor.influence.steady import is_steady, is_steady_when_fresh
from attnlab.inspection.tape.outcome import is_thrown_away, reaches_output


class Running(Attention):
    """Adds its previous output."""

    before = 0.0

    def forward(self, x, mask=None):
        y = super().forward(x)
        mixed = y + self.before
        self.before = y.detach().mean()
        return mixed


class Averaging(Attention):
    def forward(self, x, mask=None):
        return super().forward(x) + x.mean(0)


def test_samples_are_compared_on_fresh_copies():
    exam = examine(Running())
    assert not is_steady(exam)
    assert is_steady_when_fresh(exam)
    assert not of_samples(exam).ratio
    assert of_samples(examine(Averaging())).ratio > 0


class Normed(Attention):
    """A norm whose result goes on, one whose result is lost, one whose result is multiplied by zero."""

    def __init__(self):
        super().__init__()
        self.used, self.lost, self.dead = (nn.LayerNorm(D) for _ in range(3))

    def forward(self, x, mask=None):
        self.lost(x)
        return super().forward(self.used(x)) + 0 * self.dead(x)


def test_what_is_thrown_away_is_told_from_what_is_dead_later():
    exam = examine(Normed())
    tape = exam.usual_tape
    assert [name for name in ("used", "lost", "dead") if reaches_output(tape, name)] == ["used", "dead"]
    assert is_thrown_away(tape, "lost")
    named = [finding.message for finding in check_norm_placement(exam) if finding.severity == "error"]
    assert len(named) == 1
    assert "'lost'" in named[0]


class Closed(nn.Module):
    """Rectified units behind a bias that closes all of them until their weights change."""

    def __init__(self, cut=False):
        super().__init__()
        torch.manual_seed(0)
        self.cut = cut
        self.up, self.down = nn.Linear(D, 8), nn.Linear(8, D)
        with torch.no_grad():
            self.up.weight.zero_()
            self.up.weight[:, 0] = 1e-3
            self.up.bias.fill_(-0.05)

    def forward(self, x):
        hidden = self.up(x)
        return x + self.down(torch.relu(hidden.detach() if self.cut else hidden))


def test_a_rectifier_closed_by_chance_is_no_cut_graph():
    assert not [*check_dead_parts(examine(Closed()))]
    assert "the graph is cut behind them" in next(iter(check_dead_parts(examine(Closed(cut=True))))).message


class NotANumber(Attention):
    def forward(self, x, mask=None):
        return super().forward(x) * float("nan")


def test_nothing_is_said_of_masks_and_norms_where_outputs_are_nan():
    exam = examine(NotANumber(), masks=(KEYS,))
    assert [finding for finding in check_mask_polarity(exam) if finding.severity == "error"] == []
    assert [finding for finding in check_norm_placement(exam) if finding.severity == "error"] == []
