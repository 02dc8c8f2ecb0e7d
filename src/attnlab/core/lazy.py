"""Tables of contents that import nothing until a name is used, so that reading a table needs no torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def contents(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` of a package whose names are loaded when they are first used.

    Parameters
    ----------
    package : str
        The package's ``__name__``.
    homes : mapping of str to str
        For each public name the module that defines it.

    Returns
    -------
    tuple
        The two functions; a name that is not in `homes` raises an `AttributeError`.

    Examples
    --------
    ``__getattr__, __dir__ = contents(__name__, {"train": "attnlab.training.run.loop"})``
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # the next use does not come here
        return value

    return load, lambda: sorted(homes)
