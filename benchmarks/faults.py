"""Disturb a study on a Ray cluster again and again, and hold its numbers against those of an undisturbed one.

Use: ``python benchmarks/faults.py --faults 50 --out FOLDER``; writes ``faults.json`` beside this file and the table of
``docs/scale.md``. Three nodes are started on this machine, with an address of the loopback network each; a study
runs on them round after round until there were so many faults. It takes most of an hour on two cores and needs Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equal import numbers_of

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "faults.json", HERE.parent / "docs" / "scale.md"
BEGIN, END = "<!-- faults: written by benchmarks/faults.py -->\n", "<!-- end of faults -->\n"
BIN = Path(sys.executable).parent
STUDY = """\
question: Does a run end in the same numbers, whatever is lost on the way?
task: {name: shapes, n_train: 200, n_test: 40, batch: 40}
model: {name: cnn, channels: 12, kernel_size: 3, n_layers: 4}
baseline: plain
variants:
  plain: {}
  attention: {mixer: {name: attention, n_heads: 2}, mixer_at: 1}
rules: {metric: test_mse, budget: {steps: 400}, seeds: 6, smallest_effect: 0.01}
training: {checkpoint_every: 25}
"""
PORT = 26379
TEMPORARY = Path("/tmp/attnlab-faults")
"""Where Ray keeps its logs and sockets, whose paths must be short."""
MARK = "ATTNLAB_FAULTS"
"""Variable of every process of a node, with the node's number."""
FAILING = """\
import builtins, errno, io, os

FLAG, FOLDER = os.environ["ATTNLAB_FAILS"], os.environ["ATTNLAB_FAILS_IN"]

def patched(module, name, path_of, mine=lambda *_, **__: True):
    plain = getattr(module, name)
    def call(*arguments, **named):
        if os.path.exists(FLAG) and mine(*arguments, **named) and str(path_of(arguments[0])).startswith(FOLDER):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(*arguments, **named)
    setattr(module, name, call)

def writes(path, mode="r", *_, **__):
    return not set("wax+").isdisjoint(mode)

for name in ("replace", "rename", "mkdir"):
    patched(os, name, str)
patched(os, "fsync", lambda number: os.readlink(f"/proc/self/fd/{number}"))
patched(io, "open", str, writes)
builtins.open = io.open
"""
"""What every process imports at its start: writing into the study's folder fails as long as a flag is there."""
RECOVERED_S = 400.0
"""After it a fault counts as one that a run did not get over; a run that was lost waits behind all others for a CPU."""
STOPPED_S = 20.0
FAILS_S = (3.0, 12.0)
BETWEEN_S = (3.0, 12.0)
"""How long after a fault the next one comes."""


# ---- processes ----


def environment(out: Path, **more: str) -> dict[str, str]:
    """Variables of every process of the campaign."""
    path = os.pathsep.join([str(out / "failing"), *filter(None, [os.environ.get("PYTHONPATH")])])
    failing = {
        "PYTHONPATH": path,
        "ATTNLAB_FAILS": str(out / "fails"),
        "ATTNLAB_FAILS_IN": f"{out}/round",
    }
    noticed = {"RAY_health_check_period_ms": "1000"}  # a lost node is noticed after seconds
    ray = {"RAY_USAGE_STATS_ENABLED": "0", **noticed, "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": f"127.0.0.1:{PORT}"}
    return {**os.environ, "OMP_NUM_THREADS": "1", **failing, **ray, **more}


def processes() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(stat.parent.name)] = int(parent)
    return found


def with_descendants(roots: set[int]) -> set[int]:
    """Processes, what they started, and so on."""
    found, parents = set(roots), processes()
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    return found & parents.keys()


def of_node(number: int) -> set[int]:
    """All processes of a node."""
    mark, roots = f"{MARK}={number}".encode(), set()
    for process in processes():
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                roots.add(process)
    return with_descendants(roots)


def named(process: int, name: str) -> bool:
    """Whether a process has a name in its command."""
    with contextlib.suppress(OSError):
        return name in Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    return False


