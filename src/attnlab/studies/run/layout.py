"""How the cells of a study share the machine: processes, threads, device, and which runs train as one program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from attnlab.core.errors import RunError
from attnlab.core.files import read_json, write_json
from attnlab.core.machine import usable_cores
from attnlab.studies.plan.plan import CellPlan, Plan
from attnlab.studies.run.pool import Pool

LAYOUT = "layout.json"
WORKERS_LOG = "workers.log"
WORTH_IT = 0.9
"""Runs train together if a run takes at most this fraction of its time alone: less is within a machine's noise."""


@dataclass(frozen=True)
class Layout:
    """Say how cells share the machine, and why.

    Parameters
    ----------
    workers : int
        Number of processes.
    threads : int
        Threads of each.
    device : str
        ``cpu`` or ``cuda``.
    reason : str
        Why, in words.
    together : dict of str to int
        By variant, how many of its runs train as one program at most; variants that are not in it train run by run.
    """

    workers: int
    threads: int
    device: str
    reason: str
    together: dict[str, int] = field(default_factory=dict)

    def cohorts(self, cells: Sequence[CellPlan]) -> list[list[CellPlan]]:
        """Cells in groups that train together, in the order in which their first ones stand."""
        groups: list[list[CellPlan]] = []
        open_groups: dict[str, list[CellPlan]] = {}
        for cell in cells:
            group = open_groups.get(cell.variant)
            if group is None or len(group) >= self.together.get(cell.variant, 1):
                group = open_groups[cell.variant] = []
                groups.append(group)
            group.append(cell)
        return groups


def layout_for(plan: Plan, out: Path, device: str, jobs: int | None) -> Layout:
    """How cells share the machine: as before where the study has begun, else measured."""
    import torch

    if (out / LAYOUT).exists():
        saved = read_json(out / LAYOUT)
        if device not in ("auto", saved["device"]):
            raise RunError(f"{out} was begun on {saved['device']}; go on there, or choose another folder with --out")
        workers = jobs or max(1, min(saved["workers"], usable_cores() // saved["threads"]))
        together = saved.get("together", {})
        return Layout(workers, saved["threads"], saved["device"], "as when the study began", together)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    layout = _new_layout(plan, out, device, jobs)
    write_json(out / LAYOUT, asdict(layout))
    return layout


def _new_layout(plan: Plan, out: Path, device: str, jobs: int | None) -> Layout:
    most = most_together(plan)
    if device != "cpu":
        reason = "one process on the accelerator"
        if most == 1:
            return Layout(1, usable_cores(), device, reason)
        together = {variant.name: most for variant in plan.variants}
        return Layout(1, usable_cores(), device, f"{reason}; runs of one variant together", together)
    if jobs:
        return Layout(jobs, max(1, usable_cores() // jobs), device, "asked for")
    if plan.judges_time:
        return Layout(1, usable_cores(), device, "one run at a time: the verdict is about wall time")
    cells = len(plan.tuning_cells()) or len(plan.variants) * plan.study.rules.seeds
    workers = min(usable_cores(), cells)
    if workers == 1 and most == 1:
        return Layout(1, usable_cores(), device, "one cell at a time")
    return _measure(plan, out, workers, most)


def most_together(plan: Plan) -> int:
    """How many runs of one variant there are to train together; 1 where each needs its own time."""
    rules = plan.study.rules
    if plan.judges_time or "seconds" in rules.budget or rules.target:
        return 1
    return max(rules.seeds, len(list(rules.grid())))


# ---- measuring on a CPU ----


@dataclass(frozen=True)
class _Times:
    """Hold the seconds of one step of one run in a layout, the machine's time shared by all that run at once.

    Parameters
    ----------
    alone : float
        Run by run.
    together : float
        As one program; infinity where that was not measured or is impossible.
    """

    alone: float
    together: float

    @property
    def best(self) -> float:
        """The faster of both."""
        return self.together if self.pays else self.alone

    @property
    def pays(self) -> bool:
        """Whether training together is worth it."""
        return self.together <= WORTH_IT * self.alone


def _measure(plan: Plan, out: Path, workers: int, most: int) -> Layout:
    """Time the baseline in parallel single-threaded processes and in one that has all cores; take the faster."""
    cells = {cell.variant: cell for cell in plan.judged_cells({name: {} for name in plan.study.variants})}
    baseline, threads = cells.pop(plan.study.baseline), usable_cores()
    times: dict[tuple[int, int], _Times] = {}
    together: dict[str, int] = {}
    for shape in {(workers, 1): None, (1, threads): None}:
        with Pool(*shape, out / WORKERS_LOG) as pool:
            found = _time(pool, shape, [baseline], most)
        if found is None:
            return Layout(workers, 1, "cpu", "not measured: a timing run failed")
        times[shape] = found[baseline.variant]
    best = min(times, key=lambda shape: times[shape].best)
    if times[best].pays:
        size = _share(most, best[0], len(plan.variants))
        with Pool(*best, out / WORKERS_LOG) as pool:
            others = _time(pool, best, list(cells.values()), most) or {}
        together = {name: size for name, one in {baseline.variant: times[best], **others}.items() if one.pays}
    return Layout(*best, "cpu", _reason(times), together)


def _time(pool: Pool, shape: tuple[int, int], cells: Sequence[CellPlan], most: int) -> dict[str, _Times] | None:
    """Time one step of each cell with all workers busy on it; None where one failed."""
    workers, threads = shape
    requests = [
        {"do": "time", "spec": cell.spec, "threads": threads, "together": most}
        for cell in cells
        for _ in range(workers)
    ]
    if workers > 1:
        pool.run(requests[:workers])  # afterwards all of them are awake, so that they do share the machine
    answers = pool.run(requests)
    if any(answer["kind"] != "timed" for answer in answers):
        return None
    found = {}
    for number, cell in enumerate(cells):
        own = answers[number * workers : (number + 1) * workers]
        slowest = {way: max(_seconds(answer[way]) for answer in own) / workers for way in ("alone", "together")}
        found[cell.variant] = _Times(**slowest)
    return found


def _seconds(answer: float | None) -> float:
    return math.inf if answer is None else float(answer)


def _share(most: int, workers: int, variants: int) -> int:
    """How many runs go together, so that every process gets some."""
    return max(1, math.ceil(most / math.ceil(workers / variants)))


def _reason(times: Mapping[tuple[int, int], _Times]) -> str:
    """Everything that was measured, in words."""
    ways = []
    for (workers, threads), found in times.items():
        shape = f"{workers} x {threads} thread{'' if threads == 1 else 's'}"
        ways.append(f"{1e3 * found.alone:.1f} ms as {shape}")
        if found.together < math.inf:
            ways.append(f"{1e3 * found.together:.1f} ms as {shape}, together")
    return f"measured: {'; '.join(ways)} a step and run"
