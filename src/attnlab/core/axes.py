"""The glossary: names of sizes and tensor axes, and their symbols in papers.

Signatures, docstrings, messages and reports use these words and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Term:
    """Explain one word of the glossary."""

    meaning: str  # what the word stands for
    symbol: str = ""  # symbol in papers


SIZES: dict[str, Term] = {
    "batch": Term("sequences processed together", "B"),
    "length": Term("positions in a sequence", "n"),
    "q_len": Term("positions that ask (queries)", "n_q"),
    "k_len": Term("positions that are looked at (keys and values)", "n_k"),
    "heads": Term("attention heads as a tensor axis", "h"),
    "d_model": Term("width of the residual stream", "d_model"),
    "n_heads": Term("number of query heads", "h"),
    "n_kv_heads": Term("number of key and value heads, shared by groups of query heads"),
    "d_head": Term("width of one query and one key", "d_k"),
    "d_v": Term("width of one value", "d_v"),
    "d_ff": Term("hidden width of the feed-forward sublayer", "d_ff"),
    "n_layers": Term("number of blocks", "N"),
    "vocab_size": Term("number of distinct tokens", "|V|"),
    "max_length": Term("longest sequence a model accepts"),
    "d_in": Term("features of one input position, where inputs are not tokens"),
    "d_out": Term("features of one output position, where outputs are not logits over tokens"),
}

LAYOUTS: dict[str, str] = {
    "activations": "(batch, length, d_model)",
    "q, k, v": "(batch, heads, length, d_head)",
    "scores, weights": "(batch, heads, q_len, k_len)",
    "mask": "bool, True = may attend; broadcasts to (batch, heads, q_len, k_len)",
    "padding": "(batch, length) bool, True = a real position",
}
