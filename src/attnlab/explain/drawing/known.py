"""Which classes are known: those that have an entry, and their kinds that compute the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, final


@final
class ByClass:
    """Call the entry that a function has for the class of its first argument, a module; else the function itself.

    Parameters
    ----------
    unknown : callable
        What is done with a module that has no entry.

    Notes
    -----
    As `functools.singledispatch`, but a class whose ``forward`` is another than that of the class with the entry has
    none: what it computes is not what the entry draws.
    """

    def __init__(self, unknown: Callable[..., Any]) -> None:
        self._unknown, self._entries = unknown, functools.singledispatch(unknown)
        functools.update_wrapper(self, unknown)

    def register(self, entry: Any) -> Any:
        """Add an entry: a function whose first argument says its class, or a class, which gives a decorator."""
        return self._entries.register(entry)

    def __call__(self, module: Any, *given: Any) -> Any:
        """What the entry of a module makes of it."""
        home = next(one for one in type(module).__mro__ if one in self._entries.registry)
        computes_the_same = getattr(home, "forward", None) is getattr(type(module), "forward", None)
        return (self._entries.registry[home] if computes_the_same else self._unknown)(module, *given)
