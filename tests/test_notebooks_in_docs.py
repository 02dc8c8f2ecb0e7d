"""The notebooks run as they stand, and show what was kept of them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SHOWN = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}
NUMBERS = re.compile(r"\d+(\.\d+)?")
LARGEST = 100_000
"""Bytes of a file, so that a repository holds it and a reader opens it at once."""


def code_of(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def outputs(cell: dict, kind: str) -> list[dict]:
    return [one for one in cell["outputs"] if one["output_type"] == kind]


def value_of(source: str, names: dict) -> object:
    """Run a cell; the value of its last line, where that is an expression."""
    *statements, last = ast.parse(source).body
    ends_in_a_value = isinstance(last, ast.Expr)
    exec(compile(ast.Module([*statements] if ends_in_a_value else [*statements, last], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if ends_in_a_value else None


@pytest.fixture
def threads():
    """Leave the number of threads as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run_and_show_what_was_kept(path, capsys, threads):
    names = {"__name__": "__main__"}
    for cell in code_of(path):
        value = value_of("".join(cell["source"]), names)
        kept = {kind for one in outputs(cell, "execute_result") for kind in one["data"]} & SHOWN.keys()
        assert kept == {kind for kind, method in SHOWN.items() if hasattr(value, method)}
        printed = "".join(line for one in outputs(cell, "stream") for line in one["text"])
        assert NUMBERS.sub("", capsys.readouterr().out) == NUMBERS.sub("", printed)  # digits differ between machines


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_small_and_name_no_machine(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST
    assert not re.search(r"/work/|/home/|/root/|site-packages", text)
    assert not [one for cell in code_of(path) for one in outputs(cell, "error")]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_notebooks_resolve(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "".join(line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"])
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    assert [target for target in targets if not (FOLDER / target).exists()] == []
