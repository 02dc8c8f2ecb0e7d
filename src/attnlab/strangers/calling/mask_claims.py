"""What a class says about a mask argument: which of its values keep, and whether it is over pairs or over keys."""

from __future__ import annotations

import inspect
import re
from typing import Literal

from torch import nn

from attnlab.strangers.calling.axes_said import Said, source_of_forward

_VALUE_WORD = r"\b(?:True|False|1|0|ones?|zeros?)\b"
_VALUE = r"(?P<value>\b[Tt]rue\b|\b[Ff]alse\b|\b1(?:\.0)?s?\b|\b0(?:\.0)?s?\b|\bones?\b|\bzeros?\b|\bnon-?zero\b)"
_OUTCOME = (
    r"(?P<keep>\battend\w*|\blooks?\b|\blooked at\b|\bkeep\w*|\bkept\b|\bvisible\b|\breal\b|\bvalid\b|\ballow\w*"
    r"|\bseen?\b|\bpresent\b|\bunmasked\b|\btakes? part\b|\bparticipat\w*|\bincluded?\b|\bnon-?pad\w*|\bactual\b)"
    r"|(?P<block>\bignor\w*|\bmask(?:ed|s)\b(?![- ]language)|\bmask out\b|\bto mask\b|\bblock\w*"
    r"|\bhid(?!den[- _](?:states?|size|dim|layer|unit|vector))\w*|\bpad\w*|\bexclud\w*"
    r"|\bdisallow\w*|\bforbid\w*|\bforbidden\b|\bprevent\w*|\bdrop\w*|\binvisible\b)"
)
_THING = r"(?P<keep>(?:tokens?|words?|frames?|items?|elements?|nodes?)\b(?=\s*(?:[.,;:)/]|$|and\b|or\b)))"
"""What stands in a sequence: ``1 = token`` is what is kept, where no more is said of it."""
_MEANINGS = (
    re.compile(rf"{_VALUE}(?P<between>\s*(?:=|:|->|for|is|are|means|at|marks)\s*(?:an?\s|the\s)?){_THING}"),
    re.compile(rf"{_VALUE}(?P<between>(?:(?!{_VALUE_WORD})[^.;,\n]){{0,45}}?)(?:{_OUTCOME})"),
    re.compile(
        rf"(?:{_OUTCOME})(?P<between>(?:\s+[^\s.;,]+){{0,3}}?\s+(?:are|is|=|as|with|by)\s+|\s*(?:=|:|->|\()\s*){_VALUE}"
    ),
)
_NOT = re.compile(r"\bnot\b|n't\b|\bnever\b|\bcannot\b|\bno\b", re.IGNORECASE)
_TAKEN_BACK = re.compile(
    r"[^.;,\n]{0,30}?(\b(not|never)\s+(be\s+)?(allowed|permitted|possible|attended|seen|visible|valid|kept)\b"
    r"|\b(is|are)\s+(forbidden|disallowed|prohibited|blocked|prevented|masked)\b)"
)
"""What may follow a word that keeps: ``where attending is not allowed``."""
_SMALL_VALUES = ("False", "false", "0", "0s", "0.0", "0.0s", "zero", "zeros")
_USUAL_BLOCKS = re.compile(r".*key_padding_mask|is_pad(ding)?|blocked(_mask)?|pad_positions")
_USUAL_KEEPS = re.compile(r"(encoder_|cross_)?attention_mask|.*(valid|keep|visible|allowed|real)(_mask)?")
_OF_SUMS = re.compile(r"-inf|-1e9|additive|added to|is added|bias", re.I)
_KEYS = re.compile(
    r"pad|token|word|real|valid|\((b|bs|batch\w*|n),\s*(t|l|s|n|seq\w*|len\w*|time|k_len|tokens?)\)", re.I
)
_PAIRS = re.compile(r"attend|quer|pairs?|\bq_len|\((\w+),\s*\1\)|causal|subsequent|future", re.I)


def mask_said(module: nn.Module, parameter: str) -> Said | None:
    """What a class says the values of a mask argument mean."""
    for text in _about_mask(module, parameter):
        meaning = None if _OF_SUMS.search(text) else meaning_of(text)
        if meaning is not None:
            return Said(meaning, "docstring")
    for names, meaning in ((_USUAL_BLOCKS, "True blocks"), (_USUAL_KEEPS, "True keeps")):
        if names.fullmatch(parameter):
            return Said(meaning, "its name")
    return None


def _about_mask(module: nn.Module, parameter: str) -> list[str]:
    """The sentences about a mask: those that name it first, then those of any mask, then comments."""
    if type(module).__module__.startswith("torch."):
        return []
    docstrings = [
        inspect.cleandoc(doc) for doc in (type(module).forward.__doc__, type(module).__dict__.get("__doc__")) if doc
    ]
    lines = [line for doc in docstrings for line in doc.splitlines()]
    pairs = [" ".join(pair) for pair in zip(lines, [*lines, ""][1:], strict=True)]
    named = [pair for pair, line in zip(pairs, lines, strict=True) if re.search(rf"\b{re.escape(parameter)}\b", line)]
    comments = [c for c in re.findall(r"#(.*)", source_of_forward(module)) if parameter in c or "mask" in c]
    others = [pair for pair, line in zip(pairs, lines, strict=True) if re.search(r"mask|pad", line)]
    several = len([name for name in inspect.signature(module.forward).parameters if "mask" in name or "pad" in name])
    return named + comments + (others if several <= 1 else [])


def meaning_of(text: str) -> str | None:
    """What a sentence says about the values of a mask.

    Examples
    --------
    >>> meaning_of("bool, True = ignore"), meaning_of("0 where a position is masked"), meaning_of("a mask")
    ('True blocks', 'True keeps', None)
    """
    for pattern in _MEANINGS:
        match = pattern.search(text)
        if match is not None:
            keeps = match["keep"] is not None
            keeps ^= bool(_NOT.search(match["between"])) or (keeps and bool(_TAKEN_BACK.match(text, match.end())))
            keeps ^= match["value"] in _SMALL_VALUES
            return "True keeps" if keeps else "True blocks"
    return None


def over_said(module: nn.Module, parameter: str) -> Literal["pairs", "keys"] | None:
    """What a class says a mask argument is over."""
    text = " ".join(_about_mask(module, parameter))
    keys, pairs = bool(_KEYS.search(text)), bool(_PAIRS.search(text))
    if keys is pairs:
        return None
    return "keys" if keys else "pairs"
