"""Layouts and meanings of masks that are said in unusual places, and calls that only they make possible."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.core.errors import ModuleError
from attnlab.strangers.loading.loading import load
from attnlab.strangers.patient import Patient
from attnlab.strangers.said.layout import layout_said, sizes_said
from attnlab.strangers.said.masks import meaning_of
from attnlab.strangers.trying.interview import interview


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(24, 24)
        self.state = [torch.zeros(1, 1, 24) for _ in range(2)]

    def forward(self, x):
        y, state = self.rnn(x, self.state)
        self.state = [each.detach() for each in state]
        return y


class Said(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(24, 24)

    def forward(self, x):  # x = [bs, 1, 24]
        return self.rnn(x)[0]


class Channels(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x):  # x = [bs, 1, 24]
        return self.conv(x)


class Numbers(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, wave):
        return self.conv(wave.unsqueeze(1)).squeeze(1)


def test_a_state_for_one_sample_runs_at_length_one_alone():
    convention = interview(load(Stateful))
    assert (convention.layout, convention.length, convention.d_in, convention.any_length) == (
        "batch-first",
        1,
        24,
        False,
    )


def test_sizes_in_a_comment_tell_the_layout_by_what_the_module_is():
    assert sizes_said(Said(), "x") == sizes_said(Channels(), "x") == (1, 24)
    assert interview(load(Said)).layout == "batch-first"
    assert interview(load(Channels)).layout == "channels-first"
    assert sizes_said(Numbers(), "wave") is None


def test_one_number_per_position_is_given_where_nothing_else_runs():
    convention = interview(load(Numbers))
    assert (convention.d_in, convention.d_out, convention.any_length) == (1, 1, True)
    x = torch.randn(2, 9, 1)
    module = Numbers()
    assert torch.equal(convention.call(module, x), module(x[..., 0])[..., None])


def encoder(width=32):
    """Return an encoder layer for inputs (batch, length, width)."""
    return nn.TransformerEncoderLayer(width, 4, 64)


def undescribed(width=32):
    """Return an encoder layer."""
    return nn.TransformerEncoderLayer(width, 4, 64)


def test_the_docstring_of_a_function_says_more_than_the_attribute():
    assert interview(load(encoder)).layout == "batch-first"
    assert interview(load(undescribed)).layout == "sequence-first"
    assert layout_said(encoder(), "src", "no python !") == layout_said(encoder(), "src")


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("True where attending is not allowed, as in nn.MultiheadAttention", "True blocks"),
        ("True where looking at a key: 1 where a query may look at a key", "True keeps"),
        ("True where attending is forbidden", "True blocks"),
        ("True for tokens to attend to, not for padding", "True keeps"),
        ("1 where a query may look at a key, 0 where it may not", "True keeps"),
        ("True where a position must not be attended to", "True blocks"),
        ("False where attending is not allowed", "True keeps"),
    ],
)
def test_words_that_take_back_what_was_said(text, meaning):
    assert meaning_of(text) == meaning


class Switched(nn.Module):
    """A head that hides later positions where an argument is there, whatever it holds."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(24, 24)

    def forward(self, x, forward_mask=None):
        scores = self.map(x) @ x.mT / 24**0.5
        if forward_mask is not None:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
        return scores.softmax(-1) @ x


def test_an_argument_of_which_only_its_presence_is_asked_is_a_flag():
    convention = interview(load(Switched))
    assert (convention.causal, convention.causal_means, convention.flag) == (True, "flag", "forward_mask")
    x = torch.randn(2, 5, 24)
    module = Switched()
    assert torch.equal(convention.call(module, x, causal=False), module(x))
    assert torch.equal(convention.call(module, x, causal=True), module(x, True))


class BatchFirstOrNot(nn.Module):
    def __init__(self, d_model=24, batch_first=False):
        super().__init__()
        self.attend = nn.MultiheadAttention(d_model, 2, batch_first=batch_first)

    def forward(self, x):
        """Attend within x, (T, N, E) if batch_first=False or (N, T, E) if batch_first=True."""
        return self.attend(x, x, x, need_weights=False)[0]


def test_an_argument_says_more_about_the_layout_than_a_docstring_of_both():
    assert interview(load(BatchFirstOrNot, {"batch_first": True})).layout == "batch-first"
    assert interview(load(BatchFirstOrNot, {"batch_first": False})).layout == "sequence-first"


class OfEight(nn.Module):
    """A head for eight positions at most, whose features are eight as well."""

    def __init__(self):
        super().__init__()
        self.map, self.places = nn.Linear(24, 8), nn.Parameter(torch.randn(8, 24))

    def forward(self, x):
        x = x + self.places[torch.arange(x.size(1))]
        return self.map(x)


def test_a_limit_of_few_positions_is_not_the_length_of_the_examination():
    assert interview(load(OfEight)).length == 7


class DropsByAMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.deep = nn.Linear(16, 1), True

    def forward(self, x, mask, other_mask):
        if self.training:
            x = x * mask
        kept = x if self.deep else x.masked_fill(other_mask, 0.0)
        return (self.score(x).softmax(1) * kept).sum(1)


def test_a_mask_that_training_alone_reads_is_a_factor_and_hides_nothing():
    convention = interview(Patient("it", DropsByAMask(), None, {}, "", ""))
    given = {one.parameter: one.value for one in convention.arguments if one.source == "constant"}
    assert (given, convention.masks) == ({"mask": 1.0, "other_mask": 1.0}, ())
    convention.call(DropsByAMask().train(), torch.randn(3, 7, 16))


class Pairs(nn.Module):
    """A vector for every pair of positions."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(24, 8)

    def forward(self, x):
        x = self.map(x)
        return x[:, :, None] - x[:, None]


def test_vectors_for_pairs_are_no_heads():
    with pytest.raises(ModuleError, match=r"returned \(3, (\d+), \1, 8\) for an input"):
        interview(load(Pairs))
