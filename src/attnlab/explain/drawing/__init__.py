"""Drawing a model: the figures of a paper, read off the modules that were built.

`draw` draws the variants of a study, `draw_model` any model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.core.lazy import contents

if TYPE_CHECKING:
    from attnlab.explain.drawing.figure import ModelFigure, draw_model
    from attnlab.explain.drawing.variants import draw

__getattr__, __dir__, __all__ = contents(__name__)
