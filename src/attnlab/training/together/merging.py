"""One call for the updates of several runs, where their optimizers are of one kind."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from attnlab.training.recipe.optim import OptimizerSet


class MergedOptimizers:
    """Step the optimizers of several runs with one call per kind; each run's state stays its own optimizer's.

    Parameters
    ----------
    sets : sequence of OptimizerSet
        One per run.

    Notes
    -----
    A merged optimizer is a copy of a run's, whose groups hold the parameters of all runs and whose state dictionaries
    are the runs' own. Groups of equal settings, learning rate included, become one group, which torch updates in
    one call; others stay apart. Updates act on one parameter at a time, so the numbers are those of single runs.
    """

    def __init__(self, sets: Sequence[OptimizerSet]) -> None:
        self._sets = list(sets)
        self._sources: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        self._merged: list[torch.optim.Optimizer] = []

    def step(self) -> None:
        """Update the parameters of all runs from their gradients."""
        if not self._still_fits():
            self._merge()
        for merged, sources in self._sources:
            merged["lr"] = sources[0]["lr"]
        for optimizer in self._merged:
            optimizer.step()

    def _still_fits(self) -> bool:
        """Whether groups that were merged still share their learning rate."""
        rates = ([source["lr"] for source in sources] for _, sources in self._sources)
        return bool(self._merged) and all(rate == of_group[0] for of_group in rates for rate in of_group)

    def _merge(self) -> None:
        self._sources, self._merged = [], []
        kinds: dict[tuple[str, type], list[torch.optim.Optimizer]] = defaultdict(list)
        for one in self._sets:
            for name, optimizer in one.members.items():
                kinds[name, type(optimizer)].append(optimizer)
        for optimizers in kinds.values():
            self._merged.append(self._merge_kind(optimizers))

    def _merge_kind(self, optimizers: Sequence[torch.optim.Optimizer]) -> torch.optim.Optimizer:
        merged = copy.copy(optimizers[0])
        merged.state = defaultdict(dict)
        merged.param_groups = []
        alike: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                alike[repr({key: value for key, value in group.items() if key != "params"})].append(group)
                for parameter in group["params"]:
                    merged.state[parameter] = optimizer.state[parameter]  # an empty one before the first step
        for sources in alike.values():
            group = {**sources[0], "params": [parameter for source in sources for parameter in source["params"]]}
            merged.param_groups.append(group)
            self._sources.append((group, sources))
        return merged
