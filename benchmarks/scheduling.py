"""Measure what handing out costs: thousands of cells that compute nothing, through the local executor and through Ray.

Use, on a quiet machine: ``python benchmarks/scheduling.py --out FOLDER``; writes ``scheduling.json`` beside this file.
A cell here is a job without runs: a process is asked, checks what it always checks, computes nothing and says that it has
ended. Folders, locks and leases of runs are not in it; what a run costs with them is in ``overhead.json``.
"""

from __future__ import annotations

import argparse
import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from attnlab.core.files import write_json
from attnlab.core.machine import environment, usable_cores
from attnlab.studies import Executor, LocalProcesses, Ray
from attnlab.studies.run.executor import Job

RESULTS = Path(__file__).resolve().parent / "scheduling.json"
SPEC = {"model": {"name": "cnn", "channels": 12, "n_layers": 4}, "recipe": {"lr": 0.01, "budget": {"steps": 400}}}
"""Travels with each cell, as that of a run does."""


def resident_bytes() -> int:
    """Memory of this process, without those that it started."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Most:
    """Look at the memory of this process ten times a second."""

    def __init__(self) -> None:
        self.bytes, self._ended = resident_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            self.bytes = max(self.bytes, resident_bytes())

    def end(self) -> int:
        """The most that was seen."""
        self._ended.set()
        self._thread.join()
        return self.bytes


def measured(executor: AbstractContextManager[Executor], out: Path, cells: int) -> dict[str, float]:
    """Cells a second, once processes have started, and the most memory of this process."""
    out.mkdir(parents=True)
    job = Job((), (), threads=1, device="cpu", study=str(out), in_turns=True, setting=SPEC)
    with executor as started:
        started.run([job] * (2 * usable_cores()), lambda *_: None)  # processes start, and import torch
        before, most, begun = resident_bytes(), Most(), time.perf_counter()
        started.run([job] * cells, lambda *_: None)
        seconds = time.perf_counter() - begun
    return {"seconds": seconds, "cells_per_s": cells / seconds, "before_bytes": before, "most_bytes": most.end()}


def main() -> None:
    """Measure each executor, and write down what was found."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--cells", type=int, default=10_000)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--only", choices=("processes", "ray"))
    words.add_argument("--out", type=Path, required=True)
    wanted = words.parse_args()
    wanted.out.mkdir(parents=True)
    executors: Mapping[str, Callable[[], AbstractContextManager[Executor]]] = {
        "processes": lambda: LocalProcesses(usable_cores(), 1, wanted.out / "workers.log"),
        "ray": Ray,
    }
    names: Sequence[str] = [wanted.only] if wanted.only else list(executors)
    found: dict[str, list[Any]] = {name: [] for name in names}
    for number in range(wanted.rounds):
        for name in names:
            found[name].append(measured(executors[name](), wanted.out / f"{name}-{number}", wanted.cells))
            print(name, found[name][-1], flush=True)
    write_json(RESULTS, {"cells": wanted.cells, "environment": environment(), "rounds": found})


if __name__ == "__main__":
    main()
