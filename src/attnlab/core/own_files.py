"""Import a file of a person's own, where it lies: with its neighbors, inside its package, and anew when it changed."""

from __future__ import annotations
import __future__

import argparse
import ast
import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

FOLDERS_ABOVE = 4
"""How far above a file the folders are looked for that it imports by an absolute name: ``from models.layers import ..``
in ``models/blocks/encoder.py`` works when the program is started two folders above."""

COPIES = "ATTNLAB_OWN_CODE"
"""Variable with the folder of copies of a person's files, on a machine that does not see the files themselves."""


EQUALS: dict[str, Any] = {}
"""What does the same as a name of a library that is not installed, filled by who knows it."""

USUAL: dict[str, Any] = {}
"""What names mean that files use without importing them, as a class copied out of a notebook does; filled likewise."""

BASES: list[type] = []
"""What a class of a library that is not installed is taken to be, where others are derived from it."""

_INSTALLED = re.compile(r"site-packages|[\\/]lib[\\/]python")
"""Files that are no person's own."""

_OWN = "attnlab_user_"
"""How the names of a person's own modules begin."""


def is_own(module: object) -> bool:
    """Whether a name is that of a module that was imported from a person's own file."""
    return isinstance(module, str) and module.startswith(_OWN)


def where_it_lies(path: Path) -> Path:
    """The copy of a person's file where there is one, else the file."""
    copies = os.environ.get(COPIES)
    copy = copy_of(path, copies) if copies else path
    return copy if copy.exists() else path


def copy_of(path: Path, copies: str) -> Path:
    """The place of a file's copy within a folder of copies: they lie to each other as the files do."""
    return Path(copies, *path.parts[1:])


