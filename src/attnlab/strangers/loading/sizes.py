"""Sizes a constructor is offered: small enough for seconds, and different enough that axes cannot be mistaken."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attnlab.core.constructors import is_required, named, signature_of

D_MODEL = 64  # a usual width, small enough for milliseconds
N_HEADS = 4  # unlike the batch of 3
D_HEAD = 16  # width over heads
"""Of a query where the number of heads does not divide `D_MODEL`."""

SMALL: dict[str, Any] = {
    "d_model": D_MODEL,
    "n_heads": N_HEADS,
    "n_kv_heads": 2,
    "d_ff": 128,
    "mlp_ratio": 4,
    "n_layers": 2,
    "vocab_size": 53,
    "max_length": 48,  # unlike d_model, so that a fixed length cannot be mistaken for a width
    "n_classes": 5,
    "dropout": 0.1,
}
"""Sizes by glossary word."""

USUAL: dict[str, Any] = {
    "bias": True,
    "qkv_bias": True,
    "use_bias": True,
    "attn_bias": False,
    "activation": "gelu",
    "act": "gelu",
    "eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "norm_eps": 1e-5,
    "batch_first": True,
    "layer_idx": 0,
    "layer_id": 0,
    "layer_index": 0,
    "kernel_size": 3,
    "kernel": 3,
    "ks": 5,
    "conv_kernel": 3,
    "window": 4,
    "window_size": 4,
    "local_window": 4,
    "n_experts": 4,
    "num_experts": 4,
    "top_k": 2,
    "theta": 10000.0,
    "rope_theta": 10000.0,
    "base": 10000.0,
    "device": "cpu",
    "temperature": 1.0,
    "norm_first": True,
    "pre_norm": True,
    "residual": True,
    "mask": True,
    "masked": True,
    "context_dim": D_MODEL,
    "d_context": D_MODEL,
    "cond_dim": D_MODEL,
    "d_cond": D_MODEL,
    "kv_dim": D_MODEL,
    "d_memory": D_MODEL,
    "memory_dim": D_MODEL,
    "enc_dim": D_MODEL,
    "encoder_dim": D_MODEL,
}
"""Other arguments that constructors ask for, by their own words."""


def offered_for(factory: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a constructor is offered, so that the width is a multiple of the number of heads."""
    wanted = signature_of(factory)
    offered = dict(SMALL)
    n_heads = _value("n_heads", wanted, given)
    d_model = _value("d_model", wanted, given)
    if d_model is not None and n_heads is None:
        offered["n_heads"] = next(n for n in (N_HEADS, 2, 3, 5, 1) if d_model % n == 0)
    if n_heads is not None and d_model is None and n_heads > 0 and D_MODEL % n_heads:
        offered["d_model"] = n_heads * D_HEAD
    offered |= {"d_model": d_model} if d_model is not None else {}
    n_heads = n_heads if n_heads is not None else offered["n_heads"]
    offered["n_kv_heads"] = 2 if n_heads % 2 == 0 else 1
    usual = {name: value for name, value in USUAL.items() if name in wanted and is_required(wanted[name])}
    return offered | usual


def _value(word: str, wanted: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> int | None:
    """A size that is given or has a default, None where it is to be chosen."""
    names = named(word, {**wanted, **given})
    values = [given.get(name, wanted[name].default if name in wanted else None) for name in names]
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)
