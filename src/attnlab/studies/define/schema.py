"""What a study file may hold, as a JSON schema: what an editor completes, explains and checks while a person writes."""

# ruff: noqa: ARG002 -- methods that pydantic calls

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, final

import pydantic
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from attnlab.core.build import Table
from attnlab.core.constructors import hints_of, signature_of
from attnlab.models import MODELS
from attnlab.nn.axes.combiners import COMBINERS
from attnlab.nn.axes.heads import HEADS
from attnlab.nn.axes.masks import MASKS
from attnlab.nn.axes.normalizers import NORMALIZERS
from attnlab.nn.axes.positions import POSITIONS
from attnlab.nn.axes.scores import SCORES
from attnlab.nn.block import BLOCKS
from attnlab.nn.feedforward import FEEDFORWARDS
from attnlab.nn.init import INITS
from attnlab.nn.mixers import MIXERS
from attnlab.nn.norms import NORMS
from attnlab.studies.define.assemble import BESIDE
from attnlab.studies.define.complaints import FILE_KEYS
from attnlab.studies.define.study import SET_BY_VARIANTS, Study
from attnlab.tasks import TASKS, TOKENIZERS
from attnlab.training.recipe.objectives import OBJECTIVES
from attnlab.training.recipe.optim import OPTIMIZERS
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.recipe.schedule import SCHEDULES

DIALECT = "http://json-schema.org/draft-07/schema#"  # the newest that the usual editors know
PARTS: Mapping[str, Table] = {
    "task": TASKS,
    "model": MODELS,
    "tokenizer": TOKENIZERS,
    "block": BLOCKS,
    "mixer": MIXERS,
    "cross": MIXERS,
    "heads": HEADS,
    "positions": POSITIONS,
    "scores": SCORES,
    "masks": MASKS,
    "normalizers": NORMALIZERS,
    "combiners": COMBINERS,
    "feedforward": FEEDFORWARDS,
    "norm_kind": NORMS,
    "init": INITS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "objective": OBJECTIVES,
}
"""Which table the names under a key of a study file are of."""

_REF = "#/definitions/{model}"
_ARGUMENT = re.compile(r"^(\w+(?:, \w+)*) : .*\n((?: +\S.*\n?|\n(?= ))+)", re.MULTILINE)
"""Of a NumPy docstring, the names of arguments and what is said of them."""


@final
class _Told(GenerateJsonSchema):
    """Say of every key what the docstring of its class says, and leave open what JSON has no word for."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """A class, its keys described and none of them required: a scale or a variant may give one alone."""
        made = super().model_schema(schema)
        summary, said = _told(schema["cls"])
        keys = {key: {**value, "description": said[key]} for key, value in made["properties"].items()}
        return {**_keys(keys), "description": summary}

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Whether a key needs a title: it is one."""
        return False

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        """Anything, in place of what comes from Python alone."""
        return {}


def study_schema() -> dict[str, Any]:
    """The JSON schema (draft 7) of study files, with what the docstrings say of every key.

    What it refuses, ``attnlab plan`` refuses too, and not the reverse: that the baseline is a variant is checked there.
    """
    study, recipe = (kind.model_json_schema(schema_generator=_Told, ref_template=_REF) for kind in (Study, Recipe))
    known = {**study["$defs"], **recipe["$defs"], "Recipe": _keys({**recipe["properties"], "stop_at": False})}
    keys = {key: study["properties"][key] for key in FILE_KEYS}
    _refer(keys, task="task", model="model", training="Recipe")
    _refer(known["Recipe"]["properties"], optimizer="optimizer", schedule="schedule")
    _refer(known["Rules"]["properties"], budget="Budget")
    shown = {"anyOf": [_keys({key: {} for key in SET_BY_VARIANTS}), {"type": "null"}]}
    beside = {"training": {"anyOf": [_ref("Recipe"), {"type": "null"}]}, "task": shown}
    keys["variants"]["additionalProperties"] = {"anyOf": [_arguments(MODELS, beside), {"type": "null"}]}
    ours = {"properties": {"model": {"properties": {"name": {"enum": list(MODELS)}}}}}
    merged = {"if": {"type": "object", "not": {"required": ["name"]}}, "then": _keys(_of_any(MODELS) | beside)}
    scales = {"description": "What `--scale NAME` merges over the rest.", "additionalProperties": _keys(keys)}
    whole = {"properties": {"variants": {"additionalProperties": {"type": "object", "required": ["name"]}}}}
    return {
        "$schema": DIALECT,
        "description": study["description"],
        **_keys({**keys, "scales": {"type": ["object", "null"], **scales}}),
        "if": ours,
        "then": {"properties": {"variants": {"additionalProperties": merged}}},
        "anyOf": [{"required": ["model"]}, whole],
        "required": [key for key in FILE_KEYS if Study.model_fields[key].is_required() and key != "model"],
        "definitions": known
        | {
            key: {"anyOf": [_name(table), _arguments(table, {BESIDE: _second()} if key == "task" else {})]}
            for key, table in PARTS.items()
        },
    }


