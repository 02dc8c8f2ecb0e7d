"""What a mask argument means is learned by hiding: in every encoding and shape, and where the code is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from attnlab.doctor.examination import Examination
from attnlab.doctor.influence.masks import check_mask_polarity
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.masking import LENGTHS, PAD_TOKEN, SHAPES
from attnlab.strangers.loading.loading import load
from attnlab.strangers.patient import Patient
from attnlab.strangers.trying.interview import interview

ATTENTION = """
import math, torch
from torch import nn

class Mine(nn.Module):
    {docstring}
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, {parameter}):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        {before}
        w = s.softmax(-1)
        {after}
        return self.out((w @ v).transpose(1, 2).reshape(b, n, d))
"""

PAIR_SHAPES = {
    "(q_len, k_len)": "assert m.dim() == 2",
    "(1, q_len, k_len)": "assert m.dim() == 3 and len(m) == 1; m = m.unsqueeze(1)",
    "(1, 1, q_len, k_len)": "assert m.dim() == 4 and len(m) == 1",
    "(batch, 1, q_len, k_len)": "assert m.dim() == 4 and len(m) == b and m.size(2) == n",
    "(batch, q_len, k_len)": "assert m.dim() == 3 and len(m) == b and m.size(1) == n; m = m.unsqueeze(1)",
    "(q_len, k_len, 1)": "assert m.shape == (n, n, 1); m = m[None, ..., 0]",
    "(q_len, k_len, batch)": "assert m.shape == (n, n, b); m = m.movedim(2, 0)[:, None]",
}
KEY_SHAPES = {
    "(batch, k_len)": "assert m.shape == (b, n); m = m[:, None, None]",
    "(batch, 1, k_len)": "assert m.shape == (b, 1, n); m = m[:, None]",
    "(batch, 1, 1, k_len)": "assert m.shape == (b, 1, 1, n)",
    "(k_len, batch)": "assert m.shape == (n, b); m = m.T[:, None, None]",
    "(batch, k_len, 1)": "assert m.shape == (b, n, 1); m = m.transpose(1, 2)[:, None]",
}
HIDES = {
    "bool, True = may attend": "assert m.dtype == torch.bool; s = s.masked_fill(~m, float('-inf'))",
    "bool, True = blocked": "assert m.dtype == torch.bool; s = s.masked_fill(m, float('-inf'))",
    "int, 1 = may attend": "s = s + (1 - m) * -1e4",
    "int, 1 = blocked": "s = s + (m * 1.0 - 0) * -1e4; assert m.dtype != torch.bool",
    "float, 0 or -inf added to the scores": "s = s + m",
}


def asked(folder: Path, text: str) -> Convention:
    path = folder / "mine.py"
    path.write_text(text)
    torch.manual_seed(3)
    return interview(load(f"{path}:Mine"))


def attention(before: str, *, parameter: str = "mask=None", after: str = "pass", docstring: str = "") -> str:
    docstring = f'"""{docstring}"""\n' if docstring else "\n"
    return ATTENTION.format(before=before, parameter=parameter, after=after, docstring=docstring)


def hiding(shape: str, hides: str) -> str:
    return f"if mask is not None: m = mask; {shape}; {hides}"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("encoding", HIDES)
def test_every_encoding_in_every_shape_over_pairs(tmp_path, encoding, shape):
    convention = asked(tmp_path, attention(hiding(PAIR_SHAPES[shape], HIDES[encoding])))
    mask = convention.pair_mask
    assert mask is not None
    assert (mask.shape, mask.obeyed, mask.declared) == (shape, True, None)
    expected = encoding.replace("bool", "int") if "1 -" in HIDES[encoding] else encoding
    assert mask.encoding == expected
    assert (convention.key_mask is not None) is ("batch" in shape)
    if convention.key_mask is not None:
        assert (convention.key_mask.parameter, convention.key_mask.shape) == ("mask", shape)


@pytest.mark.parametrize("shape", KEY_SHAPES)
@pytest.mark.parametrize("encoding", HIDES)
@pytest.mark.parametrize("name", ["mask", "key_padding_mask"])
def test_every_encoding_in_every_shape_over_keys(tmp_path, name, encoding, shape):
    body = (
        hiding(KEY_SHAPES[shape], HIDES[encoding])
        .replace("if mask is", f"if {name} is")
        .replace("= mask;", f"= {name};")
    )
    text = attention(body, parameter=f"{name}=None")
    convention = asked(tmp_path, text)
    assert convention.pair_mask is None
    assert convention.key_mask is not None
    assert (convention.key_mask.shape, convention.key_mask.encoding) == (shape, encoding)
    assert convention.key_mask.obeyed
    assert convention.key_mask.declared == ("True blocks" if name == "key_padding_mask" else None)


@pytest.mark.parametrize("constant", ["float('-inf')", "-1e9", "-1e4", "-100.0", "-10.0", "-2.0"])
@pytest.mark.parametrize("keeps", [True, False])
def test_the_polarity_is_told_under_any_constant(tmp_path, constant, keeps):
    chosen = "~m" if keeps else "m"
    convention = asked(tmp_path, attention(hiding("m = m[:, None, None]", f"s = s.masked_fill({chosen}, {constant})")))
    assert convention.key_mask is not None
    assert convention.key_mask.keeps is keeps
    assert convention.key_mask.obeyed is (constant != "-2.0")


def test_a_finite_constant_is_not_hidden_by_an_infinite_mask(tmp_path):
    """Given minus infinity, ``(1 - mask) * -4`` would hide perfectly; what is documented is 1 and 0."""
    text = attention(
        hiding("m = m[:, None, None]", "s = s + (1.0 - m.to(s.dtype)) * -2.0"),
        docstring="mask: (batch, length), 1 = token, 0 = padding.",
    )
    mask = asked(tmp_path, text).key_mask
    assert mask is not None
    assert (mask.keeps, mask.obeyed, mask.declared, mask.declared_by) == (True, False, "True keeps", "docstring")


@pytest.mark.parametrize(
    "fault",
    [
        "s.masked_fill(~m, float('-inf'))",  # its result is thrown away
        "s = s * m",
        "s = s.masked_fill(~m.transpose(-1, -2), -1e9)",
        "s = s + 0 * m",
    ],
)
def test_a_mask_that_hides_nothing_is_given_as_is_said_and_not_obeyed(tmp_path, fault):
    text = attention(
        hiding("m = m[:, None, None]", fault),
        parameter="key_padding_mask=None",
        docstring="key_padding_mask: True keeps.",
    )
    mask = asked(
        tmp_path, text.replace("mask is not", "key_padding_mask is not").replace("m = mask", "m = key_padding_mask")
    ).key_mask
    assert mask is not None
    assert (mask.obeyed, mask.encoding) == (False, "bool, True = may attend")


def test_a_transposed_mask_over_pairs_is_not_taken_for_another_meaning(tmp_path):
    convention = asked(tmp_path, attention(hiding("m = m.transpose(-1, -2)", "s = s.masked_fill(m == 0, -1e9)")))
    assert convention.pair_mask is not None
    assert not convention.pair_mask.obeyed
    assert convention.pair_mask.keeps


def test_what_is_inverted_against_its_documentation_keeps_both_facts(tmp_path):
    text = attention(
        hiding("m = m[:, None]", "s = s.masked_fill(m, float('-inf'))"),
        docstring="mask: (B, T, T) bool, True may attend.",
    )
    mask = asked(tmp_path, text).pair_mask
    assert mask is not None
    assert (mask.encoding, mask.declared) == ("bool, True = blocked", "True keeps")


def test_an_argument_that_is_a_boolean_or_a_sum_is_taken_as_documented(tmp_path):
    """SDPA takes both; what is contrary to the documentation must not be evaded by giving a sum."""
    body = "if mask is not None: s = s.masked_fill(~mask, float('-inf')) if mask.dtype == torch.bool else s + mask"
    mask = asked(tmp_path, attention(body, docstring="mask: True = blocked.")).pair_mask
    assert mask is not None
    assert (mask.keeps, mask.declared) == (True, "True blocks")


def test_a_mask_after_the_softmax_tells_its_polarity(tmp_path):
    after = "if mask is not None: w = w * mask[:, None, None]"
    mask = asked(tmp_path, attention("pass", after=after)).key_mask
    assert mask is not None
    assert mask.keeps


def test_two_masks_have_one_place_each(tmp_path):
    body = "f = lambda s, m: s if m is None else s.masked_fill(m, -1e9)\n"
    body += "        s = f(f(s, m), None if p is None else p[:, None, None])"
    text = attention(body, parameter="attn_mask=None, key_padding_mask=None, m=None, p=None").replace(
        "b, n, d = x.shape", "b, n, d = x.shape; m, p = attn_mask, key_padding_mask"
    )
    convention = asked(tmp_path, text)
    assert convention.pair_mask is not None
    assert convention.key_mask is not None
    assert (convention.pair_mask.parameter, convention.key_mask.parameter) == ("attn_mask", "key_padding_mask")


@pytest.mark.parametrize("hides", [HIDES["bool, True = may attend"], HIDES["float, 0 or -inf added to the scores"]])
@pytest.mark.parametrize("parameter", ["mask", "mask=None"], ids=["asked for", "needed"])
def test_a_required_mask_is_given_at_every_call(tmp_path, hides, parameter):
    convention = asked(tmp_path, attention(f"m = mask; {hides}", parameter=parameter))
    assert convention.pair_mask is not None
    assert convention.pair_mask.required
    assert convention.causal is False


RECURRENT = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gru, self.out = nn.GRU(dim, dim, batch_first=True), nn.Linear(dim, 3)

    def forward(self, x, {parameter}):
        states, _ = self.gru(x)
        last = {last}
        return self.out(states[torch.arange(len(x)), last - 1])
"""


