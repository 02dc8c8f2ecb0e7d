"""What a run leaves behind while it goes on: records and checkpoints in a folder, or records in memory."""

from __future__ import annotations

import contextlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn

from attnlab.core.errors import RunError
from attnlab.core.files import new_name, old_name, recover_folder, replace_folder, writing
from attnlab.core.generators import RANDOM, generator_states, restore_generators
from attnlab.training.keeping.averaging import AVERAGE, WeightAverage
from attnlab.training.keeping.checkpoints import (
    load_checkpoint,
    load_model_weights,
    read_state,
    save_checkpoint,
    weights_of,
    write_checkpoint,
)
from attnlab.training.keeping.result import Result, RunState, read_result, write_result
from attnlab.training.keeping.runs import FAILED, MetricsLog, lock, open_run, read_metrics, write_failure
from attnlab.training.recipe.optim import OptimizerSet


class AbstractKeeper(ABC):
    """Keep what a run produces, and give back where an earlier run stopped."""

    how_to_go_on: str
    """What a person does after stopping the run; empty where nothing is kept to go on from."""

    @abstractmethod
    def open(self, model: nn.Module) -> Result | None:
        """Claim the place for this run; where it was done before, load its last weights and return its result."""

    @abstractmethod
    def resume(self, model: nn.Module, optimizer: OptimizerSet, average: WeightAverage) -> RunState | None:
        """Restore all that an earlier run saved, random numbers too; return its state, None if there is none."""

    @abstractmethod
    def record(self, values: Mapping[str, Any]) -> None:
        """Keep one record of the training curve."""

    @abstractmethod
    def remember_best(self, model: nn.Module, state: RunState) -> None:
        """Keep the weights of the best evaluation so far, for the next checkpoint."""

    @abstractmethod
    def save(self, model: nn.Module, optimizer: OptimizerSet, average: WeightAverage, state: RunState) -> None:
        """Keep a checkpoint from which the run can go on, and the best one with it."""

    @abstractmethod
    def curve(self) -> list[dict[str, Any]]:
        """All records."""

    @abstractmethod
    def finish(self, result: Result) -> None:
        """Keep the final numbers, which mark the run as done."""

    @abstractmethod
    def fail(self, error: Exception, *, step: int, layer: str = "") -> None:
        """Keep why the run had to stop in the given step, and in which layer if that is known."""

    @abstractmethod
    def close(self) -> None:
        """End the keeping."""


