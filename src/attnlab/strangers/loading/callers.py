"""How others build a class: with which numbers its file calls it, and what larger classes of its file hand to it."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from attnlab.core.own_files import constants_of_script, tree_of
from attnlab.strangers.texts import file_of
from attnlab.strangers.words import source_of

_MOST_FILES = 60  # beside a file, that are read
_MOST_CALLERS = 4  # that are built; the fifth would not tell more
_MAKES = re.compile(r"(build|make|create|get)_")  # names of functions that only build


def literal_calls(factory: Callable[..., Any]) -> list[dict[str, Any]]:
    """The arguments with which files call a class, as far as they are literals or named numbers: its own file first."""
    file = file_of(factory)
    if not file:
        return []
    own = Path(file)
    beside = sorted(path for path in own.parent.glob("*.py") if path != own)[:_MOST_FILES]
    found = [given for path in (own, *beside) for given in _calls_in(path, factory)]
    return [given for index, given in enumerate(found) if given and given not in found[:index]]


def _calls_in(path: Path, factory: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Yield the literal arguments of the calls of a class in one file."""
    source = path.read_bytes()
    if factory.__name__.encode() not in source:
        return
    numbers = constants_of_script(path)
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Call) and factory.__name__ in (
            getattr(node.func, "id", ""),
            getattr(node.func, "attr", ""),
        ):
            named = {one.arg: one.value for one in node.keywords if one.arg is not None}
            with contextlib.suppress(TypeError):  # another class of that name
                bound = inspect.signature(factory).bind_partial(*node.args, **named).arguments
                values = {name: _literal(value, numbers) for name, value in bound.items()}
                yield {name: value for name, value in values.items() if value is not None}


def _literal(node: Any, numbers: dict[str, int | float]) -> Any:
    """The value of an expression that needs nothing but literals and named numbers, None for any other."""
    if isinstance(node, ast.Name):
        return numbers.get(node.id)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None


def callers_of(factory: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The classes of modules of its file that build a class, then the functions that do and say so in their names."""
    if not inspect.isclass(factory):
        return []
    builds = re.compile(rf"\b{factory.__name__}\b")
    here = vars(sys.modules.get(factory.__module__, object)).values()
    own = [each for each in here if getattr(each, "__module__", "") == factory.__module__ and each is not factory]
    classes = [each for each in own if inspect.isclass(each) and issubclass(each, nn.Module)]
    makers = [each for each in own if inspect.isfunction(each) and _MAKES.match(each.__name__)]
    return [each for each in (*classes, *makers) if builds.search(source_of(each))][:_MOST_CALLERS]


@contextlib.contextmanager
def watched(kind: type) -> Iterator[list[dict[str, Any]]]:
    """Note the arguments of every instance of a class that is built meanwhile."""
    seen: list[dict[str, Any]] = []
    constructor, signature = kind.__init__, inspect.signature(kind.__init__)
    inherits = "__init__" not in vars(kind)

    @functools.wraps(constructor)
    def _noting(self: Any, *arguments: Any, **named: Any) -> None:
        constructor(self, *arguments, **named)
        seen.append(_named(signature, signature.bind(self, *arguments, **named).arguments))

    kind.__init__ = _noting
    try:
        yield seen
    finally:
        if inherits:
            del kind.__init__
        else:
            kind.__init__ = constructor


def _named(signature: inspect.Signature, bound: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, without the instance."""
    _, *names = bound
    kinds = {name: signature.parameters[name].kind for name in names}
    open_ones = [bound[name] for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD]
    plain = {name: bound[name] for name, kind in kinds.items() if kind is not inspect.Parameter.VAR_KEYWORD}
    return {**plain, **{name: value for each in open_ones for name, value in each.items()}}
