"""Import a file of a person's own, where it lies: with its neighbors, inside its package, and anew when it changed."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

FOLDERS_ABOVE = 4
"""How far above a file the folders are looked for that it imports by an absolute name: ``from models.layers import ..``
in ``models/blocks/encoder.py`` works when the program is started two folders above."""


def import_file(path: Path, *, stand_in: bool = False) -> types.ModuleType:
    """Import a file under a name of its own; raises what the file raises.

    With `stand_in`, libraries that are not installed are replaced by what raises when it is used; `replaced_in` names
    them.

    Notes
    -----
    Relative imports are resolved from the top folder of its package, whose own ``__init__.py`` is not run. What an
    absolute import does not find is looked for beside the file and in the folders above it.
    """
    stamp = f"attnlab_user_{abs(hash((str(path), path.stat().st_mtime_ns, stand_in))):x}"
    name = ".".join([stamp, *path.relative_to(_top(path)).with_suffix("").parts])
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported as Python")
    _make_packages(stamp, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _Replacements() if stand_in else contextlib.nullcontext() as replaced:
            _execute(module, spec.loader, path, replaced)
            vars(module)["__replaced__"] = () if replaced is None else tuple(replaced.names)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def replaced_in(name: str) -> tuple[str, ...]:
    """The libraries that were missing when a module was imported, by the module's name."""
    return getattr(sys.modules.get(name), "__replaced__", ())


def _top(path: Path) -> Path:
    """The top folder of the package a file lies in; its own folder where it lies in none."""
    folder = path.parent
    for _ in range(_relative_levels(path) - 1):
        folder = folder.parent
    while (folder / "__init__.py").exists() and (folder.parent / "__init__.py").exists():
        folder = folder.parent
    return folder


def _relative_levels(path: Path) -> int:
    """How many folders up its relative imports reach: 1 is its own folder, 0 that there are none."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return 0  # importing it says what is wrong
    return max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)


@final
class _Package(types.ModuleType):
    """Stand in for a package around a file; its own ``__init__.py`` runs only when a name of it is asked for.

    Parameters
    ----------
    name : str
        Its name in ``sys.modules``.
    folder : Path
        Where its modules lie.
    """

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self.__path__ = [str(folder)]
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        face = Path(self.__path__[0]) / "__init__.py"
        if name.startswith("__") or _holds(face.parent, name) or "__file__" in vars(self) or not face.exists():
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__file__ = str(face)
        exec(compile(face.read_bytes(), face, "exec"), vars(self))  # a person's own code, asked for by their own file
        return getattr(self, name)


def _make_packages(stamp: str, path: Path) -> None:
    """Stand in for the packages around a file, from the top folder down, so that it finds its neighbors in them."""
    folder, name = _top(path), stamp
    for part in (*path.parent.relative_to(folder).parts, None):
        sys.modules.setdefault(name, _Package(name, folder))
        if part is not None:
            folder, name = folder / part, f"{name}.{part}"


@final
class _Missing:
    """Stand for something of a library that is not installed; a decorator of it leaves what it decorates."""

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and not named and callable(arguments[0]):
            return arguments[0]
        raise ImportError(f"{cls.__module__} is not installed")


@final
class _Replacements:
    """Put stand-ins where libraries are missing, as long as files are imported."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __enter__(self) -> _Replacements:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            del sys.modules[name]

    def replace(self, name: str) -> None:
        """Let a library be imported that is not there."""
        module = sys.modules[name] = types.ModuleType(name)
        vars(module)["__path__"] = []
        vars(module)["__getattr__"] = lambda word: _missing(name, word)
        self.names.append(name)


def _missing(library: str, word: str) -> type:
    if word.startswith("__"):
        raise AttributeError(word)
    return type(word, (_Missing,), {"__module__": library})


def _execute(
    module: types.ModuleType, loader: importlib.abc.Loader, path: Path, replaced: _Replacements | None = None
) -> None:
    """Run a module; where it misses another one that lies in a folder above, look there too."""
    with _on_path([path.parent]) as folders:
        while True:
            try:
                return loader.exec_module(module)
            except ModuleNotFoundError as error:
                missing = (error.name or "").partition(".")[0]
                above = [folder for folder in list(path.parents)[1 : 1 + FOLDERS_ABOVE] if _holds(folder, missing)]
                if not above or str(above[0]) in folders:
                    if replaced is None or not error.name or error.name in replaced.names:
                        raise
                    replaced.replace(error.name)
                    continue
                folders.append(str(above[0]))
                sys.path.append(str(above[0]))
                importlib.invalidate_caches()


def _holds(folder: Path, name: str) -> bool:
    return bool(name) and ((folder / f"{name}.py").is_file() or (folder / name).is_dir())


@contextlib.contextmanager
def _on_path(folders: list[Path]) -> Iterator[list[str]]:
    """Let a file import its neighbors while it is imported itself."""
    added = [str(folder) for folder in folders]
    sys.path[:0] = added
    try:
        yield added
    finally:
        for folder in added:
            sys.path.remove(folder)
