"""Tasks: data, loss, metrics, floors.

`TASKS` is the table a study file's ``task: {name: ...}`` is looked up in. Every entry keeps
`attnlab.core.contracts.StudyTask`. Named texts are in `attnlab.tasks.datasets`.
"""

from __future__ import annotations

from attnlab.tasks.char_lm.char_lm import CharLM
from attnlab.tasks.parsing.parsing import Parsing
from attnlab.tasks.repeated_tokens import RepeatedTokens
from attnlab.tasks.shapes.shapes import Shapes
from attnlab.tasks.translation.translation import Translation

TASKS = {
    "shapes": Shapes,
    "repeated-tokens": RepeatedTokens,
    "char-lm": CharLM,
    "translation": Translation,
    "parsing": Parsing,
}
