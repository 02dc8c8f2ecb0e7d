"""Let hundreds of hostile modules at the commands that take a person's own, and count what becomes of them.

Use: ``python benchmarks/hostile.py --count 500 --out FOLDER``; goes on where it stopped, and writes ``hostile.json``
beside this file and the table of ``docs/reliability.md``. A module is a misdeed at a place; each is given to a command in
a process forked from this one, which has torch already, and so are the processes that the command starts. Limits of time
are shorter than a person's (`LIMITS`). Needs Linux.

This is no sandbox: a module may do to files what the person may who starts it.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import hashlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnlab.core.processes import forking

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "hostile.json", HERE.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- hostile modules: written by benchmarks/hostile.py -->\n", "<!-- end of hostile modules -->\n"
PATIENCE_S = 12.0
LIMITS = {"LOADING_S": 4.0, "INTERVIEW_S": 4.0, "CHECK_S": 2.0, "ALL_S": 8.0}
"""Of the doctor's steps here, in seconds; a person's are fifteen times as long."""
DOCTOR_S = 30.0
HANGS_S = 150.0
"""A command that takes longer hangs; an honest module takes some five seconds."""
KINDS = ("done", "one clear line", "traceback", "hang", "wrong result", "lost data", "without a reason")
"""What becomes of a command: it does its work in spite of the module, or says why not; or worse."""

STUDY = """\
question: "Does a mixer help?"
task: {name: shapes, n_train: 60, n_test: 11, batch: 20}
model: {name: cnn, channels: 6, kernel_size: 3, n_layers: 3}
baseline: plain
variants:
  plain: {}
  mine: {mixer: "./mine.py:Mine", mixer_at: 1}
rules: {metric: test_mse, budget: {steps: 8}, seeds: 1, smallest_effect: 0.01}
"""
CASE = """\
question: "Why is it so bad?"
task: {name: shapes, n_train: 60, n_test: 11, batch: 20}
model: {name: cnn, channels: 6, kernel_size: 3, n_layers: 3}
variants: {mine: {mixer: "./mine.py:Mine", mixer_at: 1}}
training: {lr: 0.01, budget: {steps: 8}}
saw: {test_mse: 2.0}
expected: {test_mse: 0.5}
"""
MODULE = """\
import atexit, builtins, ctypes, gc, io, json, multiprocessing, os, pathlib, random, resource, signal, socket, subprocess
import sys, tempfile, threading, time, warnings
import numpy
import torch
from torch import nn

class Stop(BaseException):
    pass

class Mute(Exception):
    def __str__(self):
        raise Mute

def misdeed(*_):
{misdeed}

{at_import}

class Mine(nn.Module):
    '''A position-wise layer over (batch, length, d_model).'''
{class_body}
    def __init__(self, d_model: int):
        super().__init__()
        self.linear, self.steps = nn.Linear(d_model, d_model), 0
{init}
    def forward(self, x):
{forward}
        y = self.linear(x)
{after}
        return y