@final
class MemoryKeeper(AbstractKeeper):
    """Keep the records in memory and nothing else."""

    how_to_go_on = ""

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []

    def record(self, values: Mapping[str, Any]) -> None:
        """Keep one record."""
        self._records.append(dict(values))

    def curve(self) -> list[dict[str, Any]]:
        """All records."""
        return self._records

    def open(self, model: nn.Module) -> Result | None:
        """None: nothing was done before."""

    def resume(self, model: nn.Module, optimizer: OptimizerSet, average: WeightAverage) -> RunState | None:
        """None: there is nothing to go on from."""

    def remember_best(self, model: nn.Module, state: RunState) -> None:
        """Keep nothing."""

    def save(self, model: nn.Module, optimizer: OptimizerSet, average: WeightAverage, state: RunState) -> None:
        """Keep nothing."""

    def finish(self, result: Result) -> None:
        """Keep nothing."""

    def fail(self, error: Exception, *, step: int, layer: str = "") -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Do nothing."""


@final
class FolderKeeper(AbstractKeeper):
    """Keep records and checkpoints in a run folder.

    Parameters
    ----------
    folder : Path
        The run folder; held for writing from `open` to `close`.
    spec : mapping
        What identifies the run.
    """

    _log: MetricsLog  # from `resume` on

    def __init__(self, folder: Path, spec: Mapping[str, Any]) -> None:
        self.folder = folder
        self.how_to_go_on = f"start the same run again to go on from there (saved in {folder})"
        self._spec = spec
        self._held = contextlib.ExitStack()
        self._is_ours = False
        self._new_best: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    def open(self, model: nn.Module) -> Result | None:
        """Lock the folder, and write the spec or compare it; forget why an unfinished run failed."""
        self._held.enter_context(lock(self.folder))
        open_run(self.folder, self._spec)
        self._is_ours = True
        done = read_result(self.folder, read_metrics(self.folder))
        if done is None:
            (self.folder / FAILED).unlink(missing_ok=True)
        else:
            load_model_weights(model, self.folder)
        return done

    def resume(self, model: nn.Module, optimizer: OptimizerSet, average: WeightAverage) -> RunState | None:
        """Restore the last checkpoint, and drop records made after it."""
        self.recover()
        state = self.read(model, optimizer, average)
        self.go_on(state)
        return state

    def recover(self) -> None:
        """Put the last checkpoint in its place if the process died while it was replaced."""
        recover_folder(self.folder / "last")

    def read(self, model: nn.Module, optimizer: OptimizerSet, average: WeightAverage) -> RunState | None:
        """Restore the last checkpoint, and write nothing."""
        values = read_state(self.folder / "last")
        if values is None:
            return None
        state = RunState.from_json(values)
        tensors = load_checkpoint(model, self.folder / "last", optimizer.parameters())
        if not state.stopped:
            restore_generators(tensors)
            average.load_state_tensors(tensors, model)
            optimizer.load_state_tensors({k: v for k, v in tensors.items() if not k.startswith((RANDOM, AVERAGE))})
        return state

    def go_on(self, state: RunState | None) -> None:
        """Keep what comes after a state; None: from the beginning."""
        if state is not None:
            self._recover_best(state.best.get("step"))
        self._log = MetricsLog(self.folder, after_step=-1 if state is None else state.step)
        self._held.callback(self._log.close)

    def _recover_best(self, step: int | None) -> None:
        """Put the best checkpoint in its place if the process died while it was replaced."""
        best = self.folder / "best"
        for found in (best, new_name(best), old_name(best)):
            if step is not None and _step_of(found) == step:
                if found != best:
                    shutil.rmtree(best, ignore_errors=True)
                    found.rename(best)
                break
        for leftover in (new_name(best), old_name(best)):
            shutil.rmtree(leftover, ignore_errors=True)

    def record(self, values: Mapping[str, Any]) -> None:
        """Append one record to ``metrics.jsonl``."""
        self._log.append(values)

    def remember_best(self, model: nn.Module, state: RunState) -> None:
        """Copy the weights; they reach the disk with the next checkpoint, so that both are of one history."""
        self._new_best = weights_of(model), dict(state.best)

    def save(self, model: nn.Module, optimizer: OptimizerSet, average: WeightAverage, state: RunState) -> None:
        """Write ``best`` beside the old one, then ``last``, then put ``best`` in its place."""
        tensors = None
        if not state.stopped:
            tensors = {**optimizer.state_tensors(), **average.state_tensors(), **generator_states()}
        self.save_tensors(weights_of(model), tensors, state)

    def save_tensors(
        self, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor] | None, state: RunState
    ) -> None:
        """Save weights, and what lies beside them, as `save` does."""
        self.replace(lambda: save_checkpoint(self.folder / "last", weights, state.to_json(), tensors=tensors))

    def replace(self, save: Callable[[], None]) -> None:
        """Save ``last`` by a function, and ``best`` with it."""
        self._log.synchronize()
        best = self.folder / "best"
        if self._new_best is not None:
            write_checkpoint(new_name(best), *self._new_best)
        save()
        if self._new_best is not None:
            with writing(self.folder):
                replace_folder(new_name(best), best)
            self._new_best = None

    def curve(self) -> list[dict[str, Any]]:
        """All records."""
        return read_metrics(self.folder)

    def finish(self, result: Result) -> None:
        """Write ``result.json``."""
        write_result(self.folder, result)

    def fail(self, error: Exception, *, step: int, layer: str = "") -> None:
        """Write ``failed.json``, unless the folder is another run's."""
        if self._is_ours:
            write_failure(self.folder, error, step=step, layer=layer)

    def close(self) -> None:
        """Close the file of records, and let go of the folder."""
        self._held.close()


def _step_of(folder: Path) -> int | None:
    """The step of a whole checkpoint, None for any other folder."""
    try:
        return (read_state(folder) or {}).get("step")
    except RunError:
        return None
