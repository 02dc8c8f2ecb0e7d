"""The words people use for the sizes of the glossary, piece by piece: ``num_attention_heads`` is a number of heads."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

PIECES: dict[str, str] = {
    piece: meaning
    for meaning, pieces in {
        "count": "n nb num number count",
        "most": "max maximum",
        "size": "d dim dims dimension ndim size width channels units c",
        "features": "features",
        "hidden": "hid hidden hiddens",
        "model": "model feat feature state word vec",
        "end": "inp input in output out",
        "embedding": "emb embd embed embedding",
        "entries": "embeddings",
        "heads": "heads h nhead",
        "head": "head",
        "groups": "groups",
        "kv": "kv",
        "key": "k key keys q qk kq",
        "value": "v value values",
        "query": "query queries",
        "layers": "layers blocks",
        "depth": "depth",
        "layer": "layer block",
        "vocabulary": "vocab voc vocabulary",
        "words": "words dict",
        "token": "token tokens",
        "length": "len length maxlen seqlen seq sequence context ctx",
        "places": "position positions sentence patches",
        "time": "time",
        "steps": "step steps",
        "feedforward": "ff ffn mlp pf inner intermediate filter feedforward forward feed",
        "expansion": "mult expansion expand widening",
        "ratio": "ratio factor",
        "class": "class classes label labels",
        "dropout": "p drop dropout pdrop dropatt dropattn",
        "causal": "causal",
        "filling": (
            "attention attn attns of per src source tgt target trg enc encoder dec decoder rate prob probs probability "
            "resid residual res proj is total transformer i t path"
        ),
    }.items()
    for piece in pieces.split()
}
"""What a piece of a name says. A name with any other piece in it (``kernel_size``) is none of the glossary's sizes."""

WHOLE_NAMES: dict[str, str] = {
    name: word
    for word, names in {
        "n_layers": "N",
        "max_length": "T L max_T n_tokens",
        "d_model": "k emb embed latent_dim h_dim",
        "d_ff": "d_hid n_hidden",
        "n_kv_heads": "n_kv",
    }.items()
    for name in names.split()
}
"""Letters of papers, and names whose pieces say something else or nothing in well-known code."""

RULES: tuple[tuple[str, frozenset[str], frozenset[str]], ...] = tuple(
    (word, frozenset(present.split()), frozenset(absent.split()))
    for word, present, absent in (
        ("dropout", "dropout", ""),
        ("causal", "causal", ""),
        ("mlp_ratio", "expansion", ""),
        ("mlp_ratio", "feedforward ratio", ""),
        ("n_classes", "class", ""),
        ("max_length", "layer size", ""),  # block_size
        ("d_model", "key depth", ""),  # of tensors, not of stacks: where it is of something
        ("d_model", "value depth", ""),
        ("d_model", "end depth", ""),
        ("n_layers", "depth", "size"),
        ("n_layers", "layers", "size"),
        ("n_layers", "layer count", "size"),
        ("n_kv_heads", "groups", ""),
        ("n_kv_heads", "kv head", "size"),
        ("n_kv_heads", "kv heads", "size"),
        ("n_kv_heads", "key value heads", "size"),
        ("d_head", "head size", "count"),
        ("d_head", "heads size", "count"),
        ("n_heads", "heads", ""),
        ("n_heads", "head count", ""),
        ("vocab_size", "vocabulary", ""),
        ("max_length", "time steps", ""),
        ("max_length", "places most", ""),
        ("max_length", "places count", ""),
        ("max_length", "token most", ""),
        ("max_length", "length", ""),
        ("vocab_size", "words count", ""),
        ("vocab_size", "words size", ""),
        ("vocab_size", "entries", ""),
        ("vocab_size", "token count", ""),
        ("d_ff", "feedforward size", ""),
        ("d_ff", "feedforward hidden", ""),
        ("d_ff", "feedforward features", ""),
        ("d_ff", "feedforward count", ""),
        ("d_ff", "hidden features", ""),
        ("d_v", "value size", "key"),
        ("d_head", "key size", ""),
        ("d_head", "kv size", ""),
        ("d_model", "size", ""),
        ("d_model", "features", ""),
        ("d_model", "hidden", ""),
        ("d_model", "end", ""),
        ("d_model", "count embedding", ""),
        ("d_model", "count model", ""),
        ("d_model", "count end", ""),
    )
)
"""Which pieces make which word of the glossary: those that must be there, and those that must not. The first counts."""


@functools.cache
def glossary_word(name: str) -> str:
    """The glossary's word for a size, such as ``n_heads`` for ``num_heads``, or the name itself."""
    if name in WHOLE_NAMES:
        return WHOLE_NAMES[name]
    said = {PIECES.get(piece, "") for piece in _pieces(name)}
    if "" in said:
        return name
    return next((word for word, present, absent in RULES if present <= said and not absent & said), name)


def end_word(name: str) -> str:
    """What a size of a whole model is that reads and gives numbers: ``d_in``, ``d_out``, or neither."""
    pieces = {*_pieces(name)} - {"enc", "dec"}
    if not {PIECES.get(piece, "") for piece in pieces} <= {"size", "features", "count", "end", "model"}:
        return ""
    if pieces & {"out", "output"}:
        return "d_out"
    return "d_in" if pieces & {"in", "inp", "input", "feat", "feature", "features"} else ""


def named(word: str, names: Iterable[str]) -> list[str]:
    """Those of some names that mean a word of the glossary; the word itself first."""
    return sorted((name for name in names if word in (name, glossary_word(name))), key=lambda name: name != word)


def _pieces(name: str) -> list[str]:
    """The words of a name: parted by underscores and capitals, and a count or a size that is written without."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return [piece for word in words for piece in _parted(word.lower())]


def _parted(word: str) -> list[str]:
    if word in PIECES:
        return [word]
    cuts = ((word[:cut], word[cut:]) for cut in range(1, len(word)))
    return next(([first, second] for first, second in cuts if first in PIECES and second in PIECES), [word])
