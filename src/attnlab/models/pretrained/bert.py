"""BERT: an encoder of tokens with learned positions and norms behind the sublayers."""

from __future__ import annotations

from typing import Any

from attnlab.models.pretrained.config import Config
from attnlab.models.pretrained.tensors import Projections, Table, Unchanged, of_modules

FIXED = {
    "is_decoder": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "tie_word_embeddings": True,
}
HARMLESS = frozenset(
    {
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "directionality",
    }
)
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": {"answer": "logits"},
    "BertForPreTraining": {"answer": "logits"},
    "BertModel": {"answer": "states"},
}
UNUSED = (r"bert\.pooler\..*", r"cls\.seq_relationship\..*", r"bert\.embeddings\.position_ids")
"""Of all tokens as one: neither states nor logits depend on it."""
PREFIX = "bert."

BLOCK = "stack.blocks.{i}"
LAYER = "bert.encoder.layer.{i}"
TENSORS: Table = {
    "embedding.weight": (Unchanged("bert.embeddings.word_embeddings.weight"),),
    "segments.weight": (Unchanged("bert.embeddings.token_type_embeddings.weight"),),
    "stack.positions.table.weight": (Unchanged("bert.embeddings.position_embeddings.weight"),),
    **of_modules(
        {
            "stack.input_norm": "bert.embeddings.LayerNorm",
            f"{BLOCK}.mixer.combiner.to_residual": f"{LAYER}.attention.output.dense",
            f"{BLOCK}.around_mixer.after": f"{LAYER}.attention.output.LayerNorm",
            f"{BLOCK}.feedforward.widen": f"{LAYER}.intermediate.dense",
            f"{BLOCK}.feedforward.to_residual": f"{LAYER}.output.dense",
            f"{BLOCK}.around_feedforward.after": f"{LAYER}.output.LayerNorm",
            "transform": "cls.predictions.transform.dense",
            "transform_norm": "cls.predictions.transform.LayerNorm",
        }
    ),
    **of_modules(
        {
            f"{BLOCK}.mixer.heads.packed.linear": tuple(
                f"{LAYER}.attention.self.{one}" for one in ("query", "key", "value")
            )
        },
        Projections,
    ),
    "logits.weight": (Unchanged("cls.predictions.decoder.weight"),),
    "logits.bias": (Unchanged("cls.predictions.bias"), Unchanged("cls.predictions.decoder.bias")),
}


def spec_of(config: Config) -> dict[str, Any]:
    """The model of the lab that a config describes."""
    activation = config.activation("hidden_act", "gelu")
    dropout = config.take("hidden_dropout_prob", 0.1)
    return {
        "name": "token-encoder",
        "vocab_size": config.need("vocab_size"),
        "max_length": config.take("max_position_embeddings", 512),
        "pad": config.take("pad_token_id", 0),
        "n_segments": config.take("type_vocab_size", 2),
        "d_model": config.take("hidden_size", 768),
        "n_layers": config.take("num_hidden_layers", 12),
        "mixer": {
            "name": "attention",
            "n_heads": config.take("num_attention_heads", 12),
            "dropout": config.take("attention_probs_dropout_prob", 0.1),
        },
        "feedforward": {"name": activation, "d_ff": config.take("intermediate_size", 3072)},
        "norm": "post",
        "norm_kind": {"name": "layer", "eps": config.take("layer_norm_eps", 1e-12)},
        "dropout": dropout,
        "positions": "learned",
        "activation": activation,
    }
