"""What a constructor asks for, and whether arguments are what it asks for."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import pydantic

from attnlab.core.constructors.configs import Settings
from attnlab.core.constructors.words import glossary_word
from attnlab.core.errors import SpecError, nearest

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_LAB = f"{__name__.partition('.')[0]}."
"""How modules of the lab are named: what its classes ask for is looked up once, a person's may change."""


def signature_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a constructor, `self` left out.

    A class that takes ``*args, **kwargs`` alone hands them on: it has those of the class above it.
    """
    return dict(_lab_signature(factory) if _is_of_lab(factory) else _signature(factory))


def _is_of_lab(factory: Callable[..., Any]) -> bool:
    return isinstance(factory, type) and factory.__module__.startswith(_LAB)


def _signature(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(inspect.signature(factory).parameters)
    except ValueError:  # a builtin without a signature
        return {}
    for parent in _parents(factory):
        if any(parameter.kind not in _VARIADIC for parameter in parameters.values()) or not takes_any(parameters):
            break
        parameters = dict(inspect.signature(parent).parameters)
    return parameters


_lab_signature = functools.cache(_signature)


def _parents(factory: Callable[..., Any]) -> list[type]:
    """The classes above a class that have constructors of their own, nearest first."""
    above = inspect.getmro(factory)[1:] if inspect.isclass(factory) else ()
    return [parent for parent in above if "__init__" in vars(parent) and parent is not object]


def check_arguments(factory: Callable[..., Any], arguments: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check arguments against a constructor's annotated signature; `where` names the place in error texts.

    An int where a float is wanted becomes one, nothing else is converted. What is unknown, missing, or not of its
    annotated type is named all at once in a `SpecError`.
    """
    parameters = signature_of(factory)
    any_name = takes_any(parameters)
    problems = [
        f"unknown argument '{name}'; {nearest(name, parameters)}"
        for name in arguments
        if name not in parameters and not any_name
    ]
    problems += [
        f"missing argument '{name}'; give it as {glossary_word(name)}: ..."
        for name, parameter in parameters.items()
        if name not in arguments and is_required(parameter)
    ]
    hints = hints_of(factory)
    checked = dict(arguments)
    for name in arguments:
        if name in hints:
            checked[name], problem = _convert(name, arguments[name], hints[name])
            problems += [problem] if problem else []
    if problems:
        raise SpecError(f"{where}: " + "; ".join(problems))
    return checked


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation allows; without one anything is."""
    return hint is None or not _convert("", value, hint)[1]


def _convert(name: str, value: Any, hint: Any) -> tuple[Any, str]:
    """A value checked against an annotation, and what is wrong with it."""
    if isinstance(value, Settings):
        return value, ""  # it stands for whatever class of configs is meant
    try:
        return _adapter_for(hint).validate_python(value, strict=True), ""
    except pydantic.ValidationError as error:
        return value, f"'{name}' must be {_in_words(hint)}; got {value!r} ({error.errors()[0]['msg']})"
    except pydantic.errors.PydanticUserError:
        return value, ""  # an annotation pydantic cannot check, in a person's own class


def _adapter_for(hint: Any) -> pydantic.TypeAdapter[Any]:
    """What checks values against an annotation."""
    try:
        return _known_adapter(hint)
    except TypeError:  # an annotation that cannot be hashed
        return _adapter(hint)


def _adapter(hint: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(arbitrary_types_allowed=True))


_known_adapter = functools.lru_cache(maxsize=256)(_adapter)


def _in_words(hint: Any) -> str:
    """What an annotation allows: of choices the choices themselves."""
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(_in_words, typing.get_args(hint)))
    if hint is types.NoneType:
        return "null"
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether any keyword argument is accepted."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def is_required(parameter: inspect.Parameter) -> bool:
    """Whether a call must give this parameter."""
    return parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIADIC


def hints_of(factory: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a constructor, none where they cannot be resolved; a share that is called int is a float."""
    try:
        hints = _lab_hints(factory) if _is_of_lab(factory) else _hints(factory)
    except (NameError, TypeError, AttributeError):
        return {}
    return {name: float if hint is int and glossary_word(name) == "dropout" else hint for name, hint in hints.items()}


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(factory.__init__ if isinstance(factory, type) else factory)


_lab_hints = functools.cache(_hints)
