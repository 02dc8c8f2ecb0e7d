"""Scripts beside the package, ``docs/*.py`` and ``benchmarks/*.py``, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def loaded(path):
    """The module of a file below the root."""
    place = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module
