"""The one place where a specification becomes an object.

A part is a name from a table, ``path.py:Class`` of a person's own, or a mapping with ``name`` and
constructor arguments. The constructor is the whole description: arguments are checked against its
annotated signature, what is missing is taken from what the surroundings offer (`d_model`, ...).
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pydantic

from attnlab.errors import AttnlabError, ModuleError, SpecError, nearest

Spec = str | Mapping[str, Any]
"""A name, or a mapping with ``name`` and constructor arguments."""

Table = Mapping[str, Callable[..., Any]]
"""What a name may stand for: name -> class."""

SIZE_ALIASES: dict[str, tuple[str, ...]] = {
    "d_model": (
        "dim", "embed_dim", "emb_size", "emb_dim", "embedding_dim", "n_embd", "embed_size", "hidden_size",
        "model_dim", "hidden_dim", "d", "width", "channels", "in_channels", "out_channels", "input_dim", "hidden",
    ),
    "n_heads": ("heads", "num_heads", "n_head", "h", "nhead", "nheads", "num_attention_heads"),
    "d_head": ("head_dim", "dim_head", "d_k", "head_size", "key_channels"),
    "dropout": ("p", "drop", "dropout_p", "p_drop", "attn_dropout", "attn_pdrop", "dropout_rate"),
    "max_length": (
        "max_len", "block_size", "seq_len", "context", "context_length", "context_size", "ctx_len", "sequence_length",
        "max_seq_len",
    ),
    "causal": ("is_causal",),
}  # fmt: skip
"""Names under which people's own constructors ask for the sizes of the glossary."""


def parse(spec: Spec, axis: str) -> tuple[str, dict[str, Any]]:
    """Split a specification into its name and its constructor arguments.

    Raises
    ------
    SpecError
        If it is neither a name nor a mapping with a textual ``name``.
    """
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, Mapping):
        raise SpecError(f"{axis} must be a name or a mapping with 'name'; got {spec!r}")
    name = spec.get("name")
    if not isinstance(name, str):
        raise SpecError(f"{axis} needs a 'name' beside its arguments; got {dict(spec)!r}")
    return name, {key: value for key, value in spec.items() if key != "name"}


def is_path(name: str) -> bool:
    """Return whether a name is ``path.py:Object`` rather than an entry of a table."""
    return ".py:" in name


def build(spec: Any, table: Table, *, axis: str, offered: Mapping[str, Any] | None = None) -> Any:
    """Build the object that a specification describes.

    Parameters
    ----------
    spec : str, mapping or object
        A name, a mapping with ``name`` and arguments, or a ready-made object, which is returned as it is.
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
    if not isinstance(spec, str | Mapping):
        return spec
    name, arguments = parse(spec, axis)
    factory = load_object(name) if is_path(name) else look_up(name, table, axis)
    where = f"{axis} '{name}'"
    filled = fill_in(factory, arguments, offered or {}, foreign=is_path(name))
    checked = check_arguments(factory, filled, where)
    return _construct(factory, checked, where, foreign=is_path(name))


def look_up(name: str, table: Table, axis: str) -> Callable[..., Any]:
    """Return a table's entry, or raise a `SpecError` that names the nearest one."""
    if name not in table:
        raise SpecError(f"unknown {axis} '{name}'; {nearest(name, table)}")
    return table[name]


def load_object(name: str) -> Callable[..., Any]:
    """Import ``path.py:Object`` from a file, without installing anything.

    Raises
    ------
    SpecError
        If the file is missing or has no such object.
    ModuleError
        If the file raises while it is imported.
    """
    path_text, _, attribute = name.rpartition(":")
    path = Path(path_text).expanduser().resolve()
    if not path.is_file():
        raise SpecError(f"no file {path} (from '{name}')")
    module = _import_file(path)
    if not hasattr(module, attribute):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise SpecError(f"{path} defines no '{attribute}'; {nearest(attribute, public)}")
    return getattr(module, attribute)


