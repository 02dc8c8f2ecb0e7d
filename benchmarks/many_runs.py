"""Measure how long commands take over studies of very many runs, with the index of runs and without it.

Use, on a quiet machine: ``python benchmarks/many_runs.py --out FOLDER``; writes ``many_runs.json`` beside this file
and the table of ``docs/runs.md``.
One run of every variant is trained and looked into; all others are copies of it with seeds of their own and numbers
that differ a little from seed to seed, alike in all variants, sealed as every run is. Checkpoints are left out: nothing
that is measured reads them. Each command is given in a process of its own, with what the system keeps of the files in
memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final
from unittest.mock import patch

from attnlab.core.files import write_json
from attnlab.core.machine import environment
from attnlab.studies import InProcess, parse_study, read_results, run_study, write_report
from attnlab.studies.judge.collect import load_plan
from attnlab.studies.judge.tuning import chosen_settings
from attnlab.studies.run.executor import Job, OnMessage
from attnlab.training.keeping.result import Result, read_result, write_result
from attnlab.training.keeping.runs import METRICS, SPEC

RESULTS = Path(__file__).resolve().parent / "many_runs.json"
PAGE = RESULTS.parent.parent / "docs" / "runs.md"
BEGIN, END = "<!-- many runs: written by benchmarks/many_runs.py -->\n", "<!-- end of many runs -->\n"
INDEX = ".runs.jsonl"
FILLED = ".filled"
SHAPES = ((20, 5), (20, 50), (20, 500), (20, 5_000), (200, 500))
"""Variants and seeds of each."""


def study(variants: int, seeds: int) -> Any:
    """A study of so many variants and seeds."""
    said = {
        "question": "How long do commands take over many runs?",
        "task": {"name": "shapes", "n_train": 60, "n_test": 20, "batch": 20},
        "model": {"name": "cnn", "channels": 2, "kernel_size": 3, "n_layers": 1},
        "baseline": "plain",
        "variants": {"plain": {}} | {f"wider {n}": {"channels": 2 + n % 50} for n in range(1, variants)},
        "rules": {"metric": "test_mse", "budget": {"steps": 200}, "seeds": seeds, "smallest_effect": 0.01},
    }
    return parse_study(said, name="many-runs")


def fill(out: Path, variants: int, seeds: int) -> None:
    """Make the folder of a finished study."""
    with patch("attnlab.core.files.synchronize"), patch("attnlab.training.keeping.runs.synchronize"):
        wanted = study(variants, seeds)
        run_study(wanted, out, executor=FirstSeeds())
        plan = load_plan(out)
        for cell in plan.judged_cells(chosen_settings(plan, out)):
            folder, first = out / cell.folder, (out / cell.folder).with_name("seed-0")
            if cell.seed == 0:
                continue
            folder.mkdir()
            write_json(folder / SPEC, cell.spec)
            shutil.copyfile(first / METRICS, folder / METRICS)
            write_result(folder, _another(read_result(first), cell.seed))


@final
class FirstSeeds:
    """Compute the runs of seed 0, and leave all others."""

    def run(self, jobs: Sequence[Job], on_message: OnMessage) -> None:
        """Compute the jobs that hold seed 0."""
        own = {
            number: job for number, job in enumerate(jobs) if any(Path(each).name == "seed-0" for each in job.folders)
        }
        numbers = list(own)
        InProcess().run(list(own.values()), lambda number, message: on_message(numbers[number], message))


def _another(result: Result | None, seed: int) -> Result:
    """A result with numbers of its own."""
    draw = random.Random(seed)
    values = vars(result) | {"seed": seed}
    values["metrics"] = {name: value * (1 + 0.1 * draw.random()) for name, value in values["metrics"].items()}
    return Result(**values)


def read(out: Path) -> None:
    """What every command begins with: all results, and the verdicts."""
    len(read_results(out).verdicts)


def report(out: Path) -> None:
    """``attnlab report``, charts included."""
    write_report(read_results(out), out)


def go_on(out: Path) -> None:
    """``attnlab run`` of a study whose runs are all done, up to its report."""
    len(run_study(_study_of(out), out).verdicts)


def _study_of(out: Path) -> Any:
    """The study that a folder was filled with."""
    variants, seeds = map(int, out.name.split("-"))
    return study(variants, seeds)


def view(out: Path) -> None:
    """``attnlab view``: the page of the study and the first event of its stream."""
    from starlette.testclient import TestClient

    from attnlab.viewer.following import FollowedStudy
    from attnlab.viewer.server import application
    from attnlab.viewer.streams import encoded

    answer = TestClient(application(out), base_url="http://localhost").get("/study/")
    if answer.status_code != 200:
        raise SystemExit(answer.text)
    encoded(FollowedStudy(out).everything())


COMMANDS: Mapping[str, Callable[[Path], None]] = {"read": read, "report": report, "run": go_on, "view": view}


def measured(command: str, out: Path) -> dict[str, float]:
    """Seconds and memory of a command in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured_here, (command, str(out)))


def _measured_here(command: str, out: str) -> dict[str, float]:
    begun, busy = time.perf_counter(), time.process_time()
    COMMANDS[command](Path(out))
    spent = {"seconds": time.perf_counter() - begun, "core_seconds": time.process_time() - busy}
    return spent | {"gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """What was measured as a table, a row for each study."""
    heads = ("runs", "all results, no index", "all results", "`run`, all done", "`view`", "`report`", "most memory")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for variants, seeds in dict.fromkeys((one["variants"], one["seeds"]) for one in found):
        of = {
            (one["command"], one["indexed"]): one
            for one in found
            if (one["variants"], one["seeds"]) == (variants, seeds)
        }
        order = (("read", False), ("read", True), ("run", True), ("view", True), ("report", True))
        spent = [f"{of[key]['core_seconds']:.2g}" if key in of else "" for key in order]
        most = max(one["gigabytes"] for one in of.values())
        lines.append("| " + " | ".join([f"{variants} x {seeds:,}", *spent, f"{most:.1f}"]) + " |")
    return "\n".join(lines) + "\n"


def write_page() -> None:
    """Write the table of the page anew, from what was measured last."""
    before, _, after = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    rows = table(json.loads(RESULTS.read_text(encoding="utf-8"))["found"])
    PAGE.write_text(before + BEGIN + rows + END + after.partition(END)[2], encoding="utf-8")


def main() -> None:
    """Measure all commands at all sizes, and write down what was found."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--most", type=int, default=100_000, help="runs of the largest study")
    wanted = words.parse_args()
    folders = [wanted.out / f"{variants}-{seeds}" for variants, seeds in SHAPES if variants * seeds <= wanted.most]
    for out in folders:
        if not (out / FILLED).exists():
            fill(out, *map(int, out.name.split("-")))
            (out / FILLED).touch()
    found = []
    for indexed in (True, False):
        for out in folders:
            read(out)  # writes the index, and brings what is read into memory
            for command in COMMANDS if indexed else ["read"]:
                if not indexed:
                    (out / INDEX).unlink()
                variants, seeds = map(int, out.name.split("-"))
                one = {"variants": variants, "seeds": seeds, "command": command, "indexed": indexed}
                found.append(one | measured(command, out))
                print(json.dumps(found[-1]), flush=True)
                write_json(RESULTS, {"environment": environment(), "found": found})
    write_page()


if __name__ == "__main__":
    main()
