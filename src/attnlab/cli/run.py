"""``attnlab run``: a study from its rules to its verdict."""

from __future__ import annotations

import contextlib
import json as json_text
import sys
from pathlib import Path
from typing import Any, Literal

from attnlab.cli.terminal import Terminal, holds_all_characters
from attnlab.cli.words import Folder, Scale, StudyName, Whole
from attnlab.core.errors import SpecError


def run(
    study: StudyName,
    /,
    *,
    scale: Scale = None,
    out: Folder | None = None,
    seeds: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    jobs: Whole | None = None,
    together: Whole | None = None,
    like: Path | None = None,
    devices: Whole | None = None,
    nodes: Whole = 1,
    rendezvous: str | None = None,
    on: str | None = None,
    gpu_share: float | None = None,
    track: str = "",
    json: bool = False,
) -> int:
    """Run a study to its verdict, or what is missing of it.

    Parameters
    ----------
    study : str
        Name of a study of the library, or a YAML file.
    scale : str, optional
        One of the study's scales, for example ``small``.
    out : Path, optional
        Folder of the study; ``runs/STUDY`` (``runs/STUDY-SCALE``) by default. It may lie in an object store, such as
        ``s3://bucket/my-study`` (needs the extra ``attnlab[cloud]``).
    seeds : str, optional
        Number of seeds, instead of the study's own; ``3-20``: as many as it takes to decide, within these bounds.
    device : {"auto", "cpu", "cuda"}
        ``cpu``, ``cuda``, or ``auto``.
    jobs : int, optional
        Worker processes, which share the cores; by default one a core with one thread each.
    together : int, optional
        How many runs of a variant train as one program at most; by default all on a GPU, none on a CPU.
    like : Path, optional
        Folder of a study to repeat: computed with its threads, precision, compiling and runs together.
    devices : int, optional
        How many devices train each model together, by default as many as its recipe says (one); processes on a CPU.
    nodes : int
        Among how many machines these devices are divided; the same command is started on each, with a folder that all
        of them see.
    rendezvous : str, optional
        ``HOST:PORT``, an address of one of the machines, at which they meet.
    on : str, optional
        A Ray cluster that computes the runs (needs the extra ``attnlab[cluster]``): ``ray``, one on this machine for as
        long as the study runs; ``auto``, the one that is there; or ``ray://HOST:PORT``. Processes of this machine by
        default.
    gpu_share : float, optional
        Which part of a GPU each task on CUDA asks the cluster for, up to 1; by default what its runs need of the
        smallest one, by their measured memory.
    track : str
        Also show every run in ``tensorboard``, ``trackio``, ``wandb`` or ``mlflow``, several with commas between them;
        each is an extra, such as ``attnlab[wandb]``.
    json : bool
        Print ``report.json`` alone on standard output.

    Returns
    -------
    int
        0, or 1 if a run failed.
    """
    from attnlab.cli.progress import TerminalWatcher
    from attnlab.studies.define.study import load_study
    from attnlab.studies.execute import run_study

    question = load_study(study, scale=scale, changes=seed_changes(seeds))
    folder = out or default_folder(question.name, scale)
    console = Terminal(stderr=json)
    console.print(question.question, style="bold", markup=False, highlight=False)
    watched = TerminalWatcher(console, question.rules.metric)
    with contextlib.ExitStack() as held:
        held.enter_context(own_prints_to_stderr(json))
        meeting = held.enter_context(machines_met(nodes, rendezvous, folder))
        if meeting is not None and meeting.number > 0:
            follow_first(meeting, folder, console)
            return 0
        executor, watcher = held.enter_context(cluster_named(on, gpu_share)), held.enter_context(watched)
        how: dict[str, Any] = {"device": device, "jobs": jobs, "together": together, "like": like, "devices": devices}
        trackers = [name.strip() for name in track.split(",") if name.strip()]
        places: dict[str, Any] = {"executor": executor, "meeting": meeting}
        results = run_study(question, folder, **how, trackers=trackers, watcher=watcher, **places)
    report_and_show(results, folder, json=json)
    return int(any(alarm.check == "failed" for alarm in results.alarms))


