"""``attnlab list``: everything a study may name, read from the tables without importing them.

The tables are literals at the end of their files, so their source says what importing torch would take
seconds to say.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import final

from rich.table import Table

from attnlab.cli.terminal import Terminal
from attnlab.core.errors import SpecError, nearest

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


def show(kind: str | None = None, /, *, json: bool = False) -> int:
    """List studies, tasks, models and every part.

    Parameters
    ----------
    kind : str, optional
        One table alone: ``studies``, ``tasks``, ``scores``, ...
    json : bool
        Print JSON.

    Returns
    -------
    int
        0.
    """
    kinds = ("studies", *TABLES)
    if kind is not None and kind not in kinds:
        raise SpecError(f"no table '{kind}'; {nearest(kind, kinds)}")
    content = {name: entries(name) for name in ([kind] if kind else kinds)}
    if json:
        from attnlab.cli.run import print_json

        print_json({name: {entry.name: entry.summary for entry in found} for name, found in content.items()})
    else:
        _print(content)
    return 0


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
