"""What a class does with its parts and its settings, read from its source."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from attnlab.core.own_files import tree_of
from attnlab.strangers.said.source import nodes_of

Use = Literal["never", "always", "under a condition", "under a setting", "elsewhere", "unknown"]
"""A setting is an attribute of the module itself, a condition depends on more."""

Wanted = Callable[[ast.AST], bool]
"""Whether a node is what is looked for."""

Setting = Literal["tensor", "log", "list", "container", "object", "count", "switch", "size"]
"""What a constructor's argument is by what the class does with it: a tensor, what is told what happens, what is gone
through, what is looked up in, what has parts, a number of times, what is only asked, or a number."""

SWITCHED: frozenset[Use] = frozenset({"under a condition", "elsewhere", "under a setting"})
"""Uses that a call does not have to reach, or that none reaches as long as a setting of the module is what it is."""

_CONSTANT_NAMES = frozenset({"self", "torch", "F", "nn", "math", "len", "isinstance", "hasattr", "getattr", "True"})
"""Names in a condition that say nothing about the call."""

_LEAVES = (ast.Return, ast.Continue, ast.Break)
_OF_TENSORS = frozenset(["shape", "size", "dim", "dtype", "device", "requires_grad", "data", "clone", "detach", "to"])
_OF_LOGS = frozenset(["debug", "info", "warn", "warning"])
_OF_WORDS = frozenset(["upper", "lower", "casefold", "strip"])
_GO_THROUGH = frozenset(["len", "enumerate", "zip", "list", "tuple", "sum", "max", "ModuleList"])
_FEW = 16  # what is compared with a number below that is a small number itself

_LIBRARY = ("torch.",)  # torch's own modules use all their parts, or know why not


def use_of(module: nn.Module, path: str) -> Use:
    """How the classes along a path use the part at its end."""
    names = path.split(".")
    uses = [_own_use(module.get_submodule(".".join(names[:i])), name) for i, name in enumerate(names)]
    order: tuple[Use, ...] = ("under a condition", "under a setting", "elsewhere", "never", "always")
    return next((use for use in order if use in uses), "unknown")


def only_copied(module: nn.Module, names: Collection[str]) -> dict[str, str]:
    """Of some names within a module those of which only copies are used, each with the part that was copied."""
    patterns = _patterns(module) if names else []
    within = ((name, part) for name in names for part in patterns if name.startswith(f"{part}."))
    return dict(within)


def _patterns(module: nn.Module) -> list[str]:
    """The parts that code never uses but copies into a list, as `nn.TransformerEncoder` copies the layer it is given.

    Such a part has parts of its own and stands in no list; one of its class with weights of the same shapes does.
    """
    parts = dict(module.named_modules())
    listed = [part for holder in parts.values() if isinstance(holder, nn.ModuleList) for part in holder]
    found = []
    for path, part in parts.items():
        alone = path and any(True for _ in part.children()) and all(one is not part for one in listed)
        copied = alone and any(type(one) is type(part) and _shapes(one) == _shapes(part) for one in listed)
        if copied and use_of(module, path) == "never":
            found.append(path)
    return found


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in module.named_parameters()}


def words_compared_with(name: str, source: str) -> Iterator[str]:
    """Yield the words that code compares a setting with, as ``if task == "text"`` or ``kind in ("a", "b")`` do."""
    for node in (one for one in nodes_of(source) if isinstance(one, ast.Compare)):
        asks = isinstance(node.ops[0], ast.Eq | ast.In | ast.NotEq | ast.NotIn)
        if asks and _is_named(_in_any_case(node.left), name):
            meant = ast.walk(node.comparators[0])
            yield from (each.value for each in meant if isinstance(each, ast.Constant) and type(each.value) is str)


def _in_any_case(node: ast.AST) -> ast.AST:
    """What is asked about, where a word is compared in capitals or small letters: ``kind`` of ``kind.upper()``."""
    match node:
        case ast.Call(func=ast.Attribute(value=word, attr=attr)) if attr in _OF_WORDS:
            return word
    return node


def tables_asked(name: str, source: str) -> Iterator[str]:
    """Yield the names of what code looks a setting up in, as ``NORMS[kind]`` and ``NORMS[config.kind]`` do."""
    asked = (node for node in nodes_of(source) if isinstance(node, ast.Subscript))
    yield from (one.value.id for one in asked if isinstance(one.value, ast.Name) and _is_named(one.slice, name))


def divides(name: str, source: str) -> bool:
    """Whether code divides a whole number by a setting, as ``width // head_size`` does."""
    nodes = nodes_of(source)
    return any(
        isinstance(one, ast.BinOp) and isinstance(one.op, ast.FloorDiv) and _is_named(one.right, name) for one in nodes
    )


