"""T5: an encoder and a decoder whose scores get a learned number for each distance, one table for all layers."""

from __future__ import annotations

from typing import Any

from attnlab.models.pretrained.config import Config
from attnlab.models.pretrained.tensors import Projections, Stacked, Table, Transposed, Unchanged, of_modules

FIXED = {"is_decoder": False, "is_encoder_decoder": True, "add_cross_attention": False}
HARMLESS = frozenset[str]()
ARCHITECTURES: dict[str, dict[str, Any]] = {"T5ForConditionalGeneration": {}, "T5WithLMHeadModel": {}}
UNUSED = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)
"""Of a table that old checkpoints hold and that nothing reads."""
PREFIX = ""

SUBLAYERS = {  # lab's name: the sublayer's number on the encoder's side and on the decoder's, and its name
    "mixer": (0, 0, "SelfAttention"),
    "cross": (None, 1, "EncDecAttention"),
    "feedforward": (1, 2, "DenseReluDense"),
}


def _side(side: str, place: int) -> Table:
    table = of_modules({f"{side}.norm": f"{side}.final_layer_norm"})
    for own, (*numbers, name) in SUBLAYERS.items():
        if numbers[place] is None:
            continue
        block, layer = f"{side}.blocks.{{i}}", f"{side}.block.{{i}}.layer.{numbers[place]}"
        part, stored = f"{block}.{own}", f"{layer}.{name}"
        table |= of_modules({f"{block}.around_{own}.before": f"{layer}.layer_norm"})
        if own == "feedforward":
            table[f"{part}.widen.weight"] = (  # the first where nothing gates; that is the one that is written
                Unchanged(f"{stored}.wi.weight"),
                Stacked(f"{stored}.wi_0.weight", f"{stored}.wi_1.weight"),
            )
            table[f"{part}.to_residual.weight"] = (Unchanged(f"{stored}.wo.weight"),)
        else:
            packed = Projections(*(f"{stored}.{one}.weight" for one in "qkv"))
            table[f"{part}.heads.packed.linear.weight"] = (packed,)
            table[f"{part}.combiner.to_residual.weight"] = (Unchanged(f"{stored}.o.weight"),)
    first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    table[f"{side}.blocks.{{i}}.mixer.positions.table"] = (Transposed(first),)
    return table


TENSORS: Table = {
    "source_embedding.weight": (Unchanged("shared.weight"), Unchanged("encoder.embed_tokens.weight")),
    "target_embedding.weight": (Unchanged("shared.weight"), Unchanged("decoder.embed_tokens.weight")),
    "logits.weight": (Unchanged("lm_head.weight"),),
    **_side("encoder", 0),
    **_side("decoder", 1),
}


def spec_of(config: Config) -> dict[str, Any]:
    """The model of the lab that a config describes."""
    n_layers, d_model = config.take("num_layers", 6), config.take("d_model", 512)
    if (other := config.take("num_decoder_layers", n_layers)) != n_layers:
        raise config.no_part("num_decoder_layers", other, f"as many as on the encoder's side, {n_layers}")
    dropout = config.take("dropout_rate", 0.1)
    scaled = config.take("scale_decoder_outputs", config.take("tie_word_embeddings", True))
    return {
        "name": "encoder-decoder",
        "source_vocab_size": config.need("vocab_size"),
        "target_vocab_size": config.need("vocab_size"),
        "max_length": config.take("n_positions", 512),
        "pad": config.take("pad_token_id", 0),
        "d_model": d_model,
        "n_layers": n_layers,
        "mixer": {
            "name": "attention",
            "n_heads": config.take("num_heads", 8),
            "heads": {"name": "split", "d_head": config.take("d_kv", 64), "bias": False},
            "scores": "dot",
            "combiners": {"name": "project", "bias": False},
            "dropout": dropout,
        },
        "feedforward": _feedforward(config) | {"dropout": dropout},
        "norm": "pre",
        "norm_kind": {"name": "rms", "eps": config.take("layer_norm_epsilon", 1e-6)},
        "dropout": dropout,
        "positions": {
            "name": "relative-bias",
            "n_buckets": config.take("relative_attention_num_buckets", 32),
            "max_distance": config.take("relative_attention_max_distance", 128),
        },
        "tied": "lm_head.weight" not in config.stored,  # newer configs always say that it is
        "logits_bias": False,
        "embedding_scale": 1.0,
        "logits_scale": d_model**-0.5 if scaled else 1.0,
    }


def _feedforward(config: Config) -> dict[str, Any]:
    """The feed-forward part, gated or not, by its one name or by the two that newer configs have."""
    gated, _, name = config.take("feed_forward_proj", "relu").rpartition("-")
    config.take("is_gated_act")
    given = config.take("dense_act_fn", "gelu_new" if gated and name == "gelu" else name)
    activation = config.activation("dense_act_fn", given)
    sizes = {"d_ff": config.take("d_ff", 2048), "bias": False}
    return {"name": "gated", "gate": activation, **sizes} if gated else {"name": activation, **sizes}
