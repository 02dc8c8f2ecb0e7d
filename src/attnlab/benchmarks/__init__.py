"""Benchmarks: attnlab and its alternatives in turn, within one run.

`BENCHMARKS` is the table that ``attnlab bench NAME`` looks up.
"""

from __future__ import annotations

from collections.abc import Callable

from attnlab.benchmarks.loop import bench_loop
from attnlab.benchmarks.pairs import Comparison

BENCHMARKS: dict[str, Callable[[], Comparison]] = {
    "loop": bench_loop,
}
"""Benchmarks by name."""

__all__ = ["BENCHMARKS", "Comparison", "bench_loop"]
