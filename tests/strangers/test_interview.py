"""How a module is called: signatures, widths, lengths, outputs, kinds, and what it is meant to see."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from attnlab.core.errors import ModuleError
from attnlab.doctor import doctor
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.sources import Argument
from attnlab.strangers.loading.loading import load
from attnlab.strangers.patient import Declared, Patient
from attnlab.strangers.trying.interview import interview
from attnlab.strangers.trying.trial import Trial, sight_of

HEADER = "import math, torch\nimport torch as t\nimport torch.nn.functional as F\nfrom torch import nn\n\n"

ONE_HEAD = """
class {name}(nn.Module):
    {docstring}
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, {signature}):
        {unpack}
        q, k, v = self.q(a), self.k(b), self.v(c)
        s = q @ k.transpose(1, 2) / math.sqrt(q.size(-1))
        {mask}
        out = s.softmax(-1) @ v
        return {returned}
"""
SEEN_BY_ALL = "pass"
SEEN_BEFORE = "s = s.masked_fill(torch.ones(s.shape[1:]).triu(1).bool(), float('-inf'))"


def one_head(
    signature: str = "x",
    *,
    unpack: str = "a = b = c = x",
    mask: str = SEEN_BY_ALL,
    returned: str = "out",
    name: str = "Mine",
    docstring: str = "",
) -> str:
    docstring = f'"""{docstring}"""\n' if docstring else "\n"
    text = ONE_HEAD.format(
        name=name, docstring=docstring, signature=signature, unpack=unpack, mask=mask, returned=returned
    )
    return HEADER + text


def asked(
    folder: Path, text: str, name: str = "Mine", *, causal: bool | None = None, **arguments: object
) -> Convention:
    path = folder / "mine.py"
    path.write_text(text)
    return interview(replace(load(f"{path}:{name}", arguments), declared=Declared(causal)))


@pytest.mark.parametrize(
    ("signature", "unpack", "called"),
    [
        ("x", "a = b = c = x", "forward(x)"),
        ("q, k, v", "a, b, c = q, k, v", "forward(q; k; v)"),
        ("values, keys, query", "a, b, c = query, keys, values", "forward(values; keys; query)"),
        ("query, key=None, value=None", "a = b = c = query", "forward(query)"),
        ("hidden_states, output_attentions=False, **kwargs", "a = b = c = hidden_states", "forward(hidden_states)"),
        ("x, *, use_cache=False", "a = b = c = x", "forward(x)"),
        ("x, need_weights=True", "assert not need_weights; a = b = c = x", "forward(x; need_weights=False)"),
        ("x, past, debug", "assert past is None and not debug; a = b = c = x", "forward(x; past=None; debug=False)"),
        ("x, start_pos", "assert start_pos == 0; a = b = c = x", "forward(x; start_pos=0)"),
        ("x, seq_len", "assert seq_len == x.size(1); a = b = c = x", "forward(x; seq_len=the length)"),
        ("a, b", "c = b", "forward(a; b)"),
        ("x, odd", "assert odd is None; a = b = c = x", "forward(x; odd=None)"),
        ("x, context=None", "a = x; b = c = x if context is None else context", "forward(x)"),
        ("x, context", "a, b, c = x, context, context", "forward(x; context)"),
        ("*inputs", "a = b = c = inputs[0]", "forward(x)"),
        ("x, mask", "assert mask is None; a = b = c = x", "forward(x; mask=None); left out, as it takes no mask given"
         " there: mask"),
    ],
)  # fmt: skip
def test_every_signature_is_called(tmp_path, signature, unpack, called):
    convention = asked(tmp_path, one_head(signature, unpack=unpack))
    assert convention.assumptions["called as"] == called
    assert (convention.kind, convention.takes, convention.layout) == ("layer", "embeddings", "batch-first")
    assert (convention.d_in, convention.d_out) == (64, 64)


ROTARY = "r = lambda u: u * cos + torch.cat([-u[..., u.size(-1) // 2:], u[..., :u.size(-1) // 2]], -1) * sin"


@pytest.mark.parametrize(
    ("signature", "unpack", "source"),
    [
        ("x, position_embeddings", f"cos, sin = position_embeddings; {ROTARY}; a = b = r(x); c = x", "cos and sin"),
        ("x, cos, sin", f"{ROTARY}; a = b = r(x); c = x", "cos"),
        ("x, freqs_cis",
         "u = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * freqs_cis).flatten(-2);"
         " a = b = u; c = x", "turns"),
        ("x, position_ids", "a = b = c = x + position_ids[0][:, None]", "positions of each"),
        ("x, positions=None", "a = b = c = x + positions[:, None] * 0.1", "positions"),
    ],
)  # fmt: skip
def test_positions_are_handed_over_where_they_are_asked_for(tmp_path, signature, unpack, source):
    convention = asked(tmp_path, one_head(signature, unpack=unpack), heads=1)
    assert source in {one.source for one in convention.arguments}


def test_a_decoder_gets_a_memory_of_its_own_and_bare_cross_attention_itself(tmp_path):
    decoder = asked(tmp_path, one_head("x, memory", unpack="a = b = c = x + memory.mean(1, keepdim=True)"))
    assert [one.source for one in decoder.arguments] == ["x", "memory"]
    cross = asked(tmp_path, one_head("x, memory", unpack="a = x; b = c = memory"))
    assert [one.source for one in cross.arguments] == ["x", "x"]


@pytest.mark.parametrize(
    ("returned", "key"),
    [("out", None), ("(out, s)", 0), ("(s, out)", 1), ("{'w': s, 'out': out}", "out"), ("(None, out)", 1)],
)
def test_the_output_is_told_from_the_weights(tmp_path, returned, key):
    assert asked(tmp_path, one_head(returned=returned)).output == key


def test_pooled_outputs_and_single_numbers_are_outputs(tmp_path):
    pooled = asked(tmp_path, one_head(returned="out.mean(1)[:, :5]"))
    assert (pooled.pooled, pooled.d_out, pooled.causal) == (True, 5, None)
    assert asked(tmp_path, one_head(returned="out.sum(-1)")).d_out == 1


@pytest.mark.parametrize(
    ("body", "width"),
    [
        ("self.map = nn.Linear(24, 24)", 24),
        ("self.map = nn.Sequential(nn.LayerNorm(40), nn.Linear(40, 8))", 40),
        ("self.w = nn.Parameter(torch.randn(3, 36, 12)); self.map = lambda x: t.einsum('btd,hde->bte', x, self.w)", 36),
    ],
)  # fmt: skip
def test_a_width_nobody_names_is_found_among_the_parameters(tmp_path, body, width):
    text = HEADER + (
        f"class Mine(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {body}\n"
        "    def forward(self, x):\n        return self.map(x)\n"
    )
    assert asked(tmp_path, text).d_in == width


TOKENS = (
    HEADER
    + """
