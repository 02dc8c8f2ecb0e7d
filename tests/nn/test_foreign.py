"""People's own modules, unchanged, in the place of a mixer."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attnlab.core.draws import drawn_by_name
from attnlab.core.errors import ModuleError, SpecError
from attnlab.nn.foreign import ForeignMixer, adapt, build_foreign

D_MODEL, LENGTH, BATCH = 10, 11, 2

HEADER = """
import math
from dataclasses import dataclass
import torch
from torch import nn
import torch.nn.functional as F

"""

ONE_HEAD = (
    HEADER
    + """
class Mine(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, {signature}):
        {unpack}
        q, k, v = self.q(a), self.k(b), self.v(c)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.size(-1))
        {mask}
        out = scores.softmax(-1) @ v
        {pack}
        return {returned}
"""
)

MASKS = {
    "bool keep": "scores = scores.masked_fill(~mask, float('-inf'))",
    "bool blocked": "scores = scores.masked_fill(mask, float('-inf'))",
    "additive": "scores = scores + mask",
    "mask == 0": "scores = scores.masked_fill(mask == 0, -1e9)",
    "int keep": "scores = scores + (1 - mask) * -1e9",
    "int blocked": "scores = scores + mask.long() * -10**9",
    "finite additive": "scores = scores + torch.clamp(mask, min=-1e9) * 1.0",
    "where": "scores = torch.where(mask.bool(), scores, torch.full_like(scores, -1e30))",
}
LAYOUTS = {
    "batch-first": "{0}",
    "sequence-first": "{0}.transpose(0, 1)",
    "channels-first": "{0}.transpose(1, 2)",
}
SIGNATURES = {
    "(x, mask)": ("x, mask", "a = b = c = {x}"),
    "(x, mask=None)": ("x, attn_mask=None", "mask = attn_mask; a = b = c = {x}"),
    "(q, k, v, mask)": ("q, k, v, mask", "a, b, c = {q}, {k}, {v}"),
    "(values, keys, query, mask)": ("values, keys, query, mask", "a, b, c = {query}, {keys}, {values}"),
    "(x, *, mask)": ("x, *, causal_mask", "mask = causal_mask; a = b = c = {x}"),
}


def user_file(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(text)
    return f"{path}:Mine"


def one_head(signature: str, mask: str, layout: str, returned: str = "out") -> str:
    parameters, unpack = SIGNATURES[signature]
    names = ("x", "q", "k", "v", "query", "keys", "values")
    unpack = unpack.format(**{name: LAYOUTS[layout].format(name) for name in names})
    line = MASKS[mask] if "None" not in parameters else f"scores = scores\n        if mask is not None: {MASKS[mask]}"
    pack = f"out = {LAYOUTS[layout].format('out')}"
    return ONE_HEAD.format(signature=parameters, unpack=unpack, mask=line, pack=pack, returned=returned)


def offered(**more: object) -> dict[str, object]:
    return {"d_model": D_MODEL, "dropout": 0.0, "causal": True, "max_length": 32} | more


def inputs(seed: int = 3, length: int = LENGTH) -> torch.Tensor:
    return torch.randn(BATCH, length, D_MODEL, generator=torch.Generator().manual_seed(seed))


def sees(mixer: ForeignMixer, length: int = LENGTH) -> torch.Tensor:
    """Return which output position depends on which input position: (length, length)."""
    mixer.eval()
    x, other = inputs(length=length), inputs(seed=5, length=length)
    before = mixer(x)
    rows = []
    for position in range(length):
        moved = x.clone()
        moved[:, position] = other[:, position]
        rows.append((mixer(moved) - before).abs().amax((0, 2)) > 1e-6)
    return torch.stack(rows, dim=1)


def assert_causal(mixer: ForeignMixer) -> None:
    assert torch.equal(sees(mixer), torch.ones(LENGTH, LENGTH).tril().bool())


def assert_samples_apart(mixer: ForeignMixer) -> None:
    mixer.eval()
    x = inputs()
    alone = torch.cat([mixer(x[:1]), mixer(x[1:])])
    torch.testing.assert_close(mixer(x), alone)


def in_square(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Every pair of entries of two axes: all of the first two, and the third dealt out to them."""
    first, second, third = map(list, axes)
    places = itertools.product(range(len(first)), range(len(second)))
    return [(first[i], second[j], third[(i + j) % len(third)]) for i, j in places]


