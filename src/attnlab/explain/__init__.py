"""Explaining a number: what a person saw, turned into questions that can be measured one by one.

`explain` answers a case, `overfit` says whether a model can learn a few items by heart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.core.lazy import contents

if TYPE_CHECKING:
    from attnlab.explain.answer import Answer
    from attnlab.explain.case import Case, load_case, parse_case
    from attnlab.explain.explaining import explain
    from attnlab.explain.overfit import Memory, overfit
    from attnlab.explain.page import write_answer

__getattr__, __dir__, __all__ = contents(__name__)
