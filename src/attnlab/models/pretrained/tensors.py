"""How the lab's tensors are stored in a checkpoint: other names, other cuts; read and written by one table.

A table maps the lab's name of a tensor, with ``{i}`` for the number of a layer, to the ways it may be stored. The first
one that a checkpoint has is read, the first of all is written. Where the name of a layer's tensor has no ``{i}`` in the
checkpoint, all layers share it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@final
class HeadSizes(NamedTuple):
    """Count the heads of the model, and say how wide they are.

    Parameters
    ----------
    n_heads : int
        Query heads.
    n_kv_heads : int
        Key and value heads.
    d_head : int
        Width of one query, key and value.
    """

    n_heads: int
    n_kv_heads: int
    d_head: int


class AbstractStored(ABC):
    """Say under which names a tensor is stored, and in which form.

    Parameters
    ----------
    *names : str
        Names in the checkpoint; ``{i}`` stands for the layer.
    """

    def __init__(self, *names: str) -> None:
        self.names = names

    @abstractmethod
    def read(self, stored: Sequence[Tensor], sizes: HeadSizes) -> Tensor:
        """The lab's tensor."""

    @abstractmethod
    def write(self, own: Tensor, sizes: HeadSizes) -> Sequence[Tensor]:
        """What is stored, name by name."""


@final
class Unchanged(AbstractStored):
    """Store a tensor as it is."""

    def read(self, stored: Sequence[Tensor], sizes: HeadSizes) -> Tensor:  # noqa: ARG002
        """The tensor."""
        return stored[0]

    def write(self, own: Tensor, sizes: HeadSizes) -> Sequence[Tensor]:  # noqa: ARG002
        """The tensor."""
        return [own]


@final
class Transposed(AbstractStored):
    """Store a matrix with rows as columns: GPT-2's ``Conv1D``."""

    def read(self, stored: Sequence[Tensor], sizes: HeadSizes) -> Tensor:  # noqa: ARG002
        """The matrix (out, in)."""
        return stored[0].T

    def write(self, own: Tensor, sizes: HeadSizes) -> Sequence[Tensor]:  # noqa: ARG002
        """The matrix (in, out)."""
        return [own.T]


@final
class AsRow(AbstractStored):
    """Store a vector as a matrix of one row."""

    def read(self, stored: Sequence[Tensor], sizes: HeadSizes) -> Tensor:  # noqa: ARG002
        """The vector."""
        return stored[0][0]

    def write(self, own: Tensor, sizes: HeadSizes) -> Sequence[Tensor]:  # noqa: ARG002
        """The row."""
        return [own[None]]


@final
class Stacked(AbstractStored):
    """Store the rows of a tensor in parts of equal size."""

    def read(self, stored: Sequence[Tensor], sizes: HeadSizes) -> Tensor:  # noqa: ARG002
        """The parts one below the other."""
        return torch.cat(list(stored))

    def write(self, own: Tensor, sizes: HeadSizes) -> Sequence[Tensor]:  # noqa: ARG002
        """The parts."""
        return own.chunk(len(self.names))


@final
class Projections(AbstractStored):
    """Store rows of queries, keys and values apart."""

    def read(self, stored: Sequence[Tensor], sizes: HeadSizes) -> Tensor:  # noqa: ARG002
        """The packed rows: q, k, v."""
        return torch.cat(list(stored))

    def write(self, own: Tensor, sizes: HeadSizes) -> Sequence[Tensor]:
        """Rows of q, of k, of v."""
        return own.split(_rows(sizes))


@final
class TurnedProjections(AbstractStored):
    """Store them apart, with features i and i + d_head / 2 of a query or key as the pair that rotary positions turn.

    The lab's pairs are neighbors.
    """

    def read(self, stored: Sequence[Tensor], sizes: HeadSizes) -> Tensor:
        """The packed rows, pairs side by side."""
        q, k, v = stored
        q, k = (one.unflatten(0, (-1, 2, sizes.d_head // 2)).transpose(1, 2).flatten(0, 2) for one in (q, k))
        return torch.cat((q, k, v))

    def write(self, own: Tensor, sizes: HeadSizes) -> Sequence[Tensor]:
        """Rows of q, of k, of v, halves one below the other."""
        q, k, v = own.split(_rows(sizes))
        q, k = (one.unflatten(0, (-1, sizes.d_head // 2, 2)).transpose(1, 2).flatten(0, 2) for one in (q, k))
        return q, k, v


def _rows(sizes: HeadSizes) -> list[int]:
    return [sizes.n_heads * sizes.d_head, *[sizes.n_kv_heads * sizes.d_head] * 2]


Table = dict[str, tuple[AbstractStored, ...]]
"""The lab's names, with ``{i}`` for the layer, and how each may be stored, the usual way first."""


def of_modules(modules: Mapping[str, str | tuple[str, ...]], form: type[AbstractStored] = Unchanged) -> Table:
    """The rows of weights and biases of modules; the form is that of weights, and of biases of several modules."""
    table: Table = {}
    for own, stored in modules.items():
        names = (stored,) if isinstance(stored, str) else stored
        table[f"{own}.weight"] = (form(*(f"{name}.weight" for name in names)),)
        bias = form if len(names) > 1 else Unchanged
        table[f"{own}.bias"] = (bias(*(f"{name}.bias" for name in names)),)
    return table


def ways(table: Table, own: str) -> list[tuple[AbstractStored, tuple[str, ...]]]:
    """How a tensor of the lab may be stored, with the names it then has; nothing where the table does not know it."""
    number = NUMBER.search(own)
    rows = table.get(NUMBER.sub("{i}", own, count=1), ())
    return [(one, tuple(name.format(i=number[0] if number else "") for name in one.names)) for one in rows]


def in_all_layers(table: Table, own: str) -> str | None:
    """The one stored name of a tensor that the lab has in every layer, where there is but one."""
    for row in table.get(NUMBER.sub("{i}", own, count=1), ()) if NUMBER.search(own) else ():
        return None if "{i}" in row.names[0] else row.names[0]
    return None


def to_checkpoint(own: Mapping[str, Tensor], table: Table, sizes: HeadSizes) -> dict[str, Tensor]:
    """The tensors of a checkpoint.

    Parameters
    ----------
    own : mapping of str to Tensor
        Tensors by the lab's names, as a state dict has them; those that are tied may be there once or several times.
    table : Table
        Of the family.
    sizes : HeadSizes
        Of the model.

    Returns
    -------
    dict of str to Tensor
        By the checkpoint's names.

    Raises
    ------
    KeyError
        If a tensor is not in the table.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in own.items():
        rows = ways(table, name)
        if not rows:
            raise KeyError(name)
        form, names = rows[0]
        found.update(zip(names, form.write(tensor, sizes), strict=True))
    return {name: tensor.contiguous() for name, tensor in found.items()}
