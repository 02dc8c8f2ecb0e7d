"""How a repository builds a class: with which values it calls it, and what larger classes hand to it."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, final

from torch import nn

from attnlab.core.own_files import import_file
from attnlab.strangers.loading.repository import trees_with
from attnlab.strangers.loading.values import Values, calls_of, settings_of, value_of
from attnlab.strangers.said.source import source_of
from attnlab.strangers.texts import file_of

_MAKES = re.compile(r"(build|make|create|get)_")  # names of functions that only build


def literal_calls(factory: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Yield the arguments with which its repository calls a class, as far as their values are known: its file first."""
    file = file_of(factory)
    seen: list[dict[str, Any]] = []
    for path, tree in trees_with(Path(file), f"{factory.__name__}(", f"({factory.__name__}") if file else ():
        if path == Path(file) or factory.__name__ not in _defined_in(tree):
            for given in _calls_in(tree, factory, settings_of(Path(file))):
                if given and given not in seen:
                    seen.append(given)
                    yield given


def _calls_in(tree: ast.Module, factory: Callable[..., Any], settings: Values) -> Iterator[dict[str, Any]]:
    """Yield the known arguments of the calls of a class in one file."""
    for call, names in calls_of(factory.__name__, tree, settings):
        named = {one.arg: one.value for one in call.keywords if one.arg is not None}
        with contextlib.suppress(TypeError):  # another class of that name, or arguments in a list
            bound = inspect.signature(factory).bind_partial(*call.args, **named).arguments
            values = {name: value_of(value, names, settings) for name, value in bound.items()}
            yield {name: value for name, value in values.items() if value is not None}


def _defined_in(tree: ast.Module) -> set[str]:
    """The names of the classes and functions that a file defines."""
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


@final
@dataclass(frozen=True)
class BuiltBy:
    """Say what builds a class, and the class as it is seen from there: imported by another file it is another one."""

    factory: Callable[..., Any]  # a class of modules, or a function that returns one
    built: Callable[..., Any]  # the class that it builds


def callers_of(factory: Callable[..., Any]) -> Iterator[BuiltBy]:
    """Yield what builds a class: classes of modules, then functions that say so in their names; its own file first."""
    file = file_of(factory)
    if not file or not inspect.isclass(factory):
        return
    own = sys.modules.get(factory.__module__)
    yield from _callers_in(own, factory) if own is not None else ()
    for path, tree in trees_with(Path(file), f"{factory.__name__}("):
        if path != Path(file) and _only_defines(tree) and factory.__name__ not in _defined_in(tree):
            module = _imported(path)
            yield from _callers_in(module, factory) if module is not None else ()


def _imported(path: Path) -> ModuleType | None:
    """Another file of the repository, None where it cannot be imported even without libraries that are missing."""
    for stand_in in (False, True):
        with contextlib.suppress(Exception, SystemExit):
            return import_file(path, stand_in=stand_in)
    return None


def _callers_in(module: ModuleType, factory: type) -> Iterator[BuiltBy]:
    """Yield what builds a class in one module."""
    built = vars(module).get(factory.__name__)
    if not inspect.isclass(built) or file_of(built) != file_of(factory):
        return
    builds = re.compile(rf"\b{factory.__name__}\(")
    here = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
    classes = [each for each in here if inspect.isclass(each) and issubclass(each, nn.Module) and each is not built]
    makers = [each for each in here if inspect.isfunction(each) and _MAKES.match(each.__name__)]
    yield from (BuiltBy(each, built) for each in (*classes, *makers) if builds.search(source_of(each)))


def _only_defines(tree: ast.Module) -> bool:
    """Whether importing a file runs nothing: no loop, and no call for its effect but one of a library's."""
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    calls = [node.value for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    runs = any(isinstance(node, ast.For | ast.While | ast.With) for node in tree.body)
    return not runs and all(ast.unparse(call.func).partition(".")[0] in imported for call in calls)


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
