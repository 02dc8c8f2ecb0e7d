"""Attention: one layer composed of an entry of each of the six axes.

`Attention.trace` is the definition: it reads like the formula and returns every step. `Attention.forward` takes
the fused path where the composition has one, and is tested to give the same. Nothing here knows a concrete part.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnlab.build import Spec, build, parse
from attnlab.errors import SpecError
from attnlab.nn.combiners import COMBINERS
from attnlab.nn.heads import HEADS
from attnlab.nn.masks import MASKS, AbstractMask, Causal, Full, Padding
from attnlab.nn.normalizers import NORMALIZERS
from attnlab.nn.positions import POSITIONS
from attnlab.nn.scores import SCORES


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

    q: Float[Tensor, "batch heads q_len d_head"]
    k: Float[Tensor, "batch kv_heads k_len d_head"]
    v: Float[Tensor, "batch kv_heads k_len d_v"]
    scores: Float[Tensor, "batch heads q_len k_len"]
    weights: Float[Tensor, "batch heads q_len k_len"]
    head_outputs: Float[Tensor, "batch heads q_len d_v"]
    output: Float[Tensor, "batch q_len d_model"]


class Attention(nn.Module):
    """Let every position gather values from the positions that fit it.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    n_heads : int
        Number of query heads.
    heads : str or mapping
        How queries, keys and values are projected; entry of `HEADS`.
    positions : str or mapping
        How order enters the scores; entry of `POSITIONS` of the level "scores".
    scores : str or mapping
        How well a query fits a key; entry of `SCORES`.
    masks : str, mapping, list of them, or AbstractMask
        Which key a query may attend to; entry of `MASKS`. All of a list must allow it.
    normalizers : str or mapping
        From scores to weights; entry of `NORMALIZERS`.
    combiners : str or mapping
        From the heads' outputs to the width of the model; entry of `COMBINERS`.
    dropout : float
        Probability that a weight is set to zero in training.
    causal : bool
        Whether no query may attend to a later position, whatever the masks say.
    path : {"auto", "readable", "fused"}
        Which of two equal computations runs; "auto" takes the fused one where there is one.
    max_length : int
        Longest sequence; for positions with a table.

    Raises
    ------
    SpecError
        If a part cannot be built, positions belong to the input, a probability is not in [0, 1), or the
        fused path is asked for and the composition has none.

    Notes
    -----
    ``combine(normalize(mix(score(q, k) + bias), mask) v)``. By default this is [1]_ with biases. Time
    O(heads * q_len * k_len * d_head) and, in the readable path, memory O(heads * q_len * k_len). A query that
    may attend to nothing gets zeros from every head.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 3.2.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        *,
        heads: Spec = "split",
        positions: Spec = "none",
        scores: Spec = "scaled-dot",
        masks: Spec | list[Spec] | AbstractMask = "none",
        normalizers: Spec = "softmax",
        combiners: Spec = "project",
        dropout: float = 0.0,
        causal: bool = False,
        path: Literal["auto", "readable", "fused"] = "auto",
        max_length: int = 1024,
    ) -> None:
        super().__init__()
        self.dropout = check_probability("dropout", dropout)
        self.mask = _build_mask(masks, causal=causal)
        offered: dict[str, Any] = {"d_model": d_model, "n_heads": n_heads, "max_length": max_length}
        self.heads = build(heads, HEADS, axis="heads", offered=offered)
        offered |= {"n_heads": self.heads.n_heads, "d_head": self.heads.d_head, "d_v": self.heads.d_v}
        offered |= {"causal": self.mask.blocks_future}
        self.positions = build(positions, POSITIONS, axis="positions", offered=offered)
        _check_level(self.positions.level, positions)
        self.scores = build(scores, SCORES, axis="score", offered=offered)
        self.normalizer = build(normalizers, NORMALIZERS, axis="normalizer", offered=offered)
        self.combiner = build(combiners, COMBINERS, axis="combiner", offered=offered)
        obstacle = self._find_obstacle(scores, normalizers, combiners)
        if path == "fused" and obstacle:
            raise SpecError(f"path 'fused' is impossible: {obstacle}; choose path 'auto', or another part")
        self._obstacle = obstacle
        self._fused = path != "readable" and obstacle is None

    def fused_obstacle(self) -> str | None:
        """Return which part keeps this composition from a fused path, in words, or None."""
        return self._obstacle

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        memory: Float[Tensor, "batch k_len d_model"] | None = None,
        padding: Bool[Tensor, "batch k_len"] | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Return what every position gathered.

        Parameters
        ----------
        x : Tensor
            Activations that ask.
        memory : Tensor, optional
            Activations that are looked at; `x` unless given.
        padding : Tensor, optional
            True at real positions of what is looked at.

        Returns
        -------
        Tensor
            Outputs, of the shape of `x`.
        """
        if not self._fused:
            return self.trace(x, memory, padding).output
        q, k, v = self.heads.project(x, memory)
        q, k = self.positions.rotate(q, k)
        head_outputs = self._attend(q, k, v, padding)
        return self.combiner(head_outputs, padding if memory is None else None)

    def trace(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        memory: Float[Tensor, "batch k_len d_model"] | None = None,
        padding: Bool[Tensor, "batch k_len"] | None = None,
    ) -> Trace:
        """Compute the same as `forward` step by step and return the steps.

        Parameters
        ----------
        x : Tensor
            Activations that ask.
        memory : Tensor, optional
            Activations that are looked at; `x` unless given.
        padding : Tensor, optional
            True at real positions of what is looked at.

        Returns
        -------
        Trace
            Every step.
        """
        q, k, v = self.heads.project(x, memory)
        q, k = self.positions.rotate(q, k)
        keys, values = (_repeat_heads(part, self.heads.n_heads) for part in (k, v))
        scores = self.scores(q, keys)  # (batch, heads, q_len, k_len)
        bias = self._bias(q, k)
        scores = self.combiner.mix_scores(scores if bias is None else scores + bias)
        weights = self.normalizer(scores, self._allowed(q, k, padding))
        weights = self.combiner.mix_weights(weights)
        head_outputs = F.dropout(weights, self.dropout, self.training) @ values  # (batch, heads, q_len, d_v)
        output = self.combiner(head_outputs, padding if memory is None else None)
        return Trace(q, k, v, scores, weights, head_outputs, output)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """Return the heads' outputs by the fused path."""
        bias, sinks = self._bias(q, k), self.normalizer.sinks
        is_causal = self._is_only_causal(q, k, padding) and bias is None and not sinks
        mask = None if is_causal else _join(self._allowed(q, k, padding), bias)
        q, k, scale = self.scores.as_dot(q, k)
        if sinks:
            k, v, mask = _prepend_zeros(k, sinks), _prepend_zeros(v, sinks), _prepend_allowed(mask, sinks)
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )

    def _is_only_causal(self, q: Tensor, k: Tensor, padding: Tensor | None) -> bool:
        return self.mask.kind == "causal" and padding is None and q.shape[-2] == k.shape[-2]

    def _allowed(self, q: Tensor, k: Tensor, padding: Tensor | None) -> Tensor | None:
        """Return the mask of this call, or None where everything is allowed."""
        mask = self.mask
        if padding is not None:
            mask = Padding(padding) if mask.kind == "full" else mask & Padding(padding)
        return None if mask.kind == "full" else mask.allowed(q.shape[-2], k.shape[-2], device=q.device)

    def _bias(self, q: Tensor, k: Tensor) -> Tensor | None:
        return self.positions.bias(q.shape[-2], k.shape[-2], dtype=q.dtype, device=q.device)

    def _find_obstacle(self, scores: Spec, normalizers: Spec, combiners: Spec) -> str | None:
        """Return the first part that stands between this composition and the fused path."""
        q = torch.zeros(1, self.heads.n_heads, 1, self.heads.d_head)
        if self.scores.as_dot(q, q) is None:
            return f"score '{parse(scores, 'score')[0]}' is no dot product"
        if self.normalizer.sinks is None:
            return f"normalizer '{parse(normalizers, 'normalizer')[0]}' is no softmax"
        if self.combiner.mixes_heads:
            return f"combiner '{parse(combiners, 'combiner')[0]}' mixes scores or weights of different heads"
        return None


