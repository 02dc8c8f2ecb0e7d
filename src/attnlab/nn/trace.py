"""What an attention layer computed on the way, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from attnlab.core.layouts import Activations, Queries, Scores, SharedKeys, SharedValues


@final
@dataclass(frozen=True)
class Trace:
    """Hold every step of one call of an attention layer.

    Parameters
    ----------
    q : Tensor
        Queries with positions in them, (batch, n_heads, q_len, d_head).
    k : Tensor
        Keys with positions in them, (batch, n_kv_heads, k_len, d_head).
    v : Tensor
        Values, (batch, n_kv_heads, k_len, d_v).
    scores : Tensor
        Biased and mixed scores before masks and normalization, (batch, n_heads, q_len, k_len).
    weights : Tensor
        Weights before dropout, zero where nothing may be attended to, (batch, n_heads, q_len, k_len).
    head_outputs : Tensor
        Weighted values, (batch, n_heads, q_len, d_v).
    output : Tensor
        What the layer returns, (batch, q_len, d_model).
    """

    q: Queries
    k: SharedKeys
    v: SharedValues
    scores: Scores
    weights: Scores
    head_outputs: Float[Tensor, "batch heads q_len d_v"]
    output: Activations