def _refer(keys: dict[str, Any], **names: str) -> None:
    """Let keys be what definitions say, with their own descriptions."""
    for key, name in names.items():
        keys[key] = {"description": keys[key]["description"], **_ref(name)}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": _REF.format(model=name)}


def _keys(properties: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with these keys and no other."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _second() -> dict[str, Any]:
    """The task that is trained beside another."""
    share = {
        "type": "number",
        "exclusiveMinimum": 0,
        "exclusiveMaximum": 1,
        "description": "Its fraction of the steps.",
    }
    return {
        "description": "A task that is trained beside it, with one encoder for both.",
        **_keys({"task": _ref("task"), "share": share}),
    }


def _name(table: Table) -> dict[str, Any]:
    known = [{"const": name, "description": _told(entry)[0]} for name, entry in table.items()]
    return {
        "anyOf": [
            *known,
            {"type": "string", "pattern": r"\.py:", "description": "A class of your own: ./mine.py:MyClass"},
        ]
    }


def _arguments(table: Table, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an entry, those of its name alone; without a name, as where it is merged, those of any are known."""
    asked = [
        {
            "if": {"properties": {"name": {"const": name}}, "required": ["name"]},
            "then": _keys({"name": {}, **_constructor(entry), **beside}),
        }
        for name, entry in table.items()
    ]
    known = {key: {"anyOf": [{}, value]} for key, value in _of_any(table).items()}
    nameless = {"if": {"required": ["name"]}, "else": {"properties": known}}
    return {"type": "object", "properties": {"name": _name(table), **beside}, "allOf": [*asked, nameless]}


def _of_any(table: Table) -> dict[str, Any]:
    """Every argument that an entry of a table has."""
    found: dict[str, list[Any]] = {}
    for entry in table.values():
        for key, value in _constructor(entry).items():
            if value not in found.setdefault(key, []):
                found[key].append(value)
    return {key: values[0] if len(values) == 1 else {"anyOf": values} for key, values in found.items()}


def _constructor(factory: Callable[..., Any]) -> dict[str, Any]:
    """What a study may give to a constructor."""
    said, hints = _told(factory)[1], hints_of(factory)
    return {
        name: _value(name, hints.get(name, Any)) | ({"description": said[name]} if name in said else {})
        for name in signature_of(factory)
    }


def _value(name: str, hint: Any) -> dict[str, Any]:
    """What an argument may be: by its annotation, or by the table that its name stands for."""
    adapter = pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(arbitrary_types_allowed=True))
    made = adapter.json_schema(schema_generator=_Told, ref_template=_REF)
    if name not in PARTS:
        return made
    kinds = [one.get("type") for one in made.get("anyOf", ())]
    lists = [{"type": "array", "items": _ref(name)}] if "array" in kinds else []
    return {"anyOf": [_ref(name), *lists, *([{"type": "null"}] if "null" in kinds else [])]}


def _told(kind: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The summary of a class or function, and what it and the classes above it say of each argument."""
    lineage = inspect.getmro(kind)[-2::-1] if inspect.isclass(kind) else (kind,)
    texts = [(inspect.getdoc(one) or "").replace("``", "`") for one in lineage]
    found = [pair for text in texts for pair in _ARGUMENT.findall(text)]
    said = {name: " ".join(words.split()) for names, words in found for name in names.split(", ")}
    return texts[-1].partition("\n")[0], said
