"""Masks over a second sequence are learned and tried, and outputs of a few vectors per sequence are understood."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch
from tests.doctor.bedside import HEADS, D, examine
from torch import nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.doctor.influence.masks import check_mask_polarity, check_masked_row
from attnlab.doctor.influence.padding import check_padding
from attnlab.doctor.influence.positions import check_positions
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.layouts import LAYOUTS
from attnlab.strangers.calling.sources import MEMORY_LENGTH
from attnlab.strangers.patient import Declared, Patient
from attnlab.strangers.trying.interview import interview


def asked(module: nn.Module, **how: bool) -> Convention:
    return interview(replace(patient(module), declared=Declared(**how)))


def patient(module: nn.Module) -> Patient:
    return Patient("it", module, None, {}, inspect.getsource(type(module)), "")


def errors(check, module: nn.Module) -> list[str]:
    exam = Examination(patient(module), asked(module))
    return [finding.message for finding in check(exam) if finding.severity == "error"]


class Cross(nn.Module):
    """Attention over a memory alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def hide(self, scores, mask):
        return scores if mask is None else scores.masked_fill(mask[:, None], float("-inf"))

    def forward(self, x, memory, memory_key_padding_mask=None):
        scores = self.hide(self.q(x) @ self.k(memory).mT / D**0.5, memory_key_padding_mask)
        return scores.softmax(-1) @ self.v(memory)


class Decoder(Cross):
    """Causal attention over the input, then attention over a memory."""

    def __init__(self):
        super().__init__()
        self.own = nn.MultiheadAttention(D, HEADS, batch_first=True)

    def forward(self, x, memory, memory_key_padding_mask=None):
        future = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        x = x + self.own(x, x, x, attn_mask=future, need_weights=False)[0]
        return x + super().forward(x, memory, memory_key_padding_mask)


def spoiled(base: type[Cross], hide, docstring: str = "") -> nn.Module:
    """Return a module whose mask over the memory does something else."""
    module = type(base.__name__, (base,), {"__doc__": docstring, "hide": hide})()
    return module.eval()


def patient_of(base: type[Cross], hide, docstring: str = "") -> Examination:
    module = spoiled(base, hide, docstring)
    held = Patient("it", module, None, {}, f'"""{docstring}"""', "")
    return Examination(held, interview(held))


def inverted(self, scores, mask):
    return scores if mask is None else scores.masked_fill(~mask[:, None], float("-inf"))


def multiplied(self, scores, mask):
    return scores if mask is None else scores * (~mask[:, None]).to(scores.dtype)


def along_nothing(self, scores, mask):
    return scores


# Masks over the memory


def test_a_bare_cross_attention_has_its_mask_over_the_input():
    convention = asked(Cross())
    assert convention.over_memory is None
    assert convention.key_mask is not None
    assert (convention.key_mask.parameter, convention.key_mask.obeyed) == ("memory_key_padding_mask", True)
    assert convention.key_mask.keeps is False


def test_a_decoder_is_called_with_its_memory_as_input_too():
    convention = asked(Decoder())
    assert convention.key_mask is None
    view = convention.over_memory
    assert view is not None
    assert (view.slots, view.pooled, view.causal) == (MEMORY_LENGTH, True, False)
    assert view.key_mask is not None
    assert view.key_mask.obeyed
    assert "of the memory" in convention.assumptions["called as"]


def test_without_a_mask_over_it_the_memory_is_no_input():
    class NoMask(Decoder):
        def forward(self, x, memory):
            return super().forward(x, memory)

    assert asked(NoMask()).over_memory is None


@pytest.mark.parametrize("base", [Cross, Decoder])
def test_an_inverted_mask_over_the_memory_is_an_error(base):
    found = [f for f in check_mask_polarity(patient_of(base, inverted)) if f.severity == "error"]
    assert len(found) == 1
    assert "`memory_key_padding_mask` works the other way round" in found[0].message
    assert not list(check_mask_polarity(patient_of(base, base.hide)))


@pytest.mark.parametrize("base", [Cross, Decoder])
def test_a_mask_over_the_memory_without_effect_is_an_error(base):
    found = [f for f in check_mask_polarity(patient_of(base, along_nothing)) if f.severity == "error"]
    assert any("no effect" in finding.message for finding in found)


@pytest.mark.parametrize("base", [Cross, Decoder])
def test_padding_in_the_memory_that_is_read_is_an_error(base):
    assert [f.severity for f in check_padding(patient_of(base, multiplied))] == ["error"]
    assert not list(check_padding(patient_of(base, base.hide)))