def cluster_named(on: str | None, gpu_share: float | None = None) -> contextlib.AbstractContextManager[Any]:
    """The cluster that computes runs, if one was named."""
    if on is None:
        if gpu_share is not None:
            raise SpecError("--gpu-share is of the GPUs of a cluster; name one with --on")
        return contextlib.nullcontext()
    from attnlab.studies.run.cluster import Ray

    return Ray(on, gpu_share)


def machines_met(nodes: int, rendezvous: str | None, folder: Path) -> contextlib.AbstractContextManager[Any]:
    """The machines on which a model is trained, if there are several."""
    if nodes < 1:
        raise SpecError(f"--nodes must be at least 1; got {nodes}")
    if nodes == 1 and rendezvous:
        raise SpecError("--rendezvous is where several machines meet; say how many with --nodes")
    if nodes == 1:
        return contextlib.nullcontext()
    from attnlab.core.storage.store import address
    from attnlab.training.devices.nodes import meeting_of

    if not isinstance(address(folder), Path):
        raise SpecError(f"--nodes {nodes} needs a folder on a disk that all machines see; got --out {folder}")
    return meeting_of(nodes, rendezvous)


def follow_first(meeting: Any, folder: Path, console: Terminal) -> None:
    """Compute what the first machine says."""
    from attnlab.core.storage.store import address
    from attnlab.studies.run.ranks import follow

    console.print(f"computes with the machine at {meeting.host}:{meeting.port}, which tells of it", markup=False)
    follow(meeting, Path(address(folder)))


def seed_changes(seeds: str | None) -> dict[str, Any]:
    """What ``--seeds`` changes in a study: a number, or two with a hyphen between them, at least and at most."""
    from attnlab.studies.define.looks import checked_seeds

    if seeds is None:
        return {}
    least, hyphen, most = seeds.partition("-")
    try:
        wanted = {"at_least": int(least), "at_most": int(most)} if least and hyphen else int(seeds)
    except ValueError:
        raise SpecError(f"--seeds must be a whole number, or two such as 3-20; got {seeds}") from None
    if isinstance(wanted, dict):
        try:
            checked_seeds(wanted)
        except ValueError as error:
            raise SpecError(f"--seeds {seeds}: {error}") from None
    elif wanted < 1:
        raise SpecError(f"--seeds must be at least 1; got {seeds}")
    return {"rules": {"seeds": wanted}}


def own_prints_to_stderr(json: bool) -> contextlib.AbstractContextManager[Any]:
    """Keep standard output for JSON, whatever a person's own module prints."""
    return contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext()


def default_folder(name: str, scale: str | None) -> Path:
    """Where a study lives unless told otherwise: ``runs/NAME`` or ``runs/NAME-SCALE``."""
    return Path("runs") / (f"{name}-{scale}" if scale else name)


def report_and_show(results: Any, folder: Path, *, json: bool) -> None:
    """Write a study's report, and print its verdict for a person or the report for a program, if need be unwritten."""
    from attnlab.studies.report import report, write_report

    page = None
    try:
        page = write_report(results, folder, beside_rules=True)
    finally:
        if json:
            print_json(report(results))
        else:
            _show(results, page)


def _show(results: Any, page: Path | None) -> None:
    """Print a study's verdict for a person."""
    from attnlab.cli.progress import print_alarm
    from attnlab.studies.report import headline, verdict_table
    from attnlab.studies.storage.mirror import url_of

    console = Terminal()
    console.print(verdict_table(results, console.width))
    for alarm in results.alarms:
        print_alarm(console, alarm)
    console.print()
    console.print(headline(results), markup=False)
    if page is None:
        return
    url = url_of(page.parent)
    also = f" (also in {url})" if url else ""
    console.print(f"\nreport: {page}{also}", markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value of JSON types as JSON on standard output."""
    plain = not holds_all_characters()
    sys.stdout.write(json_text.dumps(value, indent=2, ensure_ascii=plain, allow_nan=False) + "\n")
