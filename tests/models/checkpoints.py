"""Tiny checkpoints of transformers with random weights, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers as hf
import torch
from torch import nn

VOCAB, WIDTH, HEADS, LAYERS, FF, LENGTH = 37, 12, 3, 2, 20, 19
PAD = VOCAB - 1
WORDS = ["a", "man", "reads", "the", "news", "on", "train", "and", "sleeps", "under", "blue", "old", "trees"]


def gpt2(**given: Any) -> tuple[str, dict[str, Any]]:
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LENGTH}
    return "GPT2LMHeadModel", {"model_type": "gpt2", **sizes, "bos_token_id": 1, "eos_token_id": 1, **given}


def llama(**given: Any) -> tuple[str, dict[str, Any]]:
    sizes = {"hidden_size": 24, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
    more = {"intermediate_size": FF, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
    return "LlamaForCausalLM", {"model_type": "llama", **sizes, **more, **given}


def bert(architecture: str = "BertForMaskedLM", **given: Any) -> tuple[str, dict[str, Any]]:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": FF}
    return architecture, {"model_type": "bert", **sizes, "max_position_embeddings": LENGTH, **given}


def t5(**given: Any) -> tuple[str, dict[str, Any]]:
    sizes = {"d_model": WIDTH, "d_kv": 5, "num_layers": LAYERS, "num_heads": HEADS, "d_ff": FF}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 11}
    return "T5ForConditionalGeneration", {
        "model_type": "t5",
        **sizes,
        **buckets,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
        **given,
    }


def marian(**given: Any) -> tuple[str, dict[str, Any]]:
    sides = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", FF))
    }
    sizes = {"d_model": WIDTH, "max_position_embeddings": LENGTH, "pad_token_id": PAD, "decoder_start_token_id": PAD}
    return "MarianMTModel", {"model_type": "marian", **sides, **sizes, "eos_token_id": 0, **given}


def saved(folder: Path, made: tuple[str, dict[str, Any]], *, parts: str | None = None) -> nn.Module:
    """A model of transformers with random weights, saved with a tokenizer of words; `parts` is the size of a file."""
    import transformers

    architecture, config = made
    known = transformers.AutoConfig.for_model(**{"vocab_size": VOCAB, **config})
    torch.manual_seed(7)
    model = getattr(transformers, architecture)(known).eval()
    for name, one in [*model.named_parameters(), *model.named_buffers()]:
        if one.is_floating_point() and "embed_positions" not in name and "inv_freq" not in name:
            nn.init.normal_(one, std=0.3)
        if name == "final_logits_bias":
            one[:, 0] = -1.0  # of the end, so that more than it is written
    model.save_pretrained(folder, **({} if parts is None else {"max_shard_size": parts}))
    words = ["</s>", "<s>", *WORDS]
    tokenizer = hf.Tokenizer(hf.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<s>"))
    tokenizer.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["</s>", "<s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return model