def check_probability(name: str, value: float) -> float:
    """Return a probability that is fit for dropout.

    Parameters
    ----------
    name : str
        What it is called, for the error text.
    value : float
        The probability.

    Returns
    -------
    float
        The same value.

    Raises
    ------
    SpecError
        If it is not in [0, 1).
    """
    if not 0 <= value < 1:
        raise SpecError(f"{name} must be a probability in [0, 1); got {value}")
    return value


def _build_mask(masks: Spec | Sequence[Spec] | AbstractMask, *, causal: bool) -> AbstractMask:
    """Return one mask that allows what all of a specification allow."""
    specs = masks if isinstance(masks, list) else [masks]
    parts = [build(spec, MASKS, axis="mask") for spec in specs]
    if causal:
        parts = [Causal(), *(part for part in parts if part.kind != "causal")]
    return functools.reduce(operator.and_, [part for part in parts if part.kind != "full"] or [Full()])


def _check_level(level: str, spec: Spec) -> None:
    if level != "scores":
        name = parse(spec, "positions")[0]
        raise SpecError(f"positions '{name}' belong to the input: give them to the model, not to an attention layer")


def _repeat_heads(x: Tensor, n_heads: int) -> Tensor:
    """Return keys or values once per query head."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def _join(allowed: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Return one mask for the fused path: bool, or numbers to add where there is a bias."""
    if bias is None or allowed is None:
        return allowed if bias is None else bias
    return bias.masked_fill(~allowed, -torch.inf)  # (..., heads, q_len, k_len)


def _prepend_zeros(x: Tensor, count: int) -> Tensor:
    return F.pad(x, (0, 0, count, 0))  # (batch, heads, count + k_len, width)


def _prepend_allowed(mask: Tensor | None, count: int) -> Tensor | None:
    """Return a mask under which every query may attend to `count` more keys, without a bias."""
    if mask is None:
        return None
    return F.pad(mask, (count, 0), value=float(mask.dtype == torch.bool))
