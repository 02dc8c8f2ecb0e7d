"""What heads are worth on held-out data, one after another, so that a page can show how far it has come."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any, final

from torch import nn

from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import read_json
from attnlab.inspection.interventions import How
from attnlab.studies.define.assemble import build_task
from attnlab.studies.using.parts import Ablations, attention_on, held_out, kinds_on, parts_of

POSITIONS = 2_000
"""Of held-out data, a tenth of what `attnlab heads` takes: a pass of a small model takes a second at most."""


@final
class HeldOutHeads:
    """Measure the heads of one run on the same held-out data, one a call.

    Parameters
    ----------
    folder : Path
        The run's folder.
    model : nn.Module
        Its model, in evaluation mode.

    Raises
    ------
    RunError
        If no attention can be seen.
    DataError
        If the data of its task are not here.
    """

    def __init__(self, folder: Path, model: nn.Module) -> None:
        spec = read_json(folder / "spec.json")
        self._model, self._task = model, build_task(spec["task"])
        self._spec, self._part = spec, self._task.parts[0]
        self._batches = held_out(model, self._task, self._part, POSITIONS)
        self._trace = attention_on(model, self._batches[0])
        if not self._trace:
            raise RunError("this model computes no attention that can be seen, so that it has no heads to measure")
        self._told: dict[str, Any] = {}

    def begin(self) -> dict[str, Any]:
        """The heads and their kinds, as JSON types.

        Returns
        -------
        dict
            ``heads``: places as `ablate` reads them. ``kinds``: by place the patterns that it follows more than heads
            of untrained models, and by how much; empty where attention is not over tokens. ``loss``: with all heads,
            in ``unit``, on ``positions``.
        """
        if not self._told:
            losses = Ablations(self._model, self._task, self._batches, "zero").losses()
            self._told = {
                "heads": [place for kind, place in parts_of(self._model, self._trace) if kind == "head"],
                "kinds": kinds_on(self._spec, self._part, self._model, trace=self._trace, batch=self._batches[0]),
                "loss": fmean(losses),
                "unit": self._task.metrics[0].unit,
                "positions": sum(batch.targets.shape[:2].numel() for batch in self._batches),
            }
        return self._told

    def worth(self, place: str, how: How) -> dict[str, Any]:
        """What is lost without a head, in the loss's unit."""
        if place not in self.begin()["heads"]:
            raise SpecError(f"'{place}' is none of the {len(self._told['heads'])} heads that can be measured")
        part = Ablations(self._model, self._task, self._batches, how).part("head", place)  # pyrefly: ignore
        return {"place": place, "worth": fmean(part.losses) - self._told["loss"]}