@pytest.mark.parametrize("base", [Cross, Decoder])
def test_an_empty_memory_is_judged_by_what_is_promised(base):
    promised = "The whole row of the mask may be True, which is allowed."
    assert [f.severity for f in check_masked_row(patient_of(base, base.hide, promised))] == ["error"]
    assert [f.severity for f in check_masked_row(patient_of(base, base.hide))] == ["warning"]


def test_values_that_a_docstring_names_and_that_do_nothing_are_an_error():
    class Below(Cross):
        """memory_key_padding_mask: 1 = word, 0 = padding."""

        def hide(self, scores, mask):
            return scores if mask is None else scores.masked_fill(mask[:, None] < 0, float("-inf"))

    assert len(errors(check_padding, Below())) == 1


# What is said of decoders


def test_words_on_decoders_say_nothing_of_attention_over_a_memory():
    class DecoderCross(Cross):
        """Attention of a decoder."""

    assert asked(DecoderCross()).causal is False


# Several vectors per sequence


class Translator(Decoder):
    """An encoder and attention over what it gives; a mask over the keys of each."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.MultiheadAttention(D, HEADS, batch_first=True)

    def forward(self, src, tgt, self_attn_mask, cross_attn_mask):
        told = None if self_attn_mask is None else self_attn_mask[:, 0]
        memory = src + self.encoder(src, src, src, key_padding_mask=told, need_weights=False)[0]
        return super().forward(tgt, memory, None if cross_attn_mask is None else cross_attn_mask[:, 0])


def test_masks_of_an_encoder_and_over_what_it_gives_are_given_together():
    view = asked(Translator()).over_memory
    assert view is not None
    assert {mask.parameter for mask in view.masks} == {"self_attn_mask", "cross_attn_mask"}
    assert all(mask.obeyed for mask in view.masks)
    assert errors(check_padding, Translator()) == []


class PaddedTranslator(Decoder):
    """The same of tokens, of which 0 is padding: rows that see nothing else are not numbers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(53, D)

    def forward(self, src, tgt, src_mask=None):
        hidden = (src == 0)[:, None] if src_mask is None else src_mask  # True = blocked, (batch, 1, k_len)
        later = torch.ones(tgt.size(1), tgt.size(1), device=tgt.device).triu(1).bool()
        x = self.embedding(tgt)
        scores = (x @ x.mT).masked_fill(later | (tgt == 0)[:, None], float("-inf"))
        x = x + scores.softmax(-1) @ x
        scores = (self.q(x) @ self.k(self.embedding(src)).mT).masked_fill(hidden, float("-inf"))
        return x + scores.softmax(-1) @ self.v(self.embedding(src))


def test_what_stands_in_for_the_other_sequence_does_not_begin_with_what_is_usually_padding():
    view = asked(PaddedTranslator()).over_memory
    assert view is not None
    (mask,) = view.masks
    assert (mask.encoding, mask.obeyed) == ("bool, True = blocked", True)
    assert errors(check_masked_row, PaddedTranslator()) == []


class Latents(nn.Module):
    def __init__(self, slots=4):
        super().__init__()
        torch.manual_seed(5)
        self.latents = nn.Parameter(torch.randn(slots, D))
        self.kv = nn.Linear(D, 2 * D)

    def forward(self, x, mask=None):
        k, v = self.kv(x).chunk(2, -1)
        scores = self.latents @ k.mT / D**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], float("-inf"))
        return self.after(scores.softmax(-1) @ v)

    def after(self, out):
        return out


def test_as_many_vectors_at_every_length_are_laid_end_to_end():
    convention = asked(Latents())
    assert (convention.pooled, convention.slots, convention.d_out) == (True, 4, 4 * D)
    assert convention.key_mask is not None
    assert convention.key_mask.obeyed
    assert convention.assumptions["output"] == f"4 vectors of width {D}, whatever the length"
    x = torch.randn(2, 9, D)
    module = Latents()
    assert torch.equal(convention.call(module, x), module(x).flatten(1))


@pytest.mark.parametrize(
    "after",
    [
        lambda self, out: out.transpose(0, 1),  # the batch is not first
        lambda self, out: out.mean(0),  # no batch
        lambda self, out: out.reshape(1, -1, out.size(-1)),  # scrambled
    ],
)
def test_without_the_batch_in_front_it_is_no_output(after):
    module = type("Mine", (Latents,), {"after": after})()
    with pytest.raises(ModuleError, match=r"returned .* for an input"):
        interview(Patient("it", module, None, {}, "", ""))


