"""What classes claim: causal or not, and what the values of a mask mean."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.strangers.words import CausalClaim, causal_said, meaning_of


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