def import_file(path: Path, *, stand_in: bool = False, wanted: str = "") -> types.ModuleType:
    """Import a file under a name of its own; raises what it raises, unless it has defined what is `wanted` before.

    With `stand_in`, libraries that are not installed are replaced by what raises when it is used, `replaced_in` names
    them; and what a statement of the file or of one beside it would have made, if the statement raises.

    Notes
    -----
    Relative imports are resolved from the top folder of its package, whose own ``__init__.py`` is not run. What an
    absolute import does not find is looked for beside the file and in the folders above it.
    """
    stamp = f"{_OWN}{abs(hash((str(path), path.stat().st_mtime_ns, stand_in))):x}"
    name = ".".join([stamp, *path.relative_to(_top(path)).with_suffix("").parts])
    if name in sys.modules and (not raised_in(name) or hasattr(sys.modules[name], wanted)):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported as Python")
    _make_packages(stamp, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with _Replacements() if stand_in else contextlib.nullcontext() as replaced:
        try:
            _execute(module, spec.loader, path, replaced)
        except BaseException as error:
            needs_more = isinstance(error, ImportError) and not stand_in
            if needs_more or not isinstance(error, Exception | SystemExit) or wanted not in vars(module):
                del sys.modules[name]
                raise
            vars(module)["__raised__"] = f"{type(error).__name__}: {error}"
        vars(module)["__replaced__"] = () if replaced is None else tuple(replaced.names)
        if replaced is not None and replaced.left_out:
            vars(module)["__raised__"] = replaced.left_out[0]
            if isinstance(vars(module).get(wanted), _Missing):
                del sys.modules[name]
                raise replaced.raised[wanted]
    return module


def constants_of_script(path: Path) -> dict[str, int | float]:
    """The numbers that a file gives names to only where it is run as a script, below ``if __name__ == "__main__"``."""
    nodes = [node for node in tree_of(path.read_bytes()).body if isinstance(node, ast.If)]
    found: dict[str, int | float] = {}
    for statement in (one for node in nodes if "__main__" in ast.unparse(node.test) for one in node.body):
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            value = statement.value.value
            if isinstance(value, int | float) and not isinstance(value, bool):
                found |= {one.id: value for one in statement.targets if isinstance(one, ast.Name)}
    return found


@functools.lru_cache(maxsize=16)
def tree_of(source: bytes) -> ast.Module:
    """The syntax tree of a file; an empty one where it is no Python, which importing it says."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def replaced_in(name: str) -> tuple[str, ...]:
    """The libraries that were missing when a module was imported, by the module's name."""
    return getattr(sys.modules.get(name), "__replaced__", ())


def raised_in(name: str) -> str:
    """What a file raised below what was wanted of it, by its module's name; nothing where it ran to its end."""
    return getattr(sys.modules.get(name), "__raised__", "")


def lent_in(name: str) -> str:
    """The name that a file uses without importing it, by its module's name; nothing where there is none."""
    return getattr(sys.modules.get(name), "__lent__", "")


def _top(path: Path) -> Path:
    """The top folder of the package a file lies in; its own folder where it lies in none."""
    folder = path.parent
    for _ in range(_relative_levels(path.read_bytes()) - 1):
        folder = folder.parent
    while (folder / "__init__.py").exists() and (folder.parent / "__init__.py").exists():
        folder = folder.parent
    return folder


@functools.lru_cache(maxsize=256)  # asked for with every module that is built
def _relative_levels(source: bytes) -> int:
    """How many folders up the relative imports of a file reach: 1 is its own folder, 0 that there are none."""
    nodes = ast.walk(tree_of(source))
    return max((node.level for node in nodes if isinstance(node, ast.ImportFrom)), default=0)


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
        importlib.machinery.SourceFileLoader(self.__name__, str(face)).exec_module(self)  # asked for by their own file
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
    """Stand for something of a library that is not installed: it can be named, called and derived from, and no more.

    Parameters
    ----------
    lacks : str
        What is said where it is used, such as that a library is not installed.
    made : bool
        Whether it stands for what a call would have made.

    Notes
    -----
    A decorator of it leaves what it decorates, and what is called for its effect alone, such as a log, does nothing.
    Everything that needs a value raises `ImportError`, and so does a call of what a call would have made.
    """

    def __init__(self, lacks: str, *, made: bool = False) -> None:
        self._lacks = lacks
        self._made = made

    def __getattr__(self, word: str) -> Any:
        if word.startswith("__"):
            raise AttributeError(word)
        return EQUALS.get(word) or _Missing(self._lacks)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        decorates = len(arguments) == 1 and not named and callable(arguments[0])
        if self._made and not decorates:
            self._refuse()
        return arguments[0] if decorates else _Missing(self._lacks, made=True)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        unknown = {"lacks": self._lacks, "__init__": _begin, "__getattr__": _lend}
        beside = (type("Unknown", (), {"__getattr__": _lend}),) if BASES else ()
        return (_Unknown("Unknown", tuple(BASES), unknown),) if len(bases) == 1 else beside

    def __instancecheck__(self, _thing: Any) -> bool:
        return False

    def __or__(self, other: Any) -> _Missing:
        return self

    def __getitem__(self, _of: Any) -> _Missing:
        return self._refuse() if self._made else self  # an annotation, such as ``TensorType["batch", "length"]``

    def __enter__(self) -> _Missing:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what was entered for its effect alone."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise ImportError(self._lacks)

    __bool__ = __len__ = __iter__ = __float__ = __int__ = __index__ = __array__ = _refuse
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __matmul__ = __neg__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmatmul__ = __torch_function__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __ror__ = __or__


def _begin(self: Any, *_: Any, **__: Any) -> None:
    """Begin an instance of an unknown class, whatever it is given."""
    for base in BASES:
        base.__init__(self)


def _lend(self: Any, word: str) -> Any:
    """What an instance of an unknown class lacks: its device; what is called for its effect alone does nothing."""
    for kind in type(self).__mro__:
        own: Any = vars(kind).get("__getattr__")
        if own is not None and own is not _lend:
            with contextlib.suppress(AttributeError):
                return own(self, word)
    if word == "device":  # as modules of Lightning and of transformers have it
        import torch

        return next((one.device for one in self.parameters()), torch.device("cpu"))
    calls = [call for kind in type(self).__mro__ for call in _calls_of(kind).get(word, ())]
    if calls and all(calls):
        return _do_nothing
    raise AttributeError(f"'{type(self).__name__}' object has no attribute '{word}'")


@functools.lru_cache(maxsize=64)
def _calls_of(kind: type) -> dict[str, list[bool]]:
    """By name the calls of ``self.name`` in a class of a person's own: whether each is a statement by itself."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)) if is_own(kind.__module__) else "")
    except (OSError, TypeError, SyntaxError):
        return {}
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found: dict[str, list[bool]] = {}
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "self":
            found.setdefault(called.attr, []).append(id(node) in statements)
    return found


def _do_nothing(*_: Any, **__: Any) -> None:
    """Stand for what is called for its effect."""


@final
class _Unknown(type):
    """A class of which only the library is known that it would come from."""

    lacks: str

    def __getattr__(cls, word: str) -> Any:
        return getattr(_Missing(cls.lacks), word)


@final
class _Replacements:
    """Put stand-ins where libraries are missing, as long as files are imported."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.raised: dict[str, BaseException] = {}  # by the names that a statement left without a value
        self.left_out: list[str] = []  # what those statements raised, in words
        self._put: list[tuple[types.ModuleType, str]] = []
        self.finds: Callable[[ImportError], bool] | None = None  # looks for what an import missed
        self._loads = importlib.machinery.SourceFileLoader.exec_module

    def __enter__(self) -> _Replacements:
        loads, run = self._loads, self._run

        def load(self: importlib.machinery.SourceFileLoader, module: types.ModuleType) -> None:
            return loads(self, module) if _INSTALLED.search(self.path) else run(module, self.path)

        importlib.machinery.SourceFileLoader.exec_module = load
        return self

    def __exit__(self, *_: object) -> None:
        importlib.machinery.SourceFileLoader.exec_module = self._loads
        for module, word in self._put:
            vars(module).pop(word, None)
        for name in {*self.names} & {*sys.modules}:
            del sys.modules[name]

    def _run(self, module: types.ModuleType, file: str) -> None:
        """Run a person's file statement by statement; what one that raises would have made raises when it is used."""
        flags = 0
        for statement in ast.parse(Path(file).read_bytes()).body:
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                flags |= functools.reduce(
                    int.__or__, (getattr(__future__, a.name).compiler_flag for a in statement.names)
                )
            code = compile(ast.Module([statement], []), file, "exec", flags=flags, dont_inherit=True)
            try:
                while not self._ran(code, module):
                    pass
            except (Exception, SystemExit) as error:
                words = f"{type(error).__name__}: {error} ({Path(file).name}, line {statement.lineno})"
                self.left_out.append(words)
                for name in set(_bound_by(statement)) - {*vars(module)}:
                    vars(module)[name] = _Missing(f"'{name}' was left out, as its statement raised {words}")
                    self.raised[name] = error

    def _ran(self, code: types.CodeType, module: types.ModuleType) -> bool:
        """Whether a statement ran; where not, what it missed is there now."""
        try:
            exec(code, vars(module))  # a person's own code
        except ImportError as error:
            if self.finds is None or not self.finds(error):
                raise
            return False
        except NameError as error:
            if error.name not in USUAL or error.name in vars(module):
                raise
            lent = {name: value for name, value in USUAL.items() if name not in vars(module)}
            vars(module).update(lent, __lent__=error.name)
            return False
        return True

    def put(self, word: str, name: str) -> bool:
        """Let a name be imported that a module of another version has; whether there is such a module without it.

        It is what another part of the library has under that name, where it was moved.
        """
        module, library = sys.modules.get(name), name.partition(".")[0]
        if module is None or hasattr(module, word):
            return False
        parts = [part for known, part in sys.modules.items() if known.startswith(f"{library}.") and part is not None]
        found = next((vars(part)[word] for part in parts if word in vars(part)), EQUALS.get(word))
        setattr(module, word, _Missing(f"{name}.{word} is not installed") if found is None else found)
        self._put.append((module, word))
        self.names += [f"{name}.{word}"] if found is None else []
        return True

    def replace(self, name: str, folders: list[str]) -> None:
        """Let a library be imported that is not there; what it should hold is looked for in some folders."""
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update(
            __path__=folders, __spec__=importlib.machinery.ModuleSpec(name, None), __version__="99.99.0"
        )
        vars(module)["__getattr__"] = _Missing(f"{name} is not installed").__getattr__
        above, _, word = name.rpartition(".")
        if above in self.names:
            setattr(sys.modules[above], word, module)
        self.names.append(name)


def _execute(
    module: types.ModuleType, loader: importlib.abc.Loader, path: Path, replaced: _Replacements | None = None
) -> None:
    """Run a module; what it does not find is looked for in folders above, and in those beside them."""
    with _on_path([path.parent]) as folders:
        tried: set[tuple[str | None, Path]] = set()
        finds = functools.partial(_finds, path=path, folders=folders, tried=tried, replaced=replaced)
        if replaced is not None:
            replaced.finds = finds
        while True:
            try:
                return loader.exec_module(module)
            except ImportError as error:
                if not finds(error):
                    raise


def _finds(
    error: ImportError,
    *,
    path: Path,
    folders: list[str],
    tried: set[tuple[str | None, Path]],
    replaced: _Replacements | None,
) -> bool:
    """Whether there is now what an import missed: a folder where it is was found, or a stand-in put."""
    missing, inside, _ = (error.name or "").partition(".")
    absent = isinstance(error, ModuleNotFoundError)
    packages = [] if absent else _folders_with_package(*_wanted_name(error), path=path)
    modules = _folders_with(missing, path, beside=not absent)
    above = [one for one in (*packages, *modules) if (error.name, one) not in tried]
    found = [one for one in above if inside or str(one) not in folders]  # or behind another of its name
    found = [] if missing == "torch" else found  # which cannot be imported twice
    if found:
        tried.add((error.name, found[0]))
        hidden = inside or found[0] in packages
        shadowing = [one for one in folders if hidden and Path(one, f"{missing}.py").is_file()]
        for one in shadowing:  # a file is found before a folder without __init__.py, wherever that is
            sys.path.remove(one)
            folders.remove(one)
        folders.append(str(found[0]))
        another = not absent or inside or missing in sys.modules  # of its name, without what is wanted
        sys.path.insert(0 if another else len(sys.path), str(found[0]))
        sys.modules.pop(missing, None)
        importlib.invalidate_caches()
        return True
    if absent and replaced is not None and error.name and error.name not in replaced.names:
        own = inside and _folders_with(missing, path, beside=False)  # a package that moved within the person's own
        replaced.replace(error.name, [str(path.parent)] if own else [])
        return True
    return not absent and replaced is not None and replaced.put(*_wanted_name(error))


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement gives values to."""
    for node in ast.walk(statement):
        if isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        yield statement.name


def _wanted_name(error: ImportError) -> tuple[str, str]:
    """The name that a module does not have, and the module's."""
    found = re.match(r"cannot import name '(\w+)' from (?:partially initialized module )?'([\w.]+)'", str(error))
    return (found[1], found[2]) if found else ("", "")


def _folders_with_package(wanted: str, name: str, *, path: Path) -> list[Path]:
    """The folders above a file that hold a package with a module: a file of it may bear the package's name."""
    return [folder for folder in _above(path) if _holds(folder / name, wanted)]


def _folders_with(name: str, path: Path, *, beside: bool) -> list[Path]:
    """The folders above a file that hold a module; or those in them, where the module that was found is another one."""
    if not beside:
        return [folder for folder in _above(path) if _holds(folder, name)]
    return [module.parent for folder in _above(path) for module in sorted(folder.glob(f"*/{name}.py")) if name]


def _above(path: Path) -> list[Path]:
    """The folders above that of a file in which what it imports is looked for."""
    return list(path.parents)[1 : 1 + FOLDERS_ABOVE]


def _holds(folder: Path, name: str) -> bool:
    return bool(name) and ((folder / f"{name}.py").is_file() or (folder / name).is_dir())


def _parsing(parses: Callable[..., Any]) -> Callable[..., Any]:
    """How command lines are parsed where a file reads one while it is imported: nothing is required of an empty one."""

    def parsed(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        required = [one for one in self._actions if one.required] if args is None else []
        for one in required:
            one.required = False
        try:
            return parses(self, args, namespace)
        finally:
            for one in required:
                one.required = True

    return parsed


@contextlib.contextmanager
def _on_path(folders: list[Path]) -> Iterator[list[str]]:
    """Let a file import its neighbors while it is imported itself, and read no command line but its own name.

    What it requires on a command line has its default, which is None as a rule.
    Nothing is compiled for later: Python tells it from an edited file by the second of its change and its size alone.
    """
    added = [str(folder) for folder in folders]
    sys.path[:0] = added
    arguments, sys.argv = sys.argv, sys.argv[:1]
    no_cache, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    parses = argparse.ArgumentParser.parse_known_args
    argparse.ArgumentParser.parse_known_args = _parsing(parses)  # pyrefly: ignore
    try:
        yield added
    finally:
        argparse.ArgumentParser.parse_known_args = parses
        sys.argv, sys.dont_write_bytecode = arguments, no_cache
        for folder in added:
            sys.path.remove(folder)