def send(found: set[int], number: int) -> None:
    """Send processes a signal."""
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


class Cluster:
    """Three nodes of one CPU each; the first one is the head."""

    def __init__(self, out: Path) -> None:
        self.out, self.nodes = out, [0, 1, 2]

    def start(self, number: int) -> None:
        """Start a node, whatever was left of one with its number."""
        send(of_node(number), signal.SIGKILL)
        role = [f"--address=127.0.0.1:{PORT}"]
        if number == 0:
            role = ["--head", f"--port={PORT}", f"--temp-dir={TEMPORARY}", "--include-dashboard=false"]
            (TEMPORARY / "ray_current_cluster").unlink(missing_ok=True)  # what is left of a head that was killed
        ports = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        size = ["--num-cpus=1", "--object-store-memory=100000000", f"--node-ip-address=127.0.0.{number + 1}"]
        with (self.out / f"node-{number}.log").open("ab") as log:
            command = [str(BIN / "ray"), "start", *role, *ports, *size]
            done = subprocess.run(
                command,
                env=environment(self.out, **{MARK: str(number)}),
                stdout=log,
                stderr=log,
                cwd=self.out,
                check=False,
            )
        if done.returncode:
            raise SystemExit(f"a node did not start; see {self.out}/node-{number}.log")

    def keep(self) -> None:
        """Start nodes anew whose raylet is gone."""
        for number in self.nodes:
            if not any(named(process, "raylet/raylet") for process in of_node(number)):
                self.start(number)

    def end(self) -> None:
        """End all nodes."""
        for number in self.nodes:
            send(of_node(number), signal.SIGKILL)


class Command:
    """The command that runs the study, started again when it has ended before the study has."""

    def __init__(self, out: Path) -> None:
        self.out, self.times = out, 0
        self.process: subprocess.Popen[bytes] | None = None

    def keep(self, folder: Path) -> bool:
        """Start it where it does not run; False once the study is done."""
        if self.process is not None and self.process.poll() is None:
            return True
        if self.process is not None and self.process.returncode == 0:
            return False
        self.times += 1
        with (self.out / "command.log").open("ab") as log:
            command = [str(BIN / "attnlab"), "run", str(self.out / "study.yaml"), "--on", "auto", "--out", str(folder)]
            self.process = subprocess.Popen(
                command, env=environment(self.out), stdout=log, stderr=log, cwd=self.out, start_new_session=True
            )
        return True

    def kill(self) -> None:
        """Kill it."""
        if self.process is not None:
            send(with_descendants({self.process.pid}), signal.SIGKILL)
            self.process.wait()


# ---- what the runs' folders say ----


def steps_of(folder: Path) -> dict[str, int]:
    """By run the last step on disk; a run that is done has made infinitely many."""
    found = {}
    for metrics in folder.glob("*/seed-*/metrics.jsonl"):
        lines = metrics.read_text(errors="replace").splitlines()
        with contextlib.suppress(ValueError, IndexError):
            found[str(metrics.parent.relative_to(folder))] = json.loads(lines[-1])["step"]
    for result in folder.glob("*/seed-*/result.json"):
        found[str(result.parent.relative_to(folder))] = sys.maxsize
    return found


def holders_of(folder: Path) -> dict[str, int]:
    """By run that is computed the process that does."""
    found = {}
    for note in folder.glob("*/seed-*/.lock.json"):
        with contextlib.suppress(OSError, ValueError):
            found[str(note.parent.relative_to(folder))] = json.loads(note.read_text())["pid"]
    alive = processes()
    return {run: process for run, process in found.items() if process in alive}


# ---- faults ----


