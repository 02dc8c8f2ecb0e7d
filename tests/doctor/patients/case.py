"""One entry of the collection: a module, how to ask for it, and what must be found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """Say what the doctor is to find in one module.

    Parameters
    ----------
    target : str
        ``broken/masks.py:Name``, relative to the folder of the patients.
    why : str
        What is wrong with it, or why it is right though it looks strange.
    check : str
        The check it was written for; empty for a right one.
    also : frozenset of str
        Other checks whose error names the same fault as truly.
    severity : str
        How it must be told: what autocast spares is a warning.
    arguments : mapping
        Constructor arguments, as ``--arg`` gives them.
    causal : bool or None
        The flag given: True ``--causal``, False ``--bidirectional``.
    """

    target: str
    why: str = ""
    check: str = ""
    also: frozenset[str] = frozenset()
    severity: str = "error"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    causal: bool | None = None

    @property
    def expected(self) -> frozenset[str]:
        """Return the checks of which one must report an error; empty for a right module."""
        return self.also | {self.check} if self.check else frozenset()