class Mine(nn.Module):
    def __init__(self, vocab_size={vocab}, dim=16, block_size={size}):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab_size, dim), nn.Embedding(block_size, dim)
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, {signature}):
        {unpack}
        logits = self.head(self.embed(x) + self.place(torch.arange(x.size(1))))
        return logits, None
"""
)


@pytest.mark.parametrize("name", ["idx", "x", "input_ids", "src"])
@pytest.mark.parametrize("size", [8, 64, 300])
def test_a_token_model_is_called_with_tokens_up_to_its_longest_length(tmp_path, name, size):
    text = TOKENS.format(vocab=19, size=size, signature=f"{name}, targets=None", unpack=f"x = {name}")
    convention = asked(tmp_path, text)
    assert (convention.kind, convention.takes, convention.d_in, convention.d_out) == ("model", "tokens", 0, 19)
    assert (convention.vocab_size, convention.longest, convention.any_length) == (19, size, True)
    assert convention.length <= size


def test_a_module_of_one_length_is_called_at_that(tmp_path):
    text = HEADER + (
        "class Mine(nn.Module):\n    def __init__(self, dim, seq_len=13):\n        super().__init__()\n"
        "        self.mix, self.norm = nn.Linear(seq_len, seq_len), nn.LayerNorm(dim)\n"
        "    def forward(self, x):\n        return x + self.mix(self.norm(x).transpose(1, 2)).transpose(1, 2)\n"
    )
    convention = asked(tmp_path, text)
    assert (convention.length, convention.longest, convention.any_length, convention.d_in) == (13, 13, False, 64)


def test_a_module_that_wants_a_multiple_of_a_window_is_called_with_one(tmp_path):
    convention = asked(tmp_path, one_head(unpack="assert x.size(1) % 4 == 0; a = b = c = x"))
    assert (convention.length, convention.any_length) == (12, False)


def test_a_recurrence_whose_state_is_for_one_sample_is_called_at_the_length_its_comment_says(tmp_path):
    text = HEADER + (
        "class Mine(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.lstm, self.out = nn.LSTM(30, 16), nn.Linear(16, 30)\n"
        "        self.h = [torch.zeros(1, 1, 16)] * 2\n"
        "    def forward(self, x):  # x: [bs, 1, 30]\n        return self.out(self.lstm(x, self.h)[0])\n"
    )
    convention = asked(tmp_path, text)
    assert (convention.layout, convention.d_in, convention.length) == ("batch-first", 30, 1)


# What it is meant to see


@pytest.mark.parametrize(
    ("name", "docstring", "mask", "expected"),
    [
        ("Mine", "", SEEN_BEFORE, (True, "its source", "always")),
        ("Mine", "", "s = s - s.detach().triu(1) * 1e9 if True else s", (True, "its source", "nothing")),
        ("Mine", "", SEEN_BY_ALL, (False, "its behaviour", "nothing")),
        ("CausalMine", "", SEEN_BY_ALL, (True, "its name", "nothing")),
        ("Mine", "Causal self-attention.", SEEN_BY_ALL, (True, "its docstring", "nothing")),
        ("Mine", "Bidirectional attention.", SEEN_BEFORE, (False, "its docstring", "always")),
        ("Mine", "Non-causal attention.", SEEN_BY_ALL, (False, "its docstring", "nothing")),
        ("MyDecoder", "", SEEN_BY_ALL, (False, "its behaviour", "nothing")),
        ("MyEncoder", "", SEEN_BY_ALL, (False, "its name", "nothing")),
        ("MyEncoder", "", SEEN_BEFORE, (True, "its behaviour", "always")),
        ("MyEncoder", "Causal, for streaming.", SEEN_BEFORE, (True, "its docstring", "always")),
        ("MaskedLM", "", SEEN_BY_ALL, (False, "its name", "nothing")),
    ],
)
def test_what_is_said_counts_before_behaviour(tmp_path, name, docstring, mask, expected):
    convention = asked(tmp_path, one_head(name=name, docstring=docstring, mask=mask), name)
    assert (convention.causal, convention.causal_by, convention.causal_means) == expected


def test_the_person_s_flag_counts_first(tmp_path):
    text = one_head(name="CausalMine", mask=SEEN_BEFORE)
    assert asked(tmp_path, text, "CausalMine", causal=False).causal is False
    assert asked(tmp_path, text, "CausalMine", causal=False).causal_by == "--not-causal"
    assert asked(tmp_path, text, "CausalMine", causal=True).causal_by == "--causal"


def test_a_window_on_both_sides_is_bidirectional_and_one_to_the_right_is_unclear(tmp_path):
    window = "i = torch.arange(s.size(1)); d = i[:, None] - i; s = s.masked_fill({}, float('-inf'))"
    both = asked(tmp_path, one_head(mask=window.format("d.abs() > 2")))
    assert (both.causal, both.causal_by) == (False, "its behaviour")
    right = asked(tmp_path, one_head(mask=window.format("d < -1")))
    assert right.causal is None


def test_a_leak_far_below_the_signal_is_still_meant_to_be_causal(tmp_path):
    leaking = "i = torch.arange(s.size(1)); s = s.masked_fill(i > i[:, None], -9.0)"
    convention = asked(tmp_path, one_head(mask=leaking))
    assert (convention.causal, convention.causal_means) == (True, "always")


@pytest.mark.parametrize("flag", ["is_causal=False", "causal=True", "use_causal_mask"])
def test_a_flag_that_makes_it_causal_is_found(tmp_path, flag):
    name = flag.partition("=")[0]
    mask = f"if {name}: i = torch.arange(s.size(1)); s = s.masked_fill(i > i[:, None], float('-inf'))"
    convention = asked(tmp_path, one_head(f"x, {flag}", mask=mask))
    assert (convention.flag, convention.causal_means) == (name, "flag")


@pytest.mark.parametrize("hidden", ["i > i[:, None] + 2", "i < i[:, None]"])
def test_a_flag_that_asks_to_be_causal_means_it_where_the_mask_is_wrong(tmp_path, hidden):
    mask = "i = torch.arange(s.size(1)); s = s.masked_fill(({}) & {}, float('-inf'))"
    convention = asked(tmp_path, one_head("x, causal=False", mask=mask.format(hidden, "causal")))
    assert (convention.causal, convention.causal_means, convention.flag) == (True, "flag", "causal")
    other = asked(tmp_path, one_head("x, use_mask=False", mask=mask.format(hidden, "use_mask")))
    assert other.causal is not True


def test_a_mask_that_makes_it_causal_is_found(tmp_path):
    mask = "if mask is not None: s = s.masked_fill(mask, float('-inf'))"
    convention = asked(tmp_path, one_head("x, mask=None", mask=mask, name="GPTAttention"), "GPTAttention")
    assert (convention.causal, convention.causal_means) == (True, "mask")


# Kinds


BLOCK = (
    HEADER
    + """