def test_a_number_of_vectors_that_follows_the_length_is_taken_at_one_length():
    class Halved(nn.Linear):
        def forward(self, x):
            return super().forward(x)[:, ::2]

    convention = asked(Halved(D, D))
    assert (convention.slots, convention.length, convention.any_length) == (6, 11, False)
    assert convention.assumptions["output"] == f"6 vectors of width {D}, at length 11"


@pytest.mark.parametrize("axes", ["channels first", "heads, then length"])
def test_an_output_whose_axes_are_in_another_order_than_the_inputs_is_laid_out(axes):
    class Turned(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            return out.mT if axes == "channels first" else out.unflatten(2, (4, -1)).transpose(1, 2)

    module, x = Turned(D, D), torch.randn(2, 5, D)
    convention = asked(module)
    assert torch.allclose(convention.call(module, x), nn.functional.linear(x, module.weight, module.bias))
    assert LAYOUTS[convention.returned_in].axes in convention.assumptions["output"]


def test_padding_that_latents_read_is_an_error():
    class Late(Latents):
        def forward(self, x, mask=None):
            k, v = self.kv(x).chunk(2, -1)
            weights = (self.latents @ k.mT / D**0.5).softmax(-1)
            return (weights if mask is None else weights * mask[:, None]) @ v

    assert errors(check_padding, Late()) == [
        "the output depends on what stands at padded positions, although `mask` tells what is padding."
    ]
    assert not errors(check_padding, Latents())


def test_latents_are_called_invariant():
    exam = examine(Latents(), pooled=True, slots=4, d_out=4 * D)
    assert "invariant" in next(finding.evidence for finding in check_positions(exam))


class Ranks(nn.Module):
    """Items are ranked by the vector of the last position, as recommenders do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.items, self.own = nn.Embedding(29, D), nn.MultiheadAttention(D, HEADS, batch_first=True)

    def forward(self, item_ids, targets, attn_mask):
        x = self.items(item_ids)
        x = self.own(x, x, x, attn_mask=attn_mask)[0]
        return (self.items(targets) @ x[:, -1:].mT).squeeze(-1)


def test_what_is_ranked_is_another_sequence_and_hides_no_mask():
    convention = asked(Ranks())
    assert {one.parameter: one.source for one in convention.arguments}["targets"] == "memory tokens"
    assert convention.pair_mask is not None
    assert (convention.pair_mask.encoding, convention.pair_mask.obeyed) == ("bool, True = blocked", True)


class Optional(nn.Module):
    """A layer of a decoder that looks at a memory where it is given one, and else adds its input to itself."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = (nn.MultiheadAttention(D, 2, batch_first=True) for _ in range(2))

    def forward(self, x, memory=None):
        x = x + self.inner(x, x, x)[0]
        return x + (x if memory is None else self.outer(x, memory, memory)[0])


class OptionalAlone(Optional):
    """Attention over a memory, or over the input itself."""

    def forward(self, x, memory=None):
        memory = x if memory is None else memory
        return self.outer(x, memory, memory)[0]


class OptionalUnread(Optional):
    def forward(self, x, memory=None):
        return super().forward(x)


@pytest.mark.parametrize(("kind", "given"), [(Optional, True), (OptionalAlone, False), (OptionalUnread, False)])
def test_a_memory_that_may_be_left_out_is_given_where_it_takes_nothing_from_sight(kind, given):
    assert ("memory" in [one.source for one in asked(kind()).arguments]) == given


class Forecast(nn.Module):
    """Twelve steps from the last ones; x: (batch, length, channels)."""

    def __init__(self, seq_len=48):
        super().__init__()
        count = (seq_len - 8) // 4 + 1
        self.proj, self.pos = nn.Linear(8, D), nn.Parameter(torch.randn(count, D))
        self.head = nn.Linear(count * D, 12)

    def forward(self, x):
        patches = self.proj(x.mT.unfold(-1, 8, 4)) + self.pos  # of one patch as many by a broadcast
        return self.head(patches.tanh().flatten(2)).mT


def test_where_the_layout_that_is_said_runs_at_its_own_length_no_other_is_taken():
    convention = asked(Forecast())
    assert (convention.layout, convention.length, convention.slots) == ("batch-first", 48, 12)
