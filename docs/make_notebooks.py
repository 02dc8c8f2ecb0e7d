"""Run the notebooks anew and keep what they show.

Use: ``pip install nbclient ipykernel``, then ``.venv/bin/python docs/make_notebooks.py``. The tests run the cells
without either.
"""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))
LONGEST_S = 300  # of one cell, on a slow machine
WITHOUT_WIDGETS = "ignore:IProgress not found"  # a warning that names a folder of this machine


def run(path: Path) -> nbformat.NotebookNode:
    """A notebook with what its cells show now."""
    os.environ["PYTHONWARNINGS"] = WITHOUT_WIDGETS
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=LONGEST_S, record_timing=False).execute(cwd=str(path.parent))
    return notebook


if __name__ == "__main__":
    for path in NOTEBOOKS:
        nbformat.write(run(path), path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")