def handed_to(name: str, source: str) -> Iterator[tuple[str, int | str]]:
    """Yield what code hands a setting to, and at which place or under which word: ``Part(width, config["part"])``."""
    for call in (node for node in nodes_of(source) if isinstance(node, ast.Call)):
        places = [*enumerate(call.args), *((one.arg, one.value) for one in call.keywords if one.arg)]
        yield from ((ast.unparse(call.func), place) for place, value in places if _is_named(value, name))


def handed_on_as(name: str, source: str) -> Iterator[str]:
    """Yield the words under which code hands a setting on, as ``Part(kind=part_kind)`` does."""
    yield from (place for _, place in handed_to(name, source) if isinstance(place, str))


def setting_of(name: str, source: str) -> Setting:
    """What a constructor's argument, or what it reads from a config under that name, is by its use in the source.

    Examples
    --------
    >>> setting_of("dims", "for dim in dims: pass"), setting_of("level", "range(level - 1)"), setting_of("wide", "")
    ('list', 'count', 'size')
    """
    nodes = nodes_of(source)
    above = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    uses = {_setting(node, above) for node in nodes if _is_named(node, name)} - {None}
    if uses == {"switch"}:
        return "switch"
    order: tuple[Setting, ...] = ("tensor", "object", "log", "list", "container", "count")
    return next((kind for kind in order if kind in uses), "size")


def _is_named(node: ast.AST, name: str) -> bool:
    """Whether a node reads a name, or what something holds under it."""
    key = node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
    names = (getattr(node, "id", None), getattr(node, "attr", None), key)
    return name in names and isinstance(getattr(node, "ctx", None), ast.Load)


def _setting(node: ast.AST, above: Mapping[ast.AST, ast.AST]) -> Setting | None:
    """What one use of an argument says of it; nothing where it is only kept."""
    place, kind = above[node], None
    match place:
        case ast.Attribute() if place.attr not in _OF_WORDS:
            kind = "tensor" if place.attr in _OF_TENSORS else "log" if place.attr in _OF_LOGS else "object"
        case ast.Compare(ops=[ast.In() | ast.NotIn()]):
            kind = "container" if node is not place.left else "size"
        case ast.Compare():
            beside = [one.value for one in (place.left, *place.comparators) if isinstance(one, ast.Constant)]
            kind = "count" if any(type(one) is int and 0 < one < _FEW for one in beside) else None
            kind = "switch" if any(type(one) is bool for one in beside) else kind
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.If() | ast.While() | ast.IfExp():
            kind = "switch" if getattr(place, "test", node) is node else None
        case ast.Subscript(slice=ast.Constant(value=str())):
            kind = "object"
        case ast.Subscript(slice=ast.Tuple()):
            kind = "tensor"
        case ast.Starred() | ast.Subscript() | ast.For() | ast.comprehension():
            kind = "list" if node is getattr(place, "iter", getattr(place, "value", None)) else None
        case ast.Call() | ast.BinOp():
            called = _called_with(place, above)
            kind = "count" if called == "range" else "list" if called in _GO_THROUGH else "size"
    return kind


def _called_with(place: ast.AST, above: Mapping[ast.AST, ast.AST]) -> str:
    """The name of what is called with a value, or with what is computed of it."""
    while isinstance(place, ast.BinOp):
        place = above[place]
    called = place.func if isinstance(place, ast.Call) else None
    return getattr(called, "id", getattr(called, "attr", ""))


def _own_use(owner: nn.Module, name: str) -> Use:
    """How one class uses one of its attributes."""
    if type(owner).__module__.startswith(_LIBRARY) or name.isdigit():
        return "unknown"
    methods = _methods(type(owner))
    if methods is None or _is_dynamic(methods):
        return "unknown"
    reached, is_read = _reached(methods), _read(name)
    bodies = [(each.body, use) for place, use in reached.items() for each in methods[place]]
    inside = {one for body, use in bodies for one in _walk(body, is_read, use=use)}
    if "always" in inside:
        called = (
            _walk(body, lambda node: isinstance(node, ast.Call) and is_read(node.func), use=use) for body, use in bodies
        )
        if "always" in itertools.chain.from_iterable(called):
            return "always"
    order: tuple[Use, ...] = ("under a condition", "always", "under a setting")
    first = next((use for use in order if use in inside), None)
    if first is not None:
        return first
    others = (each for place, same in methods.items() if place != "__init__" for each in same)
    elsewhere = any(True for each in others for _ in _walk(each.body, _read(name))) or name in _read_of_others(
        type(owner)
    )
    return "elsewhere" if elsewhere else "never"


@functools.lru_cache(maxsize=16)
def _read_of_others(owner: type) -> frozenset[str]:
    """The attributes that classes of its file which name a class read of anything but themselves: of a part of theirs.

    What a tensor or `torch.nn.functional` has under that name is none.
    """
    try:
        tree = tree_of(Path(str(getattr(_home(owner), "__file__", None))).read_bytes())
    except OSError:
        return frozenset()
    classes = [
        list(ast.walk(node)) for node in tree.body if isinstance(node, ast.ClassDef) and node.name != owner.__name__
    ]
    callers = [nodes for nodes in classes if any(getattr(node, "id", None) == owner.__name__ for node in nodes)]
    read = (node for nodes in callers for node in nodes if isinstance(node, ast.Attribute) and not _is_own(node))
    return frozenset(
        node.attr for node in read if not (hasattr(torch.Tensor, node.attr) or hasattr(nn.functional, node.attr))
    )


