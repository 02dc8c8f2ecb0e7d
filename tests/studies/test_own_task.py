"""A task of a person's own: what is missing is said at once, before the first step; what keeps the contract runs."""

from __future__ import annotations

import importlib.util
import json
import random

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML
from tests.test_docs import DOCS, blocks

from attnlab.cli import FINE, call
from attnlab.core.contracts import Batch, Floor, Metric
from attnlab.core.errors import SpecError
from attnlab.studies.define.own_task import complaints_about
from attnlab.studies.define.study import load_study
from attnlab.studies.execute import run_study
from attnlab.studies.judge.collect import read_results
from attnlab.studies.plan.plan import plan_study
from attnlab.studies.run.executor import InProcess
from attnlab.studies.using.trained import generate, load_run, translate
from attnlab.tasks import TASKS

TEMPLATE = blocks(DOCS / "own-task.md", "python mytask.py")[0]
STUDY = blocks(DOCS / "own-task.md", "yaml own task")[0]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """The class of the page."""
    path = tmp_path_factory.mktemp("own") / "mytask.py"
    path.write_text(TEMPLATE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mytask_of_the_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MyTask


def run_here(tmp_path, text, name="study"):
    (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    study = load_study(tmp_path / f"{name}.yaml")
    run_study(study, tmp_path / name, jobs=1, executor=InProcess())
    return read_results(tmp_path / name)


def test_the_template_keeps_the_contract_and_runs(tmp_path, capsys):
    (tmp_path / "mytask.py").write_text(TEMPLATE, encoding="utf-8")
    assert call(["doctor", f"{tmp_path}/mytask.py:MyTask", "--arg", "batch=5"]) == FINE
    assert "mytask.py:MyTask keeps all that a task must keep" in capsys.readouterr().out
    results = run_here(tmp_path, STUDY)
    for variant in results.variants:
        assert len(variant.done) == 2
        assert variant.done[0].predictions["kind"] == "halves"


def test_a_module_that_has_methods_of_a_task_is_examined_as_a_module(tmp_path, capsys):
    lines = ["from torch import nn", "class Trained(nn.Linear):", "    def loss(self, x, y):", "        return x - y"]
    lines += ["    def evaluate(self, x):", "        return x", "    def forward(self, x):", "        return x + 1"]
    (tmp_path / "trained.py").write_text("\n".join(lines), encoding="utf-8")
    call(["doctor", f"{tmp_path}/trained.py:Trained"])
    assert "called as: forward(" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["shapes", "repeated-tokens", "char-lm", "lm"])
def test_tasks_of_the_lab_have_no_complaints(name, text_file):
    arguments = {"text": text_file, "context": 13} if name.endswith("lm") else {}
    arguments |= {"n_train": 60, "n_test": 30} if name == "shapes" else {}
    arguments |= {"vocab_size": 5, "context": 8, "shortest": 2} if name == "repeated-tokens" else {}
    assert complaints_about(TASKS[name](**arguments)) == []


def test_classify_and_sequences_have_no_complaints(tmp_path):
    for name, array in (("x", np.random.default_rng(0).normal(size=(30, 7))), ("y", np.arange(30) % 2)):
        np.save(tmp_path / f"{name}.npy", array)
    x, y = f"{tmp_path}/x.npy", f"{tmp_path}/y.npy"
    assert complaints_about(TASKS["classify"](x, y)) == []
    assert complaints_about(TASKS["sequences"](x, x)) == []
    np.save(tmp_path / "tokens.npy", np.arange(210).reshape(30, 7) % 5)
    assert (
        complaints_about(TASKS["classify"](f"{tmp_path}/tokens.npy", y)) == []
    )  # a decoder fits its sizes, not its loss


def drawn_anew(self, step, seed):
    return Batch((torch.randn(4, 10, 1),), torch.zeros(4, dtype=torch.long))


BROKEN = {
    "causal": (None, "'causal' is missing: True or False"),
    "parts": ("validation", "'parts' must be a tuple of the held-out parts, \"validation\" first; got 'validation'"),
    "metrics": ((), "'metrics' must be a tuple of Metric"),
    "tokens_per_step": (0, "'tokens_per_step' must be a whole number"),
    "floors": (None, "the method 'floors' is missing"),
    "train_batch": (drawn_anew, "train_batch must be a pure function of step and seed"),
    "loss": (lambda *_: torch.tensor(1.0), "loss has no gradient"),
    "evaluate": (lambda *_: {"val_loss": 1.0}, "over all parts val_accuracy, val_loss; got val_loss"),
    "model_arguments": (dict, "model_arguments fit no model of the lab; got none"),
    "alarms": (lambda _: "none", "alarms must return a tuple of sentences"),
    "describe": (lambda _: {"x": torch.ones(1)}, "describe must return JSON types alone"),
    "codec": (object(), "'codec' must be one of attnlab.tasks.codecs"),
    "targets_of": (lambda *_: 0, "targets_of must return how many targets a batch has; got 0"),
    "examples": (lambda *_: {}, "examples must call predict at least once"),
}
ALSO = [
    ("train_batch", lambda *_: (torch.ones(1),), "train_batch must return a Batch"),
    ("train_batch", lambda *_: Batch((torch.ones(3, 10, 1),), torch.ones(4)), "must have the batch axis first"),
    ("loss", lambda _, outputs, batch, smoothing: outputs.mean(1), "loss must return one finite number"),
    ("loss", lambda _, outputs, batch: outputs.mean(), "loss raised TypeError"),
    (
        "evaluate",
        lambda *_: {"val_loss": None, "val_accuracy": 1.0},
        "evaluate must return numbers; got None for 'val_",
    ),
    ("evaluate", lambda *_: 1 / 0, "evaluate raised ZeroDivisionError: division by zero"),
    ("model_arguments", lambda _: 7, "model_arguments must return sizes by the names of constructor arguments; got 7"),
    ("model_arguments", lambda _: {"d_in": 0, "d_out": 1, "max_length": 9}, "no model can be built for it"),
    ("floors", lambda _: [0.5], "floors must return Floor"),
    ("metrics", ("val_loss",), "'metrics' must be a tuple of Metric"),
    (
        "floors",
        lambda _: [Floor("x", 1.0, "u", "loss", "chance")],
        "the floor 'x' must be a finite number of a metric among",
    ),
    (
        "examples",
        lambda _, predict: {"kind": "series", "items": [{"input": [1]}]},
        "lack target of each of 'items', pred",
    ),
    ("examples", lambda _, predict: {"kind": "text", "text": "a"}, "of the kind 'text' lack loss, predicted, labels"),
    ("examples", lambda _, predict: {"labels": "abc"}, "'labels' of examples must be a list, for each sequence"),
    ("examples", lambda _, predict: [predict], "examples must return JSON types alone"),
    ("examples", lambda _, predict: [1], "examples must return a dict; got [1]"),
]


@pytest.mark.parametrize(("member", "value", "text"), [*((key, *both) for key, both in BROKEN.items()), *ALSO])
def test_each_thing_that_is_wrong_is_said(template, member, value, text):
    broken = type("Broken", (template,), {member: value})
    task = broken()
    if member == "tokens_per_step":
        task.tokens_per_step = value
    complaints = complaints_about(task)
    assert any(text in complaint for complaint in complaints), complaints


def test_pairs_are_asked_of_a_task_whose_models_translate(template):
    codec = type("Codec", (), {"kind": "sentences"})()
    complaints = complaints_about(type("Broken", (template,), {"codec": codec})())
    assert complaints == ["a task whose codec is of the kind 'sentences' must show examples with 'pairs'"]


def test_everything_is_said_at_once_before_the_first_step(tmp_path):
    path = tmp_path / "mytask.py"
    path.write_text(
        TEMPLATE.replace("causal = False", "other = 1").replace("def floors", "def flors"), encoding="utf-8"
    )
    (tmp_path / "study.yaml").write_text(STUDY, encoding="utf-8")
    with pytest.raises(SpecError) as error:
        plan_study(load_study(tmp_path / "study.yaml"))
    first, *complaints = str(error.value).splitlines()
    assert first.endswith("mytask.py:MyTask' does not keep what a task must keep (docs/own-task.md):")
    assert [one[:28] for one in complaints] == [
        "- 'causal' is missing: True o",
        "- the method 'floors' is mis"[:28],
    ] or [one.split(":")[0] for one in complaints] == ["- 'causal' is missing", "- the method 'floors' is missing"]


DELEGATING = """
from attnlab.tasks import TASKS
class Mine:
    def __init__(self, of, **arguments):
        self.inner = TASKS[of](**arguments)
    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)
"""


@pytest.mark.parametrize("of", ["lm", "translation"])
def test_models_of_own_tasks_with_a_codec_write(tmp_path, text_file, of):
    (tmp_path / "mine.py").write_text(DELEGATING, encoding="utf-8")
    lines = ["the old dog", "a man runs", "two cats sit"] * 20
    for part in ("train", "val"):
        for side in ("en", "de"):
            (tmp_path / f"{part}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    task = {"name": "./mine.py:Mine", "of": of}
    task |= {"corpus": str(tmp_path), "tokenizer": "words", "beam": 1} if of == "translation" else {}
    task |= {"text": text_file, "context": 8, "batch": 4} if of != "translation" else {}
    model = "encoder-decoder" if of == "translation" else "decoder"
    study = {
        "question": "Does it write?",
        "task": task,
        "model": {"name": model, "d_model": 8, "n_layers": 1, "mixer": {"name": "attention", "n_heads": 2}},
        "baseline": "it",
        "variants": {"it": {}},
        "rules": {"metric": "val_loss", "budget": {"steps": 3}, "seeds": 2, "smallest_effect": 0.1},
    }
    run_here(tmp_path, json.dumps(study))
    (tmp_path / "mine.py").unlink()  # neither the task nor its data are needed
    run = load_run(tmp_path / "study" / "it" / "seed-0")
    if of == "translation":
        with pytest.warns(UserWarning, match="came to no end"):
            assert len(translate([run], ["the old dog"])) == 1
    else:
        assert generate(run, "abc", length=5)[0].startswith("abc")


def data_of_the_page(folder):
    draw = random.Random(0)
    words = ["attention", "looks", "at", "the", "key", "and", "value", "Äpfel"]
    pages = [" ".join(draw.choices(words, k=draw.randint(3, 30))) for _ in range(60)]
    (folder / "pages.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in pages))
    rows = [f"{' '.join(draw.choices(words, k=5))} {label},{label}\n" for label in draw.choices(["yes", "no"], k=80)]
    (folder / "rows.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
    inputs = np.random.default_rng(0).normal(size=(80, 11))
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "targets.npy", inputs.cumsum(1))


@pytest.mark.parametrize("name", ["lm", "classify", "sequences"])
def test_the_studies_of_the_page_run_from_anywhere(tmp_path, name):
    data_of_the_page(tmp_path)
    (text,) = blocks(DOCS / "tasks.md", f"yaml own data {name}")
    assert YAML(typ="safe").load(text)["task"]["name"] == name
    results = run_here(tmp_path, text, name)
    assert [len(variant.done) for variant in results.variants] == [2, 2]
    if name == "lm":
        run = load_run(tmp_path / name / "two heads".replace(" ", "-") / "seed-0")
        (text,) = generate(run, "the key", length=9, temperature=0)
        assert text.startswith("the key")
        assert isinstance(results.variants[0].done[0].predictions["text"], list)
        assert Metric("val_bits_per_character", "", "lower").name in results.variants[0].done[0].metrics