@dataclass
class Campaign:
    """Hold what is disturbed."""

    out: Path
    draw: random.Random
    cluster: Cluster
    command: Command
    folder: Path = Path()
    faults: list[dict[str, Any]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)  # those to come, each as often as any other
    watched: list[dict[str, Any]] = field(default_factory=list)  # faults that are not over

    def disturb(self) -> None:
        """Let something happen, unless nothing runs or what ended everything is not over."""
        running = holders_of(self.folder)
        if not running or any(fault["kind"] in ENDS_ALL for fault in self.watched):
            return
        self.kinds = self.kinds or self.draw.sample(list(KINDS), len(KINDS))
        kind, before, begun = self.kinds.pop(), steps_of(self.folder), time.monotonic()
        hit = KINDS[kind](self, running)
        ended = set() if kind in GO_ON else {running[run] for run in hit}
        self.watched.append({"kind": kind, "hit": hit, "ended": ended, "before": before, "begun": begun})
        self.faults.append(self.watched[-1])

    def watch(self) -> None:
        """Note of every fault when all the runs that it hit are further than before, or that they do not get there."""
        now, holders = steps_of(self.folder), holders_of(self.folder)
        for fault in list(self.watched):
            taken_up = [run for run, process in holders.items() if process not in fault["ended"]]
            further = {run for run in taken_up if now.get(run, -1) > fault["before"].get(run, 0)}
            done = {run for run in fault["hit"] if now.get(run) == sys.maxsize}
            seconds = time.monotonic() - fault["begun"]
            goes_on = done | further >= set(fault["hit"])
            if goes_on or seconds > RECOVERED_S:
                self.watched.remove(fault)
                fault |= {"seconds": round(seconds, 1), "outcome": "goes on" if goes_on else "hangs"}
                print({key: fault[key] for key in SHOWN}, flush=True)

    def kill_worker(self, running: Mapping[str, int]) -> list[str]:
        """Kill the process of a run."""
        run = self.draw.choice(sorted(running))
        send({running[run]}, signal.SIGKILL)
        return [run]

    def stop_worker(self, running: Mapping[str, int]) -> list[str]:
        """Stop the process of a run for a while; nobody else may compute it in the meantime."""
        run = self.draw.choice(sorted(running))
        send({running[run]}, signal.SIGSTOP)
        until = time.monotonic() + STOPPED_S
        while time.monotonic() < until:
            if holders_of(self.folder).get(run, running[run]) != running[run]:
                raise SystemExit(f"{run} was computed twice at once")
            time.sleep(0.5)
        send({running[run]}, signal.SIGCONT)
        return [run]

    def busy_node(self, running: Mapping[str, int]) -> set[int]:
        """The processes of one of the nodes beside the head, of one that computes a run where there is one."""
        nodes = [of_node(number) for number in (1, 2)]
        return self.draw.choice([node for node in nodes if node & set(running.values())] or nodes)

    def kill_raylet(self, running: Mapping[str, int]) -> list[str]:
        """Kill what Ray runs on a node; its runs notice."""
        node = self.busy_node(running)
        send({process for process in node if named(process, "raylet/raylet")}, signal.SIGKILL)
        return [run for run, process in running.items() if process in node]

    def kill_node(self, running: Mapping[str, int]) -> list[str]:
        """Kill every process of a node at once, as a machine that goes."""
        node = self.busy_node(running)
        send(node, signal.SIGKILL)
        return [run for run, process in running.items() if process in node]

    def kill_command(self, running: Mapping[str, int]) -> list[str]:
        """Kill the command; it is started again."""
        self.command.kill()
        return list(running)

    def kill_head(self, running: Mapping[str, int]) -> list[str]:
        """Kill the first node, with all that Ray knows of the cluster; it is started again."""
        send(of_node(0), signal.SIGKILL)
        return list(running)

    def fail_storage(self, running: Mapping[str, int]) -> list[str]:
        """Let every write into the study's folder fail for some seconds."""
        (self.out / "fails").touch()
        time.sleep(self.draw.uniform(*FAILS_S))
        (self.out / "fails").unlink()
        return list(running)


