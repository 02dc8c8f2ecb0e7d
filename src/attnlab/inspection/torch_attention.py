"""What `torch.nn.MultiheadAttention` computes, step by step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.inspection.watch import Captured, Recorder


@final
@dataclass(frozen=True)
class TorchCall:
    """Hold the arguments of ``nn.MultiheadAttention`` by its own names."""

    query: Tensor
    key: Tensor
    value: Tensor
    """(batch, length, width), (length, batch, width), or without batch."""
    key_padding_mask: Tensor | None = None  # (batch, k_len): True at what no query may look at, or numbers to add
    need_weights: bool = True  # whether weights are returned
    attn_mask: Tensor | None = None  # (q_len, k_len) or (batch * heads, q_len, k_len): likewise
    average_attn_weights: bool = True  # whether they are the mean over heads
    is_causal: bool = False  # a hint that `attn_mask` is causal

    def answer(self, steps: Captured) -> tuple[Tensor | None, Tensor | None]:
        """What the layer returns for its steps."""
        weights = steps.weights
        if weights is None or not self.need_weights:
            return steps.output, None
        per_head = weights if self.query.ndim == 3 else weights[0]
        return steps.output, per_head.mean(dim=-3) if self.average_attn_weights else per_head


@final
class StepByStep:
    """Stand in the place of a layer's `forward`, and compute as an intervention leaves each step.

    Parameters
    ----------
    module : nn.MultiheadAttention
        The layer; what its attribute ``edit`` holds, if it has one, is given each step.
    recorder : Recorder, optional
        Where the steps are filed.
    """

    def __init__(self, module: nn.MultiheadAttention, recorder: Recorder | None = None) -> None:
        self.module = module
        self.recorder = recorder

    def __call__(self, *positional: Any, **named: Any) -> tuple[Tensor | None, Tensor | None]:
        """What the layer returns."""
        call = TorchCall(*positional, **named)
        with contextlib.nullcontext() if self.recorder is None else self.recorder.paused():
            seen = torch_steps(self.module, call, vars(self.module).get("edit") or _unchanged)
        if self.recorder is not None:
            self.recorder.file(seen)
        return call.answer(seen)


def _unchanged(_step: str, value: Tensor) -> Tensor:
    return value


def torch_steps(module: nn.MultiheadAttention, call: TorchCall, edit: Callable[[Any, Tensor], Tensor]) -> Captured:
    """Compute the same as the layer's own `forward`, and return the steps.

    Parameters
    ----------
    module : nn.MultiheadAttention
        The layer, of any options.
    call : TorchCall
        What it is called with.
    edit : callable
        Given the name of a step and its value, the value to go on with.

    Returns
    -------
    Captured
        All steps; queries are taken before they are scaled.
    """
    q, k, v = (_split(one, module.num_heads) for one in _projected(module, call))
    k, v = _extended(module, k, v)
    q, k, v = edit("q", q), edit("k", k), edit("v", v)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (batch, heads, q_len, k_len)
    for hidden in _masks(call, scores):
        scores = scores + hidden
    scores = edit("scores", scores)
    weights = edit("weights", scores.softmax(dim=-1))
    head_outputs = edit("head_outputs", F.dropout(weights, module.dropout, module.training) @ v)
    output = module.out_proj(head_outputs.transpose(1, 2).flatten(-2))  # (batch, q_len, embed_dim)
    if call.query.ndim == 2:
        output = output[0]
    elif not module.batch_first:
        output = output.transpose(0, 1)
    return Captured(q, k, v, scores, weights, head_outputs, output)


def _projected(module: nn.MultiheadAttention, call: TorchCall) -> list[Tensor]:
    """Queries, keys and values, batch first."""
    given = [call.query, call.key, call.value]
    if call.query.ndim == 2:
        given = [one[None] for one in given]
    elif not module.batch_first:
        given = [one.transpose(0, 1) for one in given]
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    return [F.linear(one, weight, bias) for one, weight, bias in zip(given, weights, biases, strict=True)]


def _split(x: Tensor, n_heads: int) -> Tensor:
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)  # (batch, heads, length, d_head)


def _extended(module: nn.MultiheadAttention, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with those that the layer adds behind them."""
    if module.bias_k is not None and module.bias_v is not None:
        added = [_split(one, module.num_heads).expand(len(k), -1, -1, -1) for one in (module.bias_k, module.bias_v)]
        k, v = torch.cat([k, added[0]], dim=2), torch.cat([v, added[1]], dim=2)
    if module.add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    return k, v


def _masks(call: TorchCall, scores: Tensor) -> list[Tensor]:
    """What is added to the scores, each (batch or 1, heads or 1, q_len or 1, k_len)."""
    found = []
    if call.attn_mask is not None:
        mask = call.attn_mask
        found.append(mask[None, None] if mask.ndim == 2 else mask.view(*scores.shape[:2], *mask.shape[1:]))
    if call.key_padding_mask is not None:
        found.append(call.key_padding_mask.view(len(scores), 1, 1, -1))
    return [_added(F.pad(mask, (0, scores.shape[-1] - mask.shape[-1])), scores) for mask in found]


def _added(mask: Tensor, scores: Tensor) -> Tensor:
    """A mask as numbers that are added, where bool means that a pair is hidden."""
    if mask.dtype != torch.bool:
        return mask.to(scores.dtype)
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, float("-inf"))
