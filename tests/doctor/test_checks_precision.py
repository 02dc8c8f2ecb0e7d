"""Precision: what overflows or fails in a number format is found, what is written with care is left in peace."""

from __future__ import annotations

import math

import pytest
import torch
from tests.doctor.bedside import D, examine
from torch import nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.checks.precision import check_precision
from attnlab.doctor.measures.formats import Attempt
from attnlab.strangers.calling.masking import Masking


def findings(module, **convention):
    return list(check_precision(examine(module, length=7, **convention)))


def errors(module, **convention):
    return [finding for finding in findings(module, **convention) if finding.severity == "error"]


class Attention(nn.Module):
    """A plain single head that subclasses spoil in one place."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / math.sqrt(D)

    def weights(self, scores):
        return scores.softmax(-1)

    def forward(self, x):
        return self.weights(self.scores(self.q(x), self.k(x))) @ self.v(x)


class Careful(Attention):
    def weights(self, scores):
        blocked = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(blocked, torch.finfo(scores.dtype).min).softmax(-1)


class ByHand(Attention):
    def weights(self, scores):
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        return weights / weights.sum(-1, keepdim=True)


class NoMaximum(Attention):
    def weights(self, scores):
        weights = scores.exp()
        return weights / weights.sum(-1, keepdim=True)


class ScaledTooLate(Attention):
    def scores(self, q, k):
        return (q * 1000) @ k.transpose(-2, -1) / (1000 * math.sqrt(D))


class FixedMask(Attention):
    def weights(self, scores):
        blocked = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(blocked, -1e9).softmax(-1)


class MaskOfFloat32(Attention):
    def weights(self, scores):
        blocked = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(blocked, torch.finfo(torch.float32).min).softmax(-1)


class Float32Table(Attention):
    def weights(self, scores):
        return (scores + torch.zeros(scores.shape[-2:])).softmax(-1)


class Float32Result(Attention):
    def forward(self, x):
        return super().forward(x) + torch.zeros(D)


class RootOfZero(Attention):
    def scores(self, q, k):
        return -(q.unsqueeze(2) - q.unsqueeze(1)).square().sum(-1).sqrt()


class NegativeRoot(Attention):
    def weights(self, scores):
        return scores.sqrt().softmax(-1)


class BlockedTwice(Attention):
    def weights(self, scores, mask):
        blocked = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        floor = torch.finfo(scores.dtype).min
        scores = scores + torch.zeros_like(scores).masked_fill(blocked, floor)
        return (scores + torch.zeros_like(scores).masked_fill(mask[:, None], floor)).softmax(-1)

    def forward(self, x, key_padding_mask=None):
        if key_padding_mask is None:
            key_padding_mask = torch.zeros(x.shape[:2], dtype=torch.bool)
        return self.weights(self.scores(self.q(x), self.k(x)), key_padding_mask) @ self.v(x)


class BlockedByMinusTenThousand(Attention):
    """Its constant fits every format, and a row that may see nothing stays finite."""

    def forward(self, x, key_padding_mask=None):
        scores = self.scores(self.q(x), self.k(x))
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None], -1e4)
        return scores.softmax(-1) @ self.v(x)


class Cosine(Attention):
    def scores(self, q, k):
        return (q / q.norm(dim=-1, keepdim=True)) @ (k / k.norm(dim=-1, keepdim=True)).transpose(-2, -1)

    def __init__(self):
        super().__init__()
        self.q, self.k = (nn.Linear(D, D, bias=False) for _ in range(2))


class AnglesInHalf(Attention):
    def forward(self, x):
        turns = 1000 + 20.3 * torch.arange(x.size(1), dtype=x.dtype, device=x.device)
        return super().forward(x * torch.cos(turns)[:, None])


class GrowingPowers(Attention):
    """A decay of 0.9 per position, as a product of two factors of which one grows."""

    def forward(self, x):
        powers = 0.9 ** torch.arange(x.size(1), dtype=x.dtype, device=x.device)[:, None]
        scores = (self.q(x) * powers) @ (self.k(x) / powers).transpose(-2, -1) / D
        return scores.tril() @ self.v(x)


class Fourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(D, D)

    def forward(self, x):
        return self.out(torch.fft.fft2(x).real)


class Raising(Attention):
    def forward(self, x):
        raise ValueError("no")


class Tokens(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.embed, self.attention, self.head = nn.Embedding(29, D), attention, nn.Linear(D, 29)

    def forward(self, tokens):
        return self.head(self.attention(self.embed(tokens)))


PADDING = (Masking("key_padding_mask", "keys", "bool, True = blocked", "(batch, k_len)"),)


@pytest.mark.parametrize("module", [Attention(), Careful(), ByHand(), nn.GRU(D, D, batch_first=True)])
def test_careful_modules_have_no_finding(module):
    assert findings(module) == []


def test_careful_padding_has_no_error():
    assert errors(BlockedByMinusTenThousand(), masks=PADDING) == []


def test_exp_without_maximum_overflows_with_its_place():
    (error,) = errors(NoMaximum())
    assert "float32" in error.message
    assert "`exp`" in error.evidence
    assert "maximum" in error.remedy


def test_exp_without_maximum_is_found_behind_an_embedding():
    module = Tokens(NoMaximum())
    nn.init.normal_(module.embed.weight, std=3.0)
    assert errors(module, kind="model", takes="tokens", d_in=0, d_out=29, vocab_size=29)


def test_careful_token_model_is_left_in_peace():
    assert not findings(Tokens(Careful()), kind="model", takes="tokens", d_in=0, d_out=29, vocab_size=29)


def test_products_before_the_scale_overflow_in_float16_alone():
    (warning,) = findings(ScaledTooLate())
    assert warning.severity == "warning"
    assert "in float16, whose largest number is 65504: a limit of that format" in warning.message
    assert "`bmm`" in warning.evidence
    assert "before the product" in warning.remedy


def test_what_leaves_float16_alone_on_ordinary_inputs_is_a_set_up():
    class ScaledFarTooLate(ScaledTooLate):
        def scores(self, q, k):
            return (q * 1e5) @ k.transpose(-2, -1) / (1e5 * math.sqrt(D))

    (warning,) = [one for one in findings(ScaledFarTooLate()) if one.message.startswith("In float16 ")]
    assert (warning.severity, warning.nature) == ("warning", "set-up")


def test_minus_1e9_refuses_float16_loudly():
    (warning,) = findings(FixedMask())
    assert warning.severity == "warning"
    assert "float16" in warning.message
    assert "finfo" in warning.remedy


def test_constant_beyond_bfloat16_is_an_error():
    (error,) = errors(MaskOfFloat32())
    assert error.message.startswith("It cannot run in bfloat16: a constant")


def test_float32_constant_is_a_warning_said_once():
    assert not errors(Float32Table())
    (warning,) = [finding for finding in findings(Float32Table()) if "formats are mixed" in finding.message]
    assert warning.severity == "warning"


def test_wider_result_is_a_warning_for_layers_and_a_fact_for_models():
    (warning,) = findings(Float32Result())
    assert (warning.severity, warning.message) == ("warning", "Given bfloat16 it returns float32.")
    assert [finding.severity for finding in findings(Float32Result(), kind="model")] == ["info"]


def test_powers_that_grow_with_the_position_are_found_at_a_greater_length():
    (warning,) = [one for one in findings(GrowingPowers()) if one.message.startswith("In float16 ")]
    assert "length 128" in warning.evidence
    for short in ({"longest": 11}, {"any_length": False}):
        assert not [one for one in findings(GrowingPowers(), **short) if one.message.startswith("In float16 ")]


def test_gradient_of_a_root_at_zero_is_found():
    (error,) = errors(RootOfZero())
    assert "gradients" in error.message
    assert "float32 already" in error.message


def test_root_of_negative_numbers_is_named():
    (error,) = errors(NegativeRoot())
    assert "`sqrt`" in error.evidence


def test_masks_added_up_overflow_only_with_padding():
    """Rows padded on the left see nothing: float32 overflows there too, so the masks are at fault, not the format."""
    assert errors(BlockedTwice(), masks=PADDING) == []


def test_all_zero_position_is_a_risk():
    (warning,) = findings(Cosine())
    assert warning.severity == "warning"
    assert "all zero" in warning.message
    assert "epsilon" in warning.remedy


def test_angles_in_bfloat16_drift():
    drifting = [finding for finding in findings(AnglesInHalf()) if "rounding explains" in finding.message]
    assert [finding.severity for finding in drifting] == ["warning"]


def test_operation_that_no_half_format_has_is_a_warning_said_once():
    (warning,) = findings(Fourier())
    assert warning.severity == "warning"
    assert "x.float()" in warning.remedy


def test_mask_the_doctor_gives_itself_is_not_held_against_it():
    class Adds(Attention):
        def forward(self, x, mask=None):
            scores = self.scores(self.q(x), self.k(x))
            return (scores if mask is None else scores + mask).softmax(-1) @ self.v(x)

    mask = Masking("mask", "pairs", "float, 0 or -1e9 added to the scores", "(q_len, k_len)")
    assert findings(Adds(), masks=(mask,), causal=True, causal_means="mask") == []


def test_module_that_raises_in_float32_is_left_to_the_engine():
    with pytest.raises(ModuleError, match="no"):
        findings(Raising())


def test_what_one_check_called_another_reads():
    exam = examine(Careful())
    list(check_precision(exam))
    called = dict(exam.known)
    assert Attempt(torch.float32) in called
    assert Attempt(torch.bfloat16).run(exam) is called[Attempt(torch.bfloat16)]


def test_patient_is_not_touched():
    module = NoMaximum()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    findings(module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
