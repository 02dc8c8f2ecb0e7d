"""Explaining a number: what a person saw, turned into questions that can be measured one by one.

So far: whether a model can learn a few items by heart (`overfit`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.core.lazy import contents

if TYPE_CHECKING:
    from attnlab.explain.overfit import Memory, overfit

__getattr__, __dir__, __all__ = contents(__name__)
