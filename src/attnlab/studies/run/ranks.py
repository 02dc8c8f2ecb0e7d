"""Cells whose model is trained on several devices: one at a time, by processes that are started for it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from attnlab.core.errors import AttnlabError, Interrupted, RunError, SpecError
from attnlab.core.files import read_json, write_json
from attnlab.core.machine import usable_threads
from attnlab.core.processes.apart import names_own_code
from attnlab.studies.define.assemble import build_task
from attnlab.studies.plan.plan import Plan, require_devices
from attnlab.studies.run.executor import Executor, Job, OnMessage, shown

if TYPE_CHECKING:
    from attnlab.training.devices.nodes import Meeting, Nodes

TOKEN = "nodes.json"
"""File by which machines see that they have one folder; it is there for a moment."""
SEEN_S = 30.0  # within which a folder shows on one machine what another has written


@final
@dataclass(frozen=True)
class OnRanks:
    """Compute each cell on as many devices as its recipe says, those of one device elsewhere."""

    others: Executor  # computes cells of one device
    devices: int | None = None  # of every cell, whatever the recipes say
    meeting: Meeting | None = None  # the machines whose devices they are; this one leads

    def run(self, jobs: Sequence[Job], on_message: OnMessage) -> None:
        """Compute jobs of one device, then the cells of the others one after another, until no more are appended."""
        taken = 0
        while taken < len(jobs):
            settled = [replace(job, setting={**job.setting, "devices": self._count(job)}) for job in jobs[taken:]]
            numbers, taken = range(taken, len(jobs)), len(jobs)
            alone = [number for number, job in zip(numbers, settled, strict=True) if job.setting["devices"] == 1]
            if alone:
                ours = [settled[number - numbers[0]] for number in alone]
                self.others.run(ours, lambda place, one, alone=alone: on_message(alone[place], one))
            for number, job in zip(numbers, settled, strict=True):
                if number not in alone:
                    self._run(job, lambda message, number=number: on_message(number, message))

    def _count(self, job: Job) -> int:
        return self.devices or max(devices_of(spec["recipe"]) for spec in job.specs)

    def _run(self, job: Job, tell: Callable[[Mapping[str, Any]], None]) -> None:
        threads = usable_threads(job.setting["devices"]) if job.device == "cpu" else job.threads
        for cell, (folder, spec) in enumerate(zip(job.folders, job.specs, strict=True)):
            one = replace(job, folders=(folder,), specs=(spec,), threads=threads)
            tell(_outcome(one, cell, tell, self.meeting))


def wanted_ranks(
    plan: Plan,
    devices: int | None,
    *,
    jobs: int | None,
    together: int | None,
    elsewhere: bool,
    meeting: Meeting | None = None,
) -> int:
    """The most devices that a model of a study is to be trained on.

    A `SpecError` is raised where several are wanted, and something that has no meaning with them, or they do not divide
    a variant's batch, or machines do not divide them.
    """
    if devices is not None and devices < 1:
        raise SpecError(f"--devices must be at least 1; got {devices}")
    wanted = devices or max(devices_of(variant.training) for variant in plan.variants)
    others = {"--jobs": bool(devices and jobs), "--together": together is not None, "--on": elsewhere}
    asked = [name for name, given in others.items() if given]
    if wanted > 1 and asked:
        raise SpecError(f"runs on {wanted} devices are computed one at a time on this machine; leave out {asked[0]}")
    nodes = _nodes_of(meeting)
    for variant in plan.variants:
        count = devices or devices_of(variant.training)
        if count % nodes and (devices or count > 1):
            raise SpecError(f"{count} devices of {variant.name} cannot be divided among {nodes} nodes")
        if devices and wanted > 1:  # those of recipes were looked at in the plan
            own = names_own_code([variant.model, variant.training])  # is built in no process but that of its run
            how = {key: variant.training[key] for key in ("sharding", "accumulate") if key in variant.training}
            require_devices(
                variant.model, build_task(plan.study.task_spec(variant.name)), devices, **how, builds=not own
            )
    if wanted == 1 and nodes > 1:
        raise SpecError(f"--nodes {nodes}: no run is computed on several devices; add --devices {nodes}")
    return wanted


def _nodes_of(meeting: Meeting | None) -> int:
    """On how many machines a model is trained."""
    return 1 if meeting is None else meeting.count


def on_ranks(
    executor: Executor, ranks: int, devices: int | None, *, meeting: Meeting | None, device: str, out: Path
) -> Executor:
    """What computes a study whose models are trained on so many devices at most; as it is, where they are on one.

    A `SpecError` says that devices are not there, or that a machine does not see the study's folder or does not come in
    time.
    """
    from attnlab.training.devices.launching import check_devices

    if ranks == 1 and not devices:
        return executor
    check_devices(ranks // _nodes_of(meeting), device, "--devices" if devices else "training.devices:")
    if meeting is not None:
        _share_folder(meeting, out)
    return OnRanks(executor, devices, meeting)


def _share_folder(meeting: Meeting, out: Path) -> None:
    """Wait on the first of several machines until the others have seen the folder of the study."""
    token = secrets.token_hex()
    try:
        write_json(out / TOKEN, {"token": token})
        meeting.call({"token": token})
        meeting.gather()
    finally:
        (out / TOKEN).unlink(missing_ok=True)


def follow(meeting: Meeting, out: Path) -> None:
    """Compute on another machine what the first one says, until the study has come to its end.

    Raises
    ------
    SpecError
        If this machine does not see the folder of the study.
    RunError
        If the first machine fails, or is gone.
    Interrupted
        If a person stopped the run.
    """
    from attnlab.training.devices.launching import on_devices

    while (heard := meeting.heard()) is not None:
        what, place = heard
        if "token" in what:
            _require_seen(meeting, out, what["token"])
            continue
        job = _placed(Job(**what["job"]), Path(what["job"]["study"]), out)
        try:
            on_devices(job.setting["devices"], _compute, job, device=job.device, nodes=place)
            meeting.tell_end()
        except Interrupted:
            raise
        except AttnlabError as error:  # of this run: the first machine tells of it, and what is computed next
            meeting.tell_end(str(error))


def _require_seen(meeting: Meeting, out: Path, token: str) -> None:
    """Check that the folder is that of the first machine."""
    end = time.monotonic() + SEEN_S
    while True:
        try:
            if read_json(out / TOKEN)["token"] == token:
                return meeting.be_ready()
        except RunError:
            pass
        if time.monotonic() > end:
            break
        time.sleep(0.2)
    text = f"a node does not see the first one's folder of the study in {out}; give --out on a disk that all share"
    meeting.refuse(text)
    raise SpecError(text)


def _placed(job: Job, study: Path, out: Path) -> Job:
    """A job of another machine in the folder as this one sees it."""
    here = out.absolute()
    folders = tuple(str(here / Path(folder).relative_to(study)) for folder in job.folders)
    return replace(job, folders=folders, specs=tuple(job.specs), study=str(here))


def devices_of(recipe: Mapping[str, Any]) -> int:
    """How many devices a recipe wants, which need not be checked yet."""
    found = recipe.get("devices", 1)
    return found if isinstance(found, int) else 1


def _outcome(job: Job, cell: int, tell: Callable[[Mapping[str, Any]], None], meeting: Meeting | None) -> dict[str, Any]:
    from attnlab.training.devices.launching import on_devices

    def tell_of_cell(message: Mapping[str, Any]) -> None:
        tell({**message, "cell": cell})

    with shown(job, 0, tell_of_cell) as on_event:

        def pass_on(event: Mapping[str, Any]) -> None:
            on_event(event)
            tell_of_cell(event)

        place: dict[str, Nodes] = {"nodes": meeting.call({"job": asdict(job)})} if meeting else {}
        try:
            metrics = on_devices(job.setting["devices"], _compute, job, device=job.device, on_message=pass_on, **place)
        except Interrupted:
            raise
        except AttnlabError as error:
            others = dict.fromkeys(meeting.errors()) if meeting else {}  # each once
            said = "; on another node: ".join([str(error), *(other for other in others if other != str(error))])
            return {"kind": "failed", "cell": cell, "error": said}
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
