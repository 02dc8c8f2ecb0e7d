"""Tables of contents that import nothing until a name is used, so that reading a table needs no torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, final


def contents(
    package: str, homes: Mapping[str, str], *, rooms: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` of a package whose names are loaded when they are first used.

    Parameters
    ----------
    package : str
        The package's ``__name__``.
    homes : mapping of str to str
        For each public name the module that defines it.
    rooms : sequence of str
        Packages within it that can be used without importing them by themselves.

    Returns
    -------
    tuple
        The two functions; a name that is in neither raises an `AttributeError`.

    Notes
    -----
    Importing ``package.name`` hangs that module on its package. A name of the table wins over a module of the same name
    (``from package.name import ...`` still finds the module), whichever is imported first.

    Examples
    --------
    ``__getattr__, __dir__ = contents(__name__, {"train": "attnlab.training.run.loop"})``
    """

    @final
    class Contents(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            if name not in homes or not isinstance(value, ModuleType):
                super().__setattr__(name, value)

    def load(name: str) -> Any:
        if name in rooms:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # the next use does not come here
        return value

    sys.modules[package].__class__ = Contents
    return load, lambda: sorted({*homes, *rooms})
