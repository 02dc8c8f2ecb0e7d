"""Mask arguments: what their values do is compared with what is declared, and a mask that does nothing is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.doctor.bedside import HEADS, KEYS, PAIRS, Attention, Causal, D, examine
from torch import nn

from attnlab.doctor.influence.masks import check_mask_polarity
from attnlab.strangers.calling.masking import LENGTHS
from attnlab.strangers.calling.sources import Argument

BLOCKS = replace(KEYS, encoding="bool, True = blocked")


def found(module, *masks, **convention):
    return list(check_mask_polarity(examine(module, masks=masks, **convention)))


class Inverted(Attention):
    """mask: True = ignore."""

    def mask(self, scores, mask):
        return super().mask(scores, None if mask is None else ~mask)


class Ignoring(Attention):
    def mask(self, scores, mask):
        return scores


class SaidToIgnore(Ignoring):
    """The mask is accepted for the interface's sake."""


class OneSidedMixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(D, D, batch_first=True)

    def forward(self, x, mask=None):
        return self.rnn(x)[0]


class AlongQueries(Attention):
    def mask(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask.diagonal()[:, None], -1e9)


@pytest.mark.parametrize(
    ("module", "mask", "declared"),
    [(Attention(), KEYS, "True keeps"), (Inverted(), BLOCKS, "True blocks")],
)
def test_masks_that_do_what_is_declared_are_left_in_peace(module, mask, declared):
    assert not found(module, replace(mask, declared=declared, declared_by="its name"))


@pytest.mark.parametrize(
    ("module", "mask", "declared", "words"),
    [(Attention(), KEYS, "True blocks", "ignore"), (Inverted(), BLOCKS, "True keeps", "keep")],
)
def test_masks_that_work_the_other_way_round_are_found(module, mask, declared, words):
    (finding,) = found(module, replace(mask, declared=declared, declared_by="its docstring"))
    assert finding.severity == "error"
    assert f"by its docstring, True (1) means {words}" in finding.message


def test_masks_over_pairs_are_judged_alike():
    (finding,) = found(Attention(), replace(PAIRS, declared="True blocks", declared_by="docstring"))
    assert finding.severity == "error"


def test_undeclared_masks_are_reported():
    (finding,) = found(Attention(), PAIRS)
    assert finding.severity == "info"
    assert "`mask`: bool, True = may attend" in finding.message


def test_lengths_have_no_polarity():
    class ByLengths(Attention):
        def forward(self, x, mask=None):
            return super().forward(x, None if mask is None else torch.arange(x.size(1)) < mask[:, None])

    assert not found(ByLengths(), replace(KEYS, encoding=LENGTHS, shape="(batch)"))


def test_additive_masks_are_not_judged_by_a_name_for_flags():
    class Additive(Attention):
        def mask(self, scores, mask):
            return scores if mask is None else scores + mask

    mask = replace(
        PAIRS, encoding="float, 0 or -inf added to the scores", declared="True keeps", declared_by="its name"
    )
    assert [finding.severity for finding in found(Additive(), mask)] == ["info"]


@pytest.mark.parametrize("mask", [KEYS, PAIRS])
def test_masks_without_effect_are_found(mask):
    (finding,) = found(Ignoring(), replace(mask, obeyed=False))
    assert finding.severity == "error"
    assert "no effect" in finding.message


def test_masks_without_effect_are_a_warning_where_nobody_can_mean_them():
    assert [finding.severity for finding in found(SaidToIgnore(), KEYS)] == ["error"]  # words excuse nothing
    assert [finding.severity for finding in found(OneSidedMixer(), KEYS)] == ["warning"]


def test_a_mask_that_is_read_without_effect_is_a_question():
    class Unusual(Attention):
        """Adds what a mask of small numbers would say."""

        def mask(self, scores, mask):
            return scores if mask is None else scores + (mask.to(scores.dtype) > 1.0).to(scores.dtype).sum()

    (finding,) = found(Unusual(), KEYS)
    assert finding.severity == "warning"
    assert "was not understood" in finding.message
    assert "--mask" in finding.remedy


def test_a_mask_of_a_causal_layer_has_an_effect_on_earlier_keys():
    class CausalAndMasked(Causal):
        def mask(self, scores, mask):
            scores = super().mask(scores, None)
            return scores if mask is None else scores.masked_fill(~mask, float("-inf"))

    assert [finding.severity for finding in found(CausalAndMasked(), PAIRS, causal=True)] == ["info"]


def test_a_mask_that_hides_no_key_is_found():
    torch.manual_seed(0)
    (finding,) = found(AlongQueries(), replace(PAIRS, obeyed=False))
    assert finding.severity in ("error", "warning")
    assert "`mask`" in finding.message


@pytest.mark.parametrize(("first", "severity"), [("x", "warning"), ("hidden_states", "error")])
def test_what_custom_alone_says_of_a_name_is_asked_but_where_words_of_the_custom_stand(first, severity):
    class Hiding(Attention):
        def forward(self, inputs, attention_mask=None):
            return super().forward(inputs, None if attention_mask is None else ~attention_mask)

    mask = replace(BLOCKS, parameter="attention_mask", declared="True keeps", declared_by="its name")
    exam = examine(Hiding(), masks=(mask,))
    called = replace(exam.convention, arguments=(Argument(first, "x", by_name=False),))
    (finding,) = check_mask_polarity(exam.relying_on(called))
    assert finding.severity == severity


class Misspelled(Attention):
    def mask(self, scores, mask):
        return scores if mask is None else scores.mask_fill(~mask, -1e9)


class OfTwoTypes(Attention):
    def mask(self, scores, mask):
        return scores if mask is None else (scores + (1 - mask) * -1e9).masked_fill(1 - mask, -1e9)


def test_a_mask_that_must_be_numbers_here_and_bool_there_is_an_error():
    (finding,) = found(OfTwoTypes())
    assert (finding.severity, "no call with `mask` runs" in finding.message) == ("error", True)
    assert "bool tensor" in finding.evidence


class OfItsOwn(Attention):
    def mask(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask.table, -1e9)


def test_a_mask_whose_code_names_what_does_not_exist_is_an_error_and_a_mask_of_another_class_is_none():
    (finding,) = found(Misspelled())
    assert (finding.severity, "its code names 'mask_fill'" in finding.message) == ("error", True)
    assert not found(OfItsOwn())


class Scrambled(Attention):
    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)  # (batch, heads, length, d_head)
        scores = self.mask(q @ k.mT / q.size(-1) ** 0.5, mask)
        return self.out((self.normalize(scores) @ v).mT.reshape(x.shape))


def test_a_mask_is_not_blamed_for_heads_that_are_scrambled_behind_it():
    assert [each for each in found(Scrambled(), replace(PAIRS, obeyed=False)) if each.severity == "error"] == []


class NeedsItsMask(Attention):
    """A mask with a default that its code does not expect."""

    def mask(self, scores, mask):
        return super().mask(scores, mask.bool())


@pytest.mark.parametrize(("module", "needed"), [(NeedsItsMask, True), (Attention, False)])
def test_a_mask_whose_default_raises_is_told(module, needed):
    exam = examine(module(), masks=(replace(KEYS, required=True),))
    said = [finding.message for finding in check_mask_polarity(exam) if finding.severity == "warning"]
    assert said == (["`mask` may be left out by the signature, and no call without it runs."] if needed else [])
