"""Which values a repository gives to names: constants, defaults of options, of configs, and what YAML and JSON hold."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from attnlab.strangers.loading.repository import files_around, trees_with

Values = Mapping[str, Any]
"""Values of names; of a name that is not here nothing is known."""

_SETTINGS = re.compile(
    r"(^|[_.]|(?<=[a-z]))(config|conf|cfg|arg|hparam|param|opt|option|hp|setting|flag)s?$", re.IGNORECASE
)
"""Names of what holds settings: ``args``, ``self.model_config``, ``TrainConfig``."""

_OPTION = re.compile(r"--[A-Za-z]")
_WRITTEN = (".yaml", ".yml", ".json")
_MOST_REPEATED = 100  # times a list is repeated
_MOST_WRITTEN = 20  # files of them that are read
_MOST_BYTES = 20_000  # of one; a larger one holds data
_COMPUTED: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Pow: lambda a, b: a**b,
}


def value_of(node: Any, names: Values, settings: Values) -> Any:
    """The value of an expression of literals, names and settings that are known, None for any other."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        pass
    if isinstance(node, ast.Name | ast.Dict | ast.Call):
        return names.get(node.id) if isinstance(node, ast.Name) else _table(node, names, settings)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
        owner = getattr(node.value, "id", getattr(node.value, "attr", ""))
        return settings.get(node.attr) if _SETTINGS.search(owner) else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = value_of(node.value, names, settings)
        table = owner if isinstance(owner, dict) else settings if _SETTINGS.search(ast.unparse(node.value)) else {}
        return table.get(str(node.slice.value))
    if isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        left, right = (value_of(one, names, settings) for one in (node.left, node.right))
        kinds = {type(one) for one in (left, right)}
        repeats = type(node.op) is ast.Mult and type(left) is list and type(right) is int and right <= _MOST_REPEATED
        computes = kinds <= {int, float} or repeats or (kinds == {list} and type(node.op) is ast.Add)
        return _COMPUTED[type(node.op)](left, right) if computes and right else None
    return None


def _table(node: ast.Dict | ast.Call, names: Values, settings: Values) -> dict[Any, Any] | None:
    """What is known of a table, ``{"width": 64}`` or ``dict(width=64)``, None where that is nothing."""
    if isinstance(node, ast.Call):
        written = node.keywords if ast.unparse(node.func) == "dict" else []
        keyed = [(one.arg, one.value) for one in written if one.arg is not None]
    else:
        pairs = zip(node.keys, node.values, strict=True)
        keyed = [(key.value, one) for key, one in pairs if isinstance(key, ast.Constant)]
    found = {key: value_of(one, names, settings) for key, one in keyed}
    return {key: value for key, value in found.items() if value is not None} or None


def calls_of(name: str, tree: ast.Module, settings: Values) -> Iterator[tuple[ast.Call, Values]]:
    """Yield the calls of what has a name in a file, each with the values of names that hold there.

    A class that is derived from it calls it too: ``super().__init__(width=64)``.
    """
    derived = {name}
    for one in tree.body:
        if isinstance(one, ast.ClassDef) and derived & {getattr(base, "id", "") for base in one.bases}:
            derived.add(one.name)

    def inside(node: ast.AST, names: Values, called: set[str]) -> Iterator[tuple[ast.Call, Values]]:
        if isinstance(node, ast.ClassDef):
            called = {name, "super"} if node.name in derived - {name} else {name}
        if isinstance(node, ast.FunctionDef):
            names = {**names, **_defaults_of(node, names, settings)}
            names = {**names, **_named_in(node.body, names, settings)}
        if isinstance(node, ast.Call) and _called(node) in called:
            yield node, names
        for child in ast.iter_child_nodes(node):
            yield from inside(child, names, called)

    yield from inside(tree, constants_of(tree, settings), {name})


