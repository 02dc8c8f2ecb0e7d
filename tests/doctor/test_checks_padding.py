"""Padding: what stands there and how much there is of it must change no real position, and no pooled output."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.doctor.bedside import HEADS, KEYS, PAIRS, VOCAB, Attention, Causal, D, examine, severities
from torch import nn

from attnlab.doctor.influence.padded import lengths_of, real_positions, telling
from attnlab.doctor.influence.padding import check_padding
from attnlab.strangers.calling.masking import LENGTHS, PAD_TOKEN, Masking
from attnlab.strangers.calling.sources import Argument

ADDED = replace(KEYS, encoding="float, 0 or -inf added to the scores", declared="True keeps", declared_by="its name")
LENGTH_EACH = Masking("mask", "keys", LENGTHS, "(batch)")


def found(module, **convention):
    return list(check_padding(examine(module, **{"masks": (KEYS,)} | convention)))


def only_error(module, **convention):
    (finding,) = found(module, **convention)
    assert (finding.check, finding.severity) == ("padding", "error")
    return finding


class Torch(nn.Module):
    """mask: True = ignore."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(D, HEADS, 24, batch_first=True, dropout=0.0)

    def forward(self, x, mask=None):
        return self.layer(x, src_key_padding_mask=mask)


class Finite(Attention):
    """mask: True = real."""

    value = -1e9

    def mask(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask[:, None, None, :], self.value)


class Soft(Finite):
    value = -3.0


class Ignoring(Attention):
    def mask(self, scores, mask):
        return scores


class CausalIgnoring(Causal):
    def mask(self, scores, mask):
        return super().mask(scores, None)


class Zeroed(Attention):
    """Hides the values and leaves their weight."""

    def forward(self, x, mask=None):
        return super().forward(x if mask is None else x * mask[..., None])


class Meaned(Attention):
    """Adds the mean over the length to everything."""

    def forward(self, x, mask=None):
        mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        return super().forward(x, mask) + (x * mask[..., None]).sum(1, keepdim=True) / x.size(1)


