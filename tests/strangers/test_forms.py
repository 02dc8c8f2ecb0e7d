"""Inputs and outputs of rarer forms: images, split heads, single sequences, flattened predictions; true copies."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnlab.doctor import doctor
from attnlab.strangers.loading.loading import load
from attnlab.strangers.patient import twin_of
from attnlab.strangers.trying.interview import interview


class Patches(nn.Module):
    def __init__(self, image_size, patch_size, dim, num_classes, channels=3):
        super().__init__()
        self.to_patches = nn.Conv2d(channels, dim, patch_size, patch_size)
        self.place = nn.Parameter(torch.randn((image_size // patch_size) ** 2, dim))
        self.qkv, self.head = nn.Linear(dim, 3 * dim), nn.Linear(dim, num_classes)

    def forward(self, img):
        x = self.to_patches(img).flatten(2).transpose(1, 2) + self.place
        return self.head((x + F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))).mean(1))


class Pixels(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Conv2d(dim, 3 * dim, 1)

    def forward(self, x):
        q, k, v = self.qkv(x).flatten(2).transpose(1, 2).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).unflatten(2, x.shape[2:])


class SplitHeads(nn.Module):
    """Scaled dot products of inputs that are split already."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v):  # each (batch, heads, length, d_head)
        return self.dropout((q @ k.transpose(2, 3) / q.size(3) ** 0.5).softmax(-1)) @ v


class SplitBehindLength(SplitHeads):
    """The same with the heads behind the length."""

    def forward(self, q, k, v):  # each (batch, length, heads, d_head)
        weights = torch.einsum("blhd,bshd->bhls", q, k).mul(q.size(3) ** -0.5).softmax(-1)
        return torch.einsum("bhls,bshd->blhd", self.dropout(weights), v)


class OneSequence(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_in, d_out) for _ in range(3))

    def forward(self, x):
        return (self.q(x) @ self.k(x).T / self.q.out_features**0.5).softmax(-1) @ self.v(x)


class Flattened(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(vocab_size, d_model), nn.GRU(d_model, d_model, batch_first=True)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0]).flatten(0, 1)


@pytest.mark.parametrize(
    ("kind", "layout", "pooled"),
    [
        (Patches, "image", True),
        (Pixels, "image", False),
        (SplitHeads, "heads, then length", False),
        (SplitBehindLength, "length, then heads", False),
        (OneSequence, "unbatched", False),
        (Flattened, "batch-first", False),
    ],
)
def test_rarer_forms_are_found_and_come_back_batch_first(kind, layout, pooled):
    patient = load(kind)
    how = interview(patient)
    assert (how.layout, how.pooled) == (layout, pooled)
    features = (how.d_in,) if how.takes == "embeddings" else ()
    x = torch.randn(5, how.length, *features) if features else torch.randint(how.vocab_size, (5, how.length))
    output = how.call(patient.copy(), x)
    assert output.shape == ((5, how.d_out) if pooled else (5, how.length, how.d_out))
    alone = torch.cat([how.call(patient.copy(), each[None]) for each in x])
    torch.testing.assert_close(output, alone)


@pytest.mark.parametrize("kind", [Pixels, SplitHeads, OneSequence])
def test_right_modules_of_rarer_forms_are_accused_of_nothing(kind):
    assert doctor(kind).errors == ()


class Closing(nn.Module):
    """A block that keeps a function of its parts, as minGPT's does."""

    def __init__(self, d_model):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.mlp = nn.ModuleDict({"up": nn.Linear(d_model, 2 * d_model), "down": nn.Linear(2 * d_model, d_model)})
        parts = self.mlp
        self.feed_forward = lambda x: parts["down"](F.gelu(parts["up"](x)))
        self.again = functools.partial(self.norm.forward)

    def forward(self, x):
        return x + self.feed_forward(self.again(x))


def test_a_copy_computes_with_its_own_parts_where_functions_close_over_them():
    module, x = Closing(16), torch.randn(2, 3, 16)
    twin = twin_of(module)
    torch.testing.assert_close(twin(x), module(x))
    before = module(x)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    torch.testing.assert_close(module(x), before)
    torch.testing.assert_close(twin(x), x)
    assert doctor(Closing).errors == ()


class Decoder(nn.Module):
    """A decoder that predicts all positions at once; a triangle is there for other calls."""

    def __init__(self, d_model, training_mask=False):
        super().__init__()
        self.qkv, self.masks = nn.Linear(d_model, 3 * d_model), training_mask

    def forward(self, x):
        mask = x.new_ones(x.size(1), x.size(1)).tril() * 0 if self.masks else None
        return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1), attn_mask=mask)


class Triangle(Decoder):
    __doc__ = None


@pytest.mark.parametrize("kind", [Decoder, Triangle])
def test_a_name_or_an_unused_triangle_makes_nothing_causal_that_sees_all(kind):
    convention = interview(load(kind))
    assert (convention.causal, convention.causal_by) == (False, "its behaviour")
    assert doctor(kind).errors == ()


def test_a_triangle_that_is_made_and_hides_nothing_is_an_error():
    assert [one.check for one in doctor(Decoder, arguments={"training_mask": True}).errors] == ["causality"]


def test_a_choice_that_is_called_a_mask_is_none():
    class Chosen(nn.Module):
        def __init__(self, d_model):
            super().__init__()
            self.qkv = nn.Linear(d_model, 3 * d_model)

        def forward(self, x, mask: str | None = None, memory: bool = False, keep_all=False):
            assert mask is None
            assert not memory
            assert not keep_all
            return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))

    assert interview(load(Chosen)).masks == ()


def test_heads_are_as_wide_as_a_constructor_says():
    class Wide(SplitHeads):
        def __init__(self, dim_head=24):
            super().__init__()
            self.gain, self.dim_head = nn.Parameter(torch.ones(1)), dim_head

        def forward(self, q, k, v):
            return super().forward(q * self.gain, k, v) * torch.ones(24)

    assert interview(load(Wide)).d_in == 4 * 24


def test_queries_keys_and_values_may_come_in_one_tuple():
    class Packed(SplitHeads):
        def __init__(self, d_model):
            super().__init__()
            self.maps = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(3))

        def forward(self, inputs):
            q, k, v = inputs
            q, k, v = (one(x)[:, None] for one, x in zip(self.maps, (q, k, v), strict=True))
            return super().forward(q, k, v)[:, 0]

    convention = interview(load(Packed))
    assert convention.in_words == "forward(inputs=a tuple with the input in every place)"
    assert doctor(Packed).errors == ()