def _called(call: ast.Call) -> str:
    """The name of what is called; ``super`` for the constructor of the class above."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    return "super" if name == "__init__" and isinstance(getattr(call.func, "value", None), ast.Call) else name


def constants_of(tree: ast.Module, settings: Values) -> dict[str, Any]:
    """The values that a file gives to names at its top, or where it is run as a script."""
    scripts = (node.body for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
    return _named_in(itertools.chain(tree.body, *scripts), {}, settings)


def _named_in(statements: Iterable[ast.stmt], names: Values, settings: Values) -> dict[str, Any]:
    """The names that statements give values to, as far as those are known."""
    found: dict[str, Any] = {}
    for node in statements:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = value_of(getattr(node, "value", None), {**names, **found}, settings)
        if value is not None:
            found |= {one.id: value for one in targets if isinstance(one, ast.Name)}
    return found


def _defaults_of(function: ast.FunctionDef, names: Values, settings: Values) -> dict[str, Any]:
    """The defaults of a function's parameters, as far as they are known."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    pairs = [
        *zip(plain[::-1], given.defaults[::-1], strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    values = {one.arg: value_of(default, names, settings) for one, default in pairs}
    return {name: value for name, value in values.items() if value is not None}


# Settings of a repository


@functools.lru_cache(maxsize=16)
def settings_of(file: Path) -> dict[str, Any]:
    """The values that the repository of a file gives to settings; of several of one name the nearest counts."""
    found: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    filled: set[str] = set()
    for _, tree in trees_with(file, "add_argument", "dataclass", "onfig", "cfg", "args", "hparams", "hp", "opt"):
        for name, value in _set_in(tree):
            found.setdefault(name, value)
        constants = constants_of(tree, {}) | constants
        filled.update(_filled_in(tree))
    written = (path for path in files_around(file, _WRITTEN) if path.stat().st_size <= _MOST_BYTES)
    for path in itertools.islice(written, _MOST_WRITTEN):
        for name, value in _written_in(path):
            found.setdefault(name, value)
    settings = constants | found
    empty = [name for name in filled if type(settings.get(name)) is int and settings[name] <= 0]
    settings = {name: value for name, value in settings.items() if name not in empty}
    settings |= {name: _as_table(value, settings) for name, value in settings.items()}
    return settings


def _set_in(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of settings that a file of Python gives."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _option(node)
        elif isinstance(node, ast.ClassDef) and (_SETTINGS.search(node.name) or "dataclass" in ast.unparse(node)[:80]):
            yield from _held_by(node)
        elif isinstance(node, ast.FunctionDef) and _SETTINGS.search(node.name):
            returned = (value_of(one.value, {}, {}) for one in ast.walk(node) if isinstance(one, ast.Return))
            yield from (each for table in returned for each in _flat(table))
        elif isinstance(node, ast.Assign):
            target, value = ast.unparse(node.targets[0]), value_of(node.value, {}, {})
            owner, _, word = target.rpartition(".")
            if _SETTINGS.search(target) and isinstance(value, dict):
                yield from _flat(value)
            elif owner and value is not None and (_SETTINGS.search(owner) or node in tree.body):
                yield word, value


def _filled_in(tree: ast.Module) -> Iterator[str]:
    """Yield the settings that a file computes: ``cfg.n_items = len(items)``; 0 in a config holds their place."""
    for node in ast.walk(tree):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Attribute) and _SETTINGS.search(ast.unparse(target.value)):
            yield from [target.attr] if value_of(getattr(node, "value", None), {}, {}) is None else []


def _option(call: ast.Call) -> Iterator[tuple[str, Any]]:
    """The default of an option of a command line."""
    words = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    name = next((word for word in words if _OPTION.match(word)), None)
    named = {one.arg: value_of(one.value, {}, {}) for one in call.keywords}
    value = False if named.get("action") == "store_true" else named.get("default")
    if name is not None and value is not None:
        yield name.lstrip("-").replace("-", "_"), value


def _held_by(config: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """The settings of a class that holds nothing else: its own, those its constructor has defaults for, and sets."""
    yield from _named_in(config.body, {}, {}).items()
    for method in config.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            yield from _defaults_of(method, {}, {}).items()
            for node in ast.walk(method):
                target = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
                if target.startswith("self.") and (value := value_of(getattr(node, "value", None), {}, {})) is not None:
                    yield target.removeprefix("self."), value


def _written_in(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a file of YAML or JSON, also those inside others."""
    try:
        text = path.read_text(encoding="utf-8")
        yield from _flat(json.loads(text) if path.suffix == ".json" else YAML(typ="safe").load(text))
    except (YAMLError, ValueError):  # what another program reads
        return


@final
class TableOfSettings(dict[str, Any]):
    """Hold settings that stand together; they are attributes too, as a program's own class for configs makes them.

    Parameters
    ----------
    settings : mapping of str to object
        What stands together.
    others : mapping of str to object
        All settings of the repository: another file may set what this table lacks.
    """

    def __init__(self, settings: Values, others: Values) -> None:
        super().__init__({name: _as_table(value, others) for name, value in settings.items()})
        self._others = others

    def __missing__(self, name: str) -> Any:
        return self._others[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or (name not in self and name not in self._others):
            raise AttributeError(name)
        return self[name]


def _as_table(value: Any, others: Values) -> Any:
    return TableOfSettings(value, others) if isinstance(value, dict) else value


def _flat(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a table by their names, each table before what is in it."""
    inside = settings.items() if isinstance(settings, dict) else ()
    for name, value in inside:
        if isinstance(name, str) and value is not None:
            yield name, value
            yield from _flat(value)
