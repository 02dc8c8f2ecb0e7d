"""What a class says the values of a mask mean."""

from __future__ import annotations

import inspect
import re
from typing import Literal

from torch import nn

from attnlab.strangers.said.source import Said, docstrings, is_torchs_own, source_of_forward, with_next

_VALUE_WORD = r"\b(?:True|False|1|0|ones?|zeros?)\b"
_VALUE = r"(?P<value>\b[Tt]rue\b|\b[Ff]alse\b|\b1(?:\.0)?s?\b|\b0(?:\.0)?s?\b|\bones?\b|\bzeros?\b|\bnon-?zero\b)"
_SMALL_VALUES = frozenset(["False", "false", "0", "0s", "0.0", "0.0s", "zero", "zeros"])
_KEPT = (
    r"attend\w*|looks?|looked at|keep\w*|kept|visible|real|valid|allow\w*|seen?|present|unmasked|takes? part"
    r"|participat\w*|included?|non-?pad\w*|actual"
)
_BLOCKED = (
    r"ignor\w*|mask(?:ed|s|ing)\b(?![- ]language)|mask out|to mask|block\w*|exclud\w*|disallow\w*|forbid\w*|forbidden"
    r"|hid(?!den[- _](?:states?|size|dim|layer|unit|vector))\w*|pad\w*|prevent\w*|drop\w*|invisible"
)
_OUTCOME = rf"(?P<keep>\b(?:{_KEPT})\b)|(?P<block>\b(?:{_BLOCKED})\b)"
_THING = r"(?P<keep>(?:tokens?|words?|frames?|items?|elements?|nodes?)\b(?=\s*(?:[.,;:)/]|$|and\b|or\b)))"
_MEANINGS = (
    rf"{_VALUE}(?P<between>\s*(?:=|:|->|for|is|are|means|at|marks)\s*(?:an?\s|the\s)?){_THING}",  # 1 = token
    rf"{_VALUE}(?P<between>(?:(?!{_VALUE_WORD})[^.;,\n]){{0,45}}?)(?:{_OUTCOME})",
    rf"(?:{_OUTCOME})(?P<between>(?:\s+[^\s.;,]+){{0,3}}?\s+(?:are|is|=|as|with|by)\s+|\s*(?:=|:|->|\()\s*){_VALUE}",
)
"""Sentences about the values of a mask: a value and what becomes of a position, in either order."""

_NOT = re.compile(r"\bnot\b|n't\b|\bnever\b|\bcannot\b|\bno\b", re.IGNORECASE)
_TAKEN_BACK = re.compile(  # where attending is not allowed
    r"[^.;,\n]{0,30}?(\b(not|never)\s+(be\s+)?(allowed|permitted|possible|attended|seen|visible|valid|kept)\b"
    r"|\b(is|are)\s+(forbidden|disallowed|prohibited|blocked|prevented|masked)\b)"
)
_MASK_NAMES = (
    (r".*key_padding_mask|is_pad(ding)?|blocked(_mask)?|pad_positions", "True blocks"),
    (r"(encoder_|cross_)?attention_mask|.*(valid|keep|visible|allowed|real)(_mask)?|adj(acency)?(_.*)?", "True keeps"),
)
"""Names of mask arguments that say what True means."""

_SUM_WORDS = re.compile(r"-inf|-1e9|additive|added to|is added|bias", re.IGNORECASE)
_OVER_KEYS = re.compile(
    r"pad|token|word|real|valid|\((b|bs|batch\w*|n),\s*(t|l|s|n|seq\w*|len\w*|time|k_len|tokens?)\)", re.IGNORECASE
)
_OVER_PAIRS = re.compile(r"attend|quer|pairs?|\bq_len|\((\w+),\s*\1\)|causal|subsequent|future", re.IGNORECASE)


def mask_said(module: nn.Module, parameter: str) -> Said | None:
    """What a class says the values of a mask argument mean."""
    for text in _about_mask(module, parameter):
        meaning = None if _SUM_WORDS.search(text) else meaning_of(text)
        if meaning is not None:
            return Said(meaning, "docstring")
    by_name = next((meaning for names, meaning in _MASK_NAMES if re.fullmatch(names, parameter)), None)
    return None if by_name is None else Said(by_name, "its name")


def meaning_of(text: str) -> str | None:
    """What a sentence says about the values of a mask.

    Examples
    --------
    >>> meaning_of("bool, True = ignore"), meaning_of("0 where a position is masked"), meaning_of("a mask")
    ('True blocks', 'True keeps', None)
    """
    for pattern in _MEANINGS:
        match = re.search(pattern, text)
        if match is not None:
            keeps = match["keep"] is not None
            keeps ^= bool(_NOT.search(match["between"])) or (keeps and bool(_TAKEN_BACK.match(text, match.end())))
            keeps ^= match["value"] in _SMALL_VALUES
            return "True keeps" if keeps else "True blocks"
    return None


def over_said(module: nn.Module, parameter: str) -> Literal["pairs", "keys"] | None:
    """What a class says a mask argument is over."""
    text = " ".join(_about_mask(module, parameter))
    keys, pairs = bool(_OVER_KEYS.search(text)), bool(_OVER_PAIRS.search(text))
    if keys is pairs:
        return None
    return "keys" if keys else "pairs"


def _about_mask(module: nn.Module, parameter: str) -> list[str]:
    """The sentences about a mask: those that name it first, then comments, then those of any mask if it is the only."""
    if is_torchs_own(module):
        return []
    lines = [line for text in docstrings(module) for line in text.splitlines()]
    pairs = list(zip(with_next(lines), lines, strict=True))
    named_it = [pair for pair, line in pairs if re.search(rf"\b{re.escape(parameter)}\b", line)]
    comments = [c for c in re.findall(r"#(.*)", source_of_forward(module)) if parameter in c or "mask" in c]
    others = [pair for pair, line in pairs if re.search(r"mask|pad", line)]
    several = [name for name in inspect.signature(module.forward).parameters if "mask" in name or "pad" in name]
    return named_it + comments + (others if len(several) <= 1 else [])
