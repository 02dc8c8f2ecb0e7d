"""The processes that train one model together: which one this is, and what they agree on.

Every rank makes the same steps with the same state. What only one of them can know (a clock, a signal, a measurement)
is agreed on here before anything is decided by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor

from attnlab.core.generators import generator_states, restore_generators

T = TypeVar("T")


class AbstractRanks(ABC):
    """Be one of several processes that train one model."""

    number: int  # of this process, from 0
    count: int  # of processes

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes, evaluates and tells."""
        return self.number == 0

    @abstractmethod
    def most(self, value: float) -> float:
        """The largest of a number over all ranks."""

    @abstractmethod
    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all ranks."""

    @abstractmethod
    def from_first(self, measure: Callable[[], T]) -> T:
        """What the first rank measures, on every rank; random numbers stand where it left them."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until every rank is here."""


@final
class Alone(AbstractRanks):
    """Be the only process."""

    number, count = 0, 1

    def most(self, value: float) -> float:
        """The number."""
        return value

    def total(self, value: Tensor) -> Tensor:
        """The tensor."""
        return value

    def from_first(self, measure: Callable[[], T]) -> T:
        """What is measured."""
        return measure()

    def wait(self) -> None:
        """Do nothing."""


@final
class Ranks(AbstractRanks):
    """Be one process of torch's default process group."""

    def __init__(self) -> None:
        self.number, self.count = dist.get_rank(), dist.get_world_size()

    def most(self, value: float) -> float:
        """The largest of a number over all ranks."""
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.item()

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all ranks."""
        dist.all_reduce(value)
        return value

    def from_first(self, measure: Callable[[], T]) -> T:
        """What the first rank measures, on every rank; random numbers stand where it left them."""
        found = [(measure(), generator_states()) if self.is_first else None]
        dist.broadcast_object_list(found)
        value, states = found[0]  # type: ignore[misc]
        restore_generators(states)
        return value

    def wait(self) -> None:
        """Wait until every rank is here."""
        dist.barrier()


def ranks_here() -> AbstractRanks:
    """The ranks of this process: those of a process group where there is one."""
    return Ranks() if dist.is_available() and dist.is_initialized() else Alone()
