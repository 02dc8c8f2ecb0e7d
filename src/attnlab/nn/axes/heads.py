"""Heads: how queries, keys and values are projected and laid out.

Every entry makes ``q`` (batch, n_heads, q_len, d_head), ``k`` (batch, n_kv_heads, k_len, d_head) and ``v``
(batch, n_kv_heads, k_len, d_v) out of activations. They differ in sizes only, so they share one packed
projection. Scores, masks and the way back to ``d_model`` are other axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import final

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.core.layouts import Memory, Queries, SharedKeys, SharedValues
from attnlab.core.sharded import local
from attnlab.core.sizes import check_positive, share_of

Projected = tuple[Queries, SharedKeys, SharedValues]
"""Queries, keys and values."""


class AbstractHeads(nn.Module, ABC):
    """Project activations to queries, keys and values per head.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    n_heads : int
        Number of query heads.
    n_kv_heads : int
        Number of key and value heads; divides ``n_heads``.
    d_head : int, optional
        Width of one query and one key; ``d_model / n_heads`` unless given.
    d_v : int, optional
        Width of one value; ``d_head`` unless given.
    bias : bool
        Whether queries, keys and values have a learned bias.

    Raises
    ------
    SpecError
        If a size is not positive, ``n_kv_heads`` does not divide ``n_heads``, or the heads do not divide ``d_model``
        and no ``d_head`` is given.
    """

    n_heads: int
    n_kv_heads: int
    d_head: int
    d_v: int

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def project(self, x: Float[Tensor, "batch q_len d_model"], memory: Memory | None = None) -> Projected:
        """Queries of `x`, and keys and values of `memory`, or of `x` where there is none."""

    def keep_share(self, count: int) -> dict[str, int]:
        """Compute one of so many equal parts of the heads; as of `AbstractMixer`."""
        raise SpecError(f"{type(self).__name__} cannot be divided among {count} devices")


@final
class PackedProjection(nn.Module):
    """Compute queries, keys and values with one matrix: rows of q, then of k, then of v.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    sizes : AbstractHeads
        Whose numbers and widths of heads count.
    bias : bool
        Whether a learned vector is added.

    Raises
    ------
    SpecError
        If a size is not positive.
    """

    def __init__(self, d_model: int, sizes: AbstractHeads, *, bias: bool) -> None:
        super().__init__()
        n_heads, n_kv_heads, d_head, d_v = sizes.n_heads, sizes.n_kv_heads, sizes.d_head, sizes.d_v
        check_positive({"d_model": d_model, "n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_head": d_head, "d_v": d_v})
        self.rows = (n_heads * d_head, n_kv_heads * d_head, n_kv_heads * d_v)
        self.counts = (n_heads, n_kv_heads, n_kv_heads)
        self.linear = nn.Linear(d_model, sum(self.rows), bias=bias)

    def forward(self, x: Float[Tensor, "batch q_len d_model"], memory: Memory | None = None) -> Projected:
        """Q, k, v per head; one matrix product where both sequences are the same."""
        if memory is None:
            q, k, v = self.linear(x).split(self.rows, dim=-1)
        else:
            q, k, v = self._from_two(x, memory)
        n_q, n_k, n_v = self.counts
        return _per_head(q, n_q), _per_head(k, n_k), _per_head(v, n_v)

    def _from_two(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Q of one sequence, and k and v of another, with slices of the packed matrix."""
        n_q = self.rows[0]
        weight, bias = local(self.linear.weight), self.linear.bias
        bias = None if bias is None else local(bias)
        bias_q, bias_kv = (None, None) if bias is None else (bias[:n_q], bias[n_q:])
        k, v = F.linear(memory, weight[n_q:], bias_kv).split(self.rows[1:], dim=-1)
        return F.linear(x, weight[:n_q], bias_q), k, v


