"""What a module is built of, as far as that tells a layer from a block and a block from a model."""

from __future__ import annotations

import ast
import itertools
import re

from torch import nn

from attnlab.strangers.said.source import descriptions, parsed, source_of_forward

_FEEDFORWARD = re.compile(
    r"(^|\.)(mlp|ffn?|ffw|fc\d?|feed_?forward|ff_?\w*|linear[12]|lin[12]|c_fc|intermediate|experts?|w[123]|pwff|moe)$"
)
_OF_ATTENTION = re.compile(
    r"(^|[._])(to_?)?w?_?(q|k|v|qk|kv|qkv|query|key|value)s?(_?(proj|linear|layer|net|\d))?$|attn|in_proj", re.I
)
_MADE_BY_ATTENTION = re.compile(r"att|mha|context|\bsa(_|$)", re.I)
_RESIDUAL_NAMES = re.compile(r"Residual|Res(?=[A-Z]|$)|SkipConn|Sublayer")
_BLOCK_WORDS = re.compile(r"block|layer(?!norm)|encoder|decoder", re.I)


def is_block(module: nn.Module) -> bool:
    """Whether a module is named or described as a block or layer with a feed-forward, or is built like one."""
    name = type(module).__name__
    if _RESIDUAL_NAMES.search(name):
        return True
    said = re.sub(r"[Ll]ayer_?[Nn]orm", "", " ".join([name, *descriptions(module)]))
    if has_feedforward(module):
        return bool(_BLOCK_WORDS.search(said)) or has_norm(module)
    return has_norm(module) and _adds_attention(module)


def is_stack(part: nn.Module) -> bool:
    """Whether a part is a list of several blocks of one class."""
    if not isinstance(part, nn.ModuleList | nn.Sequential) or len(part) < 2:
        return False
    blocks = [each for each in part if each is not None]
    return len({type(each) for each in blocks}) == 1 and all(has_feedforward(one) and has_norm(one) for one in blocks)


def has_norm(module: nn.Module) -> bool:
    """Whether a module has a part that normalizes."""
    return any("norm" in type(part).__name__.lower() for part in module.modules())


def has_feedforward(module: nn.Module) -> bool:
    """Whether a module has a part that widens or transforms each position by itself, beside attention."""
    if any(
        _FEEDFORWARD.search(name) for name, part in module.named_modules() if next(part.parameters(), None) is not None
    ):
        return True
    linears = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    return any(_widens(name, up, down) for (name, up), (_, down) in itertools.pairwise(linears))


def _adds_attention(module: nn.Module) -> bool:
    """Whether the ``forward`` of a module adds something to what attention made, as a skip does."""
    written = "\n".join(map(ast.unparse, parsed(source_of_forward(module))))
    sums = re.findall(r"(\w+) \+ ([\w.]+)", written)
    return any(_MADE_BY_ATTENTION.search(other) and not _MADE_BY_ATTENTION.search(one) for one, other in sums)


def _widens(name: str, up: nn.Linear, down: nn.Linear) -> bool:
    """Whether two linear maps lead to another width and back, and the first makes no queries, keys or values."""
    back = up.in_features == down.out_features and up.out_features == down.in_features
    return back and up.out_features not in (up.in_features, 3 * up.in_features) and not _OF_ATTENTION.search(name)
