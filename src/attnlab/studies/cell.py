"""One cell of a study: build, train, then look inside. Everything it finds lies in its folder.

A cell that was killed goes on from its last checkpoint; one that is complete is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.contracts import Batch, StudyTask
from attnlab.inspection.capture import capture
from attnlab.inspection.maps import attention_maps
from attnlab.inspection.reach import reach
from attnlab.studies.assemble import build_model, build_task
from attnlab.training.atomic import read_json, write_json
from attnlab.training.events import OnEvent, ignore_event
from attnlab.training.loop import train
from attnlab.training.recipe import Recipe

INSIDE = "inside.json"
"""File of a cell with predictions, attention maps and measured reach."""


def is_done(folder: Path, spec: Mapping[str, Any]) -> bool:
    """Return whether a cell needs no more work.

    Parameters
    ----------
    folder : Path
        Folder of the cell.
    spec : mapping
        Its specification.

    Returns
    -------
    bool
        True if result and, where asked for, the look inside are there.
    """
    if not (folder / "result.json").exists() or read_json(folder / "spec.json") != json.loads(json.dumps(spec)):
        return False
    return not spec["look_inside"] or (folder / INSIDE).exists()


def run_cell(
    folder: Path, spec: Mapping[str, Any], *, threads: int, device: str = "cpu", on_event: OnEvent = ignore_event
) -> dict[str, float]:
    """Run a cell to its end, from wherever it stands.

    Parameters
    ----------
    folder : Path
        Folder of the cell.
    spec : mapping
        ``task``, ``model``, ``recipe``, ``flops_per_token``, ``seed``, ``look_inside``.
    threads : int
        CPU threads; equal numbers need equal threads.
    device : str
        Where to train.
    on_event : callable, optional
        Called with the training loop's events.

    Returns
    -------
    dict
        Final metrics.

    Raises
    ------
    AttnlabError
        If training had to stop, or the folder holds another cell.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # a network that died leaves Adam denormal numbers, which are many times slower
    task = build_task(spec["task"])
    torch.manual_seed(spec["seed"])
    model = build_model(spec["model"], task).to(device)
    result = train(
        model,
        task,
        Recipe.parse(spec["recipe"], "training"),
        seed=spec["seed"],
        folder=folder,
        spec=dict(spec),
        flops_per_token=spec["flops_per_token"],
        device=device,
        on_event=on_event,
    )
    if spec["look_inside"] and not (folder / INSIDE).exists():
        write_json(folder / INSIDE, look_inside(model, task, device))
    return dict(result.metrics)


def look_inside(model: nn.Module, task: StudyTask, device: str = "cpu") -> dict[str, Any]:
    """Return predictions, attention maps and reach of a trained model, as JSON types.

    Parameters
    ----------
    model : nn.Module
        The trained model.
    task : StudyTask
        Gives the held-out examples.
    device : str
        Where the model is.

    Returns
    -------
    dict
        ``predictions`` (see `StudyTask.examples`), ``attention`` (see `attention_maps`; None where the
        model has no attention), ``reach`` (``past``, ``future``, ``mixes_batch``).
    """
    seen: list[Batch] = []

    def predict(batch: Batch) -> Tensor:
        seen.append(batch)
        return model(*batch.to(device).inputs)

    model.eval()
    with torch.no_grad():
        predictions = task.examples(predict)
        inputs = tuple(tensor[:1].to(device) for tensor in seen[0].inputs)
        with capture(model) as trace:
            model(*inputs)
    text = predictions.get("text")
    labels = list(text) if isinstance(text, str) and len(text) == inputs[0].shape[1] else None
    attention = attention_maps(trace, labels=labels)
    measured = asdict(reach(model, task.train_batch(0, 0).to(device).inputs))
    return {"predictions": predictions, "attention": attention if attention["layers"] else None, "reach": measured}


def read_inside(folder: Path) -> dict[str, Any]:
    """Return what `look_inside` found, or an empty mapping where nothing is there.

    Parameters
    ----------
    folder : Path
        Folder of the cell.

    Returns
    -------
    dict
        ``predictions``, ``attention``, ``reach``.
    """
    path = folder / INSIDE
    return read_json(path) if path.exists() else {}