class {name}(nn.Module):
    {docstring}
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_heads, batch_first=True)
        {parts}

    def forward(self, x):
        {body}
        return x
"""
)
ATTEND = "h = self.attn(x, x, x)[0]; x = x + h"
FEED = "self.ff = nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.ReLU(), nn.Linear(2 * d_model, d_model))"
NORM = "self.norm = nn.LayerNorm(d_model)"


@pytest.mark.parametrize(
    ("name", "parts", "body", "kind"),
    [
        ("Mixer", "pass", "x = self.attn(x, x, x)[0]", "layer"),
        ("AttentionBlock", "pass", "x = self.attn(x, x, x)[0]", "layer"),
        ("AttentionLayer", NORM, "x = self.norm(x); x = self.attn(x, x, x)[0]", "layer"),
        ("Block", FEED, f"{ATTEND}; x = x + self.ff(x)", "block"),
        ("Mine", f"{FEED}; {NORM}", f"{ATTEND}; x = self.norm(x + self.ff(x))", "block"),
        ("Mine", NORM, "att = self.attn(x, x, x)[0]; x = self.norm(x + att)", "block"),
        ("ResidualAttention", "self.out = nn.Linear(d_model, d_model)", f"{ATTEND}; x = self.out(x).relu()", "block"),
        ("EncoderLayer", FEED, f"{ATTEND}; x = self.ff(x)", "block"),
    ],
)
def test_kinds_are_told_by_names_and_parts(tmp_path, name, parts, body, kind):
    text = BLOCK.format(name=name, docstring="", parts=parts, body=body)
    assert asked(tmp_path, text, name).kind == kind


def test_several_blocks_are_a_model_and_several_experts_or_heads_are_not(tmp_path):
    stack = (
        "self.layers = nn.ModuleList(nn.TransformerEncoderLayer(d_model, n_heads, batch_first=True) for _ in range(2))"
    )
    text = BLOCK.format(name="Mine", docstring="", parts=stack, body="for layer in self.layers: x = layer(x)")
    assert asked(tmp_path, text).kind == "model"
    one = "nn.Sequential(nn.Linear(d_model, 8), nn.Linear(8, d_model))"
    experts = f"{NORM}; self.experts = nn.ModuleList({one} for _ in range(2))"
    body = f"{ATTEND}; x = x + sum(e(self.norm(x)) for e in self.experts)"
    assert asked(tmp_path, BLOCK.format(name="Mine", docstring="", parts=experts, body=body)).kind == "block"


# Errors and side effects


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            one_head("x, graph", unpack="a = b = c = x + graph.nodes"),
            "forward requires 'graph'.* give 'graph' a default",
        ),
        (
            one_head(unpack="a = b = c = x + self.missing"),
            "AttributeError: .* no attribute 'missing' .mine.py, line 16",
        ),
        (one_head(returned="out[:1, ::2]"), r"returned \(1, 6, 64\) for an input \(3, 11, 64\)"),
        (one_head(returned="out.mean()"), r"returned \(\) for an input"),
        (one_head(returned="None"), "returned None"),
        (one_head("", unpack="a = b = c = 0"), "forward takes no input"),
    ],
)
def test_what_cannot_be_called_is_said_in_one_sentence(tmp_path, text, message):
    with pytest.raises(ModuleError, match=message) as caught:
        asked(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert "mine.py:Mine" in str(caught.value)


def test_nothing_is_left_behind(tmp_path):
    text = one_head(unpack="self.seen = x; a = b = c = x + torch.rand(1) * 0", mask="s = s + torch.randn(1)")
    path = tmp_path / "mine.py"
    path.write_text(text)
    patient = load(f"{path}:Mine")
    before = {name: value.clone() for name, value in patient.module.state_dict().items()}
    torch.manual_seed(17), random.seed(19), np.random.seed(23)
    expected = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    interview(patient)
    assert torch.equal(torch.get_rng_state(), expected[0])
    assert random.getstate() == expected[1]
    assert np.array_equal(np.random.get_state()[1], expected[2])
    assert patient.module.training
    assert not hasattr(patient.module, "seen")
    assert all(torch.equal(value, before[name]) for name, value in patient.module.state_dict().items())


def test_one_call_does_not_see_another(tmp_path):
    text = one_head(unpack="old = getattr(self, 'old', 0); self.old = x.mean(); a = b = c = x + old", mask=SEEN_BEFORE)
    assert asked(tmp_path, text).causal_means == "always"


def test_an_output_that_starts_at_zero_hides_nothing(tmp_path):
    text = one_head(returned="out * self.gate").replace(
        "super().__init__()", "super().__init__(); self.gate = nn.Parameter(torch.zeros(()))"
    )
    assert asked(tmp_path, text).causal is False


# Modules of libraries


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("layer", [nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
def test_torchs_own_layers_say_their_layout_themselves(layer, batch_first):
    convention = interview(load(layer, {"batch_first": batch_first}))
    assert convention.layout == ("batch-first" if batch_first else "sequence-first")
    assert convention.pair_mask is not None
    assert convention.key_mask is not None
    assert (convention.pair_mask.encoding, convention.key_mask.encoding) == ("bool, True = blocked",) * 2
    assert convention.pair_mask.obeyed
    assert convention.key_mask.obeyed
    assert (convention.key_mask.declared, convention.key_mask.declared_by) == ("True blocks", "its name")


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize(
    ("family", "name", "kind", "causal"),
    [
        ("gpt2", "GPT2Attention", "layer", True),
        ("gpt2", "GPT2Block", "block", True),
        ("bert", "BertSelfAttention", "layer", False),
        ("bert", "BertLayer", "block", False),
        ("llama", "LlamaAttention", "layer", True),
        ("llama", "LlamaDecoderLayer", "block", True),
        ("t5", "T5Attention", "layer", False),
        ("t5", "T5LayerSelfAttention", "layer", False),
        ("t5", "T5Block", "block", False),
        ("gpt2", "GPT2LMHeadModel", "model", True),
    ],
)
def test_hugging_face_s_own_classes_are_called(family, name, kind, causal):
    module = __import__(f"transformers.models.{family}.modeling_{family}", fromlist=[name])
    convention = interview(load(getattr(module, name)))
    assert (convention.kind, convention.causal, convention.layout) == (kind, causal, "batch-first")
    assert convention.key_mask is not None
    assert convention.key_mask.obeyed
    assert convention.causal_means == (
        "nothing" if not causal and convention.pair_mask is None else "always" if kind == "model" else "mask"
    )


def test_undeclared_the_layout_is_the_one_in_which_samples_do_not_meet(tmp_path):
    text = (
        HEADER + "class Mine(nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
        "        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))\n\n"
        "    def forward(self, x, mask=None):\n"
        "        scores = torch.einsum('ibd,jbd->ijb', self.q(x), self.k(x))\n"
        "        if mask is not None:\n            scores = scores.masked_fill(mask[:, :, None], float('-inf'))\n"
        "        return torch.einsum('ijb,jbd->ibd', scores.softmax(1), self.v(x))\n"
    )
    convention = asked(tmp_path, text)
    assert convention.layout == "sequence-first"
    assert not convention.layout_by
    assert convention.assumptions["layout"] == ("sequence first (undeclared: batch first samples would see each other)")
    (mask,) = convention.masks
    assert (mask.over, mask.encoding, mask.obeyed) == ("pairs", "bool, True = blocked", True)
    declared = asked(tmp_path, text.replace("mask=None):", "mask=None):  # x: (batch, length, dim)"))
    assert declared.layout == "batch-first"


def test_a_module_whose_train_returns_nothing_is_called():
    class Silent(nn.Linear):
        def train(self, mode=True):
            super().train(mode)

    assert interview(Patient("it", Silent(24, 24), None, {}, "", "")).d_out == 24


SWITCHED = """
import torch
from torch import nn

