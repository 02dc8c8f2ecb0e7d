"""Causality: leaks of every kind are found under the condition in which they show, right layers are left in peace."""

from __future__ import annotations

import pytest
import torch
from tests.doctor.bedside import HEADS, KEYS, LENGTH, PAIRS, VOCAB, Attention, Causal, D, examine, severities
from torch import nn

from attnlab.doctor.influence.causality import check_causality


def found(module, **convention):
    return list(check_causality(examine(module, **convention)))


def blamed(module, **convention):
    return [finding for finding in found(module, **convention) if finding.severity != "info"]


def only_error(module, **convention):
    (finding,) = found(module, **convention)
    assert (finding.check, finding.severity) == ("causality", "error")
    return finding


def later(length, diagonal=1):
    return torch.ones(length, length, dtype=torch.bool).triu(diagonal)


class Wrapped(nn.Module):
    """Attention that takes a mask over pairs, (q_len, k_len), True = blocked."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, HEADS, batch_first=True)

    def forward(self, x, mask=None):
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self, bidirectional=False):
        super().__init__()
        self.rnn = nn.GRU(D, D // 2 if bidirectional else D, batch_first=True, bidirectional=bidirectional)

    def forward(self, x):
        return self.rnn(x)[0]


class Convolution(nn.Module):
    """A convolution of width 5 that sees `ahead` later positions."""

    def __init__(self, ahead=0):
        super().__init__()
        self.ahead = ahead
        self.conv = nn.Conv1d(D, D, 5)

    def forward(self, x):
        return self.conv(nn.functional.pad(x.mT, (4 - self.ahead, self.ahead))).mT


class Valued(Causal):
    """Causal attention whose mask has another value."""

    def __init__(self, value):
        super().__init__()
        self.value = value


class Spread(Valued):
    """Logits so unequal that a finite mask leaks in some samples alone."""

    def __init__(self):
        super().__init__(-3e2)

    def forward(self, x, mask=None):
        return super().forward(x * 30)


class Weak(Causal):
    value = -6.0


class Shifted(Causal):
    blocked = staticmethod(lambda length: later(length, 2))


class Transposed(Causal):
    """Causal attention."""

    blocked = staticmethod(lambda length: later(length).mT)


class Backshifted(Causal):
    """Causal attention."""

    blocked = staticmethod(lambda length: later(length, 0))


class BackshiftedWithoutNan(Causal):
    value = -1e9
    blocked = staticmethod(lambda length: later(length, 0))


class DeclaredStrict(Backshifted):
    """Attention to the strict past: a position sees those before it and not itself."""


class Additive(Attention):
    def mask(self, scores, mask):
        return scores + later(scores.size(-1)).logical_not().to(scores.dtype)


class Multiplied(Attention):
    def mask(self, scores, mask):
        return scores * later(scores.size(-1)).logical_not().to(scores.dtype)


class OneSample(Causal):
    def mask(self, scores, mask):
        return torch.cat([super().mask(scores[:1], None), scores[1:]])


class OneHead(Causal):
    def mask(self, scores, mask):
        return torch.cat([super().mask(scores[:, :1], None), scores[:, 1:]], 1)


class InEvaluation(Causal):
    def mask(self, scores, mask):
        return scores if self.training else super().mask(scores, mask)


class InTraining(Causal):
    def mask(self, scores, mask):
        return super().mask(scores, mask) if self.training else scores


class Buffered(Causal):
    """A mask of 16 positions: longer inputs are not masked beyond them."""

    def mask(self, scores, mask):
        blocked = torch.zeros(scores.shape[-2:], dtype=torch.bool)
        blocked[:16, :16] = later(16)[: blocked.size(0), : blocked.size(1)]
        return scores.masked_fill(blocked, float("-inf"))


class ShortLeak(Causal):
    def mask(self, scores, mask):
        return super().mask(scores, mask) if scores.size(-1) > 6 else scores


class Nudged(Causal):
    """Leaks a part of 1e-4 of the mean over all positions."""

    def forward(self, x, mask=None):
        return super().forward(x) + 1e-4 * x.mean(1, keepdim=True)


class CountedFromTheEnd(Causal):
    def forward(self, x, mask=None):
        return super().forward(x + torch.arange(x.size(1)).flip(0).to(x.dtype)[:, None] / 10)


class Tokens(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.embed, self.layer = nn.Embedding(VOCAB, D), layer

    def forward(self, x):
        return self.layer(self.embed(x))


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, attention):
        super().__init__()
        self.norm, self.attention, self.linear = nn.LayerNorm(D), attention, nn.Linear(D, D)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.linear(x)


class Dropping(Causal):
    def normalize(self, scores):
        return nn.functional.dropout(super().normalize(scores), 0.3, self.training)


@pytest.mark.parametrize(
    "module",
    [
        Causal(),
        Valued(-1e9),
        Valued(torch.finfo(torch.float32).min),
        Valued(-65504.0),
        Dropping(),
        Recurrent(),
        Convolution(),
        Block(Causal()),
        nn.Linear(D, D),
    ],
    ids=lambda module: type(module).__name__,
)
def test_causal_layers_are_left_in_peace(module):
    assert not blamed(module, causal=True, causal_means="always")
    assert not blamed(module)


def test_causal_tokens_are_left_in_peace():
    assert not found(Tokens(Block(Causal())), takes="tokens", d_in=0, vocab_size=VOCAB, causal=True, kind="model")


@pytest.mark.parametrize(
    "module",
    [Attention(), Recurrent(bidirectional=True), Convolution(ahead=2), Block(Attention())],
    ids=lambda module: type(module).__name__,
)
def test_bidirectional_layers_are_left_in_peace(module):
    assert not blamed(module, causal=False)
    assert not blamed(module)


@pytest.mark.parametrize("causal", [True, None])
def test_a_mask_argument_that_holds_is_left_in_peace(causal):
    for encoding, module in (("bool, True = blocked", Wrapped()), ("bool, True = may attend", Attention())):
        mask = PAIRS.__class__("mask", "pairs", encoding, "(q_len, k_len)")
        assert not found(module, masks=(mask,), causal=causal, causal_means="mask")


class Padded(nn.Module):
    """A convolution, padded on both sides, before attention whose mask is right."""

    def __init__(self):
        super().__init__()
        self.conv, self.attention = nn.Conv1d(D, D, 3, padding=1), Causal()

    def forward(self, x, mask=None):
        return self.attention(x + self.conv(x.mT).mT)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Attention(), "as if there were no mask"),
        (Shifted(), "sees the next one"),
        (Transposed(), "transposed"),
        (Additive(), "later"),
        (Weak(), "damped"),
        (OneSample(), "wrong batch axis"),
        (BackshiftedWithoutNan(), "the first position"),
        (Convolution(ahead=1), "sees the next one."),
        (Convolution(ahead=2), "up to 2 later ones"),
        (Multiplied(), "later"),
        (OneHead(), "later"),
        (Recurrent(bidirectional=True), "later ones, through `rnn` alone."),
        (Nudged(), "damped"),
        (Block(Shifted()), "sees the next one: the mask is off by one"),
        (Padded(), "sees the next one, through `conv` alone."),
        (nn.Sequential(Padded(), Padded()), "up to 2 later ones, through `0.conv`, `1.conv` alone."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_leaks_are_found_and_told_apart(module, words):
    finding = only_error(module, causal=True, causal_by="its name")
    assert words in finding.message
    assert "by its name" in finding.message
    by_weights = any(isinstance(part, Attention) for part in module.modules()) and "conv" not in finding.message
    assert ("softmax" in finding.remedy) == (by_weights and not isinstance(module, Nudged))


@pytest.mark.parametrize(
    ("module", "condition"),
    [
        (Valued(-3e2), "large inputs"),
        (Valued(-3e3), "logits"),
        (InEvaluation(), "training mode"),
        (Buffered(), "longer length"),
        (ShortLeak(), "short lengths"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_leaks_under_one_condition_are_found(module, condition):
    finding = only_error(module, causal=True)
    assert condition in finding.message
    assert condition in only_error(module).message


class DroppedScores(Valued):
    """Dropout before the softmax sets some hidden scores to zero."""

    def mask(self, scores, mask):
        return nn.functional.dropout(super().mask(scores, mask), 0.2, self.training)


def test_a_mask_that_dropout_removes_is_found():
    assert "in training mode" in only_error(DroppedScores(-1e9), causal=True).message


class Overflowing(Causal):
    """Large later positions make NaN of the first one, as weights that overflow do before they are masked."""

    def forward(self, x, mask=None):
        output = super().forward(x)
        large = (x[:, 1:].abs() > 25).flatten(1).any(1)
        return output.masked_fill(large[:, None, None] & (torch.arange(x.size(1)) == 0)[:, None], float("nan"))


def test_overflow_is_left_to_precision():
    assert not found(Overflowing(), causal=True)


@pytest.mark.parametrize("causal", [True, None])
def test_masks_of_well_known_models_are_a_warning(causal):
    assert severities(found(Valued(-1e4), causal=causal)) == ["warning"]


def test_finite_masks_behind_a_norm_are_found_by_large_logits():
    finding = only_error(Block(Valued(-1e3)), causal=True)
    assert "logits" in finding.message
    assert "finite" in finding.message


def test_leaks_of_tokens_are_found():
    how = {"takes": "tokens", "d_in": 0, "vocab_size": VOCAB, "causal": True}
    assert "next one" in only_error(Tokens(Shifted()), **how).message


class ThroughTheGradient(Causal):
    """What is added is zero, its gradient is not."""

    def forward(self, x, mask=None):
        mean = x.mean(1, keepdim=True)
        return super().forward(x) + mean - mean.detach()


def test_leaks_of_the_gradient_alone_are_found():
    assert "in the gradient" in only_error(ThroughTheGradient(), causal=True).message


def test_a_position_that_does_not_see_itself_is_found():
    assert "does not see itself" in only_error(Backshifted(), causal=True).message


class BackshiftedInBlock(Backshifted):
    """Causal attention whose empty row gives zeros."""

    def normalize(self, scores):
        return super().normalize(scores).nan_to_num()


class Late(nn.Module):
    """A causal language model. tokens: (batch, length)."""

    padding = 3

    def __init__(self):
        super().__init__()
        self.embedding, self.logits = nn.Embedding(VOCAB, D), nn.Linear(D, VOCAB)
        self.convolution, self.layer = nn.Conv1d(D, D, 3), Causal()

    def forward(self, tokens):
        x = nn.functional.pad(self.embedding(tokens).mT, (self.padding, 0))
        return self.logits(self.layer(self.convolution(x).mT[:, : tokens.shape[1]]))


class InTime(Late):
    """A causal language model. tokens: (batch, length)."""

    padding = 2


def test_a_model_whose_outputs_do_not_see_their_own_position_is_warned_of():
    how = {"causal": True, "kind": "model", "takes": "tokens", "vocab_size": VOCAB, "d_out": VOCAB}
    (finding,) = blamed(Late(), **how)
    assert (finding.severity, finding.message) == (
        "warning",
        "no output sees what stands at its own position, only what stood 1 earlier and before.",
    )
    assert blamed(InTime(), **how) == []


class InFloat32(Causal):
    """Causal attention with a mask that it makes in float32, and torch's function."""

    def forward(self, x):
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=torch.float32).triu(1)
        q = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, q, q, mask).transpose(1, 2).flatten(2)


