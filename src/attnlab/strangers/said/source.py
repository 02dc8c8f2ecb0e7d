"""Where a class speaks: its docstrings and its source."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, final

from torch import nn

_SECTION = re.compile(
    r"^\s*(Args|Arguments|Parameters|Inputs?|Returns?|Shapes?|Examples?|Notes?|:(param|type|return|rtype|raise)\w*)\b.*$",
    re.MULTILINE,
)


@final
@dataclass(frozen=True)
class Said:
    """Hold a statement of a class about itself."""

    what: str  # what it says
    by: str  # where: ``"docstring"``, ``"a shape comment"``, ``"names of axes"``
    in_passing: bool = False  # whether the words may as well be about something within it


def is_torchs_own(module: nn.Module) -> bool:
    """Whether the class of a module is one of torch's."""
    return type(module).__module__.startswith("torch.")


def descriptions(module: nn.Module) -> list[str]:
    """What the docstrings of a module's class and of its ``forward`` say before they go through parameters."""
    return [_SECTION.split(text)[0] for text in reversed(docstrings(module))]


def source_of(thing: Any) -> str:
    """The source of a class or function, or nothing."""
    try:
        return _source(thing)
    except (OSError, TypeError):
        return ""


@functools.lru_cache(maxsize=16)
def _source(thing: Any) -> str:
    """Its source, for which all of its file is parsed, moved left as its first line is: comments may lie there."""
    source = inspect.getsource(thing)
    margin = source[: len(source) - len(source.lstrip(" \t"))]
    return "".join(line.removeprefix(margin) for line in source.splitlines(keepends=True))


def source_of_forward(module: nn.Module) -> str:
    """The source of a module's ``forward``, or nothing."""
    return source_of(getattr(type(module), "forward", None))


def source_of_inherited(module: nn.Module) -> str:
    """The source of the ``forward`` that a module's own has replaced, or nothing."""
    written = [kind.__dict__["forward"] for kind in type(module).__mro__ if "forward" in kind.__dict__]
    return "" if written[1].__module__.startswith("torch.") else source_of(written[1])


def docstrings(module: nn.Module) -> list[str]:
    """The docstrings of a module's ``forward`` and of its class, those of torch left out."""
    if is_torchs_own(module):
        return []
    written = (type(module).forward.__doc__, type(module).__dict__.get("__doc__"))
    return [inspect.cleandoc(text) for text in written if text]


@functools.lru_cache(maxsize=64)
def parsed(source: str) -> tuple[ast.stmt, ...]:
    """The statements of a piece of code, none where it is no Python."""
    try:
        return tuple(ast.parse(source).body)
    except SyntaxError:
        return ()


def nodes_of(source: str) -> list[ast.AST]:
    """All that a piece of code is made of, nothing where it is no Python."""
    return [node for statement in parsed(source) for node in ast.walk(statement)]


def names_read(module: nn.Module) -> set[str]:
    """The names in a module's ``forward``, but for the branches that it was built not to take."""
    return {node.id for each in parsed(source_of_forward(module)) for node in _taken(each, module) if _is_name(node)}


def is_handed_on_unread(module: nn.Module, name: str) -> bool:
    """Whether ``forward`` only hands on what it is given under a name, to methods of its own none of which reads it.

    So it is there for an interface's sake; what is not even handed on may have been forgotten.
    """
    return bool(_readings(type(module), name, "forward")) and _is_unread(type(module), name, ("forward",))


def _is_unread(kind: type, name: str, way: tuple[str, ...]) -> bool:
    """Whether the last method on a way, and those it hands a name on to, read it for nothing else."""
    ends = _readings(kind, name, way[-1])
    return all(end is not None and end[0] not in way and _is_unread(kind, end[1], (*way, end[0])) for end in ends)


