"""What ranks leave behind together: one folder, written by the first; of a sharded model by each its part."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any, final

from torch import nn

from attnlab.core.files import new_name
from attnlab.core.generators import generator_states
from attnlab.core.sharded import is_sharded, whole
from attnlab.training.devices.ranks import AbstractRanks
from attnlab.training.keeping.averaging import WeightAverage
from attnlab.training.keeping.checkpoints import WEIGHTS, load_model_weights, write_sharded
from attnlab.training.keeping.keeping import AbstractKeeper, FolderKeeper
from attnlab.training.keeping.result import Result, RunState
from attnlab.training.keeping.shards import parts_of, write_shards
from attnlab.training.recipe.optim import OptimizerSet


@final
class RanksKeeper(AbstractKeeper):
    """Keep records and checkpoints of ranks in a run folder, as one process would.

    Parameters
    ----------
    keeper : FolderKeeper
        That of the run's folder; only the first rank's writes.
    ranks : AbstractRanks
        Who trains.
    """

    def __init__(self, keeper: FolderKeeper, ranks: AbstractRanks) -> None:
        self._keeper, self._ranks = keeper, ranks
        self.how_to_go_on = keeper.how_to_go_on

    def open(self, model: nn.Module) -> Result | None:
        """Let the first rank open the folder."""
        done = self._ranks.from_first(lambda: self._keeper.open(model))
        if done is not None and not self._ranks.is_first:
            load_model_weights(model, self._keeper.folder)
        return done

    def resume(self, model: nn.Module, optimizer: OptimizerSet, average: WeightAverage) -> RunState | None:
        """Restore the last checkpoint on every rank."""
        if self._ranks.is_first:
            self._keeper.recover()
        self._ranks.wait()
        state = self._keeper.read(model, optimizer, average)
        if self._ranks.is_first:
            self._keeper.go_on(state)
        return state

    def record(self, values: Mapping[str, Any]) -> None:
        """Keep one record."""
        if self._ranks.is_first:
            self._keeper.record(values)

    def remember_best(self, model: nn.Module, state: RunState) -> None:
        """Keep the weights of the best evaluation."""
        if self._ranks.is_first:
            self._keeper.remember_best(model, state)

    def save(self, model: nn.Module, optimizer: OptimizerSet, average: WeightAverage, state: RunState) -> None:
        """Keep a checkpoint; of a sharded model every rank writes its part."""
        parameters = list(model.parameters())
        if all(is_sharded(parameter) for parameter in parameters):
            self._save_parts(model, optimizer, average, state)
        elif any(is_sharded(parameter) for parameter in parameters):
            self._save_gathered(model, optimizer, average, state)
        elif self._ranks.is_first:
            self._keeper.save(model, optimizer, average, state)

    def _save_parts(self, model: nn.Module, optimizer: OptimizerSet, average: WeightAverage, state: RunState) -> None:
        last = self._keeper.folder / "last"
        if self._ranks.is_first:
            shutil.rmtree(new_name(last), ignore_errors=True)
            new_name(last).mkdir(parents=True)
        self._ranks.wait()
        weights = {WEIGHTS + name: tensor for name, tensor in parts_of(model).items()}
        others = {**optimizer.state_tensors(), **average.state_tensors(), **generator_states()}
        write_shards(new_name(last), {**weights, **others})
        if self._ranks.is_first:
            self._keeper.replace(lambda: write_sharded(last, state.to_json()))

    def _save_gathered(
        self, model: nn.Module, optimizer: OptimizerSet, average: WeightAverage, state: RunState
    ) -> None:
        """Let the first rank write whole tensors, of which the others have parts, one gathered after the other."""
        weights, others = parts_of(model), {**optimizer.state_tensors(), **average.state_tensors()}
        for tensors in (weights, others):
            for name, tensor in tensors.items():
                found = whole(tensor).detach()
                tensors[name] = found.to("cpu", copy=True) if self._ranks.is_first else tensor
        if self._ranks.is_first:
            self._keeper.save_tensors(weights, {**others, **generator_states()}, state)

    def curve(self) -> list[dict[str, Any]]:
        """All records, on the first rank."""
        return self._keeper.curve() if self._ranks.is_first else []

    def finish(self, result: Result) -> None:
        """Keep the final numbers."""
        if self._ranks.is_first:
            self._keeper.finish(result)

    def fail(self, error: Exception, *, step: int, layer: str = "") -> None:
        """Leave it to who started the ranks, and sees which failed first."""

    def close(self) -> None:
        """End the keeping."""
        self._keeper.close()
