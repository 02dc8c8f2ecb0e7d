"""Residual paths: every right arrangement passes, a missing or doubled identity path is found."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.doctor.bedside import Attention, D, examine
from torch import nn
from torch.nn import functional as F

from attnlab.doctor import doctor
from attnlab.doctor.checks.residual import check_residual
from attnlab.doctor.measures.identity import INPUT, follow


def by_hand(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Parts(nn.Module):
    """A block whose wiring is a function of it and its input."""

    def __init__(self, wiring):
        super().__init__()
        torch.manual_seed(11)
        self.wiring = wiring
        self.attention, self.gate = Attention(), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.alpha = nn.Parameter(torch.zeros(()))

    def a(self, x):
        return self.attention(x)

    def f(self, x):
        return self.down(F.gelu(self.up(x)))

    def forward(self, x):
        return self.wiring(self, x)


def chain(*steps):
    def wiring(b, x):
        for step in steps:
            x = step(b, x)
        return x

    return wiring


def in_place(b, x):
    x = x.clone()
    x += b.a(b.n1(x))
    x += b.f(b.n2(x))
    return x


def aliased(b, x):
    x = x.clone()
    kept = x
    x += b.a(b.n1(x))
    return kept + x + b.f(b.n2(x))


def highway(b, x):
    g = torch.sigmoid(b.gate(x))
    return chain(lambda b, x: g * x + (1 - g) * b.a(x), feed)(b, x)


def attend(b, x):
    return x + b.a(b.n1(x))


def feed(b, x):
    return x + b.f(b.n2(x))


def reversible(b, x):
    first, second = x.chunk(2, -1)
    return torch.cat([first + b.a(x)[..., : D // 2], second + b.f(x)[..., : D // 2]], -1)


RIGHT = {
    "pre-norm": chain(attend, feed),
    "post-norm": chain(lambda b, x: b.n1(x + b.a(x)), lambda b, x: b.n2(x + b.f(x))),
    "parallel": lambda b, x: x + b.a(b.n1(x)) + b.f(b.n1(x)),
    "sandwich": chain(lambda b, x: x + b.n2(b.a(b.n1(x))), lambda b, x: x + b.n2(b.f(b.n1(x)))),
    "ReZero": chain(lambda b, x: x + b.alpha * b.a(x), lambda b, x: x + b.alpha * b.f(x)),
    "DeepNorm": chain(lambda b, x: b.n1(1.7 * x + b.a(x)), lambda b, x: b.n2(x * 1.7 + b.f(x))),
    "highway": highway,
    "lerp": chain(lambda b, x: torch.lerp(x, b.a(x), torch.sigmoid(b.alpha)), feed),
    "halved": chain(lambda b, x: (x + b.a(b.n1(x))) * 0.5**0.5, lambda b, x: (x + b.f(b.n2(x))) / 2**0.5),
    "one skip over both": lambda b, x: x + b.f(b.a(b.n1(x))),
    "norm by hand": chain(lambda b, x: by_hand(x + b.a(x)), lambda b, x: by_hand(x + b.f(x))),
    "stacked and summed": lambda b, x: torch.stack([x, b.a(b.n1(x)), b.f(b.n2(x))]).sum(0),
    "in place": in_place,
    "transposed": lambda b, x: (x.transpose(0, 1) + b.f(b.a(b.n1(x))).transpose(0, 1)).transpose(0, 1),
    "masked": chain(attend, lambda b, x: (x + b.f(b.n2(x))).masked_fill(torch.zeros(1, 1, 1, dtype=torch.bool), 0.0)),
    "subtracted": chain(lambda b, x: x - b.a(b.n1(x)), feed),
    "reversible": reversible,
    "one skip more around": lambda b, x: x + b.gate(feed(b, attend(b, x))),
}

MISSING = {
    "no skip at all": lambda b, x: b.f(b.a(x)),
    "sum under a linear layer": lambda b, x: F.relu(b.gate(F.gelu(b.gate(x + b.a(x))))),
    "no skip around the feed-forward": chain(attend, lambda b, x: b.f(b.n2(x))),
    "no skip around the attention": chain(lambda b, x: b.a(b.n1(x)), feed),
    "sum under a rectifier": chain(attend, lambda b, x: F.relu(x + b.f(b.n2(x)))),
    "multiplied instead of added": chain(lambda b, x: x * b.a(b.n1(x)), feed),
    "skip times zero": chain(attend, lambda b, x: x * 0.0 + b.f(b.n2(x))),
    "norm and linear layer behind the sum": chain(attend, lambda b, x: b.gate(b.n2(x + b.f(x)))),
}

TWICE = {
    "x + (x + f)": chain(attend, lambda b, x: x + (x + b.f(b.n2(x)))),
    "the sublayer adds its own normed input": chain(lambda b, x: (n := b.n1(x), x + (n + b.a(n)))[1], feed),
    "before a norm": chain(lambda b, x: b.n1(x + (x + b.a(x))), lambda b, x: b.n2(x + b.f(x))),
    "through an alias": aliased,
}


def judge(wiring, kind="block", text="a block"):
    return list(check_residual(examine(Parts(wiring), kind=kind, text=text)))


@pytest.mark.parametrize("name", RIGHT)
def test_right_wirings_pass(name):
    assert judge(RIGHT[name]) == []


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_path_is_an_error(name):
    (finding,) = judge(MISSING[name])
    assert (finding.check, finding.severity) == ("residual", "error")
    assert "no identity path" in finding.message


@pytest.mark.parametrize("name", TWICE)
def test_a_doubled_path_is_an_error(name):
    (finding,) = judge(TWICE[name])
    assert finding.severity == "error"
    assert "adds its input twice" in finding.message


def centred(x):
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)


def test_a_summary_that_is_added_is_no_mean_that_is_taken_off():
    def summed(b, x):
        summary = (x[..., :1].softmax(1) * b.a(x)).sum(1, keepdim=True)
        x = b.n1(x + summary)
        return b.n2(x + b.f(x))

    assert judge(summed) == []


@pytest.mark.parametrize("written_out", [False, True])
def test_a_skip_behind_the_norm_is_a_warning(written_out):
    def wiring(b, x):
        x = centred(x) if written_out else b.n1(x)
        x = x + b.a(x)
        return x + b.f(b.n2(x))

    (finding,) = judge(wiring)
    assert finding.severity == "warning"
    assert f"starts behind the norm{'' if written_out else ' (n1)'}, not at" in finding.message


@pytest.mark.parametrize("norm", ["a layer", "written out", "none"])
def test_a_sum_that_starts_from_the_input_again_is_a_warning(norm):
    norms = {"a layer": lambda b, x: b.n2(x), "written out": lambda b, x: centred(x), "none": lambda b, x: x}
    (finding,) = judge(lambda b, x: x + b.f(norms[norm](b, attend(b, x))))
    assert finding.severity == "warning"
    assert "starts from the input again" in finding.message


class ConvolutionsAndState(nn.Module):
    """An encoder that ends in a recurrence; what it adds stands within."""

    def __init__(self):
        super().__init__()
        self.up, self.conv = nn.Linear(D, 2 * D), nn.Conv1d(2 * D, 2 * D, 3, padding=1)
        self.rnn = nn.GRU(2 * D, D, batch_first=True)

    def forward(self, x):
        x = F.relu(self.up(x))
        return self.rnn(x + F.relu(self.conv(x.mT).mT))[0]


def test_what_a_state_carries_on_needs_no_skip():
    assert list(check_residual(examine(ConvolutionsAndState(), kind="block", text="an encoder"))) == []


def test_bare_attention_needs_no_skip():
    assert list(check_residual(examine(Attention()))) == []
    assert judge(lambda b, x: b.a(x), kind="layer") == []


class ScoresAlone(Attention):
    """Attention with residual scores, those of the layer before."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Identity()

    def forward(self, x, mask=None):
        return (x @ x.mT).softmax(-1) @ x


