"""Llama: a decoder with rotary positions, grouped heads, gated feed-forward parts and RMS norms."""

from __future__ import annotations

from typing import Any

from attnlab.models.pretrained.config import Config
from attnlab.models.pretrained.tensors import Stacked, Table, TurnedProjections, Unchanged, of_modules

FIXED = {"is_encoder_decoder": False, "rope_interleaved": False}
HARMLESS = frozenset({"pad_token_id", "is_llama_config"})
ARCHITECTURES: dict[str, dict[str, Any]] = {"LlamaForCausalLM": {}, "LlamaModel": {}}
UNUSED = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
PREFIX = "model."

BLOCK = "stack.blocks.{i}"
LAYER = "model.layers.{i}"
TENSORS: Table = {
    "embedding.weight": (Unchanged("model.embed_tokens.weight"),),
    "logits.weight": (Unchanged("lm_head.weight"),),
    **of_modules(
        {
            f"{BLOCK}.around_mixer.before": f"{LAYER}.input_layernorm",
            f"{BLOCK}.around_feedforward.before": f"{LAYER}.post_attention_layernorm",
            f"{BLOCK}.mixer.combiner.to_residual": f"{LAYER}.self_attn.o_proj",
            f"{BLOCK}.feedforward.to_residual": f"{LAYER}.mlp.down_proj",
            "stack.norm": "model.norm",
        }
    ),
    **of_modules({f"{BLOCK}.feedforward.widen": (f"{LAYER}.mlp.gate_proj", f"{LAYER}.mlp.up_proj")}, Stacked),
    **of_modules(
        {f"{BLOCK}.mixer.heads.packed.linear": tuple(f"{LAYER}.self_attn.{one}_proj" for one in "qkv")},
        TurnedProjections,
    ),
}

ROTARY: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "original_max_position_embeddings": "trained_length",
        "low_freq_factor": "low",
        "high_freq_factor": "high",
    },
}
"""Kinds of rotary positions: what each says, and what the lab calls it."""


def spec_of(config: Config) -> dict[str, Any]:
    """The model of the lab that a config describes."""
    d_model, n_heads = config.take("hidden_size", 4096), config.take("num_attention_heads", 32)
    bias = config.take("attention_bias", False)
    heads = {
        "name": "grouped",
        "n_kv_heads": config.take("num_key_value_heads", n_heads),
        "d_head": config.take("head_dim", d_model // n_heads),
        "bias": bias,
    }
    return {
        "name": "decoder",
        "vocab_size": config.need("vocab_size"),
        "max_length": config.take("max_position_embeddings", 2048),
        "d_model": d_model,
        "n_layers": config.take("num_hidden_layers", 32),
        "mixer": {
            "name": "attention",
            "n_heads": n_heads,
            "heads": heads,
            "combiners": {"name": "project", "bias": bias},
            "dropout": config.take("attention_dropout", 0.0),
        },
        "feedforward": {
            "name": "gated",
            "d_ff": config.take("intermediate_size", 11008),
            "gate": config.activation("hidden_act", "silu"),
            "bias": config.take("mlp_bias", False),
        },
        "norm": "pre",
        "norm_kind": {"name": "rms", "eps": config.take("rms_norm_eps", 1e-6)},
        "dropout": 0.0,
        "positions": _rotary(config),
        "tied": config.take("tie_word_embeddings", False),
        "logits_bias": False,
    }


def _rotary(config: Config) -> dict[str, Any]:
    """Rotary positions; configs say them in one field, older ones in two."""
    theta, older = config.take("rope_theta", 10000.0), config.take("rope_scaling", {})
    given = {"rope_theta": theta, **older, **config.take("rope_parameters", {})}
    kind = given.pop("rope_type", None) or given.get("type", "default")
    given.pop("type", None)
    if kind not in ROTARY:
        raise config.no_part("rope_type", kind, f"one of {', '.join(ROTARY)}")
    base, known = given.pop("rope_theta"), ROTARY[kind]
    if given.keys() != known.keys():
        raise config.no_part(f"rope of type {kind}", given, f"with {', '.join(known) or 'no more than rope_theta'}")
    return {"name": "rotary", "base": base, **{known[name]: value for name, value in given.items()}}
