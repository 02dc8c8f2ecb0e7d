"""The layout: imports point down the layers, never up, never sideways; files and functions stay small."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import attnlab

PACKAGE = Path(attnlab.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
FOUNDATION = {"errors", "axes", "contracts", "constructors", "build"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "axes": set(),
    "contracts": set(),
    "constructors": {"errors"},
    "build": {"errors", "constructors"},
    "nn": FOUNDATION,
    "text": FOUNDATION,
    "models": FOUNDATION | {"nn"},
    "tasks": FOUNDATION | {"text"},
    "training": FOUNDATION,
    "inspection": FOUNDATION | {"nn"},
    "doctor": FOUNDATION | {"nn", "text"},
    "studies": FOUNDATION | {"nn", "models", "tasks", "training", "inspection"},
    "benchmarks": FOUNDATION | {"nn", "models", "tasks", "training", "inspection"},
    "cli": FOUNDATION | {"nn", "models", "tasks", "training", "inspection", "studies", "benchmarks", "doctor"},
}
LONGEST_FILE = 400
LONGEST_FUNCTION = 50


def layer(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_layers(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "attnlab":
                names = [f"attnlab.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("attnlab.")}
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_down(file):
    own = layer(file)
    if own == "__init__":
        return
    assert own in ALLOWED, f"{file} lies in no layer"
    forbidden = imported_layers(file) - ALLOWED[own] - {own}
    assert not forbidden, f"{file.relative_to(PACKAGE)} may not import {sorted(forbidden)}"


def test_an_upward_import_would_be_found(tmp_path):
    file = tmp_path / "sideways.py"
    file.write_text("from attnlab.models import MODELS\nimport attnlab.studies.plan\n")
    assert imported_layers(file) == {"models", "studies"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(file):
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node)
            length = node.end_lineno - node.lineno + 1 - (len(docstring.splitlines()) + 2 if docstring else 0)
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines of code"


def test_no_drawer_for_odds_and_ends():
    names = {file.stem for file in FILES} | {file.parent.name for file in FILES}
    assert not names & {"utils", "helpers", "misc", "common", "base"}