@pytest.mark.parametrize(
    ("parameter", "last", "encoding"),
    [
        ("attention_mask", "attention_mask.long().sum(1)", "bool, True = may attend"),
        ("key_padding_mask", "(~key_padding_mask).sum(1)", "bool, True = blocked"),
        ("lengths", "lengths", LENGTHS),
    ],
)
def test_where_only_the_amount_matters_padding_stands_at_the_end(tmp_path, parameter, last, encoding):
    mask = asked(tmp_path, RECURRENT.format(parameter=parameter, last=last)).key_mask
    assert mask is not None
    assert (mask.encoding, mask.obeyed, mask.tells_left_padding) == (encoding, True, False)


TOKENS = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, vocab_size, d_model=32, pad_idx=0):
        super().__init__()
        self.pad_idx = pad_idx
        self.embed, self.head = nn.Embedding(vocab_size, d_model), nn.Linear(d_model, 5)
        self.layer = nn.TransformerEncoderLayer(d_model, 4, 64, batch_first=True)

    def forward(self, src):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "obeyed"),
    [
        ("return self.head(self.layer(self.embed(src), src_key_padding_mask=src == self.pad_idx))", True),
        ("return self.head(self.layer(self.embed(src), src_key_padding_mask=src.eq(0)))", True),
        ("pad = (src == self.pad_idx); return self.head(self.layer(self.embed(src)))", False),
    ],
)
def test_a_token_that_means_padding_is_found(tmp_path, body, obeyed):
    convention = asked(tmp_path, TOKENS.format(body=body))
    assert convention.pad_token == 0
    assert convention.key_mask is not None
    assert (convention.key_mask.encoding, convention.key_mask.obeyed) == (PAD_TOKEN, obeyed)
    assert "padded with token 0" in convention.assumptions["called as"]


