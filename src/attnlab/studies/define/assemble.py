"""Where models and tasks meet: both are built here from their specifications, each from its own table."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, cast, final

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from attnlab.core.build import Spec, build, class_of, parse
from attnlab.core.constructors import is_required, signature_of
from attnlab.core.contracts import StudyTask
from attnlab.core.errors import SpecError
from attnlab.core.sizes import require_buildable
from attnlab.inspection.reach import reach
from attnlab.models import MODELS
from attnlab.models.parsers.parser import AbstractParser
from attnlab.models.table import build_any_model
from attnlab.models.translator import AbstractTranslator
from attnlab.tasks import TASKS
from attnlab.tasks.two_tasks import TwoTasks

BESIDE = "beside"
"""Argument of any task: another one that is trained beside it."""


def build_task(spec: Spec) -> StudyTask:
    """Build a task; equal specifications give the same object, whose data is then read only once.

    Parameters
    ----------
    spec : str or mapping
        Name of a task of `TASKS` or ``path.py:Class``, with constructor arguments.

    Returns
    -------
    StudyTask
        The task. Tasks keep no state between calls, so sharing one is safe.
    """
    return _build_task(json.dumps(spec, sort_keys=True))


def draws_data(spec: Spec) -> bool:
    """Whether a task's constructor takes a ``data_seed``, so that runs may have data of their own."""
    return "data_seed" in signature_of(class_of(spec, TASKS, "task"))


@functools.lru_cache(maxsize=8)  # as many as the variants of a study may see
def _build_task(spec_json: str) -> StudyTask:
    spec = json.loads(spec_json)
    beside = spec.pop(BESIDE, None) if isinstance(spec, dict) else None
    if beside is None:
        return cast(StudyTask, build(spec, TASKS, axis="task"))
    if not isinstance(beside, dict) or beside.keys() != {"task", "share"}:
        got = ", ".join(sorted(beside)) if isinstance(beside, dict) else repr(beside)
        raise SpecError(f"{BESIDE} must be {{task: ..., share: ...}}, a task and its fraction of the steps; got {got}")
    return cast(StudyTask, TwoTasks(build_task(spec), build_task(beside["task"]), beside["share"]))


def build_model(spec: Mapping[str, Any], task: StudyTask) -> nn.Module:
    """Build a model that fits a task, on the current default device with the current generator.

    Parameters
    ----------
    spec : mapping
        ``name`` of a model of `MODELS` or ``path.py:Class``, with constructor arguments.
    task : StudyTask
        Offers what a model must know of it: sizes of vocabulary, features, length.

    Returns
    -------
    nn.Module
        The model, called as ``model(*batch.inputs)``; of two tasks with the model of the second beside it.
    """
    model = build_model_offered(spec, task.model_arguments())
    if isinstance(task, TwoTasks):
        if not (isinstance(model, AbstractTranslator) and model.reading):
            sharing = [name for name, kind in MODELS.items() if getattr(kind, "reading", ())]
            name, _ = parse(spec, "model")
            raise SpecError(f"model '{name}' has no encoder for two tasks to share; these have: {', '.join(sharing)}")
        model.share_reading(cast(AbstractTranslator, build_model_offered(spec, task.arguments_beside())))
    return model


def build_model_offered(spec: Mapping[str, Any], offered: Mapping[str, Any]) -> nn.Module:
    """Build a model that fits a task of which only that is known what it offers."""
    name, arguments = parse(spec, "model")
    missing = _asked_by(name) - arguments.keys() - offered.keys()
    if missing and (fitting := fitting_models(offered)):
        raise SpecError(
            f"model '{name}' needs {', '.join(sorted(missing))}, which this task does not give; models that fit it: "
            f"{', '.join(fitting)}"
        )
    with _parts_counted():
        return build_any_model(spec, offered)


@contextlib.contextmanager
def _parts_counted() -> Iterator[None]:
    """Refuse a model of more parts than can be trained while it is built, which may take forever."""
    parts = itertools.count(1)

    def count(*_: Any) -> None:
        require_buildable(next(parts))

    kinds = (register_module_module_registration_hook, register_module_parameter_registration_hook)
    hooks = [register(count) for register in kinds]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def fitting_models(offered: Mapping[str, Any]) -> list[str]:
    """The models of the lab that ask for no more than a task offers."""
    return [name for name in MODELS if _asked_by(name) <= offered.keys()]


def measured_reach(model: nn.Module, task: StudyTask, device: str = "cpu") -> dict[str, Any]:
    """The fields of `Reach` of a model on a task's own sequences: how far back and ahead of the last input it sees.

    Nothing of one that answers for a whole sequence with its loss: it is to see all of it.
    """
    if isinstance(model, AbstractParser):
        return {}
    *given, changed = task.train_batch(0, 0).to(device).inputs
    return asdict(reach(_LastFirst(model), (changed, *given)))


def _asked_by(name: str) -> set[str]:
    """The arguments that a model of the table cannot do without; none for one of a person's own."""
    parameters = signature_of(MODELS[name]) if name in MODELS else {}
    return {argument for argument, parameter in parameters.items() if is_required(parameter)}


@final
class _LastFirst(nn.Module):
    """Call a model with its last input given first: the one whose reach is measured; an answer for all of it is one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, last: Tensor, *before: Tensor) -> Tensor:
        """The model's outputs."""
        outputs = self.model(*before, last)
        return outputs[:, None] if outputs.ndim == 2 and outputs.shape[1] != last.shape[1] else outputs
