"""Tasks: data, loss, metrics, floors.

`TASKS` is the table a study file's ``task: {name: ...}`` is looked up in. Every entry keeps
`attnlab.core.contracts.StudyTask`; `TOKENIZERS` is that of their tokenizers. Named texts are in
`attnlab.tasks.datasets`.
"""

from __future__ import annotations

from attnlab.tasks.arrays.classify import Classify
from attnlab.tasks.arrays.sequences import Sequences
from attnlab.tasks.char_lm.char_lm import CharLM
from attnlab.tasks.lm.lm import LM
from attnlab.tasks.parsing.parsing import Parsing
from attnlab.tasks.repeated_tokens import RepeatedTokens
from attnlab.tasks.shapes.shapes import Shapes
from attnlab.tasks.translation.translation import Translation
from attnlab.text.tokenizers import TOKENIZERS

TASKS = {
    "shapes": Shapes,
    "repeated-tokens": RepeatedTokens,
    "char-lm": CharLM,
    "lm": LM,
    "classify": Classify,
    "sequences": Sequences,
    "translation": Translation,
    "parsing": Parsing,
}