def _per_head(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (batch, heads, length, width)


class AbstractPackedHeads(AbstractHeads):
    """Project with one packed matrix, whatever the numbers and widths of heads are."""

    def __init__(
        self, d_model: int, n_heads: int, *, n_kv_heads: int, d_head: int | None, d_v: int | None, bias: bool
    ) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.d_head = share_of(d_model, n_heads) if d_head is None else d_head
        self.d_v = self.d_head if d_v is None else d_v
        self.packed = PackedProjection(d_model, self, bias=bias)

    def project(self, x: Float[Tensor, "batch q_len d_model"], memory: Memory | None = None) -> Projected:
        """Q, k, v per head; k and v may have fewer heads."""
        return self.packed(x, memory)

    def keep_share(self, count: int) -> dict[str, int]:
        """Compute one of so many equal parts of the heads, with as many rows of the matrix for q, k and v each."""
        if len(set(self.packed.rows)) > 1:
            raise SpecError(
                f"{type(self).__name__} has other numbers or widths of queries than of keys and values, which cannot "
                "be divided among devices; use heads 'split'"
            )
        if self.n_heads % count:
            raise SpecError(f"{self.n_heads} heads cannot be divided among {count} devices")
        self.n_heads, self.n_kv_heads = self.n_heads // count, self.n_kv_heads // count
        rows, counts = self.packed.rows, self.packed.counts
        self.packed.rows = rows[0] // count, rows[1] // count, rows[2] // count
        self.packed.counts = counts[0] // count, counts[1] // count, counts[2] // count
        return {"packed": len(rows)}


@final
class SplitHeads(AbstractPackedHeads):
    """Divide the width of the model among the heads.

    Notes
    -----
    ``q = x W_q, k = m W_k, v = m W_v``, cut into heads. ``3 d_model^2`` weights by default, however many
    heads there are. Differs from [1]_: with biases, as most implementations have.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 3.2.2.
    """

    def __init__(
        self, d_model: int, n_heads: int, *, d_head: int | None = None, d_v: int | None = None, bias: bool = True
    ) -> None:
        super().__init__(d_model, n_heads, n_kv_heads=n_heads, d_head=d_head, d_v=d_v, bias=bias)


@final
class FullWidthHeads(AbstractPackedHeads):
    """Give every head the whole width of the model.

    Notes
    -----
    ``3 n_heads d_model^2`` weights: ``n_heads`` times those of `SplitHeads`, so compare at equal parameters
    too. Proposed again and again by people who meet the split for the first time; a head narrower than the
    sequence cannot represent every attention pattern [1]_.

    References
    ----------
    .. [1] Bhojanapalli et al., 2020, arXiv:2002.07028, theorem 1.
    """

    def __init__(self, d_model: int, n_heads: int, *, bias: bool = True) -> None:
        super().__init__(d_model, n_heads, n_kv_heads=n_heads, d_head=d_model, d_v=d_model, bias=bias)


@final
class GroupedHeads(AbstractPackedHeads):
    """Let groups of query heads share one key and value head.

    Notes
    -----
    Query head ``i`` looks at key head ``i // (n_heads / n_kv_heads)``. Keys and values take
    ``n_kv_heads / n_heads`` of the weights and of the memory of `SplitHeads`.

    References
    ----------
    .. [1] Ainslie et al., 2023, arXiv:2305.13245, section 2.2.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int = 2,
        d_head: int | None = None,
        d_v: int | None = None,
        bias: bool = True,
    ) -> None:
        check_positive({"n_heads": n_heads, "n_kv_heads": n_kv_heads})
        if n_heads % n_kv_heads:
            raise SpecError(f"n_kv_heads must divide n_heads; got n_heads={n_heads}, n_kv_heads={n_kv_heads}")
        super().__init__(d_model, n_heads, n_kv_heads=n_kv_heads, d_head=d_head, d_v=d_v, bias=bias)


@final
class MultiQueryHeads(AbstractPackedHeads):
    """Let all query heads share one key and value head.

    Notes
    -----
    `GroupedHeads` with one group: ``1 / n_heads`` of its keys and values.

    References
    ----------
    .. [1] Shazeer, 2019, arXiv:1911.02150, section 3.
    """

    def __init__(
        self, d_model: int, n_heads: int, *, d_head: int | None = None, d_v: int | None = None, bias: bool = True
    ) -> None:
        super().__init__(d_model, n_heads, n_kv_heads=1, d_head=d_head, d_v=d_v, bias=bias)


def repeat_heads(x: Float[Tensor, "batch heads_kv length d"], n_heads: int) -> Float[Tensor, "batch heads length d"]:
    """Keys or values once per query head."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


HEADS: Mapping[str, Callable[..., AbstractHeads]] = {
    "split": SplitHeads,
    "full-width": FullWidthHeads,
    "grouped": GroupedHeads,
    "multi-query": MultiQueryHeads,
}
