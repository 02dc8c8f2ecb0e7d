"""Measure what a run costs beside its training: on a Ray cluster of this machine, and on processes of its own, in turn.

Use, on a quiet machine: ``python benchmarks/overhead.py --out FOLDER``; writes ``overhead.json`` beside this file.
Every run trains for a fixed time, so whatever the clock shows beyond that is what it costs to hand it out, to start it,
to write it down and to look at it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from attnlab.core.files import write_json
from attnlab.core.machine import environment, usable_cores
from attnlab.studies import Executor, LocalProcesses, Ray, parse_study, run_study

RESULTS = Path(__file__).resolve().parent / "overhead.json"


def study(cells: int, seconds: float) -> Any:
    """A study of so many runs, each of which trains for so long."""
    said = {
        "question": "What does a run cost beside its training?",
        "task": {"name": "shapes", "n_train": 60, "n_test": 20, "batch": 20},
        "model": {"name": "cnn", "channels": 6, "kernel_size": 3, "n_layers": 3},
        "baseline": "plain",
        "variants": {"plain": {}},
        "rules": {"metric": "test_mse", "budget": {"seconds": seconds}, "seeds": cells, "smallest_effect": 0.01},
    }
    return parse_study(said, name="overhead")


def measured(executor: AbstractContextManager[Executor], out: Path, cells: int, seconds: float) -> dict[str, float]:
    """Seconds until an executor has started, and of each run beyond its training, on a core."""
    begun = time.perf_counter()
    with executor as started:
        ready = time.perf_counter()
        run_study(study(cells, seconds), out, executor=started)
        done = time.perf_counter()
    trained = sum(json.loads(path.read_text())["seconds"] for path in out.glob("*/seed-*/result.json"))
    return {"start_s": ready - begun, "beside_s": ((done - ready) * usable_cores() - trained) / cells}


def main() -> None:
    """Measure both in turn, and write down what was found."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--cells", type=int, default=200)
    words.add_argument("--seconds", type=float, default=2.0)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--out", type=Path, required=True)
    wanted = words.parse_args()
    log = wanted.out / "workers.log"
    wanted.out.mkdir(parents=True)
    executors: Mapping[str, Callable[[], AbstractContextManager[Executor]]] = {
        "processes": lambda: LocalProcesses(usable_cores(), 1, log),
        "ray": Ray,
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in executors}
    for number in range(wanted.rounds):
        for name, made in executors.items():
            found[name].append(measured(made(), wanted.out / f"{name}-{number}", wanted.cells, wanted.seconds))
            print(name, found[name][-1], flush=True)
    for name, rounds in found.items():
        beside = statistics.median(one["beside_s"] for one in rounds)
        print(f"{name}: {beside:.2f} s a run beside its {wanted.seconds:g} s of training")
    how = {"cells": wanted.cells, "seconds": wanted.seconds, "environment": environment()}
    write_json(RESULTS, {**how, "rounds": found})


if __name__ == "__main__":
    main()
