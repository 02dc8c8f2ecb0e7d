"""Rows that may attend to nothing: NaN of ordinary input is an error, of a wholly padded sample a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.doctor.bedside import KEYS, PAIRS, Attention, Causal, examine
from torch import nn

from attnlab.doctor.influence.masks import check_masked_row

BATCHED = replace(PAIRS, shape="(batch, q_len, k_len)")


def found(module, *masks, **convention):
    return list(check_masked_row(examine(module, masks=masks, **convention)))


class Safe(Attention):
    """mask: True = real."""

    def mask(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask[:, None, None, :], -1e9)


class CausalSafe(Causal):
    value = -1e9

    def mask(self, scores, mask):
        return Safe.mask(self, super().mask(scores, None), mask)


class FirstRowEmpty(Causal):
    blocked = staticmethod(lambda length: torch.ones(length, length, dtype=torch.bool).triu())


class Pairwise(Attention):
    """mask: True = may attend."""

    def mask(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask[:, None], float("-inf"))


class Promising(Pairwise):
    """A query with no allowed keys gets zeros."""


class Kept(Promising):
    """A query with no allowed keys gets zeros."""

    def normalize(self, scores):
        empty = scores.isneginf().all(-1, keepdim=True)
        return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


class Cleaned(Attention):
    """Adds minus infinity and hides NaN afterwards: a query with no allowed keys gets zeros."""

    def mask(self, scores, mask):
        if mask is None:
            return scores
        return scores + torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, float("-inf"))[:, None]

    def normalize(self, scores):
        return super().normalize(scores).nan_to_num(0.0)


class CleanedOverKeys(Cleaned):
    def mask(self, scores, mask):
        mask = None if mask is None else mask[:, None, :].expand(-1, scores.size(-1), -1)
        blocked = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return super().mask(scores + torch.zeros(()).masked_fill(blocked, float("-inf")), mask)


class Dividing(Attention):
    def forward(self, x, mask=None):
        return super().forward(x) / (x.size(1) - 1)


@pytest.mark.parametrize("module", [Attention(), Causal()], ids=lambda module: type(module).__name__)
def test_layers_without_a_mask_are_left_in_peace(module):
    assert not found(module)


@pytest.mark.parametrize("module", [Safe(), CausalSafe()], ids=lambda module: type(module).__name__)
def test_finite_masks_are_left_in_peace(module):
    assert not found(module, KEYS)


def test_a_row_that_gets_zeros_as_documented_is_left_in_peace():
    assert not found(Kept(), BATCHED)


def test_nan_without_a_mask_is_found():
    (finding,) = found(FirstRowEmpty())
    assert (finding.check, finding.severity) == ("masked-row", "error")
    assert "no mask: 3 of 33 output rows" in finding.evidence


def test_nan_of_a_single_position_is_found():
    (finding,) = found(Dividing())
    assert finding.severity == "error"
    assert "length 1" in finding.evidence


def test_nan_of_padding_on_the_left_is_found():
    (finding,) = found(Causal(), KEYS)
    assert finding.severity == "error"
    assert "padding on the left" in finding.evidence
    assert "padding on the right" not in finding.evidence


def test_nan_in_gradients_alone_is_found():
    (finding,) = found(CleanedOverKeys(), KEYS)
    assert finding.severity == "error"
    assert "NaN in the gradient of `qkv.weight`" in finding.evidence


def test_a_wholly_padded_sample_is_a_warning():
    (finding,) = found(Attention(), KEYS)
    assert finding.severity == "warning"
    assert "wholly padded" in finding.evidence


def test_an_empty_row_is_a_warning_where_nothing_is_promised():
    (finding,) = found(Pairwise(), BATCHED)
    assert finding.severity == "warning"
    assert "empty row" in finding.evidence


@pytest.mark.parametrize("module", [Promising(), Cleaned()], ids=lambda module: type(module).__name__)
def test_an_empty_row_that_is_documented_is_an_error(module):
    (finding,) = found(module, BATCHED)
    assert finding.severity == "error"
    assert "documented" in finding.message


def test_a_refusal_is_no_promise():
    (finding,) = found(Pairwise(), BATCHED, text="Rows that are fully masked give NaN.")
    assert finding.severity == "warning"


def test_infinity_is_found_too():
    class Overflowing(Attention):
        def forward(self, x, mask=None):
            return super().forward(x) / 0.0

    assert [finding.severity for finding in found(Overflowing())] == ["error"]


def test_masks_of_the_smallest_float_are_judged_in_float32():
    class Smallest(Attention):
        def mask(self, scores, mask):
            if mask is None:
                return scores
            blocked = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, torch.finfo(scores.dtype).min)
            return scores + blocked[:, None, None, :]

        def normalize(self, scores):
            return nn.functional.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)

    assert not found(Smallest(), KEYS)


def test_minus_infinity_that_the_caller_adds_everywhere_is_not_judged():
    class Added(Attention):
        def mask(self, scores, mask):
            return scores if mask is None else scores + mask[:, None, None, :]

    assert not found(Added(), replace(KEYS, encoding="float, 0 or -inf added to the scores"))


class TwoMasks(Attention):
    def forward(self, x, mask=None, padding=None):
        real = torch.ones(x.shape[:2], dtype=torch.bool) if padding is None else padding
        allowed = real[:, None] & (torch.ones(1, x.size(1), x.size(1), dtype=torch.bool) if mask is None else mask)
        return super().forward(x, allowed)

    def mask(self, scores, mask):
        return scores.masked_fill(~mask[:, None], float("-inf"))


def test_rows_that_two_masks_of_the_caller_empty_are_the_callers():
    masks = PAIRS, replace(KEYS, parameter="padding")
    (finding,) = found(TwoMasks(), *masks, causal=True, causal_means="mask")
    assert finding.severity == "warning"
    assert "padding on the left" in finding.evidence