@pytest.mark.parametrize(("signature", "mask", "layout"), in_square(SIGNATURES, MASKS, LAYOUTS))
def test_every_signature_mask_and_layout_is_causal_where_that_is_wanted(tmp_path, signature, mask, layout):
    name = user_file(tmp_path, one_head(signature, mask, layout))
    mixer = build_foreign(name, offered())
    assert mixer.convention.layout == layout
    assert_causal(mixer)
    assert_samples_apart(mixer)


@pytest.mark.parametrize(("signature", "mask"), list(itertools.product(SIGNATURES, MASKS)))
def test_every_signature_and_mask_sees_everything_where_that_is_wanted(tmp_path, signature, mask):
    mixer = build_foreign(user_file(tmp_path, one_head(signature, mask, "batch-first")), offered(causal=False))
    assert sees(mixer).all()


@pytest.mark.parametrize(("mask", "layout", "causal"), in_square(MASKS, LAYOUTS, (True, False)))
def test_padding_is_merged_into_the_mask(tmp_path, mask, layout, causal):
    mixer = build_foreign(user_file(tmp_path, one_head("(x, mask)", mask, layout)), offered(causal=causal))
    x, padding = inputs(), torch.ones(BATCH, LENGTH, dtype=torch.bool)
    padding[0, :3] = False  # on the left, where a causal mask does not hide it anyway
    moved = x.clone()
    moved[0, :3] = inputs(seed=5)[0, :3]
    before, after = mixer(x, padding=padding), mixer(moved, padding=padding)
    torch.testing.assert_close(before[padding], after[padding])
    torch.testing.assert_close(before[1], mixer(x)[1])
    assert before.isfinite().all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "returned",
    ["(out, scores)", "[scores, out]", "{'weights': scores, 'out': out}", "Result(scores, out)", "(None, out)"],
)
def test_the_output_is_found_in_what_is_returned(tmp_path, layout, returned):
    text = one_head("(x, mask)", "additive", layout, returned)
    text += "\n@dataclass\nclass Result:\n    weights: torch.Tensor\n    out: torch.Tensor\n"
    assert_causal(build_foreign(user_file(tmp_path, text), offered()))


HEADS = (
    HEADER
    + """
class Mine(nn.Module):
    def __init__(self, {constructor}):
        super().__init__()
        dim, heads = {sizes}
        self.heads = heads
        self.packed, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, {signature}):
        batch, length, dim = x.shape
        q, k, v = self.packed(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        {attend}
        return self.out(out.transpose(1, 2).reshape(batch, length, dim))
"""
)
PLAIN = "out = (q @ k.transpose(-1, -2)).softmax(-1) @ v"


@pytest.mark.parametrize(
    ("signature", "attend", "shape"),
    [
        ("x, mask=None", "out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)", "(batch, 1, q_len, k_len)"),
        (
            "x, attention_mask=None",
            "m = attention_mask; out = F.scaled_dot_product_attention(q, k, v, None if m is None else m[:, None])",
            "(batch, q_len, k_len)",
        ),
        (
            "x, mask",
            "s = q @ k.transpose(-1, -2); assert mask.dim() == 4; out = s.masked_fill(mask == 0, -1e9).softmax(-1) @ v",
            "(batch, 1, q_len, k_len)",
        ),
        (
            "x, mask",
            "s = q @ k.transpose(-1, -2); assert mask.shape[:2] == (batch, 1); out = (s + mask).softmax(-1) @ v",
            "(batch, 1, q_len, k_len)",
        ),
        (
            "x, mask",
            "assert len(mask) == batch; mask = mask.unsqueeze(1); out = F.scaled_dot_product_attention(q, k, v, mask)",
            "(batch, q_len, k_len)",
        ),
    ],
)
def test_the_shape_of_the_mask_is_learned(tmp_path, signature, attend, shape):
    text = HEADS.format(constructor="dim, heads", sizes="dim, heads", signature=signature, attend=attend)
    mixer = build_foreign(user_file(tmp_path, text), offered(n_heads=5))
    assert mixer.convention.pair_mask is not None
    assert mixer.convention.pair_mask.shape == shape
    assert_causal(mixer)
    assert mixer.convention.key_mask is not None


