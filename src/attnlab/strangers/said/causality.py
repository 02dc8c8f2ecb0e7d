"""Whether a class says that a position sees no later one."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from attnlab.core.constructors import named, signature_of
from attnlab.strangers.said.phrases import crossed, phrases
from attnlab.strangers.said.source import descriptions, nodes_of, source_of

_NAMES: tuple[tuple[str, bool, bool], ...] = (
    (r"NonCausal|Non_?causal|Bi[Dd]irectional|Unmasked|Masked(LM|Language)", False, False),
    (r"Causal|Auto[Rr]egressive|Unidirectional|Masked(Self|Multi|Head)|LookAhead", True, False),
    (r"GPT|Decoder|LanguageModel|CharLM|LM$|CharRNN", True, True),
    (r"Encoder|B[Ee][Rr][Tt]|ViT|VisionTransformer", False, True),
)
"""Names of classes: whether they say causal, and whether they only make it likely; the first that fits counts."""

_SEES = "see|sees|attend|attends|look|looks|peek|peeks"
_PAST = "previous|earlier|preceding|past|before"
_PHRASES: tuple[tuple[tuple[str, ...], bool, bool], ...] = (
    (
        ("non-causal|not causal|no causal|bi-directional*|un-masked|non-auto-regressive|masked auto-encoder*",
         "both directions|masked language", crossed("attention over all", "patches|positions|tokens")),
        False, False,
    ),
    (
        ("causal*|auto-regressive*|decoder-only|left-to-right|look-ahead mask|uni-directional*|lower-triangular",
         crossed("masked", "|multi-head|multi-headed", "|self", "attention"),
         crossed("no|nothing|none", "of the|from the", "future"),
         f"not|never|cannot|can't .. {_SEES} .. future|later|ahead",
         "no later position*|no later token*|future positions are|future tokens are",
         crossed("hide|hides", "|the", "future|later"),
         f"{_SEES} .. only|just|nothing but .. {_PAST}|itself", f"only|just .. {_SEES} .. {_PAST}",
         f"{_SEES} .. all|every|each .. {_PAST}"),
        True, False,
    ),
    ((f"{crossed('every|each', 'position|token|patch')} .. {_SEES} .. all|every|each",), False, False),
    (
        ("encoder-decoder attention|cross-attention|decoder's",
         "decoder .. hidden|state*|output*|quer*", "from|of|for|by|to|in .. the|a .. decoder"),
        False, True,
    ),
    (("gpt*|next token*|next char*|next word*|language model*|decoder*",), True, True),
    (("encoder*|bert*|full attention|full self-attention|all positions",), False, True),
)  # fmt: skip
"""The same of docstrings."""

_BOTH = re.compile(r"\bencoders? (and|or|nor) (the )?decoders?( only)?\b", re.IGNORECASE)
"""Of both at once nothing is said that "decoder only" says of a model."""

_ASKS_FOR_MASK = re.compile(r"(use_|apply_)?(causal_)?mask(ed|_flag)?")
_DIAGONALS = (-1, 0, 1, 2)  # of a triangle meant to be causal, one off in either direction included


@final
@dataclass(frozen=True)
class CausalClaim:
    """Say whether a class claims that a position sees no later one."""

    causal: bool  # what it claims
    by: str  # where: ``"its docstring"``, ``"its name"``, ``"its argument causal=True"``, ``"its source"``
    likely: bool = False  # whether the words do not say so, but most who use them mean it: a decoder, an encoder


def causal_said(module: nn.Module, text: str, arguments: Mapping[str, Any]) -> CausalClaim | None:
    """Whether a class says that a position sees no later one, and where it says so.

    Where an argument asks whether to be causal and is off unless given, what its name and its source make likely is
    said of the other case.
    """
    usual = {name: one.default for name, one in signature_of(type(module)).items()}
    own = {**usual, **vars(module), **arguments}
    asking = [*named("causal", own), *(name for name in own if _ASKS_FOR_MASK.fullmatch(name))]
    asking = [name for name in asking if isinstance(own[name], bool)]
    for name in asking:
        if own[name] or name in {**vars(module), **arguments}:
            return CausalClaim(own[name], f"its argument {name}={own[name]}")
    name, said = type(module).__name__, _BOTH.sub("encoder-decoder", " ".join(" ".join(descriptions(module)).split()))
    for likely in (False,) if asking else (False, True):
        by_name = (causal for words, causal, only in _NAMES if only is likely and re.search(words, name))
        by_text = (causal for words, causal, only in _PHRASES if only is likely and phrases(*words).search(said))
        for found, by in ((by_name, "its name"), (by_text, "its docstring")):
            causal = next(found, None)
            if causal is not None:
                return CausalClaim(causal, by, likely)
    if not asking and (keeps_triangle(module) or _makes_triangle(source_of(type(module)), text)):
        return CausalClaim(True, "its source")
    goes_on = None if asking else _goes_on(module)
    return None if goes_on is None else CausalClaim(True, f"its `{goes_on}`, which goes on from what it answers", True)


def _goes_on(module: nn.Module) -> str | None:
    """The method that puts what the class answers behind what it was given, and asks anew.

    Only of a class that is given one sequence: of two it may be the other one that goes on.
    """
    _, *given = inspect.signature(type(module).forward).parameters.values()  # without itself
    asked = [one for one in given if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    if len(asked) != 1:
        return None
    methods = (node for node in nodes_of(source_of(type(module))) if isinstance(node, ast.FunctionDef))
    for method in methods:
        loops = (node for node in ast.walk(method) if isinstance(node, ast.For | ast.While))
        called = ([ast.unparse(one.func) for one in ast.walk(loop) if isinstance(one, ast.Call)] for loop in loops)
        if any({"self", "self.forward"} & {*names} and {"torch.cat", "cat"} & {*names} for names in called):
            return method.name
    return None


def keeps_triangle(module: nn.Module) -> bool:
    """Whether a buffer or another tensor of the module is a triangular table of what may be seen."""
    kept = (value for part in module.modules() for value in (*part._buffers.values(), *vars(part).values()))
    for tensor in (value for value in kept if isinstance(value, torch.Tensor) and value.dim() >= 2):
        if tensor.size(-1) == tensor.size(-2) > 2:
            square = (tensor.detach().reshape(-1, *tensor.shape[-2:])[0] != 0).cpu()
            ones = torch.ones_like(square)
            if any(torch.equal(square, each) for d in _DIAGONALS for each in (ones.tril(d), ones.triu(d))):
                return True
    return False


def _makes_triangle(*sources: str) -> bool:
    """Whether code makes a triangle: tril or triu, and not both, as a band of both sides would need."""
    calls = (node for source in sources for node in nodes_of(source))
    return len({kind for node in calls if isinstance(node, ast.Call) for kind in _triangle(node)}) == 1


def _triangle(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name.endswith("attention"):
        constant = {word.arg: word.value for word in call.keywords}.get("is_causal")
        if isinstance(constant, ast.Constant) and constant.value is True:
            yield "tril"
    if name in ("tril", "triu", "tril_", "triu_"):
        yield name.rstrip("_")
