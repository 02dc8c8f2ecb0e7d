"""Tables of contents that import nothing until a name is used, so that reading a table needs no torch."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, final


def contents(
    package: str, *, rooms: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names are loaded when they are first used.

    What the package imports for type checkers alone, under ``if TYPE_CHECKING:``, is what it holds. `rooms` are
    packages within it that can be used without importing them by themselves.

    Notes
    -----
    Importing ``package.name`` hangs that module on its package. A name of the table wins over a module of the same name
    (``from package.name import ...`` still finds the module), whichever is imported first.

    Examples
    --------
    ``__getattr__, __dir__, __all__ = contents(__name__)``
    """
    homes = _guarded_imports(sys.modules[package])

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
    return load, lambda: sorted({*homes, *rooms}), sorted(homes)


def _guarded_imports(package: ModuleType) -> dict[str, str]:
    """The module that each name comes from which a package imports under ``if TYPE_CHECKING:``."""
    guards = [node for node in ast.parse(inspect.getsource(package)).body if isinstance(node, ast.If)]
    lines = [line for guard in guards for line in guard.body if isinstance(line, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in lines for alias in line.names}
