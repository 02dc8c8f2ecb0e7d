"""The one place where a specification becomes an object.

A part is a name from a table, ``path.py:Class`` of a person's own, or a mapping with ``name`` and
constructor arguments; in Python also a class, a ``functools.partial`` of one, or an object that is ready. The
constructor is the whole description: arguments are checked against its annotated signature, what is missing is
taken from what the surroundings offer (`d_model`, ...).
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from attnlab.core.constructors import UnsetError, check_arguments, fill_in, glossary_word
from attnlab.core.errors import AttnlabError, ModuleError, SpecError, nearest, text_of
from attnlab.core.files import user_path
from attnlab.core.own_files import import_file, is_own, where_it_lies

Spec = str | Mapping[str, Any] | Callable[..., Any]
"""A name, a mapping with ``name`` and constructor arguments, a class or ``functools.partial`` of one, or a module."""

Table = Mapping[str, Callable[..., Any]]
"""What a name may stand for: name -> class."""


@final
@dataclass(frozen=True)
class Order:
    """Hold a constructor and its checked arguments, ready to be called any number of times."""

    factory: Callable[..., Any]  # what is to be called
    arguments: Mapping[str, Any]  # with what
    where: str  # where it stands, for error texts
    foreign: bool  # whether it is a person's own, from a file

    def make(self) -> Any:
        """Call the constructor.

        What it refuses, and what its config lacks, is a `SpecError`; what a person's own class raises a `ModuleError`.
        """
        return _construct(self.factory, self.arguments, self.where, foreign=self.foreign)


def parse(spec: Spec, axis: str) -> tuple[str, dict[str, Any]]:
    """The name and the constructor arguments of a specification; `axis` says in errors what is to be built."""
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, Mapping):
        raise SpecError(f"{axis} must be a name or a mapping with 'name'; got {spec!r}")
    name = spec.get("name")
    if not isinstance(name, str):
        raise SpecError(f"{axis} needs a 'name' beside its arguments; got {dict(spec)!r}")
    return name, {key: value for key, value in spec.items() if key != "name"}


def is_path(name: str) -> bool:
    """Whether a name is ``path.py:Object``, of a person's own file, rather than an entry of a table."""
    return ".py:" in name


def path_of(name: str) -> Path:
    """The file that ``path.py:Object`` names; a relative one is taken from the working directory."""
    return where_it_lies(user_path(name.rpartition(":")[0]).resolve())


def build(spec: Any, table: Table, *, axis: str, offered: Mapping[str, Any] | None = None) -> Any:
    """Build the object that a specification describes.

    Parameters
    ----------
    spec : str, mapping, class, partial or object
        A name, a mapping with ``name`` and arguments, a class or a ``functools.partial`` of one, or a ready-made
        object, which is returned as it is.
    table : mapping of str to class
        The entries that a name may stand for.
    axis : str
        What is being built, in the singular, for error texts: ``score``, ``mixer``.
    offered : mapping, optional
        Arguments the surroundings can give. Each is passed if the constructor has a parameter of
        that name (for ``path.py:Class`` also of a usual alias) and the specification does not set it.

    Returns
    -------
    object
        What the constructor returned.

    Raises
    ------
    SpecError
        If the name or an argument is unknown, missing, or of the wrong type or value.
    ModuleError
        If the constructor of a person's own class raises.

    Examples
    --------
    >>> build({"name": "pair", "imag": 2.0}, {"pair": complex}, axis="number", offered={"real": 1.0})
    (1+2j)
    """
    if is_ready(spec):
        return spec
    return prepare(spec, table, axis=axis, offered=offered).make()


def prepare(spec: Spec, table: Table, *, axis: str, offered: Mapping[str, Any] | None = None) -> Order:
    """Find the constructor that a specification names and check its arguments as `build` does, without calling it."""
    name, factory, arguments = opened(spec, table, axis)
    foreign = is_path(name) or not (name in table or factory.__module__.startswith("attnlab."))
    where = f"{axis} '{name}'"
    try:
        filled = fill_in(factory, arguments, offered=offered or {}, foreign=foreign)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from error
    return Order(factory, check_arguments(factory, filled, where), where, foreign)


def is_ready(spec: Any) -> bool:
    """Whether a specification is an object already: neither words nor something to call."""
    return not isinstance(spec, str | Mapping | functools.partial) and not inspect.isclass(spec)


