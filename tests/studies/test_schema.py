"""The schema that editors read accepts what studies may say, and refuses nothing else than plans do."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML
from tests.test_docs import study_examples

from attnlab.cli import FINE, call
from attnlab.core.errors import SpecError
from attnlab.studies.define.reading import library, plain_types, read
from attnlab.studies.define.schema import PARTS, study_schema
from attnlab.studies.define.study import parse_study
from attnlab.studies.plan.plan import plan_study

STUDY = {
    "question": "?",
    "task": {"name": "shapes", "n_train": 20, "n_test": 11, "batch": 5},
    "model": {"name": "cnn", "channels": 6, "n_layers": 2},
    "baseline": "plain",
    "variants": {"plain": {}, "mixed": {"mixer": {"name": "attention", "n_heads": 2}, "training": {"lr": 1e-2}}},
    "rules": {"metric": "test_mse", "budget": {"steps": 2}, "seeds": 1, "smallest_effect": 0.1},
    "training": {"optimizer": {"name": "sgd", "momentum": 0.5}},
    "scales": {"small": {"rules": {"budget": {"steps": None, "seconds": 1.5}}, "variants": {"mixed": None}}},
}


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft7Validator:
    made = study_schema()
    jsonschema.Draft7Validator.check_schema(made)
    return jsonschema.Draft7Validator(made)


def changed(path: str, value: Any) -> dict[str, Any]:
    study: dict[str, Any] = copy.deepcopy(STUDY)
    *above, last = path.split("/")
    place = study
    for key in above:
        place = place[key]
    place[last] = value
    return study


@pytest.mark.parametrize("path", library().values(), ids=lambda path: path.stem)
def test_every_study_of_the_library_is_accepted(schema, path):
    schema.validate(plain_types(read(path)))


@pytest.mark.parametrize("text", study_examples())
def test_every_study_of_the_pages_is_accepted(schema, text):
    schema.validate(plain_types(YAML(typ="rt").load(text)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model/channels", 7),
        ("variants/mine", {"mixer": {"name": "./mine.py:Mine", "heads": 2, "scores": [1]}}),
        ("variants/merged", {"mixer": {"anything": 1}, "task": {"batch": 3}, "training": None}),
        ("model", {"name": "./mine.py:Model", "mixer": 3}),
        ("rules/seeds", {"at_least": 3, "at_most": 9}),
        ("rules/target", None),
        ("training/lr", 1),
        ("compare", {"mixed": ["plain"]}),
    ],
)
def test_what_a_study_may_say_is_accepted(schema, path, value):
    schema.validate(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rulse", {}),
        ("question", 3),
        ("model/n_layer", 2),
        ("model/name", "cnm"),
        ("task/n_train", "many"),
        ("task", "shape"),
        ("variants/mixed/mixer", "atention"),
        ("variants/mixed/mixer/heds", 2),
        ("variants/mixed/mixer/scores", {"name": "additive", "hidden": 3}),
        ("variants/mixed/mixer/masks", [{"name": "window", "widht": 3}]),
        ("variants/mixed/training/lr", "high"),
        ("variants/mixed/task", {"n_train": 3}),
        ("variants/mixed/n_layer", 3),
        ("rules/budget", {"hours": 3}),
        ("rules/match", "params"),
        ("rules/confidence", 1.5),
        ("training/optimizer", "sdg"),
        ("training/stop_at", {"val_mse": 1.0}),
    ],
)
def test_what_is_refused_is_refused_by_a_plan_too(schema, path, value):
    study = changed(path, value)
    assert not schema.is_valid(study)
    with pytest.raises(SpecError):
        plan_study(parse_study(study), calibrate=False)


def test_what_every_study_must_say_is_asked_for(schema):
    assert {error.message for error in schema.iter_errors({})} == {
        f"'{key}' is a required property" for key in STUDY.keys() - {"training", "scales", "model"}
    }
    unshared = {key: value for key, value in STUDY.items() if key != "model"}
    whole = {name: {"name": "cnn"} for name in STUDY["variants"]}
    assert [schema.is_valid({**unshared, **more}) for more in ({}, {"variants": whole})] == [False, True]


def test_every_key_and_every_name_is_explained(schema):
    made = schema.schema
    keys = {**made["properties"], **made["definitions"]["Rules"]["properties"]}
    assert all(value["description"] for value in keys.values())
    for key, table in PARTS.items():
        names, _ = made["definitions"][key]["anyOf"]
        explained = {one["const"]: one["description"] for one in names["anyOf"] if "const" in one}
        assert list(explained) == list(table)
        assert all(explained.values())


def test_the_command_prints_it(capfd):
    assert call(["schema"]) == FINE
    assert json.loads(capfd.readouterr().out) == study_schema()
