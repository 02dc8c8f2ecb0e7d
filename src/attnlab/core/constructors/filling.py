"""Fill in a constructor with what its surroundings offer, whatever words it uses."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from attnlab.core.constructors.configs import is_config_name, settings
from attnlab.core.constructors.signatures import check_arguments, hints_of, is_required, signature_of, takes_any
from attnlab.core.constructors.words import glossary_word, named
from attnlab.core.errors import SpecError

_EVERYWHERE = frozenset({"dropout"})
"""What is given to all its aliases; of the others only those that have no default after the first."""

_ALWAYS_SET = frozenset({"d_model", "n_heads"})
"""What every layer has; None as a default says that something else, of unknown size, is chosen."""

_LARGE = 256  # a width; models that fit a laptop's CPU are narrower

_CONFIG_ENDINGS = ("Config", "Configuration", "Args", "Hparams", "HParams", "ModelArgs", "Cfg")
_MANGLED = re.compile(r"^_\w+?(?=__)")  # what Python puts before a private name inside a class
_SEVERAL = 2  # settings; one may be an attribute of anything
_ALIKE = 3  # letters two names begin with alike: GPT2Attention and GPT2Config
_PLAIN = (dict, types.SimpleNamespace, object)  # annotations that say nothing of what is inside


def fill_in(
    factory: Callable[..., Any],
    given: Mapping[str, Any],
    *,
    offered: Mapping[str, Any],
    foreign: bool = False,
    keep_defaults: bool = False,
) -> dict[str, Any]:
    """Add to the given arguments, which always win, what the surroundings offer and the constructor asks for.

    `offered` has glossary names. With `foreign` other names that people use count as those; see `glossary_word`. With
    `keep_defaults` what has a default of its own keeps it; a config of a large model is made small all the same.
    """
    if foreign:
        return _fill_in_foreign(factory, given, offered, keep_defaults)
    wanted = signature_of(factory)
    passes_on = takes_any(wanted)
    return {name: value for name, value in offered.items() if passes_on or name in wanted} | dict(given)


def _fill_in_foreign(
    factory: Callable[..., Any], given: Mapping[str, Any], offered: Mapping[str, Any], keep_defaults: bool
) -> dict[str, Any]:
    """Fill in a person's own constructor, whose words for the sizes differ from the glossary."""
    wanted = signature_of(factory)
    offered = {canonical: value for canonical, value in offered.items() if value is not None}
    filled = {_own_word(name, wanted): value for name, value in given.items()}
    if configs := configs_of(factory):
        filled = _with_config(factory, configs[0], filled, offered=offered, keep_defaults=keep_defaults)
        filled |= {name: filled[configs[0]] for name in configs[1:] if name not in filled}
    for canonical, value in offered.items():
        for name in _names_to_fill(canonical, wanted):
            unset = canonical in _ALWAYS_SET and wanted[name].default is None
            if is_required(wanted[name]) or unset or not keep_defaults:
                filled.setdefault(name, value)
    _fill_head_sizes(filled, wanted, offered)
    return filled


def _own_word(name: str, wanted: Mapping[str, Any]) -> str:
    """The constructor's one word for a size, where it does not use the name that was given."""
    if name in wanted:
        return name
    words = named(glossary_word(name), wanted)
    return words[0] if len(words) == 1 else name


def _names_to_fill(canonical: str, wanted: Mapping[str, inspect.Parameter]) -> list[str]:
    """The parameters that an offered size goes to: the first that stands for it, and all required ones."""
    names = named(canonical, wanted)
    if canonical in _EVERYWHERE:
        return names
    return [name for index, name in enumerate(names) if index == 0 or is_required(wanted[name])]


