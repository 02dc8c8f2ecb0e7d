"""The config object that some constructors take in place of arguments: one that answers to all words."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, final

from attnlab.core.constructors.words import end_word, glossary_word, named

CONFIG_NAMES = ("config", "configs", "cfg", "conf", "configuration", "args", "hparams", "params", "opt", "hp")
"""Names of a constructor's one parameter that holds all the others; also with another word before, ``model_args``."""


def is_config_name(name: str) -> bool:
    """Whether a parameter's name says that it holds all the others."""
    return name.strip("_").rpartition("_")[2] in CONFIG_NAMES


ITSELF = object()
"""Stands in what `settings` are given for the config itself: as a part of it, it answers to the same words."""


@final
class Settings(types.SimpleNamespace):
    """Stand for the one config object that some constructors take; asks by name for what it lacks.

    Read by attribute or by key, under any of the names that people use; `heard_by` tells which names were read.
    """

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name in vars(self):
            vars(self).setdefault("_heard", set()).add(name)
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise UnsetError(name)
        for other in named(glossary_word(name), vars(self)):
            if end_word(other) not in ("", end_word(name)):  # what goes in is not how wide a model is within
                continue
            vars(self).setdefault("_heard", set()).add(name)
            return vars(self)[other]
        raise UnsetError(name)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in vars(self) or bool(named(glossary_word(str(name)), vars(self)))

    def get(self, name: str, default: Any = None) -> Any:
        """A setting, or the default where nobody gave it."""
        return getattr(self, name, default)


@final
class UnsetError(AttributeError, KeyError):
    """Say that a constructor read a setting nobody gave.

    An `AttributeError` and a `KeyError`, so that the defaults a constructor has for that work.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def heard_by(config: Settings) -> frozenset[str]:
    """The names of the settings that a constructor read, of those that were there."""
    return frozenset(vars(config).get("_heard", ()))


def settings(offered: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """A config with sizes by their glossary names, and what is given by any name, which wins over them."""
    theirs = {glossary_word(name) for name in given}
    own = {name: value for name, value in offered.items() if name not in theirs}
    held = {"bias": True, "device": "cpu", "gpu": None}  # what many configs hold beside sizes
    if {"d_model", "n_heads"} <= own.keys() and "d_head" not in theirs:
        held["d_head"] = own["d_model"] // own["n_heads"]
    config = Settings(**{**held, **own, **given})
    vars(config).update({name: config for name, value in given.items() if value is ITSELF})
    return config