class Convolved(Attention):
    """A convolution behind the attention looks at padding."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(D, D, 3, padding=1)

    def forward(self, x, mask=None):
        return self.conv((super().forward(x, mask) + x).mT).mT


class ConvolvedRight(Convolved):
    def forward(self, x, mask=None):
        h = Attention.forward(self, x, mask) + x
        return self.conv((h if mask is None else h * mask[..., None]).mT).mT


class Pooled(Attention):
    """The mean over real positions."""

    def pool(self, h, mask):
        return (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    def forward(self, x, mask=None):
        mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        return self.pool(super().forward(x, mask), mask)


class PooledOverAll(Pooled):
    def pool(self, h, mask):
        return h.mean(1)


class PooledByLength(Pooled):
    def pool(self, h, mask):
        return (h * mask[..., None]).mean(1)


class PooledMaximum(Pooled):
    def pool(self, h, mask):
        return (h * mask[..., None]).amax(1) + 1.0


class PooledFirst(Pooled):
    def pool(self, h, mask):
        return h[:, 0]


class PooledLast(Pooled):
    def pool(self, h, mask):
        return h[:, -1]


class PooledLastLeft(PooledLast):
    """The last position; inputs are left-padded."""


class PooledLastRight(PooledLast):
    """The last position; inputs are right-padded."""


class ByLengths(Attention):
    """mask: number of real positions."""

    short = 0

    def forward(self, x, mask=None):
        if mask is not None:
            mask = torch.arange(x.size(1)) < mask[:, None] + self.short
        return super().forward(x, mask)


class ByLengthsPlusOne(ByLengths):
    short = 1


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(D, D, batch_first=True)

    def forward(self, x, mask=None):
        return self.rnn(x)[0]


@pytest.mark.parametrize(
    "module",
    [Attention(), Finite(), Causal(), ConvolvedRight()],
    ids=lambda module: type(module).__name__,
)
def test_masked_layers_are_left_in_peace(module):
    assert not found(module)


def test_masks_of_well_known_models_are_a_warning():
    module = Finite()
    module.value = -1e4
    assert severities(found(module)) == ["warning"]


def test_other_forms_of_telling_padding_are_left_in_peace():
    assert not found(Torch(), masks=(replace(KEYS, encoding="bool, True = blocked"),))
    assert not found(ByLengths(), masks=(LENGTH_EACH,))
    both = (
        replace(PAIRS, shape="(batch, 1, q_len, k_len)"),
        replace(PAIRS, over="keys", shape="(batch, 1, q_len, k_len)"),
    )
    assert not found(PairMasked(), masks=both, causal=True, causal_means="mask")


class PairMasked(Attention):
    def mask(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask, float("-inf"))


@pytest.mark.parametrize("module", [Pooled(), PooledFirst()], ids=lambda m: type(m).__name__)
def test_pooling_over_real_positions_is_left_in_peace(module):
    assert not found(module, pooled=True)


def test_padding_that_is_declared_to_stand_on_the_other_side_is_accepted():
    (finding,) = found(PooledLastLeft(), pooled=True)
    assert finding.accepted
    assert "left-padded" in finding.evidence


def test_where_the_last_position_answers_nobody_is_accused_of_the_side_of_the_padding():
    (finding,) = found(PooledLast(), pooled=True)
    assert finding.severity == "warning"
    assert not finding.accepted
    assert "the last position answers" in finding.message
    assert "pad on the left" in finding.remedy


@pytest.mark.parametrize(
    "module",
    [Ignoring(), Soft(), Finite(), CausalIgnoring(), Convolved()],
    ids=lambda module: type(module).__name__,
)
def test_padded_content_that_reaches_real_positions_is_found(module):
    if type(module) is Finite:
        module.value = -30.0
    finding = only_error(module)
    assert "what stands at padded positions" in finding.message
    assert "`mask`" in finding.message


class ZeroedBesidePairs(Attention):
    """Padded positions are zeroed by one mask, and hidden from the queries by another one over pairs."""

    def __init__(self):
        super().__init__()
        self.begin = nn.Linear(D, D)

    def mask(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask[:, None], -torch.inf)

    def forward(self, x, mask=None, pairs=None):
        x = self.begin(x)
        x = x if mask is None else x * mask[..., None]
        return super().forward(x, pairs)


def test_the_amount_of_padding_that_a_mask_over_pairs_hides_is_a_question():
    pairs = replace(PAIRS, parameter="pairs", shape="(batch, q_len, k_len)")
    (question,) = found(ZeroedBesidePairs(), masks=(KEYS, pairs))
    assert (question.severity, question.nature) == ("warning", "set-up")
    assert "where `mask` alone tells it" in question.message
    assert "the amount of padding" in only_error(ZeroedBesidePairs()).message
    assert "padding" in only_error(Ignoring(), masks=(KEYS, pairs)).message


@pytest.mark.parametrize("module", [Zeroed(), Meaned()], ids=lambda module: type(module).__name__)
def test_the_amount_of_padding_is_found(module):
    finding = only_error(module)
    assert "the amount of padding" in finding.message
    assert "batch of one" in finding.evidence


@pytest.mark.parametrize(
    "module",
    [PooledOverAll(), PooledByLength(), PooledMaximum(), PooledLastRight()],
    ids=lambda module: type(module).__name__,
)
def test_pooling_over_padding_is_found(module):
    assert "the pooled output depends on" in only_error(module, pooled=True).message


def test_lengths_that_are_off_by_one_are_found():
    only_error(ByLengthsPlusOne(), masks=(LENGTH_EACH,))


def test_a_recurrence_that_runs_over_padding_on_the_left_is_a_warning():
    assert severities(found(Recurrent())) == ["warning"]


def test_a_mask_that_is_added_as_little_is_judged_as_declared():
    class Added(Attention):
        """attention_mask: 1 keeps, 0 is padding."""

        def mask(self, scores, mask):
            return scores if mask is None else scores + (1.0 - mask[:, None, None, :]) * -4.0

    only_error(Added(), masks=(ADDED,))


class AdditiveByDesign(Attention):
    """attention_mask: added to the scores."""

    def mask(self, scores, mask):
        return scores if mask is None else scores + mask[:, None, None, :]


def test_a_mask_that_is_meant_to_be_added_is_left_in_peace():
    assert not found(AdditiveByDesign(), masks=(ADDED,))


# Padding told by a token

TOKENS = {"masks": (), "takes": "tokens", "d_in": 0, "vocab_size": VOCAB}


class Words(nn.Module):
    """Attention over words; 0 is padding."""

    def __init__(self, layer, masked=True, pad=0):
        super().__init__()
        self.embed, self.layer, self.masked = nn.Embedding(VOCAB, D, padding_idx=pad), layer, masked

    def forward(self, tokens):
        return self.layer(self.embed(tokens), tokens != 0 if self.masked else None)


def test_padding_tokens_that_are_masked_inside_are_left_in_peace():
    assert not found(Words(Attention()), **TOKENS)
    assert not found(Words(Pooled()), pooled=True, **TOKENS)
    assert not found(Words(Causal(), masked=False), **TOKENS)


def test_without_a_padding_token_nothing_is_asked():
    assert not found(Words(Attention(), masked=False, pad=None), **TOKENS)


@pytest.mark.parametrize(("layer", "pooled"), [(Attention(), False), (Pooled(), True)])
def test_padding_tokens_that_change_the_output_are_found(layer, pooled):
    finding = only_error(Words(layer, masked=False), pooled=pooled, **TOKENS)
    assert "padding token 0" in finding.message


class LastOfWords(nn.Module):
    """Attention over words, whose answer is the last one's."""

    def __init__(self, masked):
        super().__init__()
        self.words = Words(Attention(), masked=masked)
        self.places = nn.Embedding(16, D)

    def forward(self, tokens):
        h = self.words(tokens)[:, -1] + self.places(torch.tensor(tokens.size(1)))
        return h @ self.words.embed.weight.T