@pytest.mark.parametrize("flag", ["is_causal=False", "causal", "use_causal_mask=True"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_causal_flag_of_forward_is_used(tmp_path, flag, causal):
    attend = f"out = F.scaled_dot_product_attention(q, k, v, is_causal={flag.partition('=')[0]})"
    text = HEADS.format(constructor="dim, heads", sizes="dim, heads", signature=f"x, {flag}", attend=attend)
    mixer = build_foreign(user_file(tmp_path, text), offered(n_heads=5, causal=causal))
    assert torch.equal(sees(mixer), torch.ones(LENGTH, LENGTH).tril(0 if causal else LENGTH).bool())


WIDTHS = ("d_model", "dim", "embed_dim", "emb_size", "n_embd", "hidden_size", "d_in")


@pytest.mark.parametrize(
    ("d_model_name", "heads_name"),
    [*zip(WIDTHS, ("n_heads", "heads", "num_heads", "n_head", "h", "nhead", "heads"), strict=True)],
)
def test_constructors_may_use_their_own_words(tmp_path, d_model_name, heads_name):
    text = HEADS.format(
        constructor=f"{d_model_name}: int, {heads_name}: int = 2, attn_dropout: float = 0.1",
        sizes=f"{d_model_name}, {heads_name}",
        signature="x",
        attend=PLAIN,
    )
    name = user_file(tmp_path, text)
    assert build_foreign(name, offered(n_heads=5)).module.heads == 5
    assert build_foreign({"name": name, "n_heads": 1}, offered(n_heads=5)).module.heads == 1
    assert build_foreign(name, offered(n_heads=None)).module.heads == 2


def test_a_missing_number_of_heads_is_asked_for_by_name(tmp_path):
    text = HEADS.format(constructor="dim, h", sizes="dim, h", signature="x", attend=PLAIN)
    with pytest.raises(SpecError, match=r"missing argument 'h'; give it as n_heads: ..."):
        build_foreign(user_file(tmp_path, text), offered())


def test_a_whole_model_in_the_place_of_a_mixer_is_told_where_it_goes(tmp_path):
    text = HEADS.format(constructor="vocab_size, dim", sizes="dim, 2", signature="x", attend=PLAIN)
    with pytest.raises(SpecError, match=r"'vocab_size', .* looks like a whole model; a model is given as model"):
        build_foreign(user_file(tmp_path, text), offered())


def test_a_module_without_a_mask_that_sees_the_future_is_noted_not_refused(tmp_path):
    text = HEADS.format(constructor="dim, heads", sizes="dim, heads", signature="x", attend=PLAIN)
    mixer = build_foreign(user_file(tmp_path, text), offered(n_heads=5))
    assert any("sees the future" in note for note in mixer.convention.notes)
    assert any("padding" in note for note in mixer.convention.notes)
    assert sees(mixer).all()


# The modules of the questions the lab was founded on, in few words


def test_the_single_head_of_a_forum_question_works_unchanged(tmp_path):
    text = (
        HEADER
        + """
class Mine(nn.Module):
    def __init__(self, emb_size, head_size):
        super(Mine, self).__init__()
        self.emb_size = emb_size
        self.Q, self.K, self.V = (nn.Linear(emb_size, head_size) for _ in range(3))
        self.linear = nn.Linear(head_size, head_size)

    def forward(self, x):
        weights = self.Q(x) @ self.K(x).transpose(1, 2) * self.emb_size ** -0.5
        future = torch.triu(torch.ones(x.size(1), x.size(1)), diagonal=1).bool()
        weights = F.softmax(weights.masked_fill(future, float("-inf")), dim=-1)
        return F.relu(self.linear(weights @ self.V(x)))
"""
    )
    name = user_file(tmp_path, text)
    mixer = build_foreign(name, offered(n_heads=4))
    assert mixer.module.Q.out_features == D_MODEL
    assert not sees(mixer).triu(1).any()
    bidirectional = build_foreign(name, offered(causal=False))
    assert any("causal by itself" in note for note in bidirectional.convention.notes)
    with torch.device("meta"):
        on_meta = build_foreign(name, offered())
    assert on_meta(torch.empty(BATCH, LENGTH, D_MODEL, device="meta")).shape == (BATCH, LENGTH, D_MODEL)


def test_the_channels_first_layer_of_a_blog_post_works_unchanged(tmp_path):
    text = (
        HEADER
        + """
class Mine(nn.Module):
    def __init__(self, in_channels, out_channels, key_channels):
        super().__init__()
        self.Q, self.K = (nn.Conv1d(in_channels, key_channels, kernel_size=1, bias=False) for _ in range(2))
        self.V = nn.Conv1d(in_channels, out_channels, kernel_size=1, bias=False)

    def forward(self, x):
        weights = self.Q(x).permute(0, 2, 1).matmul(self.K(x)).softmax(2)
        return weights.matmul(self.V(x).permute(0, 2, 1)).permute(0, 2, 1)
"""
    )
    mixer = build_foreign({"name": user_file(tmp_path, text), "key_channels": 7}, offered(causal=False))
    assert mixer.convention.layout == "channels-first"
    assert mixer.module.Q.out_channels == 7
    x = inputs()
    torch.testing.assert_close(mixer(x), mixer.module(x.transpose(1, 2)).transpose(1, 2))


MULTI_HEAD_BLOCK = (
    HEADER
    + """
class Mine(nn.Module):
    def __init__(self, d_model: int, h: int, dropout: float) -> None:
        super().__init__()
        assert d_model % h == 0, "d_model is not divisible by h"
        self.h, self.d_k = h, d_model // h
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask):
        q, k, v = (w(t).view(len(t), -1, self.h, self.d_k).transpose(1, 2)
                   for w, t in ((self.w_q, q), (self.w_k, k), (self.w_v, v)))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores.masked_fill_(mask == 0, -1e9)
        self.attention_scores = self.dropout(scores.softmax(dim=-1))
        out = (self.attention_scores @ v).transpose(1, 2).contiguous()
        return self.w_o(out.view(len(out), -1, self.h * self.d_k))
"""
)


def test_the_multi_head_block_of_a_forum_question_works_unchanged(tmp_path):
    mixer = build_foreign(user_file(tmp_path, MULTI_HEAD_BLOCK), offered(n_heads=5))
    assert_causal(mixer)
    assert mixer.convention.pair_mask is not None
    assert mixer.convention.pair_mask.encoding == "bool, True = may attend"
    x, memory = inputs(), inputs(seed=7, length=13)
    everything = torch.ones(LENGTH, 13).tril(13 - LENGTH)
    torch.testing.assert_close(mixer(x, memory), mixer.module(x, memory, memory, everything))


def test_heads_that_do_not_divide_raise_the_persons_own_text_and_line(tmp_path):
    with pytest.raises(
        ModuleError, match=r"constructor raised AssertionError: d_model is not .* \(mine.py, line \d+\)"
    ):
        build_foreign(user_file(tmp_path, MULTI_HEAD_BLOCK), offered(n_heads=3))


CONFIGURED = (
    HEADER
    + """
{config_class}

class Mine(nn.Module):
    def __init__(self, {parameter}):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.drops = nn.Dropout(config.attn_pdrop), nn.Dropout(getattr(config, "unheard_of", 0.0))
        size = config.block_size
        self.register_buffer("bias", torch.tril(torch.ones(size, size)).view(1, 1, size, size))

    def forward(self, x):
        batch, length, width = x.size()
        q, k, v = (t.view(batch, length, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=2))
        scores = (q @ k.transpose(-2, -1)).masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
"""
)
CONFIG_CLASS = """
@dataclass
class Config:
    n_embd: int = 768
    n_head: int = 12
    block_size: int = 1024
    bias: bool = True
    attn_pdrop: float = 0.1
"""


@pytest.mark.parametrize(("config_class", "parameter"), [("", "config"), (CONFIG_CLASS, "config: Config")])
def test_a_constructor_of_one_config_gets_one(tmp_path, config_class, parameter):
    name = user_file(tmp_path, CONFIGURED.format(config_class=config_class, parameter=parameter))
    mixer = build_foreign({"name": name, "n_heads": 5, "bias": False}, offered(n_heads=2, dropout=0.25))
    assert mixer.module.n_head == 5
    assert mixer.module.c_attn.bias is None
    assert mixer.module.drops[0].p == 0.25
    assert_causal(mixer)


def test_a_config_asks_by_name_for_what_it_lacks(tmp_path):
    name = user_file(tmp_path, CONFIGURED.format(config_class="", parameter="config"))
    with pytest.raises(SpecError, match=r"its config has no 'n_head'; give it as n_heads: ..."):
        build_foreign(name, offered())


# torch's own layers, subclassed and wrapped


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_multihead_attention_is_equal_to_calling_it_by_hand(causal, batch_first):
    theirs = nn.MultiheadAttention(D_MODEL, 5, batch_first=batch_first).eval()
    mixer = adapt(theirs, d_model=D_MODEL, causal=causal)
    assert mixer.module is theirs
    x = inputs() if batch_first else inputs().transpose(0, 1)
    padding = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    padding[1, -4:] = False
    mask = torch.ones(LENGTH, LENGTH).triu(1).bool() if causal else None
    expected, _ = theirs(x, x, x, attn_mask=mask, key_padding_mask=~padding)
    torch.testing.assert_close(mixer(inputs(), padding=padding), expected if batch_first else expected.transpose(0, 1))


def test_an_lstm_that_reads_the_batch_as_time_is_found_out():
    mixer = adapt(nn.LSTM(D_MODEL, D_MODEL), d_model=D_MODEL, causal=True)
    assert mixer.convention.layout == "sequence-first"
    assert_samples_apart(mixer)
    assert_causal(mixer)


def test_pass_through_constructors_get_the_arguments_of_the_class_above(tmp_path):
    text = HEADER + (
        "class Mine(nn.MultiheadAttention):\n"
        "    def __init__(self, *args, **kwargs):\n        super().__init__(*args, batch_first=True, **kwargs)\n"
    )
    mixer = build_foreign(user_file(tmp_path, text), offered(n_heads=5, dropout=0.3))
    assert (mixer.module.num_heads, mixer.module.dropout, mixer.convention.layout) == (5, 0.3, "batch-first")


# Things hard to see by calling


def test_an_output_that_starts_at_zero_is_understood_all_the_same(tmp_path):
    text = one_head("(x, mask)", "additive", "sequence-first").replace(
        "        out = out.transpose", "        out = out * self.gate\n        out = out.transpose"
    )
    text = text.replace("super().__init__()", "super().__init__(); self.gate = nn.Parameter(torch.zeros(()))")
    mixer = build_foreign(user_file(tmp_path, text), offered())
    assert mixer.convention.layout == "sequence-first"
    assert mixer.module.gate == 0
    mixer.module.gate.data.fill_(1.0)
    assert_causal(mixer)


def test_dropout_that_forgets_eval_mode_does_not_confuse(tmp_path):
    text = one_head("(x, mask)", "additive", "batch-first").replace(
        "scores.softmax(-1)", "F.dropout(scores.softmax(-1), 0.2)"
    )
    convention = build_foreign(user_file(tmp_path, text), offered()).convention
    assert convention.pair_mask is not None
    assert convention.pair_mask.encoding.startswith("float, 0 or -inf")


def test_a_module_that_takes_its_full_length_only_is_probed_at_that(tmp_path):
    text = HEADER + (
        "class Mine(nn.Module):\n"
        "    def __init__(self, dim, seq_len):\n        super().__init__(); self.mix = nn.Linear(seq_len, seq_len)\n"
        "    def forward(self, x):\n        return self.mix(x.transpose(1, 2)).transpose(1, 2)\n"
    )
    mixer = build_foreign(user_file(tmp_path, text), offered(causal=False, max_length=LENGTH))
    assert mixer(inputs()).shape == (BATCH, LENGTH, D_MODEL)


# Errors


def forward_only(body: str, signature: str = "x", constructor: str = "dim") -> str:
    return HEADER + (
        f"class Mine(nn.Module):\n    def __init__(self, {constructor}):\n        super().__init__()\n"
        f"        self.linear = nn.Linear(dim, dim)\n    def forward(self, {signature}):\n        {body}\n"
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise ValueError('no way')", r"Mine'.* raised ValueError: no way \(mine.py, line 13\)"),
        (
            "return x[..., :3]",
            r"\(3, 5, 3\) for an input \(3, 5, 10\); it must return a floating tensor \(3, 5, 10\) = \(batch, length",
        ),
        ("return 'words'", "returned str for an input .* it must"),
        ("return None", "returned None for an input .* it must"),
        ("return (x.mean(), x[0])", r"returned tuple of \(\), \(5, 10\)"),
        ("return x > 0", r"returned \(3, 5, 10\) bool"),
        ("return x / (x - x)", "returned NaN or infinite"),
        ("return self.linear(x.view(-1, 7))", "raised RuntimeError: shape"),
    ],
)
def test_a_module_that_raises_or_returns_something_else_is_told_so(tmp_path, body, text):
    with pytest.raises(ModuleError, match=text):
        build_foreign(user_file(tmp_path, forward_only(body)), offered())


def test_what_its_place_cannot_give_is_named(tmp_path):
    name = user_file(tmp_path, forward_only("return x", "x, freqs_cis, start_pos"))
    with pytest.raises(ModuleError, match="requires 'freqs_cis', and what is to be given there cannot be guessed"):
        build_foreign(name, offered())


def test_a_mask_that_hides_nothing_is_an_error_that_says_what_was_tried(tmp_path):
    body = "s = x @ x.transpose(1, 2); w = s.softmax(-1); return (w * (1 if mask is None else mask)) @ self.linear(x)"
    with pytest.raises(ModuleError, match="'mask', but nothing given there makes it causal") as caught:
        build_foreign(user_file(tmp_path, forward_only(body, "x, mask=None")), offered())
    assert "8 meanings of its values in 7 shapes" in str(caught.value)
    assert "called as forward(x; mask: " in str(caught.value)
    assert "the output depends on later positions" in str(caught.value)
    assert "before the softmax" in str(caught.value)


def test_what_is_no_module_is_refused(tmp_path):
    with pytest.raises(ModuleError, match=r"must be a torch\.nn\.Module; got int"):
        build_foreign(user_file(tmp_path, "def Mine(dim):\n    return 3\n"), offered())


def test_d_model_has_to_be_offered(tmp_path):
    with pytest.raises(SpecError, match="needs d_model"):
        build_foreign(user_file(tmp_path, forward_only("return x")), {"dropout": 0.0})


def test_errors_at_run_time_name_the_module_and_the_shapes(tmp_path):
    body = "return self.linear(x) if x.size(1) < 9 else (x[:, 1:] if x.size(1) < 12 else 1 / 0)"
    mixer = build_foreign(user_file(tmp_path, forward_only(body)), offered())
    with pytest.raises(
        ModuleError,
        match=r"\(2, 10, 10\) for an input \(2, 11, 10\); it must return a floating",
    ):
        mixer(inputs())
    with pytest.raises(ModuleError, match=r"forward\(\(2, 13, 10\)\) raised ZeroDivisionError"):
        mixer(inputs(length=13))
    with pytest.raises(ModuleError, match="takes one sequence, so it cannot look at another"):
        mixer(inputs(), inputs())


def test_a_module_on_meta_cannot_be_adapted_without_a_convention():
    with torch.device("meta"):
        theirs = nn.MultiheadAttention(D_MODEL, 5)
    with pytest.raises(ModuleError, match="meta device"):
        adapt(theirs, d_model=D_MODEL)
    convention = adapt(nn.MultiheadAttention(D_MODEL, 5), d_model=D_MODEL).convention
    x = torch.empty(BATCH, LENGTH, D_MODEL, device="meta")
    assert adapt(theirs, d_model=D_MODEL, convention=convention)(x).shape == x.shape


# What the lab does with a module


def test_learning_leaves_the_random_states_alone(tmp_path):
    name = user_file(tmp_path, MULTI_HEAD_BLOCK)

    def draw() -> tuple[torch.Tensor, float]:
        torch.manual_seed(17)
        random.seed(19)
        mixer = build_foreign(name, offered(n_heads=5, dropout=0.5))
        return torch.cat([mixer.module.w_q.weight.detach().flatten(), torch.rand(3)]), random.random()

    fresh, remembered = draw(), draw()  # the second time nothing has to be learned
    assert torch.equal(fresh[0], remembered[0])
    assert fresh[1] == remembered[1]


def test_a_changed_file_is_learned_anew(tmp_path):
    first = build_foreign(user_file(tmp_path, one_head("(x, mask)", "bool keep", "batch-first")), offered())
    second = build_foreign(user_file(tmp_path, one_head("(x, mask)", "bool blocked", "sequence-first")), offered())
    assert first.convention != second.convention
    assert_causal(second)


def test_it_can_be_copied_after_use_saved_and_loaded(tmp_path):
    mixer = build_foreign(user_file(tmp_path, MULTI_HEAD_BLOCK), offered(n_heads=5))
    mixer(inputs()).sum().backward()
    twin = copy.deepcopy(mixer)
    assert all(name.startswith("module.") for name in twin.state_dict())
    assert twin.module.w_q.weight.data_ptr() != mixer.module.w_q.weight.data_ptr()
    with torch.no_grad():
        twin.module.w_q.weight.add_(1.0)
    twin.load_state_dict(mixer.state_dict())
    torch.testing.assert_close(twin(inputs()), mixer(inputs()))
    assert adapt(mixer.module, d_model=D_MODEL, causal=True).convention == mixer.convention


def test_many_seeds_at_once_equal_one_by_one(tmp_path):
    name = user_file(tmp_path, one_head("(x, mask)", "bool keep", "channels-first"))
    mixers = [build_foreign(name, offered()) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(mixers)
    x = inputs()

    def run(own: dict[str, torch.Tensor], own_buffers: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(mixers[0], (own, own_buffers), (x,))

    together = torch.vmap(run)(parameters, buffers)
    torch.testing.assert_close(together, torch.stack([mixer(x) for mixer in mixers]))


def test_the_convention_prints_in_one_line(tmp_path):
    mixer = build_foreign(user_file(tmp_path, MULTI_HEAD_BLOCK), offered(n_heads=5))
    shapes = "(batch, 1, q_len, k_len) over pairs or (batch, 1, 1, k_len) over keys"
    line = f"forward(q; k; v; mask: bool, True = may attend, {shapes}), batch-first"
    assert str(mixer.convention) == line
    assert line in repr(mixer)


def test_only_optional_memories_wait_for_one(tmp_path):
    body = "y = x if context is None else context; return self.linear((x @ y.transpose(1, 2)).softmax(-1) @ y)"
    mixer = build_foreign(user_file(tmp_path, forward_only(body, "x, context=None")), offered(causal=False))
    memory = inputs(seed=7, length=13)
    torch.testing.assert_close(mixer(inputs(), memory), mixer.module(inputs(), memory))
    torch.testing.assert_close(mixer(inputs()), mixer.module(inputs()))


def test_the_first_model_with_a_module_starts_as_all_later_ones(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        "    def __init__(self, d_model):\n"
        "        super().__init__()\n"
        "        self.attention = nn.MultiheadAttention(d_model, 2, batch_first=True)\n"
        "    def forward(self, x, mask=None):\n"
        "        return self.attention(x, x, x, attn_mask=mask)[0]\n"
    )

    def build_it():
        return build_foreign(f"{file}:Own", {"d_model": 8, "causal": True})

    first, later = (drawn_by_name(build_it, 3).state_dict() for _ in range(2))  # how to call it is learned at the first
    assert all(torch.equal(first[name], later[name]) for name in later)