def test_a_zero_compared_with_a_mask_is_no_token(tmp_path):
    body = "m = torch.ones(src.size(1), src.size(1)); h = self.embed(src) * (m[0] != 2)[:, None]; return self.head(h)"
    convention = asked(tmp_path, TOKENS.format(body=body.replace("!= 2", "== 0")))
    assert convention.pad_token is None
    assert convention.key_mask is None


@pytest.mark.parametrize("seed", [0, 1, 20, 21])
def test_ones_that_are_added_are_told_from_sums_by_their_contrary(tmp_path, seed):
    path = tmp_path / "mine.py"
    path.write_text(
        attention("s = s if mask is None else s + mask[:, None, None]", docstring="mask: 1 keep, 0 padding")
    )
    torch.manual_seed(seed)
    mask = interview(load(f"{path}:Mine")).key_mask
    assert mask is not None
    assert (mask.keeps, mask.obeyed) == (True, False)


def test_masks_that_hide_only_together_are_given_together(tmp_path):
    hide = "s = s.masked_fill(~(q_mask[:, :, None] & kv_mask[:, None])[:, None], -9e9)"
    path = tmp_path / "mine.py"
    given = {"docstring": "", "parameter": "q_mask=None, kv_mask=None", "after": ""}
    path.write_text(ATTENTION.format(before=f"if None not in (q_mask, kv_mask): {hide}", **given))
    keys, beside = interview(load(f"{path}:Mine")).masks
    assert (keys.obeyed, keys.over, beside.required) == (True, "keys", True)
    assert {keys.parameter, beside.parameter} == {"q_mask", "kv_mask"}


