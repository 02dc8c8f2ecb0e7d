"""Random number generators: torch's global ones, runs that take turns with them, and ones that belong to a place."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

DROPOUTS = frozenset({F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout})
"""Functions of torch that draw which values they drop, called as ``f(x, p, training, inplace)``."""
RANDOM = "random."
"""Before the names of the generators' states, beside the optimizers' names in a checkpoint."""


def seed_generators(seed: int) -> None:
    """Start torch's global generators anew, as `torch.manual_seed` does.

    Without an accelerator there is the CPU's alone, and `torch.manual_seed` would write down the stack for each kind of
    device to come.
    """
    start = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    start(int(seed))  # of numpy's numbers too


def generator_states() -> dict[str, Tensor]:
    """The states of torch's global generators, of the CPU and of the current CUDA device if it is in use."""
    states = {f"{RANDOM}cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states[f"{RANDOM}cuda"] = torch.cuda.get_rng_state()
    return states


def restore_generators(states: Mapping[str, Tensor]) -> None:
    """Set torch's global generators to what `generator_states` returned."""
    if f"{RANDOM}cpu" in states:
        torch.set_rng_state(states[f"{RANDOM}cpu"])
    if f"{RANDOM}cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[f"{RANDOM}cuda"])


@final
class Generators:
    """Let runs take turns with torch's global generators, so that each draws the numbers it would draw alone.

    Notes
    -----
    A generator changes hands only when another run asks for it: a single run pays nothing.
    """

    def __init__(self) -> None:
        self._holder: Hashable = None
        self._kept: dict[Hashable, dict[str, Tensor]] = {}

    def give_to(self, owner: Hashable) -> None:
        """Put the generators where the owner left them; who holds them first takes them as they are."""
        if owner == self._holder:
            return
        if self._holder is not None:
            self._kept[self._holder] = generator_states()
        restore_generators(self._kept.get(owner, {}))
        self._holder = owner

    def bookmark(self) -> dict[Hashable, dict[str, Tensor]]:
        """Where every owner's generators are now, for `go_back`."""
        return {**self._kept, self._holder: generator_states()}

    def go_back(self, bookmark: Mapping[Hashable, dict[str, Tensor]]) -> None:
        """Put every owner's generators to where they were."""
        self._kept = dict(bookmark)
        restore_generators(self._kept.get(self._holder, {}))


def generator_for(*numbers: int) -> torch.Generator:
    """A CPU generator seeded by several numbers together.

    Notes
    -----
    The numbers are hashed, so that (seed 1, step 2) and (seed 2, step 1) or neighboring steps share
    nothing, which adding them up would not give.
    """
    digest = hashlib.sha256(",".join(map(str, numbers)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)  # 63 bits: non-negative