def test_a_step_without_weights_needs_no_skip_whatever_is_residual():
    assert list(check_residual(examine(ScoresAlone()))) == [] != list(check_residual(examine(ClaimsASkip())))


class ClaimsASkip(ScoresAlone):
    """Attention with a residual connection."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, D)

    def forward(self, x, mask=None):
        return super().forward(self.qkv(x))


class ResidualAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.linear = Attention(), nn.Linear(D, D)

    def forward(self, x):
        return F.relu(self.linear(x + self.attention(x)))


def test_a_layer_that_claims_a_skip_or_tries_one_is_asked():
    class Plain(ResidualAttention):
        """Attention."""

    for kind in (ResidualAttention, Plain):
        (finding,) = check_residual(examine(kind(), text=""))
        assert "the sum with its input goes through a linear layer in 'linear'" in finding.message


class Block(nn.Module):
    def __init__(self, wiring):
        super().__init__()
        self.inner = Parts(wiring)

    def forward(self, x):
        return self.inner(x)


class Model(nn.Module):
    def __init__(self, wiring):
        super().__init__()
        self.embed, self.head = nn.Embedding(17, D), nn.Linear(D, 17)
        self.blocks = nn.ModuleList(Block(wiring) for _ in range(2))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_the_blocks_of_a_model_are_asked_once_per_class():
    convention = {"kind": "model", "takes": "tokens", "d_in": 0, "d_out": 17, "vocab_size": 17}
    (finding,) = check_residual(examine(Model(MISSING["no skip at all"]), **convention))
    assert finding.message.startswith("Block (blocks.0) has no identity path")
    assert list(check_residual(examine(Model(RIGHT["pre-norm"]), **convention))) == []


class Stufe(Block):
    """A step of a model, by a name that says nothing."""


class Added(Model):
    """Adds what each of its parts gives to what that was given."""

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@pytest.mark.parametrize(("kind", "wiring", "found"), [(Model, "no skip at all", 1), (Added, "no skip at all", 0)])
def test_parts_of_one_class_that_follow_each_other_are_blocks_whatever_they_are_called(kind, wiring, found):
    model = kind(MISSING[wiring])
    model.blocks = nn.ModuleList(Stufe(MISSING[wiring]) for _ in range(3))
    convention = {"kind": "model", "takes": "tokens", "d_in": 0, "d_out": 17, "vocab_size": 17}
    assert len(list(check_residual(examine(model, **convention)))) == found


class OverPixels(nn.Module):
    """A block over images, (batch, height, width, features)."""

    def __init__(self, wiring):
        super().__init__()
        self.inner = Parts(wiring)

    def forward(self, x):
        return self.inner(x.flatten(1, 2)).view(x.shape)


@pytest.mark.parametrize(("wiring", "found"), [(chain(attend, feed), 0), (MISSING["no skip at all"], 1)])
def test_a_block_over_images_needs_a_skip_too(wiring, found):
    how = {"kind": "block", "layout": "image, channels last", "length": 16}
    assert len(list(check_residual(examine(OverPixels(wiring), **how)))) == found


class Around(nn.Module):
    """One skip around a row of parts, which need none of their own then."""

    def __init__(self, skip):
        super().__init__()
        self.skip = skip
        self.blocks = nn.ModuleList(Stufe(MISSING["no skip at all"]) for _ in range(3))

    def forward(self, x):
        behind = x
        for block in self.blocks:
            behind = block(behind)
        return x + behind if self.skip else behind


@pytest.mark.parametrize(("skip", "found"), [(True, 0), (False, 1)])
def test_parts_in_a_row_with_a_skip_around_them_need_none(skip, found):
    assert len(list(check_residual(examine(Around(skip), kind="model")))) == found


class DecoderOfTokens(nn.Module):
    """Adds what it sees of a memory to its own tokens."""

    def __init__(self):
        super().__init__()
        self.embed, self.attend = nn.Embedding(17, D), nn.MultiheadAttention(D, 2, batch_first=True)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, tokens, memory):
        x = self.embed(tokens)
        x = x + self.attend(x, memory, memory)[0]
        return x + self.down(F.relu(self.up(x)))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.decoder, self.head = nn.Embedding(17, D), DecoderOfTokens(), nn.Linear(D, 17)

    def forward(self, tokens):
        return self.head(self.decoder(tokens, self.embed(tokens)))


def test_what_is_looked_at_beside_tokens_needs_no_path():
    convention = {"kind": "model", "takes": "tokens", "d_in": 0, "d_out": 17, "vocab_size": 17}
    assert list(check_residual(examine(Translator(), **convention))) == []


class MoELayer(nn.Module):
    """A feed-forward that mixes positions, as where experts have a capacity, copied for a call."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        return self.down(F.relu(copy.deepcopy(self.up)(x.cumsum(1))))


