"""What is worked out for a fused call must be what the call computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from attnlab.inspection.fused import FusedCall

BATCH, Q_LEN, K_LEN, HEADS, KV_HEADS, D_HEAD = 2, 5, 7, 6, 3, 11


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"enable_gqa": True},
        {"attn_mask": torch.ones(Q_LEN, K_LEN).tril(1).bool()},
        {"attn_mask": torch.linspace(-1, 1, Q_LEN * K_LEN).reshape(Q_LEN, K_LEN)},
    ],
)
def test_scores_give_the_outputs_of_the_call(options: dict[str, object]) -> None:
    heads = KV_HEADS if "enable_gqa" in options else HEADS
    q = torch.randn(BATCH, HEADS, Q_LEN, D_HEAD)
    k, v = (torch.randn(BATCH, heads, K_LEN, D_HEAD) for _ in range(2))
    weights = FusedCall(q, k, v, **options).scores().softmax(-1)
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(weights @ v.repeat_interleave(HEADS // heads, dim=1), expected)


@pytest.mark.parametrize(
    ("options", "fused"),
    [
        ({}, True),
        ({"dropout_p": 0.1}, False),
        ({"attn_mask": torch.zeros(Q_LEN, K_LEN)}, True),
        ({"attn_mask": torch.zeros(Q_LEN, K_LEN, requires_grad=True)}, False),
    ],
)
def test_dropout_and_trained_masks_keep_the_weights(options: dict[str, object], *, fused: bool) -> None:
    q = torch.zeros(BATCH, HEADS, Q_LEN, D_HEAD)
    k = torch.zeros(BATCH, HEADS, K_LEN, D_HEAD)
    assert FusedCall(q, k, k, **options).keeps_no_weights() is fused
