"""What a class does with an argument that is a module, and which class of its file is meant by its name."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from attnlab.core.own_files import is_own
from attnlab.strangers.loading.sizes import is_module
from attnlab.strangers.said.source import nodes_of, source_of

_OWN = r"(\bself\.|(?<![.\w])(?<!def ))"  # before an argument that is called: `attention(x)`, but not `x.attention()`
OF_TORCH = {"encoder_layer": nn.TransformerEncoderLayer, "decoder_layer": nn.TransformerDecoderLayer}
"""Layers of torch by the names of arguments that are given them."""
_SHORTEST_WORD = 4  # of a name that says what is meant

Factory = Callable[..., Any]
"""A class of modules, or a function that returns one."""


def namespace_of(factory: Factory) -> dict[str, Any]:
    """The names of a factory's file."""
    return vars(sys.modules[factory.__module__]) if factory.__module__ in sys.modules else {}


def is_module_of(factory: Factory, name: str) -> bool:
    """Whether anything says that an argument is a module, or a list of them."""
    return class_named(factory, name) is not None or is_called(factory, name) or is_listed(factory, name)


def is_called(factory: Factory, name: str, *, tensors: int = 0) -> bool:
    """Whether a class calls what it is given, and not what it makes of it under the same name; with some tensors."""
    source = source_of(factory)
    kept = re.findall(rf"\bself\.(\w+) = {name}$", source, re.MULTILINE)
    given = ",".join([r"[^,()]+"] * (tensors - 1)) + "," if tensors else ""
    called = re.search(rf"{_OWN}(?:{'|'.join([name, *kept])})\({given}", source)
    return called is not None and re.search(rf"\bself\.{name} = (?!{name}\b)", source) is None


def is_listed(factory: Factory, name: str) -> bool:
    """Whether a class keeps what it is given as a list of modules."""
    return bool(re.search(rf"ModuleList\({name}\)", source_of(factory)))


def class_named(factory: Factory, name: str) -> type | None:
    """The class of modules of the same file that an argument is named after."""
    others = (kind for kind in namespace_of(factory).values() if is_module(kind) and kind is not factory)
    own = (kind for kind in others if kind.__module__ == factory.__module__)
    named_so = (kind for kind in own if kind.__name__.lower() == name.replace("_", "").lower())
    return next((kind for kind in named_so if not _is_made_of(factory, kind, name)), None)


def class_like(factory: Factory, name: str) -> type | None:
    """The class of modules of the person's files whose name holds that of an argument, or its last word."""
    here = [kind for kind in namespace_of(factory).values() if is_module(kind)]
    own = [kind for kind in here if is_own(kind.__module__) and not _is_made_of(factory, kind, name)]
    own = [kind for kind in own if kind is not factory]
    own.sort(key=lambda kind: not kind.__name__.startswith(factory.__name__))  # an Encoder has EncoderLayers
    words = name.lower().replace("attn", "attention").split("_")
    held = (kind for word in ("".join(words), words[-1]) for kind in own if word in kind.__name__.lower())
    found = next(held, None) if len(words[-1]) >= _SHORTEST_WORD else None
    return found or OF_TORCH.get(name)


def _is_made_of(factory: Factory, kind: type, name: str) -> bool:
    """Whether a class builds another one of an argument: `DropPath(drop_path)` takes a number."""
    return bool(re.search(rf"\b{kind.__name__}\((\w+=)?{name}\b", source_of(factory)))


def methods_that_set(kind: type, attribute: str) -> list[str]:
    """The methods of a class that give itself an attribute, and that are called with nothing."""
    names = dict.fromkeys(name for each in kind.__mro__ if is_own(each.__module__) for name in vars(each))
    return [name for name in names if not name.startswith("__") and _sets(getattr(kind, name), attribute)]


def _sets(method: Any, attribute: str) -> bool:
    if not inspect.isfunction(method):
        return False
    given = [*inspect.signature(method).parameters.values()][1:]
    asks = any(one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in given)
    targets = (node for node in nodes_of(source_of(method)) if isinstance(node, ast.Attribute))
    return not asks and any(node.attr == attribute and isinstance(node.ctx, ast.Store) for node in targets)