KINDS: Mapping[str, Callable[[Campaign, Mapping[str, int]], list[str]]] = {
    "process of a run killed": Campaign.kill_worker,
    "process of a run stopped for 20 s": Campaign.stop_worker,
    "raylet of a node killed, node replaced": Campaign.kill_raylet,
    "all of a node killed, node replaced": Campaign.kill_node,
    "command killed and given again": Campaign.kill_command,
    "head killed and started again": Campaign.kill_head,
    "storage fails for 3 to 12 s": Campaign.fail_storage,
}

SHOWN = ("kind", "hit", "outcome", "seconds")
"""What is written down of a fault."""
ENDS_ALL = ("command killed and given again", "head killed and started again")
"""Faults until the end of which nothing else happens."""
GO_ON = ("process of a run stopped for 20 s", "storage fails for 3 to 12 s")
"""Faults after which the same processes go on; after all others another one must have come to be further."""


def rounds(campaign: Campaign, faults: int) -> Iterator[Path]:
    """Run the study until there were so many faults; yield the folder of every round."""
    while len(campaign.faults) < faults:
        campaign.folder = campaign.out / f"round-{len(list(campaign.out.glob('round-*')))}"
        campaign.command.process = None
        due = 0.0
        while campaign.command.keep(campaign.folder):
            campaign.cluster.keep()
            campaign.watch()
            if len(campaign.faults) < faults and time.monotonic() > due:
                campaign.disturb()
                due = time.monotonic() + campaign.draw.uniform(*BETWEEN_S)
            time.sleep(0.5)
        campaign.watch()
        yield campaign.folder


def table(results: Mapping[str, Any]) -> str:
    """The faults by kind as rows of Markdown."""
    heads = ["what happened", "times", "runs hit", "all went on", "seconds until further, median (most)"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for kind in KINDS:
        found = [fault for fault in results["faults"] if fault["kind"] == kind]
        seconds = [fault["seconds"] for fault in found if fault["hit"]] or [0.0]
        shown = f"{statistics.median(seconds):.0f} ({max(seconds):.0f})"
        hit, went_on = sum(len(fault["hit"]) for fault in found), sum(fault["outcome"] == "goes on" for fault in found)
        lines.append(f"| {kind} | {len(found)} | {hit} | {went_on} | {shown} |")
    counted = f"{results['equal']} of {results['runs']} disturbed runs ended in the numbers and the curve"
    return "\n".join(lines) + f"\n\n{counted} of an undisturbed one, to the bit.\n"


def main() -> None:
    """Disturb, compare, and write down what was found."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--faults", type=int, default=50)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--out", type=Path, required=True)
    wanted = words.parse_args()
    out = wanted.out.resolve()
    (out / "failing").mkdir(parents=True)
    (out / "failing" / "sitecustomize.py").write_text(FAILING)
    (out / "study.yaml").write_text(STUDY)
    undisturbed = [str(BIN / "attnlab"), "run", str(out / "study.yaml"), "--out", str(out / "undisturbed")]
    subprocess.run(undisturbed, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    expected = numbers_of(out / "undisturbed")
    campaign = Campaign(out, random.Random(wanted.seed), Cluster(out), Command(out))
    found: list[bool] = []
    try:
        campaign.cluster.keep()
        for folder in rounds(campaign, wanted.faults):
            numbers = numbers_of(folder)
            found += [numbers.get(run) == one for run, one in expected.items()]
            print(f"{folder.name}: {sum(found)} of {len(found)} runs equal", flush=True)
            faults = [{key: fault[key] for key in SHOWN} for fault in campaign.faults]
            commands = campaign.command.times
            results = {"runs": len(found), "equal": sum(found), "commands": commands, "faults": faults}
            (out / "faults.json").write_text(json.dumps(results, indent=1) + "\n")
    finally:
        campaign.command.kill()
        campaign.cluster.end()
    shutil.copy(out / "faults.json", RESULTS)
    page = PAGE.read_text(encoding="utf-8")
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:begin] + table(results) + page[end:], encoding="utf-8")
    sys.exit(sum(found) < len(found))


if __name__ == "__main__":
    main()