@pytest.mark.parametrize("masked", [True, False])
def test_padding_in_front_is_meant_where_the_last_position_answers_and_none_of_it_is_seen(masked):
    assert [one.severity for one in found(LastOfWords(masked), pooled=True, **TOKENS)] == ([] if masked else ["error"])


# How padding is told


def test_lengths_differ_and_padding_stands_on_its_side():
    lengths = lengths_of(11, 3)
    assert len(set(lengths)) == 3
    assert lengths[0] == 11
    real = real_positions([1, 3], 3, "left")
    assert real.tolist() == [[False, False, True], [True, True, True]]


def test_one_mask_for_both_leaves_no_empty_row():
    both = (replace(PAIRS, shape="(batch, q_len, k_len)"), replace(PAIRS, over="keys", shape="(batch, q_len, k_len)"))
    exam = examine(PairMasked(), masks=both, causal=True, causal_means="mask")
    told = telling(exam, real_positions([2], 5, "left"))
    assert told["allowed"].any(-1).all()
    assert not told["allowed"].triu(1).any()
    assert "padding" in telling(examine(Attention(), masks=(KEYS,), causal=True), real_positions([2], 5, "left"))


class Unread(nn.Module):
    """A mixer that takes a mask for the sake of others."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(D, D)

    def forward(self, x, mask=None):
        return self.map(x) + x.mean(1, keepdim=True)


def test_padding_of_a_mixer_whose_mask_has_no_effect_is_no_error():
    assert severities(found(Unread(), masks=(replace(KEYS, obeyed=False),))) == ["warning"]


class Translating(nn.Module):
    """Words that look at others; 0 is padding."""

    def __init__(self, masked):
        super().__init__()
        self.embed, self.masked = nn.Embedding(VOCAB, D, padding_idx=0), masked
        self.read = nn.MultiheadAttention(D, HEADS, batch_first=True)

    def forward(self, source, target):
        h, memory = self.embed(target), self.embed(source)
        return h + self.read(h, memory, memory, key_padding_mask=source == 0 if self.masked else None)[0]


class OfSeven(Translating):
    """Wants as many words to look at as it was built for."""

    def forward(self, source, target):
        return super().forward(source, target) + 0 * source.view(-1, 7).sum()


class Positioned(Translating):
    """Its table of positions has no padding."""

    def __init__(self, masked):
        super().__init__(masked)
        self.positions = nn.Embedding(40, D)

    def forward(self, source, target):
        return super().forward(source, target) + self.positions(torch.arange(source.size(1))).mean(0) * 0


class Told(Translating):
    def forward(self, source, target, source_mask=None):
        return super().forward(source, target)


@pytest.mark.parametrize(
    ("kind", "masked", "wrong"),
    [(Translating, False, 1), (Translating, True, 0), (Told, False, 0), (OfSeven, False, 0), (Positioned, False, 1)],
)
@pytest.mark.parametrize("hides_its_own", [False, True])
def test_padding_tokens_that_are_looked_at_are_found(kind, masked, wrong, hides_its_own):
    given = (Argument("source", "memory tokens", by_name=False, value=VOCAB), Argument("target", "x"))
    own = Masking("target", "keys", PAD_TOKEN, "(batch, length)", at_end=True)
    exam = examine(kind(masked), **TOKENS | ({"masks": (own,), "pad_token": 0} if hides_its_own else {}))
    findings = list(check_padding(exam.relying_on(replace(exam.convention, arguments=given))))
    assert ["3 padding tokens at the end of `source`" in one.evidence for one in findings] == [True] * wrong