def _fill_head_sizes(
    filled: dict[str, Any], wanted: Mapping[str, inspect.Parameter], offered: Mapping[str, Any]
) -> None:
    """Give required head sizes: d_model / n_heads, or d_model to a class that knows no number of heads."""
    names = [name for name in (*named("d_head", wanted), *named("d_v", wanted)) if name not in filled]
    names = [name for name in names if is_required(wanted[name])]
    words = named("n_heads", wanted)
    n_heads = next((filled.get(word, wanted[word].default) for word in words), 1)
    if not names or "d_model" not in offered or not isinstance(n_heads, int) or n_heads < 1:
        return
    if offered["d_model"] % n_heads:
        raise SpecError(
            f"d_model {offered['d_model']} must be a multiple of n_heads; got {n_heads} heads; or give {names[0]}: ..."
        )
    filled |= dict.fromkeys(names, offered["d_model"] // n_heads)


def _with_config(
    factory: Callable[..., Any],
    config: str,
    given: Mapping[str, Any],
    *,
    offered: Mapping[str, Any],
    keep_defaults: bool,
) -> dict[str, Any]:
    """Put everything into the one config object that a constructor wants, of its own class if that is known."""
    inside = given.get(config, {})
    if not isinstance(inside, Mapping):
        return dict(given)  # a ready-made object
    wanted = signature_of(factory)
    own = {name: value for name, value in given.items() if name in wanted and name != config}
    rest = {name: value for name, value in given.items() if name not in wanted} | dict(inside)
    config_class = config_class_of(factory, config)
    if config_class is None:
        return own | {config: settings(offered, rest)}
    keep_defaults = keep_defaults and not _is_large(config_class)
    arguments = _fill_in_foreign(config_class, rest, offered, keep_defaults)
    checked = check_arguments(config_class, arguments, f"{config}: {config_class.__name__}")
    try:
        return own | {config: config_class(**checked)}
    except Exception as error:
        raise SpecError(f"{config_class.__name__} refused its values: {type(error).__name__}: {error}") from error


def _is_large(config_class: type) -> bool:
    """Whether a config describes by default a model too large to be looked at in seconds."""
    wanted = signature_of(config_class)
    widths = [wanted[name].default for name in named("d_model", wanted)]
    return any(isinstance(width, int) and width > _LARGE for width in widths)


def config_of(factory: Callable[..., Any]) -> str | None:
    """The parameter of a constructor that holds all the others, None where there is none."""
    return next(iter(configs_of(factory)), None)


def configs_of(factory: Callable[..., Any]) -> list[str]:
    """What holds others, required or a config by default: by its name, then as the source reads it and never calls."""
    wanted = signature_of(factory).items()
    held = {name for name, one in wanted if type(one.default).__name__.endswith(_CONFIG_ENDINGS)}
    required = [name for name, one in wanted if is_required(one) or name in held]
    source = _source_of(factory) if required and (inspect.isclass(factory) or inspect.isroutine(factory)) else ""
    read = [name for name in required if is_config_name(name) or _is_read(_MANGLED.sub("", name), source)]
    return sorted(read, key=lambda name: not is_config_name(name))


@functools.lru_cache
def _source_of(factory: Callable[..., Any]) -> str:
    """The text of a class or function, empty where there is none; to find it takes milliseconds."""
    try:
        return inspect.getsource(factory)
    except (OSError, TypeError):
        return ""


def _is_read(name: str, source: str) -> bool:
    """Whether code reads several settings from something that it neither calls nor asks to do anything."""
    kept = re.findall(rf"(self\.\w+) = {name}$", source, re.MULTILINE)
    name = f"(?:{'|'.join([name, *kept])})"
    read = re.findall(rf"(?<![\w.]){name}(?:\.(\w+)|\[['\"](\w+)['\"]\])(?![\w(])", source)
    acts = re.search(rf"(?<!\w){name}(\.(?!get\b)\w+)?\(", source)
    return len(set(read)) >= _SEVERAL and acts is None


def config_class_of(factory: Callable[..., Any], parameter: str) -> type | None:
    """The class that a constructor's config is meant to be of, or None where nothing tells.

    The class it is annotated with; else the class in the same file whose name ends in ``Config`` and begins like the
    constructor's own, or is the only one.
    """
    hint = hints_of(factory).get(parameter)
    if isinstance(hint, type) and hint not in _PLAIN:
        return hint
    if hint is not None:
        return None
    namespace = vars(sys.modules.get(factory.__module__, types.ModuleType("")))
    candidates = {
        name: value
        for name, value in namespace.items()
        if isinstance(value, type) and name.endswith(_CONFIG_ENDINGS) and not hasattr(value, "forward")
    }
    own = getattr(factory, "__name__", "")
    begins_alike = [value for name, value in candidates.items() if name[:_ALIKE] == own[:_ALIKE]]
    chosen = begins_alike or list(candidates.values())
    return chosen[0] if len(chosen) == 1 else None