def _readings(kind: type, name: str, method: str) -> list[tuple[str, str] | None]:
    """For each place where a method reads a name the method it is handed on to, and its name there; None for others."""
    nodes = nodes_of(source_of(getattr(kind, method)))
    handed = dict(_handed_to_own_methods(nodes, kind))
    read = [node for node in nodes if _is_name(node) and node.id == name and isinstance(node.ctx, ast.Load)]
    return [handed.get(node) for node in read]


def _handed_to_own_methods(nodes: Sequence[ast.AST], kind: type) -> Iterator[tuple[ast.AST, tuple[str, str]]]:
    """Yield what is given to methods of the class itself, with the method and the name that it has there."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=method)) if hasattr(kind, method):
                _, *wanted = inspect.signature(getattr(kind, method)).parameters
                yield from ((given, (method, name)) for given, name in zip(node.args, wanted, strict=False))
                yield from ((one.value, (method, one.arg)) for one in node.keywords if one.arg)


def names_read_otherwise(module: nn.Module) -> set[str]:
    """The names in a module's ``forward`` that are read in the other mode alone, or where it is built otherwise."""
    return {one.id for one in nodes_of(source_of_forward(module)) if _is_name(one)} - names_read(module)


def computed_with(module: nn.Module) -> set[str]:
    """The names with which a ``forward`` computes in every call, and of which it never asks whether they are there."""
    nodes = [node for each in parsed(source_of_forward(module)) for node in _in_every_call(each, module)]
    used = [node.value for node in nodes if isinstance(node, ast.Attribute | ast.Subscript)]
    used += [one for node in nodes if isinstance(node, ast.BinOp) for one in (node.left, node.right)]
    used += [one for node in nodes if _joins(node) for one in getattr(node.args[0], "elts", ())]
    everything = nodes_of(source_of_forward(module))
    asked = [node for node in everything if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp)]
    asked += [node.test for node in everything if isinstance(node, ast.If | ast.IfExp)]
    doubted = {one for node in asked for one in ast.walk(node)}
    doubted |= {node for node in everything if _is_name(node) and isinstance(node.ctx, ast.Store)}
    return {one.id for one in used if _is_name(one)} - {one.id for one in doubted if _is_name(one)}


def _joins(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether tensors are joined, all of which must be there."""
    called = node.func if isinstance(node, ast.Call) and node.args else None
    return getattr(called, "attr", getattr(called, "id", "")) in ("cat", "concat", "concatenate", "stack")


def _in_every_call(node: ast.AST, module: nn.Module) -> Iterator[ast.AST]:
    """Yield all that a piece of code is made of, but for what some calls leave out."""
    yield node
    children = [*_chosen(node, module)]
    if isinstance(node, ast.If | ast.IfExp | ast.Try) and children == [*ast.iter_child_nodes(node)]:
        children = []
    for child in children:
        yield from _in_every_call(child, module)


def _taken(node: ast.AST, module: nn.Module) -> Iterator[ast.AST]:
    """Yield all that a piece of code is made of, of a choice by what the module holds only what is chosen."""
    yield node
    for child in _chosen(node, module):
        yield from _taken(child, module)


def _chosen(node: ast.AST, module: nn.Module) -> list[ast.AST]:
    """The pieces of a piece of code, of a choice by what the module holds only what is chosen."""
    if isinstance(node, ast.If | ast.IfExp) and _asks_itself(node.test):
        with contextlib.suppress(Exception):  # a person's code
            taken = node.body if eval(ast.unparse(node.test), {"self": module}) else node.orelse
            return [*taken] if isinstance(taken, list) else [taken]
    return [*ast.iter_child_nodes(node)]


def _asks_itself(test: ast.expr) -> bool:
    """Whether a condition is about what `self` holds alone, and calls nothing."""
    nodes = list(ast.walk(test))
    return {one.id for one in nodes if _is_name(one)} == {"self"} and not any(
        isinstance(one, ast.Call) for one in nodes
    )


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def with_next(lines: Iterable[str]) -> list[str]:
    """Every line with the one after it, as sentences are broken over two."""
    lines = list(lines)
    return [" ".join(pair) for pair in zip(lines, [*lines, ""][1:], strict=True)]
