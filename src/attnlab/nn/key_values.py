"""What every mixer keeps to, and the keys and values that some keep, so that a sequence can be continued."""

# ruff: noqa: ARG002 -- what keeps no keys has the signatures of what does

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.errors import ModuleError, SpecError
from attnlab.core.layouts import Activations, Memory, RealKeys, SharedKeys, SharedValues
from attnlab.core.sharded import RankShare


@final
class KeyValues:
    """Hold the keys and values of positions that were seen, so that they are computed once.

    Keys are kept before positions are turned into them: where a key stands is counted from the end, which moves.
    """

    def __init__(self) -> None:
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    @property
    def k(self) -> SharedKeys:
        """The keys."""
        return self._of(self._k)

    @property
    def v(self) -> SharedValues:
        """The values."""
        return self._of(self._v)

    def append(
        self, k: Float[Tensor, "batch kv_heads more d_head"], v: Float[Tensor, "batch kv_heads more d_v"]
    ) -> None:
        """Add keys and values behind those that are there."""
        self._k = k if self._k is None else torch.cat((self._k, k), dim=-2)
        self._v = v if self._v is None else torch.cat((self._v, v), dim=-2)

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Keep some rows of the batch, in a new order, perhaps several times. Of nothing, nothing is kept."""
        if self._k is not None and self._v is not None:
            self._k, self._v = self._k[rows], self._v[rows]

    def _of(self, part: Tensor | None) -> Tensor:
        if part is None:
            raise ModuleError("no keys and values were kept yet")
        return part


class AbstractMixer(nn.Module, ABC):
    """Let positions speak with each other, and perhaps with those of another sequence.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    n_heads : int
        Number of heads.
    d_head : int, optional
        Width of one query, key and value; ``d_model / n_heads`` unless given.
    causal : bool
        Whether a position sees itself and earlier ones only.

    Attributes
    ----------
    starts_itself : bool
        Whether its initial weights are its own affair, which no scheme of the model touches.

    Raises
    ------
    SpecError
        If a size is not positive.
    """

    starts_itself: bool = False

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, x: Activations, memory: Memory | None = None, padding: RealKeys | None = None) -> Activations:
        """What every position gathered."""

    @abstractmethod
    def begin(self) -> KeyValues:
        """What `extend` starts from."""

    @abstractmethod
    def extend(self, x: Activations, past: KeyValues) -> Activations:
        """What later positions gather from themselves and from those before, whose keys are kept."""

    @abstractmethod
    def keys_of(self, memory: Memory) -> KeyValues:
        """Keys and values of another sequence, to be looked at many times."""

    @abstractmethod
    def look(self, x: Activations, seen: KeyValues, padding: RealKeys | None = None) -> Activations:
        """What positions gather from another sequence, whose keys are kept."""

    def take_share(self, number: int, count: int) -> dict[str, int]:
        """Become one of so many equal parts of itself, whose outputs add up to those of the whole: here, refuse.

        Returns
        -------
        dict
            By the name of a linear map, of how many packs of outputs each part has its rows; 0: it has inputs.

        Raises
        ------
        SpecError
            If it cannot be divided.
        """
        raise SpecError(f"{type(self).__name__} cannot be divided among {count} devices")

    def take_positions(self, share: RankShare, gather: Callable[[Tensor], Tensor]) -> None:
        """Compute some positions of every sequence: here, refuse.

        Parameters
        ----------
        share : RankShare
            Which of them.
        gather : callable
            From keys or values of these to those of all positions.

        Raises
        ------
        SpecError
            If it cannot.
        """
        raise SpecError(f"{type(self).__name__} cannot be computed at some positions alone")


class AbstractKeylessMixer(AbstractMixer):
    """Mix positions without keys and values: a sequence is computed from its beginning every time."""

    def begin(self) -> KeyValues:
        """Raise a `ModuleError`."""
        raise self._no_keys()

    def extend(self, x: Activations, past: KeyValues) -> Activations:
        """Raise a `ModuleError`."""
        raise self._no_keys()

    def keys_of(self, memory: Memory) -> KeyValues:
        """Raise a `ModuleError`."""
        raise self._no_keys()

    def look(self, x: Activations, seen: KeyValues, padding: RealKeys | None = None) -> Activations:
        """Raise a `ModuleError`."""
        raise self._no_keys()

    def _no_keys(self) -> ModuleError:
        return ModuleError(f"{type(self).__name__} keeps no keys and values")
