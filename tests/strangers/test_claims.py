"""What classes claim: causal or not, and what the values of a mask mean."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.strangers.said.causality import CausalClaim, causal_said
from attnlab.strangers.said.masks import meaning_of
from attnlab.strangers.said.phrases import phrases
from attnlab.strangers.said.topics import declared


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("bool, True = may attend", "True keeps"),
        ("True where attention is allowed", "True keeps"),
        ("1 for tokens to keep, 0 for padding", "True keeps"),
        ("attention_mask: (batch, length), 1 = token, 0 = padding; on either side", "True keeps"),
        ("0 = masked", "True keeps"),
        ("False means the key is hidden", "True keeps"),
        ("entries equal to 0 are blocked", "True keeps"),
        ("ones mark positions that can be attended to", "True keeps"),
        ("True means the position takes part", "True keeps"),
        ("mask value 1 means 'not masked'", "True keeps"),
        ("pad positions are False", "True keeps"),
        ("True = ignore", "True blocks"),
        ("positions with True are not allowed to attend", "True blocks"),
        ("key_padding_mask: (B, T) bool, True marks padding", "True blocks"),
        ("positions to ignore are True", "True blocks"),
        ("padding positions are marked with 1", "True blocks"),
        ("bool mask, True = do not attend", "True blocks"),
        ("True if the key is a padding token", "True blocks"),
        ("attention_mask 1 = token, token_type_ids 0 or 1 -> masked-language-model logits", "True keeps"),
        ("attention_mask (1 = token) to a vector: mean of the hidden states", "True keeps"),
        ("1 for words, 0 for the rest", "True keeps"),
        ("True = token is padding", "True blocks"),
        ("True for words to ignore", "True blocks"),
        ("a mask", None),
        ("mask: (batch, length)", None),
    ],
)
def test_sentences_about_masks_are_understood(text, meaning):
    assert meaning_of(text) == meaning


def claim(name: str, docstring: str | None = None, **attributes: object) -> CausalClaim | None:
    made = type(name, (nn.Module,), {"__doc__": docstring, "forward": lambda self, x: x})()
    for attribute, value in attributes.items():
        setattr(made, attribute, value)
    return causal_said(made, "", {})


@pytest.mark.parametrize(
    ("name", "docstring", "causal", "likely"),
    [
        ("CausalSelfAttention", None, True, False),
        ("MaskedSelfAttention", None, True, False),
        ("MaskedMultiHeadAttention", None, True, False),
        ("NonCausalAttention", None, False, False),
        ("BidirectionalAttention", "The causal layer's sibling.", False, False),
        ("Attention", "Masked multi-head self-attention.", True, False),
        ("Attention", "Non-causal.", False, False),
        ("MaeDecoderBlock", "Decoder block of a masked autoencoder: full attention over all patches.", False, False),
        ("Layer", "Causal: every position attends to all earlier ones.", True, False),
        ("Layer", "Every position attends to all others.", False, False),
        ("Layer", "Decoder layer.", True, True),
        ("Layer", "A decoder only model.", True, False),
        ("Layer", "The encoder and decoder only do what is left to them.", True, True),
        ("Layer", "An encoder-decoder model.", True, True),
        ("Layer", "Encoder-decoder attention.", False, True),
        ("Attention", "A position never sees the future.", True, False),
        ("Attention", "A bidirectional encoder for masked language models.", False, False),
        ("DecoderLayer", None, True, True),
        ("EncoderLayer", None, False, True),
        ("CausalEncoderLayer", None, True, False),
        ("Encoder", "Causal.", True, False),
        ("TinyGPT", None, True, True),
        ("MaskedLM", None, False, False),
        ("BertLayer", None, False, True),
        ("Attention", "Predicts the next token.", True, True),
    ],
)
def test_names_and_docstrings_claim(name, docstring, causal, likely):
    made = claim(name, docstring)
    assert made is not None
    assert (made.causal, made.likely) == (causal, likely)


@pytest.mark.parametrize(
    "docstring",
    [
        "Queries look at what the layer before wrote.",
        "Attention to the previous layer's output.",
        "Dropout is not supported yet, perhaps in future versions.",
        "Pads left and right.",
    ],
)
def test_words_about_other_things_claim_nothing(docstring):
    assert claim("Attention", docstring) is None


@pytest.mark.parametrize("name", ["Attention", "SoftMasked", "MaskedAutoencoderHead"])
def test_other_names_claim_nothing(name):
    assert claim(name, "Multi-head attention.\n\nArgs:\n    x: causal or not.") is None


@pytest.mark.parametrize("value", [True, False])
def test_an_argument_says_it_before_anything_else(value):
    made = claim("CausalEncoder", "Causal.", is_causal=value)
    assert made is not None
    assert (made.causal, made.by) == (value, f"its argument is_causal={value}")


@pytest.mark.parametrize(
    ("table", "causal"),
    [
        (torch.ones(6, 6).tril(), True),
        (torch.ones(1, 1, 6, 6).triu(1).bool(), True),
        (torch.ones(6, 6).tril().masked_fill(torch.ones(6, 6).triu(1) > 0, 0), True),
        (torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1) > 0, float("-inf")), True),
        (torch.ones(6, 6).tril(2) * torch.ones(6, 6).triu(-2), None),
        (torch.ones(6, 6), None),
        (torch.eye(6), None),
    ],
)
def test_a_triangle_that_is_kept_claims_it(table, causal):
    module = nn.Linear(6, 6)
    module.register_buffer("mask", table)
    made = causal_said(module, "", {})
    assert (None if made is None else made.causal) == causal


@pytest.mark.parametrize(
    ("code", "causal"),
    [
        ("mask = torch.triu(torch.ones(n, n), diagonal=1)", True),
        ("mask = torch.ones(n, n).tril()", True),
        ("y = F.scaled_dot_product_attention(q, k, v, is_causal=True)", True),
        ("y = F.scaled_dot_product_attention(q, k, v, is_causal=False)", None),
        ("band = torch.ones(n, n).tril(w) * torch.ones(n, n).triu(-w)", None),
        ("y = x + 1", None),
    ],
)
def test_code_that_makes_a_triangle_claims_it(code, causal):
    made = causal_said(nn.Linear(3, 3), code, {})
    assert (None if made is None else (made.causal, made.by)) == (None if causal is None else (causal, "its source"))


@pytest.mark.parametrize(
    ("phrase", "text", "found"),
    [
        ("shar* + weight*", "The weights of both halves are shared.", True),
        ("shar* + weight*", "Heads share their weights.", True),
        ("shar* .. weight*", "The weights of both are shared.", False),
        ("shar* + weight*", "The weights are not shared.", False),
        ("shar* + weight*", "Heads share an input. Weights are drawn.", False),
        ("shar* + weight*", "Weights of the first and of the second and third layer are shared.", False),
        ("look-ahead mask", "With a Look ahead mask", True),
        ("look-ahead mask", "With a lookahead  mask", False),
        ("1/d", "scaled by 1/d", True),
        ("1/d", "scaled by 1/d**0.5", False),
        ("mlp*", "an mlp-mixer", True),
        ("mlp", "two mlps", False),
    ],
)
def test_phrases_are_words_near_each_other_in_one_sentence(phrase, text, found):
    assert bool(phrases(phrase).search(text)) is found


@pytest.mark.parametrize(
    ("topic", "said", "declares"),
    [
        ("rows that may be empty", "A query with no allowed keys gets zeros.", True),
        ("rows that may be empty", "Fully masked rows are supported and give zeros.", True),
        ("rows that may be empty", "A row of the mask may not be empty.", False),
        ("rows that may be empty", "Returns zeros like the input.", False),
        ("shared parts", "All layers use the same block.", True),
        ("shared parts", "The output has the shape of the input.", False),
        ("stopped gradients", "The target encoder is a moving average and stays frozen.", True),
        ("stopped gradients", "Gradients pass through all of it.", False),
        ("no softmax", "Kernelized attention without a softmax.", True),
        ("no softmax", "A softmax over the keys, not over the queries.", False),
        ("attention over features", "Channel attention, as the transposed kind.", True),
        ("attention over features", "Takes channels first and attends to all positions.", False),
        ("a window", "Sliding-window attention.", True),
        ("another scale", "Scores are divided by d, as maximal-update parametrization asks.", True),
        ("another scale", "Scores are scaled by 1/sqrt(d).", False),
        ("padding on the left", "Sequences are padded on the left.", True),
        ("padding on the right", "Sequences are padded on the left.", False),
        ("probabilities", "Returns the probabilities of the next token.", True),
        ("probabilities", "Dropout probability.", False),
        ("probabilities", "The probability of dropping a token.", False),
        ("shared parts", "A mask shared across heads.", False),
        ("fixed weights", "Randomly initialized weights.", False),
        ("fixed weights", "A constant number of heads.", False),
        ("stopped gradients", "A block whose gradients may explode.", False),
        ("no softmax", "No mask is added before the softmax.", False),
        ("a window", "Adds segment embeddings.", False),
        ("attention over features", "Features of x are projected to queries.", False),
        ("attention over features", "Attends over the features of earlier positions.", False),
        ("padding on the left", "Takes the pad and start tokens.", False),
        ("rows that may be empty", "A fully connected layer for each sample, which can be deep.", False),
        ("one projection of queries and keys", "One projection is shared by queries and keys.", True),
    ],
)
def test_topics_are_declared_by_plain_words(topic, said, declares):
    assert bool(declared(said, topic)) is declares


class Speller(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 8), nn.Linear(8, 7)

    def forward(self, tokens):
        return self.out(self.embed(tokens))

    def spell(self, tokens, n):
        for _ in range(n):
            tokens = torch.cat([tokens, self(tokens[:, -5:])[:, -1:].argmax(-1)], 1)
        return tokens


class Translating(Speller):
    def forward(self, tokens, target):
        return super().forward(tokens) + super().forward(target)

    def spell(self, tokens, n):
        target = tokens[:, :1]
        for _ in range(n):
            target = torch.cat([target, self(tokens, target)[:, -1:].argmax(-1)], 1)
        return target


class Repeating(Speller):
    def spell(self, tokens, n):
        return torch.cat([self(tokens) for _ in range(n)])


def test_a_class_that_goes_on_from_what_it_answers_is_meant_to_see_nothing_later():
    made = causal_said(Speller(), "", {})
    assert made == CausalClaim(True, "its `spell`, which goes on from what it answers", likely=True)
    assert causal_said(Translating(), "", {}) is None
    assert causal_said(Repeating(), "", {}) is None
