"""What a class may declare that it means, of what else would look wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import nn

from attnlab.strangers.said.phrases import phrases, sentence
from attnlab.strangers.said.source import descriptions, is_torchs_own

_PARTS = "weight*|parameter*|projection*|matri*|layer*|block*|head|heads|table*|embedding*|norm*"
_FIXED = "fixed|frozen|constant|random*|untrained|drawn once"
_EMPTY = (
    "empty|nothing|no key*|no allowed|no visible|no real|no position*"
    "|fully|wholly|completely|entirely|all masked|all padded"
)
_AMONG_FEATURES = "|".join(
    f"{among} {axis}"
    for among in ("between", "among", "across", "over", "along")
    for axis in ("channels", "the channels", "features", "the features", "variates", "the variates", "all channels")
)
MEANT: dict[str, tuple[str, ...]] = {
    "rows that may be empty": (
        f"{_EMPTY} + row*|quer*|position*|sample*|memory|context + may|can|allow*|zero*|safe*|finite|support*|handle*",
        f"{_EMPTY} .. get*|give*|return*|output* .. zero*|finite",
        f"row*|quer*|sample* .. may|can .. {_EMPTY}",
        "whole|entire .. may|can .. true|masked|blocked|padded|padding",
    ),
    "chance at every call": (
        "lsh|locality-sensitive|monte-carlo",
        "random*|drawn|sampled + hash*|rotation*|each call|every call|each forward|every forward|each step|every step",
    ),
    "padding on the left": ("pad* .. left|start", "left .. pad*"),
    "padding on the right": ("pad* .. right|end", "right .. pad*"),
    "one projection of queries and keys": (
        "shar*|tie|tied|same|symmetric|one projection + quer*|q|qk + key*|k|qk",
        "shared qk|shared query-key|symmetric score*|symmetric attention",
    ),
    "shared parts": (
        f"shar*|tie|ties|tied|same + {_PARTS}",
        "weight tying|weight sharing|universal transformer*",
        "applied .. again|repeatedly|times|loop",
    ),
    "stopped gradients": (
        "straight-through|moving average|not trained|not learned|never trained|frozen|detached|untrained",
        "stop*|no|cut|block* .. gradient*",
        "gradient* .. stopped|cut|blocked",
    ),
    "fixed weights": (
        f"{_FIXED} + feature*|filter*|kernel*|hash*|rotation*|{_PARTS}",
        f"is|are|kept|keep*|stay* .. {_FIXED}",
        "not trained|not learned|never trained|untrained|drawn once",
    ),
    "another scale": (
        "mup|\u03bcp|maximal-update",
        "scal*|divi*|multipl* .. 1 / d|1 / d_k|1 / dk|1 / d_head|1 / head_dim",
    ),
    "no softmax": (
        "no|not|never|without|instead of|rather than|in place of|replac* .. softmax",
        "softmax-free|linear attention|feature map*|retention|kerneli*",
        "kernel attention|kernel feature*|kernel trick|gaussian kernel|rbf kernel|polynomial kernel|softmax kernel",
    ),
    "attention over features": (
        "cross-covariance|transposed attention|inverted attention|inverted transformer*",
        "channel attention|channel-wise attention|channel self-attention|feature attention|feature-wise attention",
        f"attention|attend*|look*|score* .. {_AMONG_FEATURES}",
        "channel*|feature*|variate* .. as|is|are .. token*|quer*|key*",
    ),
    "a window": (
        "window*|local*|sliding|band|banded|sparse*|dilated|neighbour*|neighbor*|receptive field*|block-wise|chunk*",
        "nearby|segment*|strided attention|bucket*|token shift|time shift|short conv*|truncated",
    ),
    "no mixing": ("feed-forward*|mlp*|ff|ffn|position-wise*|point-wise*|no mix*|identity|norm*|layer norm*",),
    "probabilities": (
        "return*|give*|output*|yield*|predict* .. probabilit*",
        "probabilit* .. next|vocab*|token*|tokens|word*|class*|distribution*",
    ),
}
"""What a class may declare that it means, by phrases: what was measured stays in the report, as accepted."""

_POSITIONS = re.compile(
    r"rotary|\brope\b|\balibi\b|sinusoid|relative[- ]position|position[- ]aware"
    r"|position(al)?[- ](encoding|embedding|bias|information|signal|index|indices|offset|feature|code|vector|table)"
    r"|(adds?|added|learned|absolute) (the |its |their )?positions?\b|order information",
    re.IGNORECASE,
)
_POSITION_NAMES = re.compile(r"Rotary|R[oO]PE|Rope|A[lL]i[bB]i|Sinusoid|RelativePos|Positional(?!wise)(?!ly)")
_POSITIONS_ELSEWHERE = re.compile(
    r"\b(no|not|without|outside|caller|callers|beforehand|expect\w*|assum\w*|already|elsewhere|upstream|add(s|ed) by"
    r"|add(s|ed)? (them|it) (first|before)|before (the|this|calling)|given to|left out|omit\w*|optional\w*|free)\b",
    re.IGNORECASE,
)
_NEAR = 60  # characters around a claim in which a word takes it back


def declared(said: str, topic: str) -> str:
    """The sentence of what a class says in which it declares a topic of `MEANT`, or nothing.

    Examples
    --------
    >>> declared("Attention. Queries and keys share one projection.", "one projection of queries and keys")
    'Queries and keys share one projection'
    >>> declared("The keys are not shared.", "shared parts")
    ''
    """
    return sentence(said, phrases(*MEANT[topic]))


def said_unused(said: str, text: str, names: Sequence[str]) -> str:
    """The words by which a class says that it takes an argument and does not use it, or nothing."""
    deleted = re.search(rf"\bdel\b[^\n#]*\b{re.escape(names[0])}\b", text) if names[0] else None
    if deleted:
        return deleted[0]
    name = rf"`*\b({'|'.join(re.escape(each) for each in names if each)})\b`*"
    idle = r"(unused|ignored|not used|never used|not read|never read|a no-op|a placeholder)"
    why = r"(does not (use|look at|read)|has no effect|for (\w+ )?(compatibility|the interface|the signature|the api))"
    direct = rf"{name}( argument)?( is|:|,)?( accepted (but|and))? {idle}(?! (key|position|token|entr|where|for))"
    return sentence(said, re.compile(rf"{direct}|\bunused {name}|ignores? (the |its |any )?{name}|{name}.*{why}", re.I))


def positions_said(module: nn.Module) -> Iterator[str]:
    """Yield the words in names and docstrings of the classes of a module that claim to tell positions apart."""
    for kind, part in {type(part): part for part in module.modules()}.items():
        if is_torchs_own(part):
            continue
        if _POSITION_NAMES.search(kind.__name__):
            yield kind.__name__
        for text in descriptions(part):
            for found in _POSITIONS.finditer(text):
                around = text[max(0, found.start() - _NEAR) : found.end() + _NEAR]
                if not _POSITIONS_ELSEWHERE.search(around):
                    yield found.group()