def test_experts_are_a_part_of_a_block_whatever_they_mix():
    model = Model(RIGHT["pre-norm"])
    model.blocks.append(MoELayer())
    convention = {"kind": "model", "takes": "tokens", "d_in": 0, "d_out": 17, "vocab_size": 17}
    assert list(check_residual(examine(model, **convention))) == []


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_layer_of_torch_passes(norm_first):
    layer = nn.TransformerEncoderLayer(D, 2, 2 * D, batch_first=True, norm_first=norm_first)
    assert list(check_residual(examine(layer, kind="block", text=""))) == []


def test_the_trail_counts_what_is_in_front_of_the_input():
    exam = examine(Parts(chain(lambda b, x: 0.5 * x + 0.25 * x + b.a(x))), text="")
    output = follow(exam.usual_tape, exam.inputs()).output
    assert output.shares == {INPUT: 0.75}
    assert output.doubled is None


CLAIMING = """
from torch import nn

class Mine(nn.Module):
    \"\"\"Attention with prenorm residual units.\"\"\"
    def __init__(self, dim):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return self.out((q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v)
"""
AROUND = "from torch import nn\nfrom mine import Mine\nlayer = nn.Sequential(ResidualModule(module=Mine(8)))\n"


def test_a_skip_that_the_repository_puts_around_is_not_missing_inside(tmp_path):
    (tmp_path / "mine.py").write_text(CLAIMING)
    assert "residual" in {finding.check for finding in doctor(f"{tmp_path}/mine.py:Mine").errors}
    (tmp_path / "encoder.py").write_text(AROUND)
    assert not doctor(f"{tmp_path}/mine.py:Mine").errors


