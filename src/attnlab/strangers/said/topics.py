"""What a class may declare that it means, of what else would look wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import nn

from attnlab.strangers.said.phrases import crossed, phrases, sentence
from attnlab.strangers.said.source import descriptions, is_torchs_own

_PARTS = "weight*|parameter*|projection*|matri*|layer*|block*|head|heads|table*|embedding*|norm*"
_FEATURES = "feature*|projection*|weight*|matri*|table*|filter*|kernel*"
_Q_AND_K = (
    crossed("query|queries|q", "and|/|=|and the", "key|keys|k")
    + "|"
    + crossed("key|keys|k", "and|/|=", "query|queries|q")
)
_MASKED = crossed("fully|wholly|all|completely|entirely", "masked|blocked|padded")
_EMPTY = f"empty|nothing|{crossed('no|without', '|visible|allowed|real', 'key*|position*')}|{_MASKED}"
MEANT: dict[str, tuple[str, ...]] = {
    "rows that may be empty": (
        f"{_EMPTY} + row*|quer*|position*|sample*|memory|context + may|can|allow*|zero*|safe*|finite|support*|handle*",
        f"{_EMPTY} .. get*|give*|return*|output* .. zero*|finite",
        f"row*|quer*|sample* .. may|can .. {_EMPTY}",
        "whole|entire .. may|can .. true|masked|blocked|padded|padding",
    ),
    "chance at every call": (
        "lsh|locality-sensitive|monte-carlo|random hash*|random rotation*|randomly rotation*",
        "hash* .. random*",
        f"drawn|sampled|redrawn|random .. {crossed('at|in|on', 'each|every', 'call|forward|step')}",
    ),
    "padding on the left": ("left-pad*", crossed("padded|padding", "on|at", "the", "left|start")),
    "padding on the right": ("right-pad*", crossed("padded|padding", "on|at", "the", "right|end")),
    "one projection of queries and keys": (
        f"share|shares|shared|sharing|shared by|shared between|tie|ties|tied|same|one projection + {_Q_AND_K}",
        crossed("one projection", "for|of|serves|makes", "both"),
        "shared qk|shared query-key|symmetric score*|symmetric attention",
    ),
    "shared parts": (
        f"share|shares|shared|sharing|tie|ties|tied|same .. {_PARTS}",
        f"{_PARTS} .. shared|tied|the same|sharing",
        f"reuse|reuses|reused|reusing .. {_PARTS}",
        "recurrent|recurrence + depth|over depth|in depth",
        "looped|iterated|unrolled .. block*|layer*|transformer*",
        "block*|layer* .. looped|iterated|unrolled",
        "albert|fixed-point iteration*|deep equilibrium",
        "weight tying|weight sharing|universal transformer*",
        "applied .. again|repeatedly|times|in a loop",
    ),
    "stopped gradients": (
        "straight-through|moving average|not trained|not learned|stop-gradient*",
        crossed("no", "gradient|gradients", "flow*|pass*|reach*"),
        "gradient* .. stopped|cut|blocked|not passed",
        "is|are|kept|keeps|stay|stays .. frozen|detached",
        f"frozen .. {_PARTS}|encoder|backbone|feature*",
    ),
    "fixed weights": (
        f"fixed|frozen|constant .. {_FEATURES}",
        "is|are|kept|stay|stays .. fixed|frozen|constant",
        f"random feature*|random projection*|{crossed('hash|hashing|hashed', 'function*|projection*|matri*')}",
        "not trained|not learned|never trained|untrained|drawn once",
    ),
    "another scale": (
        "mup|\u03bcp|maximal-update",
        f"scal*|divi*|multipl* .. {crossed('by', '1 / d|1 / d_k|1 / dk|1 / d_head|1 / dhead')}",
    ),
    "no softmax": (
        crossed("no|not|never|without|instead of|rather than|in place of|replac*", "|a|an|any|the", "softmax"),
        "softmax-free|linear attention|feature map|feature maps|retention|kernelized|kernelised",
        crossed("kernel", "attention|feature|trick"),
        crossed("gaussian|rbf|polynomial|softmax", "kernel"),
    ),
    "attention over features": (
        "cross-covariance|transposed attention|inverted attention|inverted transformer*",
        crossed("channel|channels|feature|features|variate|variates", "|wise", "|self", "attention"),
        f"attention|attend|attends|look|looks|score|scores|map|maps .. "
        f"{crossed('between|among|across', '|the|all|other', 'channel|channels|feature|features|variate|variates')}",
        f"attention|attends|looks .. {crossed('over|along|to', '|the|all|other', 'channels|variates')}",
        f"attention|attends|looks .. {crossed('over|along|to', '|the', 'channel|feature', 'axis|dimension')}",
        crossed(
            "channel|channels|feature|features|variate|variates", "is|are|as", "|a|the", "token|tokens|queries|keys"
        ),
    ),
    "a window": (
        "window*|local*|sliding|band|banded|sparse*|dilated|neighbour*|neighbor*|receptive field*|block-wise|chunk*",
        "nearby|segment of|segments of|strided attention|buckets|token shift|time shift|short conv*|truncated",
    ),
    "no mixing": ("feed-forward*|mlp|ff|ffn|position-wise*|point-wise*|no mix*|identity|norm*",),
    "probabilities": (
        "returns|return|gives|give|outputs|output|yields|yield|predicts|predict .. probability|probabilities",
        "probability distribution*",
        crossed("probability|probabilities", "of|over|for", "|the|each|every|all", "next|vocab*|token*|word*|classes"),
    ),
}
"""What a class may declare that it means, by phrases: what was measured stays in the report, as accepted."""

_POSITIONS = re.compile(
    r"rotary|\brope\b|\balibi\b|sinusoid|relative[- ]position|position[- ]aware"
    r"|position(al)?[- ](encoding|embedding|bias|information|signal|index|indices|offset|feature|code|vector|table)"
    r"|(adds?|added|learned|absolute) (the |its |their )?positions?\b|order information",
    re.IGNORECASE,
)
_POSITION_NAMES = re.compile(r"Rotary|R[oO]PE|Rope|A[lL]i[bB]i|Sinusoid|RelativePos|Positional(?![Ww]ise|ly)")
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
