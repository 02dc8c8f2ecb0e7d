"""The figures of a study: one for each variant, of the model that would be trained."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from attnlab.core.processes.apart import call_apart, names_own_code
from attnlab.explain.drawing.figure import ModelFigure, draw_model
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.define.study import Study, restore_study
from attnlab.studies.plan.plan import plan_study


def draw(study: Study, *, variants: Sequence[str] | None = None) -> dict[str, ModelFigure]:
    """Draw the models of a study, each as it is built for its task.

    Parameters
    ----------
    study : Study
        The study; its task says how many tokens or features there are.
    variants : sequence of str, optional
        Names of the variants; all by default.

    Returns
    -------
    dict
        The figure of every variant by its name, in the order of the study.

    Raises
    ------
    SpecError
        If a variant is unknown or cannot be built.

    Notes
    -----
    Models are built without weights. Where the rules match parameters or FLOPs it is the model that matching chose. A
    variant with code of a person's own is built in a process of its own.
    """
    chosen = study.named(variants)
    planned = {} if study.rules.match == "none" else {one.name: one.model for one in plan_study(study).variants}
    return {name: _here_or_apart(study, name, planned.get(name)) for name in chosen}


def _here_or_apart(study: Study, name: str, model: dict[str, Any] | None) -> ModelFigure:
    """Draw one variant; in a process of its own where it has code of a person's own."""
    spec = study.model_spec(name) if model is None else model
    if names_own_code([spec, study.task]):
        return ModelFigure(**call_apart(_apart, study.to_json(), name, spec))
    return _one(study, name, spec)


def _apart(study: dict[str, Any], name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Draw one variant of a study that was kept."""
    return asdict(_one(restore_study(study), name, spec))


def _one(study: Study, name: str, spec: dict[str, Any]) -> ModelFigure:
    """Build a variant without weights, and draw it."""
    task = build_task(study.task_spec(name))
    with torch.device("meta"):
        model = build_model(copy.deepcopy(spec), task)
    return draw_model(model, title=name)
