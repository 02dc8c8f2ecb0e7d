"""Marian: the encoder-decoder of the first Transformer, with norms behind the sublayers and a bias of the logits."""

from __future__ import annotations

from typing import Any

from attnlab.models.pretrained.config import Config
from attnlab.models.pretrained.tensors import AsRow, Projections, Table, Unchanged, of_modules

FIXED = {
    "is_decoder": False,
    "is_encoder_decoder": True,
    "add_cross_attention": False,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
    "add_bias_logits": False,
}
HARMLESS = frozenset({"extra_pos_embeddings", "num_hidden_layers"})  # the first is of Bart; positions are computed here
ARCHITECTURES: dict[str, dict[str, Any]] = {"MarianMTModel": {}}
UNUSED = (r"model\.(en|de)coder\.embed_positions\.weight",)
"""Sines and cosines, which are computed."""
PREFIX = ""

SUBLAYERS = {"mixer": ("self_attn", "self_attn_layer_norm"), "cross": ("encoder_attn", "encoder_attn_layer_norm")}


def _side(side: str, sublayers: tuple[str, ...]) -> Table:
    block, layer = f"{side}.blocks.{{i}}", f"model.{side}.layers.{{i}}"
    table = of_modules(
        {
            f"{block}.feedforward.widen": f"{layer}.fc1",
            f"{block}.feedforward.to_residual": f"{layer}.fc2",
            f"{block}.around_feedforward.after": f"{layer}.final_layer_norm",
        }
    )
    for own in sublayers:
        attention, norm = (f"{layer}.{name}" for name in SUBLAYERS[own])
        table |= of_modules(
            {f"{block}.{own}.combiner.to_residual": f"{attention}.out_proj", f"{block}.around_{own}.after": norm}
        )
        packed = tuple(f"{attention}.{one}_proj" for one in "qkv")
        table |= of_modules({f"{block}.{own}.heads.packed.linear": packed}, Projections)
    return table


TENSORS: Table = {
    "source_embedding.weight": (Unchanged("model.shared.weight"), Unchanged("model.encoder.embed_tokens.weight")),
    "target_embedding.weight": (Unchanged("model.shared.weight"), Unchanged("model.decoder.embed_tokens.weight")),
    "logits.weight": (Unchanged("lm_head.weight"),),
    "logits.bias": (AsRow("final_logits_bias"),),
    **_side("encoder", ("mixer",)),
    **_side("decoder", ("mixer", "cross")),
}

ALIKE = ("layers", "ffn_dim", "attention_heads")
"""What the lab's encoder and decoder have in common."""


def spec_of(config: Config) -> dict[str, Any]:
    """The model of the lab that a config describes."""
    for name in ALIKE:
        encoder, decoder = config.need(f"encoder_{name}"), config.need(f"decoder_{name}")
        if encoder != decoder:
            raise config.no_part(f"decoder_{name}", decoder, f"as on the encoder's side, {encoder}")
    vocab_size, shared = config.need("vocab_size"), config.take("share_encoder_decoder_embeddings", True)
    written = config.take("decoder_vocab_size", vocab_size)
    return {
        "name": "encoder-decoder",
        "source_vocab_size": vocab_size,
        "target_vocab_size": vocab_size if shared else written,
        "max_length": config.take("max_position_embeddings", 1024),
        "pad": config.take("pad_token_id", 58100),
        "d_model": config.take("d_model", 1024),
        "n_layers": config.need("encoder_layers"),
        "mixer": {
            "name": "attention",
            "n_heads": config.need("encoder_attention_heads"),
            "dropout": config.take("attention_dropout", 0.0),
        },
        "feedforward": {
            "name": config.activation("activation_function", "gelu"),
            "d_ff": config.need("encoder_ffn_dim"),
            "dropout": config.take("activation_dropout", 0.0),
        },
        "norm": "post",
        "dropout": config.take("dropout", 0.1),
        "positions": {"name": "sinusoidal", "order": "halves"},
        "embeddings": "shared" if shared else "separate",
        "tied": config.take("tie_word_embeddings", True),
        "logits_bias": True,
        "embedding_scale": config.take("d_model", 1024) ** 0.5 if config.take("scale_embedding", False) else 1.0,
    }
