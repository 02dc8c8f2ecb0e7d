"""Every variant of the library can be built or makes a step, and variants are what their names say."""

from __future__ import annotations

import functools
import itertools
import json
import os
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML
from torch import nn

from attnlab.inspection import count_parameters
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.define.reading import library
from attnlab.studies.define.study import load_study
from attnlab.studies.plan.plan import count
from attnlab.tasks.datasets import locate_named
from attnlab.tasks.translation.corpora import CORPORA
from attnlab.text.pairs.parallel import numbered

DATA = os.environ.get("ATTNLAB_DATA", "")
needs_data = pytest.mark.skipif(not (Path(DATA) / "multi30k").is_dir(), reason="ATTNLAB_DATA has no multi30k")


@pytest.fixture(scope="module", autouse=True)
def private_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@functools.cache
def content(name):
    """Return what a study's file says: names of cases are read off it in every process that runs tests."""
    return YAML(typ="safe").load(library()[name].read_text(encoding="utf-8"))


def of_task(name):
    return [study for study in sorted(library()) if content(study)["task"]["name"] == name]


def scales(name):
    return [None, *content(name).get("scales", {})]


def usually_small(scales):
    """Scales of a test, slow but for the small one: there all studies share a tokenizer, else each has its own."""
    return [pytest.param(scale, marks=[] if scale == "small" else pytest.mark.slow) for scale in scales]


@functools.cache
def task(spec):
    """Return the task of a specification in JSON; several variants and studies have the same one."""
    return build_task(json.loads(spec))


def task_of(study, variant, **other):
    """Return the task of a variant, with ``other`` settings."""
    return task(json.dumps(study.task_spec(variant) | other, default=dict))


def models(name, scale, **other):
    """Return the models of a study at a scale, without weights, on its task with ``other`` settings."""
    study = load_study(name, scale=scale)
    tasks = {variant: task_of(study, variant, **other) for variant in study.variants}
    with torch.device("meta"):
        return {variant: build_model(study.model_spec(variant), tasks[variant]) for variant in study.variants}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """The folder of a corpus of a few hundred real pairs in each language."""
    folder = tmp_path_factory.mktemp("pairs")
    for part, kept in {"train": 400, "validation": 20}.items():
        for language in CORPORA["multi30k"].languages:
            lines = numbered(str(locate_named(CORPORA["multi30k"].part(part, language))))
            file = (folder / part.replace("validation", "val")).with_suffix(f".{language}")
            file.write_text("\n".join(itertools.islice(lines, kept)), encoding="utf-8")
    return folder


def few(pairs, scale):
    """The few pairs in place of a small study's corpus; those of others have no vocabulary of its size."""
    return {"corpus": str(pairs), "test": None} if scale == "small" else {}


@needs_data
@pytest.mark.parametrize("name", of_task("translation"))
def test_every_variant_can_be_built(name, pairs):
    for scale in scales(name):
        built = models(name, scale, corpus=str(pairs), test=None)
        assert built.keys() == load_study(name, scale=scale).variants.keys()


@needs_data
@pytest.mark.parametrize("scale", usually_small(scales("heads")))
def test_narrow_models_with_wide_heads_have_the_parameters_of_the_baseline(scale, pairs):
    built = models("heads", scale, **few(pairs, scale))
    sizes = {variant: count_parameters(model) for variant, model in built.items()}
    wanted = sizes[load_study("heads").baseline]
    assert sizes["8 heads as wide as a narrower model"] == pytest.approx(wanted, rel=0.01)
    assert sizes["8 heads as wide as the model"] > 2 * wanted


@needs_data
@pytest.mark.parametrize("scale", usually_small(scales("combiners")))
def test_a_narrow_model_with_convolved_heads_has_the_parameters_of_heads_that_share_the_width(scale, pairs):
    built = models("combiners", scale, **few(pairs, scale))
    sizes = {variant: count_parameters(model) for variant, model in built.items()}
    wanted = sizes["8 heads that share the width, joined by a projection"]
    narrow = sizes["8 wide heads of a narrower model, joined by convolutions"]
    assert narrow == pytest.approx(wanted, rel=0.01)
    assert sizes["8 wide heads joined by convolutions"] > 2 * wanted


@needs_data
@pytest.mark.parametrize("scale", usually_small([None, "small"]))
def test_rivals_of_the_transformer_are_of_its_size(scale, pairs):
    built = models("vaswani-table-2", scale, **few(pairs, scale))
    sizes = {variant: count_parameters(model) for variant, model in built.items()}
    wanted = sizes[load_study("vaswani-table-2").baseline]
    others = {"Transformer, big", "Transformer, mixture of experts"}
    for variant, size in sizes.items():
        assert size == pytest.approx(wanted, rel=0.01) or variant in others


