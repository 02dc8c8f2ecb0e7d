"""Keys and values that are kept, so that a sequence can be continued without computing them again."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlab.core.errors import ModuleError


class KeyValues:
    """Hold the keys and values of positions that were seen, so that they are computed once.

    Keys are kept before positions are turned into them: where a key stands is counted from the end, which moves.
    """

    def __init__(self) -> None:
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    @property
    def k(self) -> Float[Tensor, "batch kv_heads k_len d_head"]:
        """The keys."""
        return self._of(self._k)

    @property
    def v(self) -> Float[Tensor, "batch kv_heads k_len d_v"]:
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
