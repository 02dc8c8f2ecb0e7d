"""What the parameters of a ``forward`` are for, as far as their names tell."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from attnlab.core.constructors import is_required
from attnlab.strangers.signatures import KEYS_VALUES, MEMORIES, QUERIES

_WORDS: dict[str, frozenset[str]] = {
    "query": QUERIES | {"query_layer", "q_in", "q_inputs", "x_query"},
    "key or value": KEYS_VALUES | {"key_layer", "value_layer", "k_in", "v_in", "x_key", "x_value"},
    "memory": MEMORIES
    | {"encoder_states", "enc_output", "enc_outputs", "enc", "encoded", "encoder_memory", "enc_src", "enc_hidden"}
    | {"key_value_states", "x_enc", "encoder_x", "ctx", "cross", "encoder_hidden", "z", "kv_input", "memories"},
    "source": frozenset({"src", "source", "src_ids", "src_tokens", "encoder_input", "enc_input", "inp", "x_src"})
    | {"encoder_input_ids", "enc_inputs", "encoder_inputs"},
    "target": frozenset({"tgt", "trg", "dec_input", "decoder_input", "decoder_input_ids", "dec_inputs", "tgt_tokens"})
    | {"decoder_inputs", "tgt_ids", "x_tgt"},
    "lengths": frozenset({"lengths", "lens", "seq_lens", "seq_lengths", "valid_lens", "valid_len", "valid_length"})
    | {"valid_lengths", "src_lengths", "input_lengths", "x_lens", "x_lengths", "key_lengths", "sequence_lengths"}
    | {"src_len", "src_lens", "num_valid", "n_valid", "text_lengths", "token_lengths", "xlen", "x_len", "lengths_x"}
    | {"length", "input_lens", "batch_lengths", "seq_lengths_tensor", "k_lens", "key_lens"},
    "length": frozenset({"seq_len", "seqlen", "q_len", "n_positions", "max_len", "t", "seq_length", "tgt_len"}),
    "cache": frozenset({"past_key_value", "past_key_values", "layer_past", "past", "cache", "kv_cache", "past_kv"})
    | {"use_cache", "hx", "h0", "state", "states", "prev_state", "incremental_state", "layer_cache", "attn_cache"}
    | {"inference_params", "mems", "hidden", "h", "kvcache", "kv", "past_keys_values", "prev_kv", "cached_kv"},
    "off": frozenset({"need_weights", "output_attentions", "output_hidden_states", "return_attention"})
    | {"return_weights", "return_attn", "return_attention_weights", "return_attn_weights", "verbose", "debug"}
    | {"training", "train", "return_attentions", "return_scores", "return_hidden", "need_attn", "return_loss"}
    | {"return_cache", "return_kv"},
    "flag": frozenset(
        {"is_causal", "causal", "use_causal_mask", "causal_mask_flag", "masked", "use_mask", "apply_mask"}
    )
    | {"mask_future", "autoregressive"},
    "positions": frozenset({"position_ids", "positions", "pos_ids", "input_pos", "pos", "cache_position", "position"})
    | {"posids", "token_positions", "pos_idx"},
    "rotary": frozenset({"position_embeddings", "rope", "rotary", "rotary_emb", "rotary_embeddings", "cos_sin"})
    | {"rotary_pos_emb", "freqs_cis", "freqs", "freqs_complex", "rope_freqs", "rope_cache"},
    "cos": frozenset({"cos", "freqs_cos", "cos_cached", "rope_cos", "cosines"}),
    "sin": frozenset({"sin", "freqs_sin", "sin_cached", "rope_sin", "sines"}),
    "targets": frozenset({"targets", "labels", "label", "y_true", "target_ids", "next_tokens", "gold"}),
    "start": frozenset({"start_pos", "offset", "past_length", "position_offset", "cache_len", "start", "start_index"})
    | {"step", "pos_offset", "seqlen_offset"},
    "zeros": frozenset({"token_type_ids", "segment_ids", "segments", "segment_label", "segment", "token_types"}),
}
"""Words by role; the first role that knows a word has it."""

_MASK_WORDS = frozenset(
    {"m", "attn_bias", "attention_bias", "attn_msk", "msk", "src_padding", "padding", "pad", "is_pad"}
)
_MASK_WORDS_ADDED = frozenset({"is_padding", "paddings", "visible", "allowed", "valid", "visibility", "keep", "real"})
_OF_MEMORY = re.compile(r"memory|encoder_attention|cross|enc|context|mem_|e_mask")
_OF_KEYS = re.compile(r"pad|key|kv_mask|k_mask|token_mask|valid|real|seq_mask|sequence_mask|input_mask")
_OF_PAIRS = re.compile(r"causal|tgt_mask|trg_mask|look|future|subsequent|bias|attn_mask|visib|allowed")
_TOKENS = re.compile(r".*(token|ids|idx|index|indices|chars|words|text|sentence).*|i|ix|xb|inp_ids")
_FLOATS = re.compile(r".*(emb|hidden|state|feature|feat).*")


@dataclass(frozen=True)
class Parameter:
    """Say what one parameter of ``forward`` is for.

    Parameters
    ----------
    name : str
        Its name.
    role : str
        ``"input"``, ``"mask"``, ``"key mask"``, ``"memory mask"``, ``"open"`` or a key of the table of words.
    required : bool
        Whether a call must give it.
    by_name : bool
        Whether it can be given by name alone.
    """

    name: str
    role: str
    required: bool
    by_name: bool


def roles_of(module: nn.Module) -> tuple[Parameter, ...]:
    """What each parameter of a module's ``forward`` is for."""
    signature = inspect.signature(module.forward).parameters
    named = {n: p for n, p in signature.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if not named and any(p.kind is p.VAR_POSITIONAL for p in signature.values()):
        return (Parameter("", "input", required=True, by_name=False),)
    roles = {name: role_of(name) for name in named}
    _settle_first(roles, named)
    _settle_memory(roles)
    return tuple(Parameter(n, roles[n], is_required(p), p.kind is p.KEYWORD_ONLY) for n, p in named.items())


def role_of(name: str) -> str:
    """What a parameter is for by its name alone."""
    word = name.lower()
    if word in _WORDS["flag"]:
        return "flag"
    if "mask" in word or word in _MASK_WORDS | _MASK_WORDS_ADDED:
        return "mask"
    return next((role for role, words in _WORDS.items() if word in words), "open")


def _settle_first(roles: dict[str, str], named: Mapping[str, inspect.Parameter]) -> None:
    """Give the first sequence the role of the input, unless another one asks and it is what is looked at."""
    asks = next((name for name, role in roles.items() if role == "query"), None)
    target = next((n for n, role in roles.items() if role == "target" and is_required(named[n])), None)
    first = next(iter(roles), None)
    if asks is not None or first is None:
        return
    others = [name for name, role in roles.items() if role in ("memory", "source", "target") and name != first]
    if target is not None and target != first and roles[first] in ("source", "input", "open"):
        roles[target], roles[first] = "input", "memory"
    elif roles[first] != "key or value":
        roles[first] = "input"
    for name in others:
        if roles[name] in ("source", "target"):
            roles[name] = "memory" if roles[name] == "source" else "targets"


def _settle_memory(roles: dict[str, str]) -> None:
    """Tell masks over the input from those over what is looked at beside it."""
    masks = [name for name, role in roles.items() if role == "mask"]
    has_memory = "memory" in roles.values()
    targeted = any(name.lower().startswith(("tgt", "trg", "dec")) for name in masks)
    for name in masks:
        word = name.lower()
        of_source = has_memory and targeted and word.startswith("src")
        if of_source or (has_memory and _OF_MEMORY.search(word)) or _OF_MEMORY.match(word):
            roles[name] = "memory mask"
        elif _OF_KEYS.search(word) and not _OF_PAIRS.search(word):
            roles[name] = "key mask"


def seems_tokens(name: str) -> bool | None:
    """Whether a parameter's name says that it holds token ids, None where it says nothing."""
    word = name.lower()
    if _FLOATS.fullmatch(word):
        return False
    return True if _TOKENS.fullmatch(word) else None


def seems_over_pairs(name: str) -> bool:
    """Whether a mask's name says that it is over pairs of positions."""
    return bool(_OF_PAIRS.search(name.lower()))
