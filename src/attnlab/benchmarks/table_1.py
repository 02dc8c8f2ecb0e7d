"""Table 1 of "Attention is all you need", measured: time, sequential steps and path length of five kinds of layers.

Every layer reads from left to right, so that "the farthest pair" is the first input and the last output, and a
layer of k neighbors sees its own position and k - 1 before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

import torch
from torch import nn

from attnlab.benchmarks.measuring.dependence import layers_until_seen, longest_chain
from attnlab.benchmarks.measuring.growth import GrowthRow, GrowthTable, in_columns, machine_line, name_law
from attnlab.benchmarks.measuring.passes import Passes, compare_passes, warm_up
from attnlab.core.machine import environment
from attnlab.nn.mixers import build_mixer

D_HEAD = 64
"""Width of a head: as in the source, wider models have more heads, not wider ones."""

COUNTED_WIDTH = 16
"""Features where something is counted: what depends on what does not depend on the width."""

ROUNDS = 5
TITLE = "Table 1 of Vaswani et al., 2017, measured: the laws of the source, and beside each what was found"
STEPS = "Sequential operations of one layer: the longest chain in autograd's graph of the readable path"
LAYERS = "Layers until the Jacobian of the last output with respect to the first input is not zero"
PATH = "Path from the first input to the last output: layers, times a layer's sequential operations over those at n = 1"
NOTES = (
    "All layers read from left to right; with k or r neighbors they see their own position and those before it.",
    f"Heads are {D_HEAD} wide: wider models have more of them. Attention includes its projections, n d^2, which the",
    "source leaves out: the exponent of d lies above 1 as long as n or r does not exceed d by far.",
    "Exponents are fitted over the longer half of the sizes.",
)


@final
@dataclass(frozen=True)
class Table1Sizes:
    """State at which sizes the layers are measured."""

    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)  # positions n for the time
    widths: tuple[int, ...] = (64, 128, 256, 512)  # features d for the time
    kernels: tuple[int, ...] = (4, 8, 16, 32)  # positions k that a convolution sees, for the time
    windows: tuple[int, ...] = (64, 128, 256, 512)  # positions r that a restricted attention sees, for the time
    length: int = 4096
    width: int = 128
    kernel: int = 8
    window: int = 128
    """The size of each where another one varies."""
    counted_lengths: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    """Positions for the sequential steps and the path, which are counted and not timed."""
    neighbors: int = 3  # both k and r for what is counted


@final
@dataclass(frozen=True)
class Kind:
    """Describe one row of the table: how to build the layer, and what the source says of it."""

    name: str  # the layer
    spec: Callable[[int, int], dict[str, Any]]
    """From the number of neighbors and the depth in a stack to the specification of a mixer."""
    neighbors: Literal["", "k", "r"]  # symbol of the number of positions that it sees; empty if it sees all
    length_law: str  # expected growth of the time with n
    width_law: str  # expected growth of the time with d
    steps_law: str  # expected growth of the operations that wait for each other
    path_law: str  # expected growth of the path between the farthest two positions
    hides_steps: bool = False  # whether a fused kernel would hide steps, unless the readable path is asked for

    def layer(self, width: int, neighbors: int, *, depth: int = 0, path: str | None = None) -> nn.Module:
        """A layer that reads from left to right."""
        torch.manual_seed(0)
        offered = {"d_model": width, "n_heads": max(1, width // D_HEAD), "causal": True}
        chosen = {} if path is None else {"path": path}
        return build_mixer({**self.spec(neighbors, depth), **chosen}, offered)

    def operations(self) -> str:
        """The operations of a layer as the source has them."""
        return " ".join(part for part in (self.neighbors, self.length_law, self.width_law) if part)


def _attention(neighbors: int, depth: int) -> dict[str, Any]:
    del neighbors, depth
    return {"name": "attention"}


def _lstm(neighbors: int, depth: int) -> dict[str, Any]:
    del neighbors, depth
    return {"name": "lstm"}


def _convolution(neighbors: int, depth: int) -> dict[str, Any]:
    del depth
    return {"name": "convolution", "kernel_size": neighbors}


def _dilated(neighbors: int, depth: int) -> dict[str, Any]:
    """Dilate more from layer to layer, as Kalchbrenner et al., 2016, arXiv:1610.10099, section 3.3."""
    return {"name": "convolution", "kernel_size": neighbors, "dilation": neighbors**depth}


def _restricted(neighbors: int, depth: int) -> dict[str, Any]:
    del depth
    return {"name": "attention", "masks": {"name": "window", "width": neighbors}}


KINDS = (
    Kind("self-attention", _attention, "", "n^2", "d", "1", "1", hides_steps=True),
    Kind("recurrent (LSTM)", _lstm, "", "n", "d^2", "n", "n", hides_steps=True),
    Kind("convolution", _convolution, "k", "n", "d^2", "1", "n/k"),
    Kind("dilated convolution", _dilated, "k", "n", "d^2", "1", "log_k n"),
    Kind("restricted attention", _restricted, "r", "n", "d", "1", "n/r", hides_steps=True),
)
"""The rows of Table 1 in its order; the convolution once contiguous and once dilated, as its section 4 tells apart."""


@final
@dataclass(frozen=True)
class Table1:
    """Hold the growth of everything that Table 1 states."""

    tables: Mapping[str, GrowthTable]
    """Time against ``n``, ``d``, ``k`` and ``r``; ``steps``, ``layers`` and ``path`` against n."""
    notes: tuple[str, ...]  # what a reader must know
    environment: dict[str, Any] = field(default_factory=environment)  # versions and hardware

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        head, *lines = self.summary()
        return {
            "kind": "table-1",
            "title": TITLE,
            "summary": [dict(zip(head, line, strict=True)) for line in lines],
            "tables": {name: table.to_json() for name, table in self.tables.items()},
            "notes": list(self.notes),
            "environment": self.environment,
        }

    def __str__(self) -> str:
        """The summary, then every table, as a person reads them."""
        summary = "\n".join([TITLE, *in_columns(self.summary())])
        return "\n\n".join(
            [summary, *map(str, self.tables.values()), "\n".join(self.notes), machine_line(self.environment)]
        )

    def summary(self) -> list[list[str]]:
        """The table of the source with what was measured beside it: a line of heads, then one per layer."""
        lines = [["layer", "operations", "time", "sequential", "measured", "path", "measured path"]]
        for kind in KINDS:
            time = " ".join(self._law(size, kind) for size in (kind.neighbors, "n", "d") if size)
            steps, path = self._law("steps", kind), self._law("path", kind)
            lines.append([kind.name, kind.operations(), time, kind.steps_law, steps, kind.path_law, path])
        return lines

    def _law(self, table: str, kind: Kind) -> str:
        """The law that one table found for a layer."""
        (row,) = (row for row in self.tables[table].rows if row.name == kind.name)
        return row.shown_law(self.tables[table].size)


def bench_table_1(
    *, device: str = "cpu", precision: str = "float32", rounds: int = ROUNDS, sizes: Table1Sizes | None = None
) -> Table1:
    """Measure Table 1: time, sequential steps and path length of five kinds of layers.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 4 and Table 1.
    """
    warm_up(device)
    sizes = sizes or Table1Sizes()
    timer = _Timer(sizes, device, precision, rounds)
    tables = {name: timer.table(name) for name in ("n", "d", "k", "r")} | _counted(sizes)
    notes = (*NOTES, f"time: batch 1, {precision}, forward + backward, median of {rounds} rounds in turn")
    return Table1(tables, notes, environment(device))


@final
@dataclass(frozen=True)
class _Timer:
    """Time all layers in turn while one size varies."""

    sizes: Table1Sizes
    device: str
    precision: str
    rounds: int

    def table(self, symbol: str) -> GrowthTable:
        """Milliseconds against n, d, k or r."""
        sizes = self.sizes
        usual = {"n": sizes.length, "d": sizes.width, "k": sizes.kernel, "r": sizes.window}
        values = {"n": sizes.lengths, "d": sizes.widths, "k": sizes.kernels, "r": sizes.windows}[symbol]
        kinds = [kind for kind in KINDS if symbol in ("n", "d", kind.neighbors)]
        times = {value: self._times(kinds, usual | {symbol: value}) for value in values}
        fixed = ", ".join(f"{other} = {size}" for other, size in usual.items() if other != symbol)
        rows = tuple(
            GrowthRow(kind.name, {value: times[value][kind.name] for value in values}, expected=_expected(kind, symbol))
            for kind in kinds
        )
        return GrowthTable(f"Milliseconds against {symbol} ({fixed})", symbol, rows)

    def _times(self, kinds: Sequence[Kind], at: Mapping[str, int]) -> Mapping[str, tuple[float, ...]]:
        """The milliseconds of each layer, round by round."""
        passes = {
            kind.name: Passes(
                kind.layer(at["d"], at.get(kind.neighbors, 0), depth=1),
                at["n"],
                at["d"],
                device=self.device,
                precision=self.precision,
            )
            for kind in kinds
        }
        return compare_passes("", passes, reference=kinds[0].name, rounds=self.rounds).rows


def _expected(kind: Kind, symbol: str) -> str:
    """How the source says that time grows."""
    return {"n": kind.length_law, "d": kind.width_law}.get(symbol, symbol)


def _counted(sizes: Table1Sizes) -> dict[str, GrowthTable]:
    """Sequential steps, layers and path against n: exact counts, on the CPU."""
    steps = {kind.name: _counts(_steps, kind, sizes) for kind in KINDS}
    layers = {kind.name: _counts(_layers, kind, sizes) for kind in KINDS}
    path = {
        kind.name: {
            n: count * steps[kind.name][n] / _steps(kind, 1, sizes.neighbors) for n, count in layers[kind.name].items()
        }
        for kind in KINDS
    }
    near = f"k = r = {sizes.neighbors}"
    return {
        "steps": _count_table(f"{STEPS} ({near})", steps, [kind.steps_law for kind in KINDS]),
        "layers": _count_table(f"{LAYERS} ({near})", layers, [""] * len(KINDS)),
        "path": _count_table(f"{PATH} ({near})", path, [kind.path_law for kind in KINDS]),
    }


def _counts(count: Callable[[Kind, int, int], int], kind: Kind, sizes: Table1Sizes) -> dict[int, int]:
    return {length: count(kind, length, sizes.neighbors) for length in sizes.counted_lengths}


def _steps(kind: Kind, length: int, neighbors: int) -> int:
    """The longest chain of operations inside one layer."""
    path = "readable" if kind.hides_steps else None
    x = torch.randn(1, length, COUNTED_WIDTH, requires_grad=True)
    return longest_chain(kind.layer(COUNTED_WIDTH, neighbors, path=path)(x))


def _layers(kind: Kind, length: int, neighbors: int) -> int:
    """The layers until the last output depends on the first input."""
    return layers_until_seen(lambda depth: kind.layer(COUNTED_WIDTH, neighbors, depth=depth), length, COUNTED_WIDTH)


def _count_table(title: str, counts: Mapping[str, Mapping[int, float]], expected: Sequence[str]) -> GrowthTable:
    rows = tuple(
        GrowthRow(name, {n: (count,) for n, count in row.items()}, expected=law, law=name_law(row, "n"))
        for (name, row), law in zip(counts.items(), expected, strict=True)
    )
    return GrowthTable(title, "n", rows, places=0)
