"""The one config object that some constructors take: of its own class, or one that answers to all words."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from attnlab.core.constructors.settings import Settings
from attnlab.core.constructors.signatures import hints_of
from attnlab.core.constructors.words import glossary_word
from attnlab.core.errors import SpecError

CONFIG_NAMES = ("config", "cfg", "conf", "configuration", "args", "hparams", "params", "opt", "hp")
"""Names of a constructor's one parameter that holds all the others."""

_CONFIG_ENDINGS = ("Config", "Configuration", "Args", "Hparams", "HParams", "ModelArgs", "Cfg")
_ALIKE = 3  # letters two names begin with alike: GPT2Attention and GPT2Config
_PLAIN = (dict, types.SimpleNamespace, object)  # annotations that say nothing of what is inside


def config_class_of(factory: Callable[..., Any], parameter: str) -> type | None:
    """The class that a constructor's config is meant to be of.

    Parameters
    ----------
    factory : callable
        The constructor.
    parameter : str
        Its parameter for the config.

    Returns
    -------
    type or None
        The class it is annotated with; else the class in the same file whose name ends in ``Config`` and begins like
        the constructor's own, or is the only one; None where that does not tell.
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


def make_config(config_class: type, arguments: Mapping[str, Any]) -> Any:
    """Call the class of a constructor's config.

    Parameters
    ----------
    config_class : type
        The class.
    arguments : mapping
        What it is called with.

    Returns
    -------
    object
        The config.

    Raises
    ------
    SpecError
        If it refuses its values.
    """
    try:
        return config_class(**arguments)
    except Exception as error:
        raise SpecError(f"{config_class.__name__} refused its values: {type(error).__name__}: {error}") from error


def settings(offered: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """A config that answers to every usual name of the sizes.

    Parameters
    ----------
    offered : mapping
        Sizes by glossary name.
    given : mapping
        What wins over them, by any name.

    Returns
    -------
    Settings
        Read by attribute or by key.
    """
    theirs = {glossary_word(name) for name in given}
    own = {name: value for name, value in offered.items() if name not in theirs}
    return Settings(**{"bias": True, **own, **given})  # bias: what nanoGPT's and many other configs hold
