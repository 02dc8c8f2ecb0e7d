"""Fill in a constructor with what its surroundings offer, whatever words it uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attnlab.core.constructors.configs import CONFIG_NAMES, config_class_of, make_config, settings
from attnlab.core.constructors.signatures import check_arguments, is_required, signature_of
from attnlab.core.constructors.words import glossary_word, named
from attnlab.core.errors import SpecError

_EVERYWHERE = frozenset({"dropout"})
"""What is given to all its aliases; of the others only those that have no default after the first."""

_LARGE = 256  # a width; models that fit a laptop's CPU are narrower


def fill_in(
    factory: Callable[..., Any],
    given: Mapping[str, Any],
    *,
    offered: Mapping[str, Any],
    foreign: bool = False,
    keep_defaults: bool = False,
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
        Whether other names that people use count as the glossary's; see `glossary_word`.
    keep_defaults : bool
        Whether what has a default of its own keeps it; a config of a large model is made small all the same.

    Returns
    -------
    dict
        Arguments to call the constructor with.
    """
    if foreign:
        return _fill_in_foreign(factory, given, offered, keep_defaults)
    wanted = signature_of(factory)
    return {name: value for name, value in offered.items() if name in wanted} | dict(given)


def _fill_in_foreign(
    factory: Callable[..., Any], given: Mapping[str, Any], offered: Mapping[str, Any], keep_defaults: bool
) -> dict[str, Any]:
    """Fill in a person's own constructor, whose words for the sizes differ from the glossary."""
    wanted = signature_of(factory)
    offered = {canonical: value for canonical, value in offered.items() if value is not None}
    filled = {_own_word(name, wanted): value for name, value in given.items()}
    config = next((name for name in wanted if name in CONFIG_NAMES and is_required(wanted[name])), None)
    if config is not None:
        filled = _with_config(factory, config, filled, offered=offered, keep_defaults=keep_defaults)
    for canonical, value in offered.items():
        for name in _names_to_fill(canonical, wanted):
            if is_required(wanted[name]) or not keep_defaults:
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
    where = f"{config}: {config_class.__name__}"
    return own | {config: make_config(config_class, check_arguments(config_class, arguments, where))}


def _is_large(config_class: type) -> bool:
    """Whether a config describes by default a model too large to be looked at in seconds."""
    wanted = signature_of(config_class)
    widths = [wanted[name].default for name in named("d_model", wanted)]
    return any(isinstance(width, int) and width > _LARGE for width in widths)
