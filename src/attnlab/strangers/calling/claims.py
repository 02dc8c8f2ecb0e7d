"""What a class claims to be: causal or not, a layer or a block."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attnlab.core.constructors import named
from attnlab.strangers.calling.axes_said import source_of_forward

_SURE = (
    (re.compile(r"NonCausal|Non_?causal|Bidirectional|BiDirectional|Unmasked|Masked(LM|Language)"), False),
    (
        re.compile(r"Causal|Autoregressive|AutoRegressive|Unidirectional|Masked(Self|Multi|Attention|Head)|LookAhead"),
        True,
    ),
)
"""Names that say whether a module is causal, the surest first."""

_LIKELY = (
    (re.compile(r"GPT|Decoder|LanguageModel|CharLM|LM$|CharRNN"), True),
    (re.compile(r"Encoder|B[Ee][Rr][Tt]|ViT|VisionTransformer"), False),
)
"""Names of what is usually causal or not."""

_SURE_WORDS = (
    (
        re.compile(
            r"non-?causal|not causal|bi-?directional|un-?masked|both directions|no causal|masked language", re.I
        ),
        False,
    ),
    (
        re.compile(
            r"non-?auto-?regressive|masked auto-?encoder|attention over all (patches|positions|tokens)"
            r"|(every|each) (position|token|patch) (sees|attends to) (all|every|each)\b(?!.{0,8} ?"
            r"(previous|earlier|preceding|past|before))",
            re.I,
        ),
        False,
    ),
    (
        re.compile(
            r"\bcausal|auto-?regressive|decoder-only|left-to-right|look-?ahead mask|unidirectional|lower[- ]triangular"
            r"|masked (multi-?head(ed)? )?(self-?)?attention|no(thing|ne)? (of the|from the) future"
            r"|(not|never|cannot|can't) (sees?|attends? to|looks? (at|into)|peeks? (at|into)) (the )?(future|later)"
            r"|(sees?|attends? to|looks? at) (only|just|nothing but) (the )?(past|earlier|previous|itself)"
            r"|(only|just) (sees?|attends? to|looks? at) (the )?(past|earlier|previous)|future (positions|tokens) are"
            r"|no later (position|token)|hides? (the )?(future|later)",
            re.I,
        ),
        True,
    ),
)
_DECODER = (
    r"(?<!encoder-)\bdecoder\b(?!.{0,20}encoder)(?! (hidden |output )?(states?|outputs?|queries)\b)"
    r"|encoder-decoder(?! (cross-?)?attention)"
)
"""A decoder itself: encoder-decoder attention looks at another sequence, and decoder states may be an input."""
_LIKELY_WORDS = (
    (re.compile(r"\bgpt|next[- ](token|character|char|word)|language model|" + _DECODER, re.I), True),
    (re.compile(r"\bencoder\b|\bbert\b|full (self-)?attention|all positions", re.I), False),
)
_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Inputs?|Returns?|Shapes?|Examples?|Notes?)\b.*$", re.MULTILINE)

_DIAGONALS = (-1, 0, 1, 2)  # of a triangle meant to be causal, one off in either direction included
_FEEDFORWARD = re.compile(
    r"(^|\.)(mlp|ffn?|ffw|fc\d?|feed_?forward|ff_?\w*|linear[12]|lin[12]|c_fc|intermediate|experts?|w[123]|pwff|moe)$"
)
_OF_ATTENTION = re.compile(
    r"(^|[._])(to_?)?w?_?(q|k|v|qk|kv|qkv|query|key|value)s?(_?(proj|linear|layer|net|\d))?$|attn|in_proj", re.I
)
_MADE_BY_ATTENTION = re.compile(r"att|mha|context|\bsa(_|$)", re.I)
_RESIDUAL_NAMES = re.compile(r"Residual|Res(?=[A-Z]|$)|SkipConn|Sublayer")


@dataclass(frozen=True)
class CausalClaim:
    """Say whether a class claims that a position sees no later one.

    Parameters
    ----------
    causal : bool
        What it claims.
    by : str
        Where: ``"its docstring"``, ``"its name"``, ``"its argument causal=True"``, ``"its source"``.
    likely : bool
        Whether the words do not say so, but most who use them mean it: a decoder, an encoder.
    """

    causal: bool
    by: str
    likely: bool = False


def causal_said(module: nn.Module, text: str, arguments: Mapping[str, Any]) -> CausalClaim | None:
    """Whether a class says that a position sees no later one, and where it says so."""
    for name in named("causal", {**arguments, **vars(module)}):
        value = arguments.get(name, getattr(module, name, None))
        if isinstance(value, bool):
            return CausalClaim(value, f"its argument {name}={value}")
    name, said = type(module).__name__, " ".join(" ".join(descriptions(module)).split())
    for names, words, likely in ((_SURE, _SURE_WORDS, False), (_LIKELY, _LIKELY_WORDS, True)):
        for where, patterns, by in ((name, names, "its name"), (said, words, "its docstring")):
            meaning = next((meaning for pattern, meaning in patterns if pattern.search(where)), None)
            if meaning is not None:
                return CausalClaim(meaning, by, likely)
    if _has_triangle(module) or _makes_triangle(source_of_class(module), text):
        return CausalClaim(True, "its source")
    return None


def descriptions(module: nn.Module) -> list[str]:
    """What the docstrings of a module's class and of its ``forward`` say before they go through parameters."""
    if type(module).__module__.startswith("torch."):
        return []
    texts = [type(module).__dict__.get("__doc__"), type(module).forward.__doc__]
    return [_SECTION.split(inspect.cleandoc(text))[0] for text in texts if text]