@functools.cache
def _methods(owner: type) -> dict[str, list[ast.FunctionDef]] | None:
    """The methods of a class and of those it is derived from, None where there is no source."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for level in owner.__mro__:
        foreign = level.__module__ != owner.__module__ and "site-packages" in str(getattr(_home(level), "__file__", ""))
        if level.__module__.startswith(_LIBRARY) or level is object or foreign:
            continue  # what a large library's base class does with its own parts
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(level)))
        except (OSError, TypeError, SyntaxError):
            return None
        body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
        for node in body:
            if isinstance(node, ast.FunctionDef):
                above = found.setdefault(node.name, [])
                if not above or _calls_super(above[-1]):
                    above.append(node)
    return found or None


def _calls_super(method: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "super" for node in ast.walk(method))


def _home(kind: type) -> object:
    return sys.modules.get(kind.__module__)


def _is_dynamic(methods: dict[str, list[ast.FunctionDef]]) -> bool:
    """Whether its own parts are fetched by computed names, so that reading tells nothing."""
    nodes = (node for same in methods.values() for method in same for node in ast.walk(method))
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args]
    own = [call for call in calls if isinstance(call.args[0], ast.Name) and call.args[0].id == "self"]
    return any(call.func.id in {"getattr", "vars"} for call in own if isinstance(call.func, ast.Name))


def _reached(methods: dict[str, list[ast.FunctionDef]]) -> dict[str, Use]:
    """The methods (and properties) that `forward` leads to, and on what it depends whether it does."""
    rank: tuple[Use, ...] = ("under a setting", "under a condition", "always")
    reached: dict[str, Use] = {}
    waiting: list[tuple[str, Use]] = [("forward", "always")]
    while waiting:
        place, use = waiting.pop()
        if place in methods and (place not in reached or rank.index(use) > rank.index(reached[place])):
            reached[place] = use
            inside = itertools.product(methods[place], methods)
            waiting += [(other, one) for each, other in inside for one in _walk(each.body, _read(other), use=use)]
    return reached


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _walk(body: list[ast.stmt], wanted: Wanted, *, use: Use = "always") -> Iterator[Use]:
    """The uses of something in statements; what follows one that may leave them is under its condition too."""
    for statement in body:
        yield from _visit(statement, wanted, use=use)
        if isinstance(statement, ast.If) and any(isinstance(node, _LEAVES) for node in statement.body):
            use = _under(statement.test, use)


def _visit(node: ast.AST, wanted: Wanted, *, use: Use) -> Iterator[Use]:
    """The uses inside one node."""
    if wanted(node):
        yield use
    match node:
        case ast.If():
            yield from _visit(node.test, wanted, use=use)
            yield from _walk(node.body, wanted, use=_under(node.test, use))
            yield from _walk(node.orelse, wanted, use=_under(node.test, use))
            return
        case ast.For():
            yield from _visit(node.iter, wanted, use=_of_items(node, use))
            yield from _walk([*node.body, *node.orelse], wanted, use=use)
            return
        case ast.IfExp():
            use = _under(node.test, use)
    for child in ast.iter_child_nodes(node):
        yield from _visit(child, wanted, use=use)


def _of_items(loop: ast.For, use: Use) -> Use:
    """How a loop uses what it goes through: experts that may get no token are called under a condition.

    Of several things that it takes up at a time it may call one always and another under a condition: then no part of
    them is known to be called always.
    """
    names = dict.fromkeys(one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name))
    found = [set(_walk(loop.body, functools.partial(_calls, name), use=use)) for name in names]
    depend: tuple[Use, ...] = ("under a condition", "under a setting")
    weak = [one for one in depend for uses in found if one in uses and use not in uses]
    return weak[0] if weak else use


def _calls(name: str, node: ast.AST) -> bool:
    """Whether a node calls something of that name, or a part of it."""
    called = node.func if isinstance(node, ast.Call) else None
    while isinstance(called, ast.Attribute | ast.Subscript):
        called = called.value
    return isinstance(called, ast.Name) and called.id == name


def _read(name: str) -> Wanted:
    """Whether a node reads an attribute of the module itself."""
    return lambda node: (
        _is_own(node) and isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
    )


def _under(test: ast.expr, use: Use) -> Use:
    """On what a use depends whose place depends on a test too."""
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    if names - _CONSTANT_NAMES or use == "under a condition":
        return "under a condition"
    own = {node.attr for node in ast.walk(test) if isinstance(node, ast.Attribute) and _is_own(node)}
    return "under a setting" if own - {"training"} else use