@needs_data
def test_experts_cost_what_the_transformer_costs(pairs):
    study = load_study("vaswani-table-2", scale="small")
    costs = {
        variant: count(study.model_spec(variant), task_of(study, variant, corpus=str(pairs), test=None)).flops_per_token
        for variant in ("Transformer", "Transformer, mixture of experts")
    }
    assert costs["Transformer, mixture of experts"] == pytest.approx(costs["Transformer"], rel=0.02)


def test_the_dilated_control_of_shapes_sees_all_from_every_position():
    study = load_study("shapes")
    task = build_task(study.task_spec("dilated CNN (sees all 100)"))
    torch.manual_seed(0)
    model = build_model(study.model_spec("dilated CNN (sees all 100)"), task).double().eval()
    sequence = torch.rand(1, 100, 1, dtype=torch.float64)
    seen = torch.autograd.functional.jacobian(lambda x: model(x)[0, :, 0], sequence)[:, 0, :, 0]
    assert (seen != 0).all()


TEXTS = [name for name in of_task("char-lm") if len(scales(name)) > 1]


def smallest(name):
    """Return the study at its first scale."""
    return load_study(name, scale=scales(name)[1])


def of_text(study, variant, path, **changes):
    """Return the task of a variant with a text of a few hundred characters, and its model."""
    task = build_task({**study.task_spec(variant), "text": str(path), **changes})
    return task, build_model(study.model_spec(variant), task)


@pytest.fixture(scope="module")
def short_text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("to be or not to be, that is the question: " * 40, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", TEXTS)
def test_every_variant_of_a_text_makes_a_step(name, short_text):
    study = smallest(name)
    for variant in study.variants:
        task, model = of_text(study, variant, short_text, batch=1)
        batch = task.train_batch(0, 0)
        task.loss(model(*batch.inputs), batch).backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
        assert any(gradient.any() for gradient in gradients), variant


@pytest.mark.parametrize("scale", usually_small(scales("mixers")))
def test_restricted_attention_is_shown_where_it_costs_less(scale, short_text):
    study = load_study("mixers", scale=scale)
    costs = {
        variant: count(study.model_spec(variant), of_text(study, variant, short_text)[0]).flops_per_token
        for variant in study.variants
    }
    dearer = {variant for variant, cost in costs.items() if cost >= costs["attention"]}
    assert dearer <= {"attention", "convolution of 16", "LSTM"}
    assert costs["position-wise layer"] == min(costs.values())


def test_positions_beyond_those_trained_are_read_and_not_learned(short_text):
    study = smallest("positions-long")
    for variant in study.variants:
        task, model = of_text(study, variant, short_text, batch=2)
        assert (task.context, task.long_context) == (64, 256)
        assert model(torch.zeros(1, task.long_context, dtype=torch.long)).shape[1] == task.long_context
        batch = task.train_batch(0, 0)
        task.loss(model(*batch.inputs), batch).backward()
        if variant == "learned":
            learned = model.get_parameter("stack.positions.table.weight").grad.any(1)
            assert learned.tolist() == [True] * task.context + [False] * (task.long_context - task.context)
    assert study.rules.metric == "val_loss_long"


def test_norm_parts_have_the_parts_they_name(short_text):
    study = smallest("norm-parts")
    models = {variant: of_text(study, variant, short_text)[1] for variant in study.variants}
    learned = {
        variant: {name.rpartition(".")[2] for name, part in model.named_parameters() if is_of_norm(model, name)}
        for variant, model in models.items()
    }
    parts = {"gain and bias": {"weight", "bias"}, "gain": {"weight"}, "neither": set(), "RMS": set()}
    assert learned == {variant: parts[variant.rpartition(": ")[2].replace("RMS, ", "")] for variant in models}


@pytest.mark.parametrize("scale", scales("induction"))
def test_models_of_induction_are_attention_alone_and_one_layer_has_the_weights_of_two(scale):
    found = models("induction", scale)
    sizes = {variant: count_parameters(model) for variant, model in found.items()}
    assert sizes["1 layer"] == pytest.approx(sizes["2 layers"], rel=0.02)
    for model in found.values():
        assert not any(
            isinstance(part, nn.ReLU | nn.GELU) or "feedforward" in name for name, part in model.named_modules()
        )


def is_of_norm(model, parameter):
    """Return whether a parameter belongs to a norm."""
    return "Norm" in type(model.get_submodule(parameter.rpartition(".")[0])).__name__