def class_of(spec: Any, table: Table, axis: str) -> Any:
    """The class that a specification names, or that a ready object is of."""
    return type(spec) if is_ready(spec) else opened(spec, table, axis)[1]


def name_of(spec: Any, table: Table, axis: str) -> str:
    """What a specification is called: its name, or for a class or an object the table's name or the class's own."""
    if isinstance(spec, str | Mapping):
        return parse(spec, axis)[0]
    return _entry_name(class_of(spec, table, axis), table)


def _entry_name(wanted: Callable[..., Any], table: Table) -> str:
    return next((name for name, entry in table.items() if entry is wanted), wanted.__name__)


def opened(spec: Any, table: Table, axis: str) -> tuple[str, Callable[..., Any], dict[str, Any]]:
    """The name, the constructor and the arguments that a specification gives."""
    if isinstance(spec, functools.partial):
        given = inspect.signature(spec.func).bind_partial(*spec.args, **spec.keywords).arguments
        return _entry_name(spec.func, table), spec.func, dict(given)
    if inspect.isclass(spec):
        return _entry_name(spec, table), spec, {}
    name, arguments = parse(spec, axis)
    return name, load_object(name) if is_path(name) else look_up(name, table, axis), arguments


def look_up(name: str, table: Table, axis: str) -> Callable[..., Any]:
    """A table's entry, or a `SpecError` that names the nearest one."""
    if name not in table:
        raise SpecError(f"unknown {axis} '{name}'; {nearest(name, table)}")
    return table[name]


def load_object(name: str, *, stand_in: bool = False) -> Callable[..., Any]:
    """Import ``path.py:Object`` from a file, without installing anything; one that changed on disk is imported anew.

    With `stand_in`, libraries that the file imports and that are not installed are replaced by what raises when used.
    """
    path, attribute = path_of(name), name.rpartition(":")[2]
    if not path.is_file():
        raise SpecError(f"no file {path} (from '{name}')")
    module = _import(path, stand_in, attribute)
    if not hasattr(module, attribute):
        public = [word for word, one in vars(module).items() if word[0] != "_" and not _is_imported(one, module)]
        raise SpecError(f"{path} defines no '{attribute}'; {nearest(attribute, public)}")
    return getattr(module, attribute)


def _is_imported(value: Any, module: Any) -> bool:
    """Whether a value of a file is a module, or a class or function of another one."""
    made = inspect.isclass(value) or inspect.isroutine(value)
    return inspect.ismodule(value) or (made and getattr(value, "__module__", None) != module.__name__)


def _import(path: Path, stand_in: bool, wanted: str) -> Any:
    """Import a person's file, in which anything may go wrong."""
    try:
        return import_file(path, stand_in=stand_in, wanted=wanted)
    except (Exception, SystemExit) as error:
        text = describe_exception(error, str(path))
        raise ModuleError(f"{path} raised while it was imported: {text}") from error


def _construct(factory: Callable[..., Any], arguments: Mapping[str, Any], where: str, *, foreign: bool) -> Any:
    """Call a constructor and say where it stood if it raises."""
    try:
        return factory(**arguments)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from error
    except AttnlabError:
        raise
    except UnsetError as error:
        word = glossary_word(str(error))
        raise SpecError(f"{where}: its config has no '{error}'; give it as {word}: ...") from error
    except (Exception, SystemExit) as error:
        if not foreign:
            raise
        text = describe_exception(error, _file_of(factory))
        raise ModuleError(f"{where}: its constructor raised {text}") from error


def describe_exception(error: BaseException, file: str = "") -> str:
    """Type, text and line of an exception: the last in `file`, without one the last in a person's own file, or of all.

    Such as ``ValueError: too small (mine.py, line 12)``.
    """
    frames = [
        (frame.f_code.co_filename, line, is_own(frame.f_globals.get("__name__")))
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [one for one in frames if one[0] == file or (not file and one[2])]
    place = next(reversed(own if own or file else frames), None)
    return text_of(error) + (f" ({Path(place[0]).name}, line {place[1]})" if place else "")


def _file_of(factory: Callable[..., Any]) -> str:
    """The file a class or function was defined in, or nothing where it has none."""
    try:
        return inspect.getfile(factory)
    except TypeError:  # a builtin
        return ""
