"""What heads are worth on held-out data, piece by piece, so that a page can show how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, final

from torch import nn

from attnlab.core.contracts import Batch, StudyTask
from attnlab.core.errors import RunError, SpecError
from attnlab.inspection import ablate
from attnlab.inspection.interventions import How
from attnlab.inspection.watch import Captured
from attnlab.studies.judge.statistics import compare
from attnlab.studies.using.measured import MeasuredModel
from attnlab.studies.using.parts import Ablations, attention_on, held_out, kinds_on, parts_of

Kinds = Callable[[Mapping[str, Captured], Batch], Mapping[str, Any]]
POSITIONS = 2_000
"""Of held-out data, a tenth of what `attnlab heads` takes: a pass of a small model takes a second at most."""
ENOUGH_S = 20.0
"""Of computing what one choice of heads costs; then what was measured so far is all."""

Losses = tuple[float, ...]
"""Of each sequence of a batch."""


@final
class HeldOutHeads:
    """Measure the heads of one model on the same held-out data: one head a call, or some together batch by batch.

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
        self._whole: list[Losses] = []  # with all heads, of the first batches
        self._without: dict[tuple[Sequence[str], How], list[tuple[Losses, float]]] = {}
        """By choice of heads the losses of the first batches, each with the seconds that it took."""

    @classmethod
    def of(cls, subject: MeasuredModel, data: str = "held-out data") -> HeldOutHeads:
        """The heads of a run or checkpoint, on its data."""

        def kinds(trace: Mapping[str, Captured], batch: Batch) -> Mapping[str, Any]:
            return kinds_on(subject, subject.task.parts[0], trace=trace, batch=batch)

        return cls(subject.model, subject.task, kinds, data)

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
            losses = self._with_all(len(self._batches))
            self._told = {
                "heads": [place for kind, place in parts_of(self._model, self._trace) if kind == "head"],
                "kinds": self._kinds(self._trace, self._batches[0]),
                "loss": fmean(losses),
                "unit": self._unit,
                "data": self._data,
                "positions": self._positions(len(self._batches)),
            }
        return self._told

    def worth(self, place: str, how: How) -> dict[str, Any]:
        """What is lost without a head, in the loss's unit."""
        if place not in self.begin()["heads"]:
            raise SpecError(f"'{place}' is none of the {len(self._told['heads'])} heads that can be measured")
        part = Ablations(self._model, self._task, self._batches, how).part("head", place)  # pyrefly: ignore
        return {"place": place, "worth": fmean(part.losses) - self._told["loss"]}

    def cost(self, off: tuple[str, ...], how: How) -> dict[str, Any]:
        """What is lost with some heads off together; each call with the same choice measures one more batch.

        Parameters
        ----------
        off : tuple of str
            The heads, as `ablate` names places.
        how : {"zero", "mean"}
            What stands in their place.

        Returns
        -------
        dict
            ``cost``: the loss without them less the loss with all, in ``unit``, the mean over ``sequences`` with
            ``positions`` in all of ``data``; ``low``, ``high``: its 95 % interval over sequences, paired, None where
            there is but one. ``done``: no further call measures more.
        """
        found = self._without.setdefault((off, how), [])
        if not self._is_enough(found):
            began, batch = time.perf_counter(), self._batches[len(found)]
            with ablate(self._model, off, how):
                losses = Ablations(self._model, self._task, [batch], how).losses()  # pyrefly: ignore
            found.append((losses, time.perf_counter() - began))
        without = [loss for losses, _ in found for loss in losses]
        compared = compare(dict(enumerate(without)), dict(enumerate(self._with_all(len(found)))), better="lower")
        told = {"cost": compared.difference, "low": compared.low, "high": compared.high, "unit": self._unit}
        counts = {"sequences": len(without), "positions": self._positions(len(found)), "data": self._data}
        return {**told, **counts, "done": self._is_enough(found)}

    def _is_enough(self, found: Sequence[tuple[Losses, float]]) -> bool:
        return len(found) == len(self._batches) or sum(seconds for _, seconds in found) > ENOUGH_S

    def _with_all(self, count: int) -> list[float]:
        """The losses with all heads of the sequences of the first batches."""
        for batch in self._batches[len(self._whole) : count]:
            self._whole.append(Ablations(self._model, self._task, [batch], "zero").losses())
        return [loss for losses in self._whole[:count] for loss in losses]

    def _positions(self, count: int) -> int:
        return sum(batch.targets.shape[:2].numel() for batch in self._batches[:count])

    @property
    def _unit(self) -> str:
        return self._task.metrics[0].unit
