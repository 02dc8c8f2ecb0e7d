"""How the cells of a study share the machine: processes, threads, device, and which runs train as one program.

All of it changes how sums are rounded, so it follows from a rule that knows no clock; it is written down, and another
study can be computed in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import read_json, write_json
from attnlab.core.machine import require_memory, usable_bytes, usable_cores, usable_threads
from attnlab.studies.define.study import slug
from attnlab.studies.plan.plan import CellPlan, Plan, PlannedVariant
from attnlab.studies.run.folder import recorded_setting

WORKER_BYTES = 400_000_000  # of a process that has imported torch
BYTES_PER_PARAMETER = 16  # weight, gradient and two moments in float32

LAYOUT = "layout.json"
WORKERS_LOG = "workers.log"


@final
@dataclass(frozen=True)
class Layout:
    """Say how cells share the machine, and why."""

    workers: int  # number of processes
    threads: int  # threads of each
    device: str  # ``cpu`` or ``cuda``
    reason: str  # why, in words
    together: dict[str, int] = field(default_factory=dict)
    """By variant, how many of its runs train as one program at most; variants that are not in it train run by run."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By variant ``precision`` and ``compile``, where they are those of another study; others follow their recipe."""

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


@final
@dataclass(frozen=True)
class Wishes:
    """Hold what a person asks of a layout."""

    device: str = "auto"  # ``cpu``, ``cuda``, or ``auto``: CUDA where there is one
    jobs: int | None = None  # number of processes; None follows the rule
    together: int | None = None  # how many runs of a variant train as one program at most; None follows the rule
    like: Path | None = None
    """Folder of a study that is repeated: its threads, device, runs together, precision and compiling are taken."""
    elsewhere: bool = False  # whether another executor computes the runs, as many at a time as it has room for

    def check(self) -> None:
        """Raise where something is asked for that cannot be."""
        for name, value in (("--jobs", self.jobs), ("--together", self.together)):
            if value is not None and value < 1:
                raise SpecError(f"{name} must be at least 1; got {value}")
        if self.like is not None and self.together is not None:
            raise SpecError("--like takes over which runs train together; leave out --together")


def layout_for(plan: Plan, out: Path, wishes: Wishes) -> Layout:
    """How cells share the machine: as before where the study has begun, as another study did, else by rule."""
    if (out / LAYOUT).exists():
        return _as_begun(out, wishes)
    layout = _like(plan, wishes) if wishes.like else _by_rule(plan, wishes)
    write_json(out / LAYOUT, asdict(layout))
    return layout


