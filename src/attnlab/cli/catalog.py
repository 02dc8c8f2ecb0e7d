"""``attnlab list``: everything a study may name, read from the tables without importing them, or one name with them.

The tables are literals at the end of their files, so their source says what importing torch would take
seconds to say.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

from cyclopts import Parameter
from rich.table import Table

from attnlab.cli.terminal import Terminal
from attnlab.core.errors import SpecError, did_you_mean

PACKAGE = Path(__file__).resolve().parent.parent
TABLES: dict[str, tuple[str, str]] = {
    "tasks": ("tasks/__init__.py", "TASKS"),
    "tokenizers": ("text/tokenizers.py", "TOKENIZERS"),
    "models": ("models/table.py", "MODELS"),
    "blocks": ("nn/block.py", "BLOCKS"),
    "mixers": ("nn/mixers.py", "MIXERS"),
    "heads": ("nn/axes/heads.py", "HEADS"),
    "positions": ("nn/axes/positions.py", "POSITIONS"),
    "scores": ("nn/axes/scores.py", "SCORES"),
    "masks": ("nn/axes/masks.py", "MASKS"),
    "normalizers": ("nn/axes/normalizers.py", "NORMALIZERS"),
    "combiners": ("nn/axes/combiners.py", "COMBINERS"),
    "feedforwards": ("nn/feedforward.py", "FEEDFORWARDS"),
    "norms": ("nn/norms.py", "NORMS"),
    "inits": ("nn/init.py", "INITS"),
    "optimizers": ("training/recipe/optim.py", "OPTIMIZERS"),
    "schedules": ("training/recipe/schedule.py", "SCHEDULES"),
    "objectives": ("training/recipe/objectives.py", "OBJECTIVES"),
}
"""Where each table lies: file and name."""


@final
@dataclass(frozen=True)
class Entry:
    """Hold one name that a study may use, with its summary."""

    name: str  # what a study writes
    summary: str  # first line of its docstring; a study's question


def _listed(_: object) -> list[str]:
    """What can be listed or told of."""
    return ["studies", *TABLES, *dict.fromkeys(entry.name for kind in TABLES for entry in entries(kind))]


def show(kind: Annotated[str | None, Parameter(completer=_listed)] = None, /, *, json: bool = False) -> int:
    """List studies, tasks, models and every part, or tell of one what it takes.

    Parameters
    ----------
    kind : str, optional
        One table alone, ``studies``, ``tasks``, ``scores``, ..., or a name that stands in one, such as ``rotary``.
    json : bool
        Print JSON.

    Returns
    -------
    int
        0.
    """
    kinds = ("studies", *TABLES)
    if kind is not None and kind not in kinds:
        return _show_part(kind, kinds, json=json)
    content = {name: entries(name) for name in ([kind] if kind else kinds)}
    if json:
        from attnlab.cli.run import print_json

        print_json({name: {entry.name: entry.summary for entry in found} for name, found in content.items()})
    else:
        _print(content)
    return 0


def _show_part(name: str, kinds: Sequence[str], *, json: bool) -> int:
    """Tell what every part of a name takes."""
    places = [kind for kind in TABLES if name in {entry.name for entry in entries(kind)}]
    if not places:
        known = [*kinds, *(entry.name for kind in TABLES for entry in entries(kind))]
        raise SpecError(f"no table and no part '{name}'; {did_you_mean(name, known) or 'tables: ' + ', '.join(kinds)}")
    found = {kind: _told(kind, name) for kind in places}
    if json:
        from attnlab.cli.run import print_json

        print_json({kind: {name: told} for kind, told in found.items()})
        return 0
    console = Terminal()
    for kind, told in found.items():
        console.print(f"\n[bold cyan]{name}[/] of {kind}: {told['summary']}")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_column(no_wrap=True, style="bold")
        table.add_column(no_wrap=True)
        table.add_column()
        for argument, one in told["arguments"].items():
            value = "" if one["required"] else f"{one['default']}"
            table.add_row(argument, value, one["meaning"])
        console.print(table)
    return 0


def _told(kind: str, name: str) -> dict[str, Any]:
    """What a part is, and its constructor's arguments with their defaults and what they mean; imports it."""
    target = imported(kind)[name]
    meanings = _meanings(sections(inspect.getdoc(target) or "").get("Parameters", ""))
    arguments = {
        argument: {
            "required": one.default is one.empty,
            "default": None if one.default is one.empty else one.default,
            "meaning": meanings.get(argument, ""),
        }
        for argument, one in inspect.signature(target).parameters.items()
    }
    return {"summary": next(one.summary for one in entries(kind) if one.name == name), "arguments": arguments}


def imported(kind: str) -> Mapping[str, Callable[..., Any]]:
    """A table itself, by its key in `TABLES`; imports its module."""
    file, table = TABLES[kind]
    module = importlib.import_module("attnlab." + file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    return getattr(module, table)


def sections(docstring: str) -> dict[str, str]:
    """The sections of a NumPy docstring by title."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}$", docstring, flags=re.MULTILINE)
    return {title: inspect.cleandoc(text).strip() for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def _meanings(parameters: str) -> dict[str, str]:
    """What the section of parameters of a NumPy docstring says of each."""
    parts = re.split(r"^(\w[\w, ]*) : .*$", parameters, flags=re.MULTILINE)
    told = zip(parts[1::2], parts[2::2], strict=True)
    return {name: " ".join(text.split()).replace("``", "") for names, text in told for name in names.split(", ")}


def entries(kind: str) -> list[Entry]:
    """The entries of ``studies`` or of a key of `TABLES`, from the plainest to the strangest."""
    if kind == "studies":
        return [_study(path) for path in sorted((PACKAGE / "studies" / "library").glob("*.yaml"))]
    file, table = TABLES[kind]
    return [Entry(name, _summary(PACKAGE / file, target)) for name, target in _literal(PACKAGE / file, table).items()]


def _study(path: Path) -> Entry:
    lines = path.read_text(encoding="utf-8").splitlines()
    question = next((line for line in lines if line.startswith("question:")), "question:")
    return Entry(path.stem, question.removeprefix("question:").strip().strip("\"'"))


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _literal(file: Path, table: str) -> dict[str, str]:
    """A literal table of a file as name -> name of the class."""
    for node in _tree(file).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        named = any(isinstance(target, ast.Name) and target.id == table for target in targets)
        if named and isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {str(key.value): ast.unparse(value) for key, value in pairs if isinstance(key, ast.Constant)}
    raise SpecError(f"{file} has no literal table {table}")


def _summary(file: Path, target: str) -> str:
    """The first line of the docstring of a class or function named in a file, wherever it is defined."""
    for node in _tree(file).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == target:
            return (ast.get_docstring(node) or "").split("\n", 1)[0]
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == target for alias in node.names):
            return _summary(_module_file(node.module), target)
    return ""


def _module_file(module: str) -> Path:
    """The file of one of the lab's own modules."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _print(content: dict[str, list[Entry]]) -> None:
    console = Terminal()
    for kind, found in content.items():
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        for entry in found:
            table.add_row(entry.name, entry.summary)
        console.print(f"\n[bold cyan]{kind}[/]")
        console.print(table)