class CausalMixing(nn.Module):
    def __init__(self, dim, {switch}):
        super().__init__()
        self.qk, self.v, self.switch = nn.Linear(dim, dim), nn.Linear(dim, dim), {value}

    def forward(self, x):
        q = self.qk(x)
        scores = q @ x.mT
        if self.switch:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, float("-inf"))
        return scores.softmax(-1) @ self.v(x)
"""


@pytest.mark.parametrize(
    ("switch", "value", "expected"),
    [
        ("of_decoder: bool", "of_decoder", (False, "its argument of_decoder=False")),
        ("of_decoder: bool", "False", (True, "its name")),  # no argument of its makes it causal
        ("of_decoder: bool", "not of_decoder", (True, "its name")),
    ],
)
def test_what_a_name_says_is_said_of_the_case_in_which_an_argument_is_on(tmp_path, switch, value, expected):
    convention = asked(tmp_path, SWITCHED.format(switch=switch, value=value), "CausalMixing")
    assert (convention.causal, convention.causal_by) == expected


class OfRows(nn.Module):
    """Attention within the 16 rows of an image, laid one behind the other."""

    def forward(self, x):
        rows = x.unflatten(1, (16, 24))
        return ((rows @ rows.mT).softmax(-1) @ rows).flatten(1, 2)


def test_rows_of_an_image_that_see_themselves_alone_are_not_causal():
    alone = Convention("layer", "embeddings", 8, 8, length=16 * 24, arguments=(Argument("x", "x", by_name=False),))
    assert sight_of(Trial(OfRows()), alone) == "all"


LEARNED_FROM_THE_FIRST_BATCH = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.size, self.map = nn.Parameter(torch.empty(dim)), nn.Linear(dim, dim)
        self.register_buffer("begun", torch.zeros(1))

    def forward(self, x):
        if {condition}:
            self.size.data.copy_(x.abs().mean((0, 1)))
            self.begun.fill_(1)
        return x + self.map(x / self.size)
"""


@pytest.mark.parametrize("condition", ["self.training and self.begun == 0", "False"])
def test_what_a_first_call_in_training_mode_fills_is_initialized(tmp_path, condition):
    (tmp_path / "mine.py").write_text(LEARNED_FROM_THE_FIRST_BATCH.format(condition=condition))
    diagnosis = doctor(f"{tmp_path}/mine.py:Mine")
    told = [error.message for error in diagnosis.errors if "never initialized" in error.message]
    assert len(told) == (condition == "False")
    assert ("started by a call" in diagnosis.assumptions["sizes"]) is not bool(told)