"""
PLACES: Mapping[str, Mapping[str, str]] = {
    "import": {"at_import": "misdeed()"},
    "class body": {"class_body": "misdeed()"},
    "__init__": {"init": "misdeed()"},
    "forward": {"forward": "misdeed()"},
    "training": {"forward": "if self.training and x.device.type == 'cpu': misdeed()"},
    "step 5": {"forward": "self.steps += self.training and x.device.type == 'cpu'\nif self.steps == 5: misdeed()"},
    "evaluation": {"forward": "if not self.training: misdeed()"},
    "backward": {"after": "if y.requires_grad: y.register_hook(misdeed)"},
    "state_dict": {
        "class_body": "def state_dict(self, *a, **k):\n    misdeed()\n    return super().state_dict(*a, **k)"
    },
    "__del__": {"class_body": "def __del__(self):\n    misdeed()"},
    "__deepcopy__": {"class_body": "def __deepcopy__(self, memo):\n    misdeed()\n    return Mine(6)"},
    "property": {"class_body": "@property\ndef d_out(self):\n    misdeed()"},
    "named_parameters": {
        "class_body": "def named_parameters(self, *a, **k):\n    misdeed()\n    return super().named_parameters(*a, **k)"
    },
    "train": {"class_body": "def train(self, mode=True):\n    misdeed()\n    return super().train(mode)"},
    "exit handler": {"at_import": "atexit.register(misdeed)"},
    "thread": {"at_import": "threading.Thread(target=misdeed).start()"},
    "thread in forward": {"forward": "if self.steps == 0: threading.Thread(target=misdeed).start()\nself.steps += 1"},
}


class Misdeed(NamedTuple):
    """What a module does."""

    name: str
    body: str  # of a function that is called without arguments
    harmless: bool = False  # whether its numbers must be those of the module that does nothing


def replaces(*names: str, by: str = "None") -> Misdeed:
    """A misdeed that replaces functions of libraries."""
    return Misdeed(f"replaces {', '.join(names)}", "\n".join(f"{name} = {by}" for name in names))


MISDEEDS: tuple[Misdeed, ...] = (
    Misdeed("nothing", "pass", harmless=True),
    *(
        Misdeed(body, body)
        for body in (
            *("sys.exit(3)", "sys.exit('enough')", "os._exit(0)", "os._exit(7)", "os.abort()", "ctypes.string_at(0)"),
            *("os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGTERM)"),
            *("os.kill(os.getpid(), signal.SIGINT)", "os.killpg(os.getpgid(0), signal.SIGTERM)"),
            *("raise ValueError('no')", "raise Stop", "raise KeyboardInterrupt", "raise GeneratorExit", "raise Mute"),
            *("raise StopIteration", "raise MemoryError", "raise ValueError('one\\ntwo\\n' * 9000)", "misdeed()"),
            *(
                "raise RuntimeError('[bold]no[/bold] [/] {0} %s \\x1b[31m \\x00')",
                "raise torch.OutOfMemoryError('none')",
            ),
            *("[][0]", "1 / 0", "raise SystemExit(ValueError('x'))", "raise ExceptionGroup('two', [OSError(5, 'x')])"),
            *("while True: pass", "time.sleep(1e6)", "threading.Event().wait()", "socket.socketpair()[0].recv(1)"),
            *("lock = threading.Lock(); lock.acquire(); lock.acquire()", "os.kill(os.getpid(), signal.SIGSTOP)"),
            *("sum(iter(int, 1))", "re = __import__('re'); re.match('(a+)+$', 'a' * 99 + 'b')"),
            *(
                "torch.set_default_dtype(torch.float64)",
                "torch.set_default_device('meta')",
                "torch.set_grad_enabled(False)",
            ),
            *("torch.use_deterministic_algorithms(True)", "torch.autograd.set_detect_anomaly(True)", "gc.disable()"),
            *(
                "sys.setrecursionlimit(80)",
                "resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))",
                "os.closerange(3, 99)",
            ),
            *("resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))", "sys.stdout = sys.stderr = None", "os.close(1)"),
            *("os.close(2)", "sys.modules.clear()", "sys.path.clear()", "del sys.modules['torch']"),
            *("sys.settrace(lambda *_: 1 / 0)", "signal.alarm(1)", "signal.setitimer(signal.ITIMER_PROF, 0.2)"),
        )
    ),
    Misdeed(
        "ignores signals",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
        True,
    ),
    Misdeed(
        "endless, swallows all",
        "while True:\n    try:\n        time.sleep(0.1)\n    except BaseException:\n        pass",
    ),
    *(
        Misdeed(body, body, harmless=True)
        for body in (
            *("os.fork()", "os.fork() or time.sleep(999)", "os.fork() or os.setsid() and time.sleep(999)"),
            *("multiprocessing.get_context('fork').Process(target=time.sleep, args=(0.1,)).start()",),
            *("subprocess.Popen(['sleep', '999'])", "subprocess.Popen(['sleep', '999'], start_new_session=True)"),
            *("threading.Thread(target=time.sleep, args=(999,)).start()", "atexit.register(time.sleep, 999)"),
            *("threading.Thread(target=lambda: sum(iter(int, 1)), daemon=True).start()", "atexit.register(os.abort)"),
            *("os.chdir(tempfile.mkdtemp())", "os.chdir('/')", "os.environ.clear()", "os.umask(0o777)", "os.nice(5)"),
            *("print('Traceback? no\\n' * 3)", "print('x' * 10 ** 6)", 'sys.stderr.write(\'{"kind": "served"}\\n\')'),
            *("os.write(1, b'{\"result\": 1}\\n')", "warnings.warn('beware')", "print(input())", "sys.stdin.read()"),
            *("random.seed(1)", "numpy.random.seed(1)", "os.putenv('OMP_NUM_THREADS', '7')", "gc.collect()"),
        )
    ),
    Misdeed("torch.manual_seed(1)", "torch.manual_seed(1)"),
    Misdeed("torch.set_num_threads(3)", "torch.set_num_threads(3)"),
    replaces("json.dump", "json.dumps"),
    replaces("json.dumps", by="lambda *_, **__: '{}'"),
    replaces("json.loads", "json.load", by="lambda *_, **__: {}"),
    replaces("torch.nn.init.uniform_", "torch.nn.init.normal_", "torch.nn.init.kaiming_uniform_"),
    replaces("torch.nn.functional.relu", by="torch.tanh"),
    replaces("torch.save", "torch.load"),
    replaces("builtins.open", "io.open"),
    replaces("builtins.print", "builtins.len"),
    replaces("os.replace", "os.rename", "os.fsync"),
    replaces("pathlib.Path.write_text", "pathlib.Path.open"),
    replaces("time.perf_counter", "time.monotonic", "time.time", by="lambda: 0.0"),
    replaces("random.Random", "numpy.random.default_rng"),
    replaces("torch.Tensor.backward", by="lambda *_, **__: None"),
    replaces("torch.optim.AdamW.step", "torch.optim.Adam.step", by="lambda *_, **__: None"),
    replaces("torch.Tensor.__add__", "torch.Tensor.__mul__", by="lambda *_: 1 / 0"),
    replaces("nn.Linear.forward", "nn.Conv1d.forward", by="lambda self, x: x * float('nan')"),
    replaces("nn.Module.__call__", by="lambda self, *_, **__: 'no'"),
    replaces("os.getpid", "os._exit", "sys.exit"),
)


class Hostile(NamedTuple):
    """A module and the command that it is given to."""

    number: int
    misdeed: Misdeed
    place: str
    command: str

    def write(self, folder: Path) -> None:
        """Write the module, a study and a case with it."""
        parts = dict.fromkeys(("at_import", "class_body", "init", "forward", "after"), "") | PLACES[self.place]
        levels = {"misdeed": 1, "at_import": 0, "class_body": 1, "init": 2, "forward": 2, "after": 2}
        parts["misdeed"] = self.misdeed.body
        text = {key: indented(value, levels[key]) for key, value in parts.items()}
        (folder / "mine.py").write_text(MODULE.format(**text))
        (folder / "study.yaml").write_text(STUDY)
        (folder / "case.yaml").write_text(CASE)


COMMANDS: Mapping[str, tuple[str, ...]] = {
    "run": ("run", "study.yaml", "--jobs", "1"),
    "plan": ("plan", "study.yaml", "--json"),
    "doctor": ("doctor", "mine.py:Mine"),
    "explain": ("explain", "case.yaml", "--minutes", "2", "--seeds", "2", "--jobs", "1"),
    "view": (),
}
WEIGHTS = {"run": 30, "plan": 27, "doctor": 20, "view": 22, "explain": 1}
"""Of a hundred modules; an explanation takes a minute."""


def indented(text: str, level: int) -> str:
    """Lines of code, so many levels deep."""
    return "\n".join("    " * level + line for line in text.splitlines()) or ""


def hostile(count: int, seed: int, commands: Sequence[str]) -> list[Hostile]:
    """So many different modules, in an order that a seed draws; the first of each command does nothing."""
    draw = random.Random(seed)
    named = [Hostile(0, MISDEEDS[0], "forward", command) for command in commands]
    for command in draw.choices(commands, [WEIGHTS[command] for command in commands], k=10 * count):
        one = Hostile(0, draw.choice(MISDEEDS[1:]), draw.choice([*PLACES]), command)
        if one not in named:
            named.append(one)
    return [one._replace(number=number) for number, one in enumerate(named[:count])]


# ---- processes ----


def warm_server() -> socket.socket:
    """A server of processes that is forked from this one, and ends with the connection that is given back."""
    connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        connection.close()
        os.setsid()
        forking.serve(theirs)
    theirs.close()
    return connection


def as_process(call: Callable[[], Any]) -> None:
    """Call a function and end this process as an interpreter ends: threads waited for, exit handlers called."""

    def whole() -> None:
        try:
            call()
        finally:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()

    forking.end_with(whole)


def prepared() -> None:
    """Import what every command needs, so that forked processes have it, and take children of children for ours."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in ("torch._dynamo", "attnlab.studies.run.cell", "attnlab.explain.explaining", "attnlab.explain.page"):
        importlib.import_module(name)
    for name in ("studies.execute", "studies.report.html", "doctor.engine", "viewer.server", "cli.run", "cli.progress"):
        importlib.import_module(f"attnlab.{name}")
    vars(importlib.import_module("attnlab.studies.report.figures"))["figures"] = (
        lambda _: []
    )  # charts take most of the time
    engine, command = (importlib.import_module(f"attnlab.{name}") for name in ("doctor.engine", "cli.doctor"))
    for name, seconds in LIMITS.items():
        setattr(engine, name, seconds)
    vars(command)["LIMIT_S"] = DOCTOR_S
    vars(importlib.import_module("attnlab.studies.run.pool"))["SILENT_STEPS"] = 100
    vars(importlib.import_module("attnlab.viewer.run_page"))["AnsweringApart"].__init__.__kwdefaults__["limit_s"] = 15.0
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    import torch

    torch.set_num_threads(1)


