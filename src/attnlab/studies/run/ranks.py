"""Cells whose model is trained on several devices: one at a time, by processes that are started for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import AttnlabError, Interrupted, SpecError
from attnlab.core.machine import usable_threads
from attnlab.studies.define.assemble import build_task
from attnlab.studies.plan.plan import Plan, require_pieces
from attnlab.studies.run.executor import Executor, Job, OnMessage, shown


@final
@dataclass(frozen=True)
class OnRanks:
    """Compute each cell on as many devices as its recipe says, those of one device elsewhere.

    Parameters
    ----------
    others : Executor
        Computes cells of one device.
    devices : int, optional
        Devices of every cell, whatever the recipes say.
    """

    others: Executor
    devices: int | None = None

    def run(self, jobs: Sequence[Job], on_message: OnMessage) -> None:
        """Compute jobs of one device, then the cells of the others one after another."""
        settled = [replace(job, setting={**job.setting, "devices": self._count(job)}) for job in jobs]
        alone = [number for number, job in enumerate(settled) if job.setting["devices"] == 1]
        if alone:
            self.others.run([settled[number] for number in alone], lambda place, one: on_message(alone[place], one))
        for number, job in enumerate(settled):
            if number not in alone:
                self._run(job, lambda message, number=number: on_message(number, message))

    def _count(self, job: Job) -> int:
        return self.devices or max(devices_of(spec["recipe"]) for spec in job.specs)

    def _run(self, job: Job, tell: Callable[[Mapping[str, Any]], None]) -> None:
        """Compute the cells of a job."""
        threads = usable_threads(job.setting["devices"]) if job.device == "cpu" else job.threads
        for cell, (folder, spec) in enumerate(zip(job.folders, job.specs, strict=True)):
            one = replace(job, folders=(folder,), specs=(spec,), threads=threads)
            tell(_outcome(one, cell, tell))


def wanted_ranks(plan: Plan, devices: int | None, *, jobs: int | None, together: int | None, elsewhere: bool) -> int:
    """The most devices that a model of a study is to be trained on.

    Raises
    ------
    SpecError
        If several are wanted, and something that has no meaning with them, or they do not divide a variant's batch.
    """
    if devices is not None and devices < 1:
        raise SpecError(f"--devices must be at least 1; got {devices}")
    wanted = devices or max(devices_of(variant.training) for variant in plan.variants)
    others = {"--jobs": bool(devices and jobs), "--together": together is not None, "--on": elsewhere}
    asked = [name for name, given in others.items() if given]
    if wanted > 1 and asked:
        raise SpecError(f"runs on {wanted} devices are computed one at a time on this machine; leave out {asked[0]}")
    for variant in plan.variants if devices and wanted > 1 else ():  # those of recipes were looked at in the plan
        task = build_task(plan.study.task_spec(variant.name))
        require_pieces(task, wanted * variant.training.get("accumulate", 1))
    return wanted


def devices_of(recipe: Mapping[str, Any]) -> int:
    """How many devices a recipe wants, which need not be checked yet."""
    found = recipe.get("devices", 1)
    return found if isinstance(found, int) else 1


def _outcome(job: Job, cell: int, tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """How a cell ended on its devices."""
    from attnlab.training.devices.launching import on_devices

    def tell_of_cell(message: Mapping[str, Any]) -> None:
        tell({**message, "cell": cell})

    with shown(job, 0, tell_of_cell) as on_event:

        def pass_on(event: Mapping[str, Any]) -> None:
            on_event(event)
            tell_of_cell(event)

        try:
            metrics = on_devices(job.setting["devices"], _compute, job, device=job.device, on_message=pass_on)
        except Interrupted:
            raise
        except AttnlabError as error:
            return {"kind": "failed", "cell": cell, "error": str(error)}
    return {"kind": "finished", "cell": cell, "metrics": metrics}


def _compute(job: Job) -> dict[str, float]:
    """Compute a cell on this rank; the first prepares the data, and looks inside what was trained."""
    from attnlab.studies.run.cell import run_cells
    from attnlab.studies.using.kept_task import keep_task
    from attnlab.training.devices.launching import tell_parent
    from attnlab.training.devices.ranks import ranks_here

    (folder,), (spec,), ranks = job.folders, job.specs, ranks_here()
    if ranks.is_first:
        keep_task(Path(folder), build_task(spec["task"]))
    ranks.wait()
    mine = {**spec, "look_inside": spec["look_inside"] and ranks.is_first}
    (outcome,) = run_cells(
        [Path(folder)],
        [mine],
        threads=job.threads,
        device=job.device,
        setting=job.setting,
        on_event=lambda _, event: tell_parent(event),
    )
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
