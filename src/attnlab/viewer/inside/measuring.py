"""What heads are worth on held-out data, one after another, so that a page can show how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, final

from torch import nn

from attnlab.core.contracts import Batch, StudyTask
from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import read_json
from attnlab.inspection.interventions import How
from attnlab.inspection.watch import Captured
from attnlab.studies.define.assemble import build_task
from attnlab.studies.using.parts import Ablations, attention_on, held_out, kinds_on, parts_of

Kinds = Callable[[Mapping[str, Captured], Batch], Mapping[str, Any]]
POSITIONS = 2_000
"""Of held-out data, a tenth of what `attnlab heads` takes: a pass of a small model takes a second at most."""


@final
class HeldOutHeads:
    """Measure the heads of one model on the same held-out data, one a call.

    Parameters
    ----------
    model : nn.Module
        In evaluation mode.
    task : StudyTask
        Its first held-out part is what is measured on.
    kinds : callable
        What kinds its heads are, by place, of its attention on a batch and the batch.
    data : str
        What the page calls them.

    Raises
    ------
    RunError
        If no attention can be seen.
    """

    def __init__(self, model: nn.Module, task: StudyTask, kinds: Kinds, data: str = "held-out data") -> None:
        self._model, self._task, self._kinds, self._data = model, task, kinds, data
        self._batches = held_out(model, task, task.parts[0], POSITIONS)
        self._trace = attention_on(model, self._batches[0])
        if not self._trace:
            raise RunError("this model computes no attention that can be seen, so that it has no heads to measure")
        self._told: dict[str, Any] = {}

    @classmethod
    def of_run(cls, folder: Path, model: nn.Module) -> HeldOutHeads:
        """The heads of a run in its folder, on its task's data; a `DataError` where these are not here."""
        spec = read_json(folder / "spec.json")
        task = build_task(spec["task"])
        return cls(model, task, lambda trace, batch: kinds_on(spec, task.parts[0], model, trace=trace, batch=batch))

    def begin(self) -> dict[str, Any]:
        """The heads and their kinds, as JSON types.

        Returns
        -------
        dict
            ``heads``: places as `ablate` reads them. ``kinds``: by place the patterns that it follows more than heads
            of untrained models, and by how much; empty where attention is not over tokens. ``loss``: with all heads,
            in ``unit``, on ``positions`` of ``data``.
        """
        if not self._told:
            losses = Ablations(self._model, self._task, self._batches, "zero").losses()
            self._told = {
                "heads": [place for kind, place in parts_of(self._model, self._trace) if kind == "head"],
                "kinds": self._kinds(self._trace, self._batches[0]),
                "loss": fmean(losses),
                "unit": self._task.metrics[0].unit,
                "data": self._data,
                "positions": sum(batch.targets.shape[:2].numel() for batch in self._batches),
            }
        return self._told

    def worth(self, place: str, how: How) -> dict[str, Any]:
        """What is lost without a head, in the loss's unit."""
        if place not in self.begin()["heads"]:
            raise SpecError(f"'{place}' is none of the {len(self._told['heads'])} heads that can be measured")
        part = Ablations(self._model, self._task, self._batches, how).part("head", place)  # pyrefly: ignore
        return {"place": place, "worth": fmean(part.losses) - self._told["loss"]}
