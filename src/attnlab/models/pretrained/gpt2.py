"""GPT-2: a decoder with learned positions and norms before the sublayers."""

from __future__ import annotations

from typing import Any

from attnlab.models.pretrained.config import Config
from attnlab.models.pretrained.tensors import Table, Transposed, Unchanged, of_modules

FIXED = {"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False, "is_encoder_decoder": False}
HARMLESS = frozenset(
    {
        "pad_token_id",
        "predict_special_tokens",
        "reorder_and_upcast_attn",
        "n_ctx",
        "embd_pdrop",
        "summary_type",
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_first_dropout",
    }
)
ARCHITECTURES: dict[str, dict[str, Any]] = {"GPT2LMHeadModel": {}, "GPT2Model": {}}
UNUSED = (r"transformer\.h\.\d+\.attn\.(masked_)?bias",)
PREFIX = "transformer."

BLOCK = "stack.blocks.{i}"
LAYER = "transformer.h.{i}"
TENSORS: Table = {
    "embedding.weight": (Unchanged("transformer.wte.weight"),),
    "stack.positions.table.weight": (Unchanged("transformer.wpe.weight"),),
    "logits.weight": (Unchanged("lm_head.weight"),),
    **of_modules(
        {
            f"{BLOCK}.around_mixer.before": f"{LAYER}.ln_1",
            f"{BLOCK}.around_feedforward.before": f"{LAYER}.ln_2",
            "stack.norm": "transformer.ln_f",
        }
    ),
    **of_modules(
        {
            f"{BLOCK}.mixer.heads.packed.linear": f"{LAYER}.attn.c_attn",
            f"{BLOCK}.mixer.combiner.to_residual": f"{LAYER}.attn.c_proj",
            f"{BLOCK}.feedforward.widen": f"{LAYER}.mlp.c_fc",
            f"{BLOCK}.feedforward.to_residual": f"{LAYER}.mlp.c_proj",
        },
        Transposed,
    ),
}


def spec_of(config: Config) -> dict[str, Any]:
    """The model of the lab that a config describes."""
    d_model = config.take("n_embd", 768)
    return {
        "name": "decoder",
        "vocab_size": config.need("vocab_size"),
        "max_length": config.take("n_positions", 1024),
        "d_model": d_model,
        "n_layers": config.take("n_layer", 12),
        "mixer": {
            "name": "attention",
            "n_heads": config.take("n_head", 12),
            "scores": "scaled-dot" if config.take("scale_attn_weights", True) else "dot",
            "dropout": config.take("attn_pdrop", 0.1),
        },
        "feedforward": {
            "name": config.activation("activation_function", "gelu_new"),
            "d_ff": config.take("n_inner", 4 * d_model),
        },
        "norm": "pre",
        "norm_kind": {"name": "layer", "eps": config.take("layer_norm_epsilon", 1e-5)},
        "dropout": config.take("resid_pdrop", 0.1),
        "positions": "learned",
        "tied": config.take("tie_word_embeddings", True),
        "logits_bias": False,
    }