def _import_file(path: Path) -> Any:
    """Import a file under a name of its own, anew when it changed on disk."""
    module_name = f"attnlab_user_{abs(hash((str(path), path.stat().st_mtime_ns))):x}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    if module_spec is None or module_spec.loader is None:
        raise SpecError(f"{path} cannot be imported as Python")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module
    try:
        with _on_path(path.parent):
            module_spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ModuleError(f"{path} raised while it was imported: {type(error).__name__}: {error}") from error
    return module


@contextlib.contextmanager
def _on_path(folder: Path) -> typing.Iterator[None]:
    """Let a file import its neighbours while it is imported itself."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def fill_in(
    factory: Callable[..., Any], given: Mapping[str, Any], offered: Mapping[str, Any], *, foreign: bool = False
) -> dict[str, Any]:
    """Add to the given arguments what the surroundings offer and the constructor asks for.

    Parameters
    ----------
    factory : callable
        The constructor.
    given : mapping
        Arguments set in the specification; they always win.
    offered : mapping
        Arguments by glossary name.
    foreign : bool
        Whether the usual aliases of `SIZE_ALIASES` count as the glossary's names.

    Returns
    -------
    dict
        Arguments to call the constructor with.
    """
    wanted = _parameters(factory)
    filled = dict(given)
    for canonical, value in offered.items():
        names = (canonical, *SIZE_ALIASES.get(canonical, ())) if foreign else (canonical,)
        for name in names:
            if name in wanted and name not in filled:
                filled[name] = value
    if foreign:
        _single_head_size(filled, given, wanted, offered)
    return filled


def _single_head_size(
    filled: dict[str, Any], given: Mapping[str, Any], wanted: Mapping[str, Any], offered: Mapping[str, Any]
) -> None:
    """Give a class that knows no number of heads one head as wide as the model."""
    knows_heads = any(name in wanted for name in ("n_heads", *SIZE_ALIASES["n_heads"]))
    if knows_heads or "d_model" not in offered:
        return
    for name in ("d_head", *SIZE_ALIASES["d_head"]):
        if name in wanted and name not in given:
            filled[name] = offered["d_model"]


def check_arguments(factory: Callable[..., Any], arguments: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check arguments against a constructor's annotated signature.

    Raises
    ------
    SpecError
        If an argument is unknown, missing, or not of its annotated type; all of them are named at once.
    """
    parameters = _parameters(factory)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    problems = [
        f"unknown argument '{name}'; {nearest(name, parameters)}"
        for name in arguments
        if name not in parameters and not takes_any
    ]
    problems += [
        f"missing argument '{name}'"
        for name, parameter in parameters.items()
        if name not in arguments and _is_required(parameter)
    ]
    hints = _hints(factory)
    checked = dict(arguments)
    for name in arguments:
        if name in hints:
            checked[name], problem = _convert(name, arguments[name], hints[name])
            problems += [problem] if problem else []
    if problems:
        raise SpecError(f"{where}: " + "; ".join(problems))
    return checked


def _convert(name: str, value: Any, hint: Any) -> tuple[Any, str]:
    """Return a value checked against an annotation, and what is wrong with it."""
    try:
        adapter = pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(arbitrary_types_allowed=True))
        return adapter.validate_python(value, strict=True), ""
    except pydantic.ValidationError as error:
        wanted = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
        return value, f"'{name}' must be {wanted}; got {value!r} ({error.errors()[0]['msg']})"
    except pydantic.errors.PydanticUserError:
        return value, ""  # an annotation pydantic cannot check, in a person's own class


def _construct(factory: Callable[..., Any], arguments: Mapping[str, Any], where: str, *, foreign: bool) -> Any:
    """Call a constructor and say where it stood if it raises."""
    try:
        return factory(**arguments)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from error
    except AttnlabError:
        raise
    except Exception as error:
        if not foreign:
            raise
        raise ModuleError(f"{where}: its constructor raised {type(error).__name__}: {error}") from error


def signature_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a constructor, `self` left out."""
    return dict(_parameters(factory))


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(factory).parameters)
    except ValueError:  # a builtin without a signature
        return {}


def _is_required(parameter: inspect.Parameter) -> bool:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variadic


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a constructor, or none where they cannot be resolved."""
    target = factory.__init__ if isinstance(factory, type) else factory
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}