def children() -> list[int]:
    """What was started from here and still is there."""
    found = set[int]()
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    while more := {one for one, parent in parents.items() if parent in {os.getpid(), *found}} - found:
        found |= more
    return sorted(found)


def end_children() -> None:
    """End what was left behind."""
    for _ in range(20):
        left = children()
        for one in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(0.05)


def in_child(
    folder: Path,
    call: Callable[[], Any],
    *,
    meanwhile: Callable[[int, float], Any] = lambda *_: None,
    hangs_s: float = HANGS_S,
) -> tuple[int | None, str, float]:
    """The exit code, output and seconds of a call in a process of its own; no code where it hangs.

    `meanwhile` is told its number and its seconds so far, again and again.
    """
    begun, process = time.monotonic(), os.fork()
    if process == 0:
        os.setsid()
        os.chdir(folder)
        os.environ["ATTNLAB_PATIENCE_S"] = str(PATIENCE_S)
        os.environ["ATTNLAB_CACHE"] = str(folder / "cache")
        said = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, said), (2, said)):
            os.dup2(source, target)
        sys.stdin, sys.stdout, sys.stderr = (open(at, "wr"[at < 1], closefd=False) for at in range(3))
        servers = [warm_server() for _ in range(3)]  # before anything has happened here
        forking.begin_server = lambda _: servers.pop() if servers else warm_server()
        as_process(call)
    code = None
    while code is None and time.monotonic() - begun < hangs_s:
        ended, status = os.waitpid(process, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if ended else None
        meanwhile(process, time.monotonic() - begun)
        time.sleep(0.01)
    end_children()
    return code, (folder / "said.txt").read_text(errors="replace"), time.monotonic() - begun


# ---- commands, and what becomes of them ----


def view_once() -> int:
    """Show the module and look into it once, as ``attnlab view`` and a browser do."""
    from page_fuzzer import Asking

    from attnlab.core.errors import AttnlabError
    from attnlab.viewer.inside.own import OwnModule
    from attnlab.viewer.server import application

    try:
        asking = Asking(application(OwnModule("mine.py:Mine", {})))
    except AttnlabError as error:
        print(f"attnlab: {error}")
        return 2
    status, _, text = asking.ask("POST", "/module/look", body=json.dumps({"text": "0 1 2"}).encode())
    if status == 200:
        return 0
    print(f"attnlab: {json.loads(text)['error']}")
    return 2


def fingerprints(folder: Path) -> dict[str, str]:
    """What the finished runs below a folder are: their metrics and weights, to the bit."""
    found = {}
    for path in sorted(folder.rglob("result.json")):
        metrics = json.dumps(json.loads(path.read_text())["metrics"]).encode()
        weights = b"".join(one.read_bytes() for one in sorted(path.parent.rglob("model.safetensors")))
        found[path.parent.name if path.parent.parent == folder else str(path.parent.relative_to(folder))] = (
            hashlib.sha256(metrics + weights).hexdigest()
        )
    return found


def costs(said: str) -> dict[str, Any]:
    """What a plan says of the variants: everything but the notes and the time."""
    *_, begins = (one.start() for one in re.finditer(r"^\{$", said, re.MULTILINE))  # the module may write before it
    planned = json.loads(said[begins : said.rindex("}") + 1])
    keys = ("parameters", "flops_per_token", "activation_bytes", "steps")
    return {one["name"]: [one[key] for key in keys] for one in planned["variants"]}


def judged(one: Hostile, folder: Path, code: int | None, said: str, honest: Mapping[str, Any]) -> str:
    """What became of a command."""
    if code is None:
        return "hang"
    lines = [line for line in said.splitlines() if line.strip()]
    if re.search(r"^\s*Traceback \(most recent call last\)", said, re.MULTILINE) or code < 0:
        return "traceback"
    if (folder / "earlier").exists() and fingerprints(folder / "earlier") != honest["run"]:
        return "lost data"
    if one.command == "run" and code in (0, 1):
        found, plain = fingerprints(folder / "runs" / "study"), "plain/seed-0"
        if plain not in found or not (folder / "runs/study/report.html").exists():
            return "lost data"
        same = ("mine/seed-0", plain) if one.misdeed.harmless else (plain,)
        if any(found[key] != honest["run"][key] for key in same if key in found):
            return "wrong result"
        if code == 1 and not any(line.startswith(("failed mine", "! failed mine")) for line in lines):
            return "without a reason"
        return "one clear line" if code == 1 else "done"
    if one.command == "plan" and code == 0:
        same = ("mine", "plain") if one.misdeed.harmless else ("plain",)
        return "done" if all(costs(said)[key] == honest["plan"][key] for key in same) else "wrong result"
    if one.command == "doctor" and code in (0, 1, 2) and any(line.startswith("verdict: ") for line in lines):
        return "done"
    if code == 0:
        return "done"
    return (
        "one clear line"
        if code in (1, 2) and any(line.startswith("attnlab: ") for line in lines)
        else "without a reason"
    )


def tried(one: Hostile, out: Path, honest: Mapping[str, Any]) -> dict[str, Any]:
    """Give one module to its command."""
    folder = out / f"{one.number:04}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    one.write(folder)
    if (out / "honest" / "runs").exists():
        shutil.copytree(out / "honest" / "runs" / "study", folder / "earlier")
    from attnlab.cli import main

    call = view_once if one.command == "view" else lambda: main([*COMMANDS[one.command]])
    code, said, seconds = in_child(folder, lambda: sys.exit(call()))
    kind = judged(one, folder, code, said, honest)
    if kind in KINDS[:2]:
        shutil.rmtree(folder, ignore_errors=True)
    reason = next((line for line in said.splitlines() if line.startswith(("attnlab: ", "failed mine", "! failed"))), "")
    told = {"code": code, "kind": kind, "seconds": round(seconds, 1), "said": (reason or said[-300:])[:300]}
    return {"number": one.number, "misdeed": one.misdeed.name, "place": one.place, "command": one.command} | told


def warmed(out: Path) -> None:
    """Import what a run imports when it needs it, as a run in a process of its own has told."""
    folder = out / "warming"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    Hostile(0, MISDEEDS[0], "forward", "run").write(folder)

    def run() -> None:
        from attnlab.cli import call
        from attnlab.studies.run.executor import InProcess

        vars(importlib.import_module("attnlab.studies.execute"))["LocalProcesses"] = lambda *_: contextlib.nullcontext(
            InProcess()
        )
        call([*COMMANDS["run"]])
        call([*COMMANDS["doctor"]])
        Path("modules").write_text("\n".join(sys.modules))

    in_child(folder, run)
    for name in (folder / "modules").read_text().splitlines():
        if not name.startswith(("attnlab_user_", "__", "tests")):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def honestly(out: Path, commands: Sequence[str]) -> dict[str, Any]:
    """What the commands find of the module that does nothing; nothing else is right beside a hostile one."""
    folder, one = out / "honest", Hostile(0, MISDEEDS[0], "forward", "run")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    one.write(folder)
    from attnlab.cli import main

    found: dict[str, Any] = {}
    for command in {"run", "plan"} & {*commands}:
        code, said, _ = in_child(folder, lambda command=command: main([*COMMANDS[command]]))
        if code != 0:
            raise SystemExit(f"an honest module fails: {said}")
        found[command] = fingerprints(folder / "runs" / "study") if command == "run" else costs(said)
    return found


def campaign(count: int, seed: int, out: Path, commands: Sequence[str] = tuple(COMMANDS)) -> Iterator[dict[str, Any]]:
    """Yield what became of every module, those of an earlier call of the campaign first."""
    prepared()
    out.mkdir(parents=True, exist_ok=True)
    if "run" in commands:
        warmed(out)
    kept = out / "tried.jsonl"
    before = {one["number"]: one for one in map(json.loads, kept.read_text().splitlines())} if kept.exists() else {}
    honest: dict[str, Any] = {}
    for one in hostile(count, seed, commands):
        if one.number not in before:
            honest = honest or honestly(out, commands)
            before[one.number] = tried(one, out, honest)
            with kept.open("a") as file:
                file.write(json.dumps(before[one.number]) + "\n")
        yield before[one.number]


# ---- what is written down ----


def table(results: list[dict[str, Any]]) -> str:
    """How often each command came to each end."""
    counted = Counter((one["command"], one["kind"]) for one in results)
    rows = [[command, *(str(counted[command, kind]) for kind in KINDS)] for command in COMMANDS]
    rows.append(["all", *(str(sum(counted[command, kind] for command in COMMANDS)) for kind in KINDS)])
    head = ["command", *KINDS]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def write(results: list[dict[str, Any]]) -> None:
    """Keep the results, and put their table into the page."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    text = PAGE.read_text()
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:before] + table(results) + text[after:])


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("/tmp/attnlab-hostile"))
    parser.add_argument("--commands", nargs="+", choices=[*COMMANDS], default=[*COMMANDS])
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=True)
    asked = parser.parse_args()
    results = []
    for one in campaign(asked.count, asked.seed, asked.out.absolute(), asked.commands):
        results.append(one)
        if one["kind"] not in KINDS[:2] or "-v" in sys.argv:
            print(json.dumps(one), flush=True)
    print(table(results))
    if asked.write:
        write(results)


if __name__ == "__main__":
    main()