def bounded(jobs: int, plan: Plan) -> tuple[int, str]:
    """So many processes as have a core, and memory for the largest run, each; and what is to be said of fewer."""
    largest = int(max(map(trained_bytes, plan.variants)))
    cores, hold = usable_cores(), max(1, usable_bytes() // (WORKER_BYTES + largest))
    most = min(cores, hold)
    why = f"the machine has {cores} cores" if cores <= hold else f"its memory holds {hold}"
    return min(jobs, most), f"--jobs {jobs}: {most} at a time, as {why}" if jobs > most else ""


def require_room(plan: Plan, wishes: Wishes) -> None:
    """Raise where a run on the CPU asks for more memory than this machine has."""
    for variant in plan.variants if _device(wishes.device) == "cpu" else ():
        require_memory(f"a run of '{variant.name}'", WORKER_BYTES + trained_bytes(variant))


def trained_bytes(variant: PlannedVariant) -> float:
    """What a run keeps while it trains: weights, gradients, moments, and what a piece of a batch leaves for backward.

    Activations are measured, in float32, as the plan shows them.
    """
    kept = variant.activation_bytes / variant.training.get("accumulate", 1)
    return kept + BYTES_PER_PARAMETER * variant.parameters


def needs_own_time(plan: Plan) -> bool:
    """Whether what runs reach depends on how fast they are, so that none may slow another down."""
    return plan.judges_time or "seconds" in plan.study.rules.budget


def most_together(plan: Plan) -> int:
    """How many runs of one variant there are to train together; 1 where each needs its own time."""
    rules = plan.study.rules
    if needs_own_time(plan) or rules.target or rules.split:
        return 1
    return max(rules.looks[-1], len(list(rules.grid())))


def _as_begun(out: Path, wishes: Wishes) -> Layout:
    saved = Layout(**read_json(out / LAYOUT))
    if wishes.device not in ("auto", saved.device):
        raise RunError(f"{out} was begun on {saved.device}; go on there, or choose another folder with --out")
    asked = [name for name in ("together", "like") if getattr(wishes, name) is not None]
    if asked:
        raise RunError(f"{out} has begun, so --{asked[0]} comes too late; choose another folder with --out")
    workers = wishes.jobs or max(1, min(saved.workers, usable_cores() // saved.threads))
    reason = "as when the study began"
    return Layout(workers, saved.threads, saved.device, reason, saved.together, saved.settings)


def _by_rule(plan: Plan, wishes: Wishes) -> Layout:
    """One process on an accelerator, with all runs of a variant together; one thread for each process on a CPU."""
    device = _device(wishes.device)
    most = min(wishes.together or math.inf, most_together(plan))
    alike = [variant.name for variant in plan.variants if variant.training.get("objective") in (None, "likelihood")]
    together = dict.fromkeys(alike, int(most)) if most > 1 else {}
    if device != "cpu" and wishes.elsewhere and not wishes.jobs and not needs_own_time(plan):
        return Layout(1, 1, device, "one thread for each process of a cluster, which share accelerators", together)
    if device != "cpu":
        jobs, reason = wishes.jobs or 1, "asked for" if wishes.jobs else "one process on the accelerator"
        reason += "; runs of one variant together" if together else ""
        return Layout(jobs, usable_threads(jobs), device, reason, together)
    together = together if wishes.together else {}
    if wishes.jobs:
        return Layout(wishes.jobs, usable_threads(wishes.jobs), device, "asked for", together)
    if plan.judges_time:
        return Layout(1, usable_threads(), device, "one run at a time: the verdict is about wall time")
    cells = len(plan.tuning_cells()) or len(plan.variants) * plan.study.rules.looks[0]
    if cells == 1:
        return Layout(1, usable_threads(), device, "one cell at a time")
    return Layout(min(usable_cores(), cells), 1, device, "one process a core", together)


def _device(wanted: str) -> str:
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


def _like(plan: Plan, wishes: Wishes) -> Layout:
    """The layout of a study that is repeated, with the precision and compiling that its runs ended in."""
    folder = Path(wishes.like or "")
    if not (folder / LAYOUT).exists():
        raise SpecError(f"--like {folder}: no {LAYOUT} in it; name the folder of a study that has run")
    other = Layout(**read_json(folder / LAYOUT))
    if wishes.device not in ("auto", other.device):
        raise SpecError(f"--like {folder} was computed on {other.device}; leave out --device")
    settings = {variant.name: _recorded_setting(folder, variant.name) for variant in plan.variants}
    missing = [name for name, setting in settings.items() if setting is None]
    if missing:
        raise SpecError(f"--like {folder}: it has no finished run of {', '.join(map(repr, missing))}")
    workers = wishes.jobs or max(1, min(other.workers, usable_cores() // other.threads))
    found = {name: setting for name, setting in settings.items() if setting is not None}
    return Layout(workers, other.threads, other.device, f"as in {folder}", other.together, found)


def _recorded_setting(folder: Path, variant: str) -> dict[str, Any] | None:
    """Precision and compiling that a variant's judged runs ended in; None where none did."""
    for path in sorted((folder / slug(variant)).glob("seed-*/result.json")):
        return recorded_setting(path.parent)
    return None
