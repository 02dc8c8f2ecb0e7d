"""Every study of translation can be built at every scale, and variants are what their names say."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from attnlab.inspection import count_parameters
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.define.reading import library
from attnlab.studies.define.study import load_study
from attnlab.studies.plan.plan import count

DATA = os.environ.get("ATTNLAB_DATA", "")
needs_data = pytest.mark.skipif(not (Path(DATA) / "multi30k").is_dir(), reason="ATTNLAB_DATA has no multi30k")


@pytest.fixture(scope="module", autouse=True)
def private_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def scales(name):
    return [None, *YAML().load(library()[name].read_text(encoding="utf-8")).get("scales", {})]


@functools.cache
def task(spec):
    """Return the task of a specification in JSON; several variants and studies have the same one."""
    return build_task(json.loads(spec))


def models(name, scale):
    """Return the models of a study at a scale, without weights."""
    study = load_study(name, scale=scale)
    tasks = {variant: task(json.dumps(study.task_spec(variant), default=dict)) for variant in study.variants}
    with torch.device("meta"):
        return {variant: build_model(study.model_spec(variant), tasks[variant]) for variant in study.variants}


@needs_data
@pytest.mark.parametrize("name", [name for name in sorted(library()) if load_study(name).task["name"] == "translation"])
def test_every_variant_can_be_built(name):
    for scale in scales(name):
        assert models(name, scale).keys() == load_study(name, scale=scale).variants.keys()


@needs_data
@pytest.mark.parametrize("scale", scales("heads"))
def test_narrow_models_with_wide_heads_have_the_parameters_of_the_baseline(scale):
    sizes = {variant: count_parameters(model) for variant, model in models("heads", scale).items()}
    wanted = sizes[load_study("heads").baseline]
    assert sizes["8 heads as wide as a narrower model"] == pytest.approx(wanted, rel=0.01)
    assert sizes["8 heads as wide as the model"] > 2 * wanted


@needs_data
@pytest.mark.parametrize("scale", scales("vaswani-table-2"))
def test_rivals_of_the_transformer_are_of_its_size(scale):
    sizes = {variant: count_parameters(model) for variant, model in models("vaswani-table-2", scale).items()}
    wanted = sizes[load_study("vaswani-table-2").baseline]
    for variant, size in sizes.items():
        assert size == pytest.approx(wanted, rel=0.01) or "experts" in variant


@needs_data
def test_experts_cost_what_the_transformer_costs():
    study = load_study("vaswani-table-2", scale="small")
    costs = {
        variant: count(study.model_spec(variant), build_task(study.task_spec(variant))).flops_per_token
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