def test_a_mask_in_float32_is_no_leak_in_float64():
    assert blamed(InFloat32(), causal=True, length=40) == []


def test_words_do_not_excuse_what_was_measured():
    assert "does not see itself" in only_error(DeclaredStrict(), causal=True).message


def test_a_strict_mask_is_found_behind_a_skip():
    finding = only_error(Block(BackshiftedInBlock()), causal=True, kind="block")
    assert "does not see itself" in finding.message


def test_positions_counted_from_the_end_are_a_warning():
    (finding,) = found(CountedFromTheEnd(), causal=True)
    assert finding.severity == "warning"
    assert "how many positions follow" in finding.message


def test_what_is_declared_bidirectional_must_look_ahead():
    assert (
        "declared bidirectional by --bidirectional"
        in only_error(Causal(), causal=False, causal_by="--bidirectional").message
    )


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Shifted(), "only 1 ahead"),
        (OneSample(), "some samples"),
        (OneHead(), "some heads"),
        (BackshiftedWithoutNan(), "the first position sees everything"),
        (Weak(), "does not hold"),
        (InTraining(), "training mode"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_is_neither_causal_nor_bidirectional_is_found_without_a_declaration(module, words):
    finding = only_error(module, text="class Mine: ...")
    assert "neither causal nor bidirectional" in finding.message
    assert words in finding.message


class Prefixed(Causal):
    """Prefix-LM attention: the first three positions see each other, the rest is causal."""

    blocked = staticmethod(lambda length: later(length) & (torch.arange(length) > 2))


@pytest.mark.parametrize(("module", "words"), [(Transposed(), "transposed"), (Prefixed(), "2 ahead")])
def test_what_somebody_might_mean_is_a_question_where_nothing_declares_it(module, words):
    (finding,) = found(module, text="class Mine: ...")
    assert finding.severity == "warning"
    assert words in finding.message
    assert "--causal" in finding.remedy


class Windowed(Attention):
    """Attention over a window."""

    def mask(self, scores, mask):
        steps = torch.arange(scores.size(-1))
        return scores.masked_fill((steps[:, None] - steps).abs() > 2, float("-inf"))


class Strided(Attention):
    def mask(self, scores, mask):
        steps = torch.arange(scores.size(-1))
        return scores.masked_fill((steps[:, None] - steps) % 3 > 0, float("-inf"))


class Biased(Attention):
    """Linear biases to both sides."""

    def mask(self, scores, mask):
        steps = torch.arange(scores.size(-1)).to(scores.dtype)
        return scores - (steps[:, None] - steps).abs() * torch.tensor([0.5, 2.0])[:, None, None]


@pytest.mark.parametrize("module", [Windowed(), Strided(), Biased()], ids=lambda module: type(module).__name__)
def test_symmetric_patterns_are_left_in_peace(module):
    assert not found(module)
    assert not found(module, causal=False)


class SoftArgument(Attention):
    """mask: True = may attend."""

    value = -4.0

    def mask(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask, self.value)


class FiniteArgument(SoftArgument):
    value = -2e2


class MultipliedArgument(SoftArgument):
    def mask(self, scores, mask):
        return scores if mask is None else scores * mask


class Mixed(SoftArgument):
    """Attention with a mask beside a convolution that sees both sides."""

    value = float("-inf")

    def __init__(self):
        super().__init__()
        self.conv = Convolution(ahead=2)

    def forward(self, x, mask=None):
        return super().forward(x, mask) + self.conv(x)


@pytest.mark.parametrize("module", [SoftArgument(), FiniteArgument(), MultipliedArgument()])
@pytest.mark.parametrize("causal", [False, True])
def test_a_mask_argument_that_does_not_hold_is_found(module, causal):
    only_error(module, masks=(PAIRS,), causal=causal, causal_means="mask")


def test_blocks_that_see_each_other_are_a_question_unless_the_person_said_causal():
    (question,) = found(Prefixed(), causal=True, causal_by="its docstring")
    assert question.severity == "warning"
    assert "positions 0 to 2 see each other" in question.message
    assert "--accept causality" in question.remedy
    assert severities(found(Prefixed())) == ["warning"]
    assert "up to 2 later ones" in only_error(Prefixed(), causal=True, causal_by="--causal").message
    assert only_error(Attention(), causal=True, causal_by="its docstring", text=Prefixed.__doc__)


class Flagged(Attention):
    """Attention with a flag."""

    value = float("-inf")

    def forward(self, x, is_causal=False):
        return super().forward(x, torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril() if is_causal else None)

    def mask(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask, self.value)


class WeaklyFlagged(Flagged):
    value = -2.0


class DeafToFlag(Flagged):
    def mask(self, scores, mask):
        return scores


@pytest.mark.parametrize("causal", [False, True])
def test_a_causal_flag_must_hold(causal):
    how = {"causal_means": "flag", "flag": "is_causal", "causal": causal}
    assert not found(Flagged(), **how)
    for module in (WeaklyFlagged(), DeafToFlag()):
        only_error(module, **how)
    assert "`is_causal`" in only_error(DeafToFlag(), **(how | {"causal": False})).message


def test_a_path_that_no_mask_is_meant_for_is_left_in_peace():
    assert not found(Mixed(), masks=(PAIRS,), causal=False, causal_means="mask")


class AddedArgument(Attention):
    """attention_mask: 1 keeps, 0 hides."""

    def mask(self, scores, mask):
        return scores if mask is None else scores + (1.0 - mask) * -5.0


def test_a_mask_is_judged_by_the_values_that_are_declared():
    added = PAIRS.__class__(
        "mask", "pairs", "float, 0 or -inf added to the scores", "(q_len, k_len)", "True keeps", "its name"
    )
    only_error(AddedArgument(), masks=(added,), causal=True, causal_means="mask")


def test_chance_and_memory_are_left_to_determinism():
    class Noisy(Causal):
        def forward(self, x, mask=None):
            return super().forward(x) + torch.rand(1)

    assert not found(Noisy(), causal=True)


class NeverStopping(nn.Module):
    """Dropout in evaluation mode too, and maybe places that are chosen by chance."""

    def __init__(self, layer, chooses=False):
        super().__init__()
        self.layer, self.chooses = layer, chooses

    def forward(self, x):
        h = self.layer(nn.functional.dropout(x, 0.2))
        return h[:, torch.randint(x.size(1), (x.size(1),))] if self.chooses else h


def test_dropout_that_never_stops_hides_no_leak():
    assert "see later ones" in only_error(NeverStopping(Attention()), causal=True).message
    assert not found(NeverStopping(Causal()), causal=True)
    assert not found(NeverStopping(Attention(), chooses=True), causal=True)


class LastAlone(nn.Module):
    """A causal model that returns its last position alone."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(D, 5)

    def forward(self, x):
        return self.head(self.layer(x)[:, -1])


def test_what_returns_its_last_position_alone_is_examined():
    assert "sees the next one" in only_error(LastAlone(Shifted()), pooled=True, causal=True).message
    assert not found(LastAlone(Causal()), pooled=True, causal=True)
    assert not found(LastAlone(Attention()), pooled=True)


def test_position_wise_modules_are_not_asked():
    assert not found(nn.Linear(D, D), causal=False)


def test_a_leak_in_some_samples_by_chance_is_no_wrong_axis():
    assert "batch axis" not in only_error(Spread(), causal=True).message


def test_padding_masks_do_not_hide_leaks():
    assert severities(found(Attention(), causal=True, masks=(KEYS,), length=LENGTH)) == ["error"]


@pytest.mark.parametrize("length", [2, 3, 4])
def test_a_short_input_that_is_seen_whole_is_no_window(length):
    assert not blamed(Attention(), text="", length=length, any_length=False, longest=length)


class Scrambled(nn.Module):
    """Causal weights, and outputs of heads that a view lays at other positions."""

    def __init__(self, hides=True):
        super().__init__()
        self.maps, self.hides = nn.Linear(D, 3 * D), hides

    def forward(self, x):
        q, k, v = self.maps(x).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2).chunk(3, 1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.hides:
            scores = scores.masked_fill(later(x.shape[1]), float("-inf"))
        return (scores.softmax(-1) @ v).reshape(x.shape)


def test_scrambled_heads_are_told_beside_a_leak_that_no_weights_bring():
    assert "which its scrambled heads can bring about" in only_error(Scrambled(), causal=True).message
    assert "scrambled" not in only_error(Scrambled(hides=False), causal=True).message  # its weights see ahead