def source_of_class(module: nn.Module) -> str:
    """The source of a module's class, or nothing."""
    try:
        return textwrap.dedent(inspect.getsource(type(module)))
    except (OSError, TypeError):
        return ""


def _has_triangle(module: nn.Module) -> bool:
    """Whether a buffer or another tensor of the module is a triangular table of what may be seen."""
    for part in module.modules():
        tensors = [
            value for value in (*part._buffers.values(), *vars(part).values()) if isinstance(value, torch.Tensor)
        ]
        for tensor in tensors:
            if tensor.dim() >= 2 and tensor.size(-1) == tensor.size(-2) > 2 and _is_triangle(tensor):
                return True
    return False


def _is_triangle(tensor: torch.Tensor) -> bool:
    square = (tensor.detach().reshape(-1, *tensor.shape[-2:])[0] != 0).cpu()
    ones = torch.ones_like(square)
    return any(torch.equal(square, each) for d in _DIAGONALS for each in (ones.tril(d), ones.triu(d)))


def _makes_triangle(*sources: str) -> bool:
    """Whether code makes a triangle: tril or triu, and not both, as a band of both sides would need."""
    kinds: set[str] = set()
    for source in sources:
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        kinds |= {kind for node in ast.walk(tree) if isinstance(node, ast.Call) for kind in _triangle(node)}
    return len(kinds) == 1


def _triangle(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "scaled_dot_product_attention" or name.endswith("attention"):
        constant = {word.arg: word.value for word in call.keywords}.get("is_causal")
        if isinstance(constant, ast.Constant) and constant.value is True:
            yield "tril"
    if name in ("tril", "triu", "tril_", "triu_"):
        yield name.rstrip("_")


def is_block(module: nn.Module) -> bool:
    """Whether a module is named or described as a block or layer with a feed-forward, or is built like one."""
    name = type(module).__name__
    said = " ".join([name, *descriptions(module)])
    if _RESIDUAL_NAMES.search(name):
        return True
    named = re.search(r"block|layer(?!norm)|encoder|decoder", re.sub(r"[Ll]ayer_?[Nn]orm", "", said), re.IGNORECASE)
    if has_feedforward(module):
        return bool(named) or has_norm(module)
    return has_norm(module) and adds_attention(module)


def has_norm(module: nn.Module) -> bool:
    """Whether a module has a part that normalizes."""
    return any("norm" in type(part).__name__.lower() for part in module.modules())


def adds_attention(module: nn.Module) -> bool:
    """Whether the ``forward`` of a module adds something to what attention made, as a skip does."""
    sums = re.findall(r"(\w+) \+ ([\w.]+)", ast.unparse(ast.parse(source_of_forward(module) or "0")))
    return any(_MADE_BY_ATTENTION.search(other) and not _MADE_BY_ATTENTION.search(one) for one, other in sums)


def has_feedforward(module: nn.Module) -> bool:
    """Whether a module has a part that widens or transforms each position by itself, beside attention."""
    if any(
        _FEEDFORWARD.search(name) for name, part in module.named_modules() if next(part.parameters(), None) is not None
    ):
        return True
    linears = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    return any(_widens(name, up, down) for (name, up), (_, down) in itertools.pairwise(linears))


def _widens(name: str, up: nn.Linear, down: nn.Linear) -> bool:
    """Whether two linear maps lead to another width and back, and the first makes no queries, keys or values."""
    back = up.in_features == down.out_features and up.out_features == down.in_features
    return back and up.out_features not in (up.in_features, 3 * up.in_features) and not _OF_ATTENTION.search(name)
