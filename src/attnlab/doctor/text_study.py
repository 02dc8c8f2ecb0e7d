"""The study that trains a module on a person's text, beside no attention and the lab's own, for ``attnlab run``.

The task places every loss on the ladder of n-grams and raises an alarm where the future is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.core.constructors import glossary_word
from attnlab.core.errors import DataError, SpecError
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.patient import Patient
from attnlab.text.sources import find_sources, read_pieces

CONTEXT = 64  # characters: short enough for many steps, long enough for what does not fit into one n-gram
NARROWEST = 8  # of a width that can tell the characters of a text apart
WIDTH = 64  # of the model around a narrower module
HEADS = (4, 2, 1)  # of the lab's attention: the most of these that divide the width
_OF_ITS_PLACE = frozenset({"vocab_size", "causal"})  # what the task and the decoder give


def text_study(target: object, patient: Patient, convention: Convention, text: str | Path) -> dict[str, Any]:
    """The study as plain data, in the form of a study file.

    Raises
    ------
    SpecError
        If the target is no ``FILE.py:Name``, or has one output for all positions.
    DataError
        If the text cannot be read.
    """
    path = _readable(text)
    if not isinstance(target, str):
        raise SpecError(f"a text needs a module that a study can name, FILE.py:Name; got {type(target).__name__}")
    if convention.pooled:
        raise SpecError(
            "it cannot learn to predict next characters: it gives one output for all positions; leave the text out"
        )
    file, _, name = target.rpartition(":")
    part = {"name": f"{Path(file).absolute()}:{name}", **_arguments(patient.arguments)}
    width = convention.d_in if convention.takes == "embeddings" and convention.d_in >= NARROWEST else WIDTH
    decoder = {"name": "decoder", "n_layers": 2, "d_model": width}
    heads = next(count for count in HEADS if width % count == 0)
    return {
        "question": f"What does {name} learn of {path.name}, beside no attention and the lab's own?",
        "task": {
            "name": "char-lm",
            "text": str(path.absolute()),
            "context": min(CONTEXT, convention.longest or CONTEXT) if convention.any_length else convention.length,
            "batch": 16,
        },
        "model": decoder,
        "baseline": "no attention",
        "variants": {
            "no attention": {"mixer": "none"},
            "the lab's attention": {"mixer": {"name": "attention", "n_heads": heads}},
            name: _place(part, convention),
        },
        "rules": {"metric": "val_loss", "budget": {"steps": 1000}, "seeds": 3, "smallest_effect": 0.02},
        "training": {"lr": 2e-3, "warmup": 0.1},
    }


def _place(part: Mapping[str, Any], convention: Convention) -> dict[str, Any]:
    """A model stands for itself, a block brings its own norms and skips, a bare layer stands in the usual block."""
    if convention.takes == "tokens":
        return dict(part)
    own_block = {"residual": False, "norm": "none", "feedforward": "none"} if convention.kind == "block" else {}
    return {"mixer": dict(part), **own_block}


def _arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor arguments that a study file can hold and the place does not give."""
    plain = (bool, int, float, str)
    return {
        name: value
        for name, value in arguments.items()
        if isinstance(value, plain) and glossary_word(name) not in _OF_ITS_PLACE
    }


def _readable(text: str | Path) -> Path:
    """The path of a text that can be read."""
    if not sum(len(piece) for source in find_sources(str(text)) for piece in read_pieces(source)):
        raise DataError(f"{text} is empty; a text to train on is needed")
    return Path(text)