class Gated(nn.Module):
    """Attention whose outputs a gate weighs, as retention does; the block around it adds them to its input."""

    def __init__(self):
        super().__init__()
        self.attention, self.gate, self.out = Attention(), nn.Linear(D, D), nn.Linear(D, D)
        self.norm = nn.LayerNorm(D)

    def forward(self, x):
        return self.out(F.silu(self.gate(x)) * self.norm(self.attention(x)))


class GatedFeedForward(Gated):
    """Attention, and a feed-forward both factors of which come of what was attended to."""

    def forward(self, x):
        h = self.norm(self.attention(x))
        return self.out(F.silu(self.gate(h)) * h)


class AttentionWithFFN(Parts):
    """A block that is named after its last part, whose skip starts behind a norm."""

    def forward(self, x):
        n = self.n1(x)
        h = self.n2(n + self.a(n))
        return h + self.f(h)


def test_a_gate_over_an_attention_is_no_feed_forward_and_a_name_none_where_it_attends():
    assert list(check_residual(examine(Gated(), kind="block"))) == []
    (missing,) = check_residual(examine(GatedFeedForward(), kind="block"))
    assert (missing.severity, "no identity path" in missing.message) == ("error", True)
    (finding,) = check_residual(examine(AttentionWithFFN(None), kind="block"))
    assert (finding.severity, "starts behind the norm (n1)" in finding.message) == ("warning", True)