def test_masks_of_which_all_are_given_or_none_are_learned_and_may_be_left_out(tmp_path):
    hide = "s = s.masked_fill(~(q_mask[:, :, None] & kv_mask[:, None])[:, None], -9e9)"
    wants_both = "if (q_mask is None) != (kv_mask is None): raise ValueError('both or none')"
    path = tmp_path / "mine.py"
    given = {"docstring": "", "parameter": "q_mask=None, kv_mask=None", "after": ""}
    before = f"{wants_both}\n        if q_mask is not None: {hide}"
    path.write_text(ATTENTION.format(before=before, **given))
    patient = load(f"{path}:Mine")
    convention = interview(patient)
    assert convention.key_mask is not None
    assert convention.key_mask.obeyed
    assert {mask.parameter for mask in convention.masks} == {"q_mask", "kv_mask"}
    found = check_mask_polarity(Examination(patient, convention))
    assert not [one.message for one in found if "may be left out" in one.message]


def test_a_mask_that_nothing_reads_hides_beside_none_that_hides_alone(tmp_path):
    parameter = "tgt_mask=None, tgt_key_padding_mask=None"
    convention = asked(tmp_path, attention("if tgt_mask is not None: s = s + tgt_mask * -1e9", parameter=parameter))
    assert {mask.parameter for mask in convention.masks if mask.obeyed} == {"tgt_mask"}
    assert convention.pair_mask is not None


class KeepsAndBlocks(nn.Module):
    """Attention with two masks that must be given: what is real is kept by one, what is later blocked by the other."""

    def __init__(self):
        super().__init__()
        self.qk, self.v = nn.Linear(24, 48), nn.Linear(24, 24)

    def forward(self, x, memory, pad_mask, self_mask):
        q, k = self.qk(x).chunk(2, -1)
        scores = (q @ k.mT).masked_fill(self_mask, float("-inf"))
        x = x + (scores.softmax(-1) @ self.v(x)) * pad_mask
        return (x + (x @ memory.mT).softmax(-1) @ memory) * pad_mask


def test_masks_that_must_be_given_are_learned_beside_each_other_and_beside_what_still_depends_on_the_input():
    convention = interview(Patient("it", KeepsAndBlocks(), None, {}, "", ""))
    assert {mask.parameter: mask.encoding for mask in convention.masks} == {
        "self_mask": "bool, True = blocked",
        "pad_mask": "bool, True = may attend",
    }
    assert all(mask.obeyed for mask in convention.masks if mask.over == "pairs")
    assert "memory=a fixed memory" in convention.in_words


def test_a_mask_that_forward_drops_under_a_condition_is_left_out(tmp_path):
    drops = "m = None if False else m\n        if self.heads:\n            m = None"
    convention = asked(tmp_path, attention(drops, parameter="m=None"))
    assert convention.masks == ()


def test_a_mask_over_what_is_answered_is_no_mask_over_keys(tmp_path):
    text = attention("pass", parameter="masks=None").replace("nn.Linear(dim, dim)", "nn.Linear(dim, 3)")
    answered = "y = self.out((w @ v).transpose(1, 2).reshape(b, n, d))"
    answered += "\n        return y if masks is None else y.masked_fill(masks == 0, -1e9)"
    convention = asked(tmp_path, text.replace("return self.out((w @ v).transpose(1, 2).reshape(b, n, d))", answered))
    assert convention.masks == ()


class OfNumbers(nn.Module):
    """x: (batch, length, dim); one whole number for each sample."""

    def __init__(self, hides):
        super().__init__()
        self.hides, self.attention = hides, nn.MultiheadAttention(16, 2, batch_first=True)
        self.times = nn.Linear(1, 16)

    def forward(self, x, t):
        hidden = torch.arange(x.shape[1]) >= t[:, None] + (self.hides == "one too few")
        if not self.hides:
            x, hidden = x + self.times(t.to(x.dtype)[:, None])[:, None], None
        return self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0]


@pytest.mark.parametrize("hides", ["all", "one too few", ""])
def test_numbers_that_hide_nothing_are_no_lengths_unless_they_are_called_so(hides):
    convention = interview(Patient("it", OfNumbers(hides), None, {}, "", ""))
    assert [mask.encoding for mask in convention.masks] == [LENGTHS] * bool(hides)
    assert ("t=the length for every sequence" in convention.in_words) is not bool(hides)


UNSCALED = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.out = nn.Linear(width, width)

    def forward(self, q, k, v, mask):
        scores = (q @ k.mT).masked_fill(mask, -1e9)
        return self.out(scores.softmax(-1) @ v)
"""


def test_a_mask_over_scores_so_large_that_each_position_sees_one_other_is_understood(tmp_path):
    mask = asked(tmp_path, UNSCALED).pair_mask
    assert mask is not None
    assert (mask.encoding, mask.obeyed) == ("bool, True = blocked", True)
