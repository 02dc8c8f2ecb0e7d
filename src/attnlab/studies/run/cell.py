"""Cells of a study: build, train, then look inside. Everything a cell finds lies in its folder.

A cell that was killed goes on from its last checkpoint; one that is complete is left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch, StudyTask
from attnlab.core.draws import drawn_by_name
from attnlab.core.errors import Interrupted
from attnlab.core.files import fingerprint, finite, sealed, write_json
from attnlab.inspection.capture import capture
from attnlab.inspection.maps import attention_maps
from attnlab.inspection.surface import loss_surface
from attnlab.studies.define.assemble import build_model, build_task, measured_reach
from attnlab.studies.run.folder import INSIDE
from attnlab.studies.using.attempting import attempts_of
from attnlab.studies.using.kept_task import keep_task
from attnlab.studies.using.translating import judge_of, sides_of_maps, with_translations
from attnlab.training.keeping.result import Result
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.loop import train
from attnlab.training.together.together import OnMemberEvent, train_together

ITEMS = 16
"""Training sequences whose loss is measured around the weights."""


def run_cells(
    folders: Sequence[Path],
    specs: Sequence[Mapping[str, Any]],
    *,
    threads: int,
    device: str = "cpu",
    setting: Mapping[str, Any] | None = None,
    on_event: OnMemberEvent | None = None,
) -> list[dict[str, float] | Exception]:
    """Run cells of one variant to their ends, from wherever they stand; several of them together.

    A `setting` (``precision``, ``compile``) takes the place of the recipes' own: that of a study which is repeated.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # a network that died leaves Adam denormal numbers, which are many times slower
    torch.compiler.reset()  # what earlier cells compiled is of no use to these
    tell = on_event or (lambda *_: None)
    _say(tell, 0, "reads its data and builds its model")
    task = build_task(specs[0]["task"])
    models = [
        drawn_by_name(lambda spec=spec: build_model(spec["model"], task), spec["seed"]).to(device) for spec in specs
    ]
    for folder in folders:
        keep_task(folder, task)
    recipes = [Recipe.parse({**spec["recipe"], **(setting or {})}, "training") for spec in specs]
    results = _train(models, task, folders, specs, recipes=recipes, device=device, on_event=tell)
    outcomes: list[dict[str, float] | Exception] = []
    for cell, (result, model, folder, spec) in enumerate(zip(results, models, folders, specs, strict=True)):
        look = spec["look_inside"] and not (folder / INSIDE).exists() and not isinstance(result, Exception)
        if look:
            _say(tell, cell, "looks into the trained model")
        error = _keep_look_inside(folder, spec, model, task, device) if look else None
        outcomes.append(error or (result if isinstance(result, Exception) else dict(result.metrics)))
    return outcomes


def _say(on_event: OnMemberEvent, cell: int, doing: str) -> None:
    """Tell what is done with a cell while it makes no steps."""
    on_event(cell, {"kind": "preparing", "step": 0, "steps": None, "doing": doing})


def _train(
    models: Sequence[nn.Module],
    task: StudyTask,
    folders: Sequence[Path],
    specs: Sequence[Mapping[str, Any]],
    *,
    recipes: Sequence[Recipe],
    device: str,
    on_event: OnMemberEvent,
) -> list[Result | Exception]:
    """Train models together; one alone, in any budget."""
    first, seeds = specs[0], [spec["seed"] for spec in specs]
    judge = judge_of(task) if first.get("judge", True) else None
    how: dict[str, Any] = {"judge": judge, "flops_per_token": first["flops_per_token"], "device": device}
    if len(models) > 1:
        together: dict[str, Any] = {"seeds": seeds, "folders": folders, "specs": specs, "on_event": on_event}
        return train_together(models, task, recipes, **together, **how)
    how |= {"folder": folders[0], "spec": first, "attempt": attempts_of(task), "seed": seeds[0]}
    try:
        return [train(models[0], task, recipes[0], on_event=functools.partial(on_event, 0), **how)]
    except Interrupted:
        raise
    except Exception as error:
        return [error]


def _keep_look_inside(
    folder: Path, spec: Mapping[str, Any], model: nn.Module, task: StudyTask, device: str
) -> Exception | None:
    """Write down what a trained model does; return why not, if it cannot be."""
    try:
        write_json(folder / INSIDE, sealed({**look_inside(model, task, device), "of": fingerprint(spec)}))
    except Exception as error:
        return error
    return None


def look_inside(model: nn.Module, task: StudyTask, device: str = "cpu") -> dict[str, Any]:
    """Predictions, attention maps, reach and loss around the weights of a trained model, as JSON types."""
    seen: list[Batch] = []

    def predict(batch: Batch) -> Tensor:
        seen.append(batch)
        return model(*batch.to(device).inputs)

    model.eval()
    with torch.no_grad():
        predictions = with_translations(model, task, task.examples(predict))
        inputs = tuple(tensor[:1].to(device) for tensor in seen[0].inputs)
        with capture(model) as trace:
            model(*inputs)
    few = task.train_batch(0, 0).rows(0, ITEMS).to(device)
    attention = attention_maps(trace, predictions.get("labels", ()), axes=sides_of_maps(model, trace))
    return {
        "predictions": predictions,
        "attention": attention if attention["layers"] else None,
        "reach": measured_reach(model, task, device),
        "surface": finite(asdict(loss_surface(model, lambda: task.loss(model(*few.inputs).float(), few)))),
    }
