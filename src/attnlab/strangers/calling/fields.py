"""What a ``forward`` takes out of a batch that is its first argument, a mapping, an object or a tuple.

What is in it counts as parameters.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from attnlab.core.constructors import is_required
from attnlab.strangers.said.source import nodes_of, source_of

_LOSS = re.compile(r"(loss|criterion|cross_entropy|nll|bce)[^.]*$")
_LOSSES = re.compile(r"loss|criterion|cross_entropy|nll|bce|likelihood")


@final
@dataclass(frozen=True)
class Fields:
    """Say which parameter is a batch of several things, and which of them are read."""

    parameter: str  # its name
    named: Mapping[str, inspect.Parameter]  # the keys, in the order they are read; those asked for first are optional
    in_order: bool = False  # whether it is a tuple of them


@final
class _Batch(dict[str, Any]):
    """Hold things by name, to be taken out by key or as an attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@functools.lru_cache(maxsize=64)
def fields_of(kind: type[nn.Module]) -> Fields | None:
    """What is taken by name out of the first parameter of ``forward``, as ``batch["tokens"]``; None: nothing is.

    A tuple counts where some of what it holds is to be learned, as ``inputs, labels = batch``.
    """
    _, *given = inspect.signature(kind.forward).parameters.values()
    if not given or not is_required(given[0]):
        return None
    first, only = given[0].name, inspect.Parameter.KEYWORD_ONLY
    source = source_of(kind.forward)
    for parts in _unpacked(nodes_of(source), first):
        if learned_from(source) & {*parts}:
            return Fields(first, {part: inspect.Parameter(part, only) for part in parts}, in_order=True)
    optional: dict[str, bool] = {}
    for key, asked in _taken(nodes_of(source_of(kind)), first):
        if key.isidentifier() and key not in [one.name for one in given]:
            optional[key] = asked or optional.get(key, False)
    named = {
        key: inspect.Parameter(key, only, default=None) if asked else inspect.Parameter(key, only)
        for key, asked in optional.items()
    }
    return Fields(first, named) if named else None


def gathered(
    module: nn.Module, positional: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """What a module is given, with the things that it takes out of a batch put into one."""
    fields = fields_of(type(module))
    if fields is None or positional or not named.keys() & fields.named.keys():
        return positional, named
    batch = _Batch({key: value for key, value in named.items() if key in fields.named})
    whole = tuple(batch.get(key) for key in fields.named) if fields.in_order else batch
    return (), {fields.parameter: whole} | {name: value for name, value in named.items() if name not in batch}


def _unpacked(nodes: Sequence[ast.AST], batch: str) -> Iterator[list[str]]:
    """Yield the names of what a batch is taken apart to."""
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Name(id=name)) if name == batch:
                names = [part.id for part in parts if isinstance(part, ast.Name)]
                if len({*names}) == len(parts):
                    yield names


def _taken(nodes: Sequence[ast.AST], batch: str) -> Iterator[tuple[str, bool]]:
    """Yield what is taken out of a batch, and whether it may be missing, in the order of the lines.

    An attribute counts where tensors have none of that name.
    """
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    found: list[tuple[int, int, str, bool]] = []
    for node in nodes:
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key)), ctx=ast.Load()):
                asked = False
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[ast.Constant(str(key)), *_]):
                asked = True
            case ast.Compare(left=ast.Constant(str(key)), ops=[ast.In() | ast.NotIn()], comparators=[ast.Name(name)]):
                asked = True
            case ast.Attribute(value=ast.Name(id=name), attr=key) if id(node) not in called and not hasattr(
                Tensor, key
            ):
                asked = False
            case _:
                continue
        if name == batch:
            found.append((node.lineno, node.col_offset, key, asked))
    yield from ((key, asked) for _, _, key, asked in sorted(found))


def names_loss(module: nn.Module) -> bool:
    """Whether a module or one of its parts speaks of a loss."""
    kinds = {type(part) for part in module.modules()}
    return any(issubclass(kind, nn.modules.loss._Loss) or _names_loss(kind) for kind in kinds)


@functools.lru_cache(maxsize=64)
def _names_loss(kind: type[nn.Module]) -> bool:
    return not kind.__module__.startswith("torch.") and bool(_LOSSES.search(source_of(kind).lower()))


def learned_from(source: str) -> set[str]:
    """The names that only losses are given: what is to be learned. That they are there may be asked beside it."""
    nodes = nodes_of(source)
    compared = [node for node in nodes if isinstance(node, ast.Compare)]
    asked = {id(node.left) for node in compared if isinstance(node.ops[0], ast.Is | ast.IsNot)}
    losses = [node for node in nodes if isinstance(node, ast.Call) and _LOSS.search(ast.unparse(node.func).lower())]
    given = {id(name) for loss in losses for one in (*loss.args, *loss.keywords) for name in _names(one)}
    names = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    names = [node for node in names if id(node) not in asked]
    return {one.id for one in names if id(one) in given} - {one.id for one in names if id(one) not in given}


def _names(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the names that something is, a method of or a part of, but for what a function is given in it."""
    if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute):
        return
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return
    if isinstance(node, ast.Name):
        yield node
    inner = [node.func] if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    for each in inner:
        yield from _names(each)
