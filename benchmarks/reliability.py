"""Do to studies what happens to them in the world, a thousand times, and count what becomes of them.

Use: ``python benchmarks/reliability.py --share 1.0 --out FOLDER``; goes on where it stopped, and writes
``reliability.json`` beside this file and the table of ``docs/reliability.md``. A tiny study is killed, runs out of disk,
finds its files damaged, and so on; afterwards the same command is given again, and must end in the numbers of an
untouched study to the bit. Commands run in processes forked from this one, which has torch already. Needs Linux; faults
of disks need to mount, in a namespace of this process alone, and are left out where that is not allowed.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hostile import children, in_child, prepared, warmed

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "reliability.json", HERE.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- faults: written by benchmarks/reliability.py -->\n", "<!-- end of faults -->\n"
KINDS = ("done", "one clear line", "killed", "traceback", "hang", "wrong result", "lost data", "without a reason")
"""What becomes of the command that the fault meets; `killed` is one that a signal ended. What is wrong with the command
after it counts here too."""
GOOD = KINDS[:3]
WHOM = ("command", "a worker", "workers", "all")
HANGS_S = 90.0
WAITS_S = (0.05, 0.1, 0.2)
"""Between attempts at storage that fails; a person's are 1 to 64 s."""
IN_MEMORY = 500
"""Bytes of the largest text that is kept in memory here, so that a small one lies on disk as a large one does."""
RUN = ("run", "study.yaml", "--jobs", "1")
STUDY = Path("runs", "study")
HERE_ALWAYS = "trial"
"""Folder of every trial: paths of data are part of what a run is."""
CLONE_NEWNS, MS_REMOUNT, MS_RDONLY, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 0x20, 0x1, 0x4000, 0x40000, 2
FS_SETFLAGS, FS_IMMUTABLE = 0x40086602, 0x10

COMMON = """\
baseline: plain
rules: {metric: METRIC, budget: {steps: 8}, seeds: 2, smallest_effect: 0.01}
training: {checkpoint_every: 2}
"""
SHAPES = """\
question: "Does attention help?"
task: {name: shapes, n_train: 60, n_test: 11, batch: 20}
model: {name: cnn, channels: 6, kernel_size: 3, n_layers: 3}
variants:
  plain: {}
  attention: {mixer: {name: attention, n_heads: 2}, mixer_at: 1}
""" + COMMON.replace("METRIC", "test_mse")
TEXT = """\
question: "Do two heads help?"
task: {name: char-lm, text: ./text.txt, context: 24, batch: 4}
model: {name: decoder, d_model: 8, n_layers: 1, mixer: {name: attention, n_heads: 1}}
variants:
  plain: {}
  two: {mixer: {n_heads: 2}}
""" + COMMON.replace("METRIC", "val_loss")
CORPUS = """\
question: "Do two heads help?"
task: {name: translation, corpus: ./corpus, tokenizer: words, batch_tokens: 200, beam: null}
model: {name: encoder-decoder, d_model: 8, n_layers: 1, mixer: {name: attention, n_heads: 1}}
variants:
  plain: {}
  two: {mixer: {n_heads: 2}}
""" + COMMON.replace("METRIC", "val_loss")
TREEBANK = """\
question: "Do two heads help?"
task: {name: parsing, train: ./train.mrg, validation: ./val.mrg, tokenizer: words, batch_tokens: 300, beam: null}
model: {name: encoder-decoder, embeddings: separate, d_model: 8, n_layers: 1, mixer: {name: attention, n_heads: 1}}
variants:
  plain: {}
  two: {mixer: {n_heads: 2}}
""" + COMMON.replace("METRIC", "val_loss")
WORDS = (
    *(
        "the",
        "a",
        "small",
        "red",
        "house",
        "dog",
        "sees",
        "likes",
        "every",
        "old",
        "tree",
        "and",
        "near",
        "green",
        "bird",
    ),
    *("sings", "today", "it", "works", "well"),
)
ODD = (
    *("1e11", "-1", "0", "null", "[]", "{}", "'", '"', "!!python/object/apply:os.system ['touch hacked']", "&a [*a]"),
    *("*a", "\x00", "é", "e\u0301", "\u202e", "9" * 400, ".nan", ".inf", "-.inf", "1e-320", "/dev/zero", "/dev/stdin"),
    *("../../../etc/passwd", "<script>alert(1)</script>", "{", "]", "(", ")", "((", "\t", "true", "1_000", "0x10"),
    *(
        "2026-01-01",
        "a: b: c",
        "[" * 3000,
        "(" * 3000,
        "(S " * 3000,
        "%s{0}",
        "\ufeff",
        "\r\n",
        "\n\n\n",
        "|",
        "<<: {}",
    ),
    *(
        "99999999999999999999",
        "None",
        "~",
        "!!binary aaaa",
        "\x1b[31m",
        "[bold]",
        "./",
        "CON",
        "a" * 5000,
        "\U0001f600",
    ),
)


# ---- the studies that faults meet ----


def sentence(draw: random.Random) -> str:
    """A few words."""
    return " ".join(draw.choices(WORDS, k=draw.randint(2, 9)))


def tree(draw: random.Random, depth: int = 3) -> str:
    """A tree in Penn brackets."""
    if depth == 0 or draw.random() < 0.2:
        return f"({draw.choice(('NN', 'VB', 'DT'))} {draw.choice(WORDS)})"
    return f"({draw.choice(('NP', 'VP', 'S'))} {' '.join(tree(draw, depth - 1) for _ in range(draw.randint(1, 3)))})"


def write_world(folder: Path, name: str) -> None:
    """Write a study and what it reads."""
    draw = random.Random(name)
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text({"shapes": SHAPES, "corpus": CORPUS, "treebank": TREEBANK}.get(name, TEXT))
    if name in ("text", "stored"):
        (folder / "text.txt").write_text("\n".join(sentence(draw) for _ in range(150)) + "\n")
    if name == "treebank":
        for part, count in (("train", 60), ("val", 12)):
            (folder / f"{part}.mrg").write_text("".join(f"( (S {tree(draw)} {tree(draw)}) )\n" for _ in range(count)))
    if name == "corpus":
        (folder / "corpus").mkdir()
        for part, count in (("train", 60), ("val", 12)):
            lines = [sentence(draw) for _ in range(count)]
            (folder / "corpus" / f"{part}.en").write_text("\n".join(lines) + "\n")
            (folder / "corpus" / f"{part}.de").write_text("\n".join(line[::-1] for line in lines) + "\n")


def on_disk() -> None:
    """Let texts lie on disk in this process and those that it forks."""
    vars(importlib.import_module("attnlab.tasks.char_lm.data"))["IN_MEMORY"] = IN_MEMORY


def found(study: Path) -> dict[str, Any]:
    """What a study says: verdicts and numbers, nothing of time."""
    told = json.loads((study / "report.json").read_text())
    return {
        "complete": told["complete"],
        "judged": [told["verdicts"], told["claims"], told["floors"]],
        "values": {
            f"{one['name']} {key}": value["values"] for one in told["variants"] for key, value in one["metrics"].items()
        },
    }


def kept(study: Path) -> dict[str, Any]:
    """By run, a hash of its result, or the step of its last checkpoint."""
    runs: dict[str, Any] = {}
    for run in sorted(study.glob("*/seed-*")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if (run / "result.json").exists():
                runs[f"{run.parent.name}/{run.name}"] = hashlib.sha256((run / "result.json").read_bytes()).hexdigest()
            else:
                steps = [json.loads(one.read_text())["step"] for one in run.glob("last*/state.json")]
                runs[f"{run.parent.name}/{run.name}"] = max(steps)
    return runs


def lost(before: Mapping[str, Any], study: Path) -> list[str]:
    """Runs whose result, or steps up to the last checkpoint, are gone."""
    gone = []
    for name, value in before.items():
        result = study / name / "result.json"
        if isinstance(value, str):
            same = result.exists() and hashlib.sha256(result.read_bytes()).hexdigest() == value
        elif result.exists():
            same = max(json.loads(result.read_text())["resumed_at"], default=0) >= value
        else:
            step = kept(study).get(name, -1)
            same = isinstance(step, int) and step >= value
        gone += [] if same else [name]
    return gone


class World(NamedTuple):
    """A study and what it comes to where nothing happens to it."""

    name: str
    folder: Path  # with ``fresh``, ``half`` and ``finished``
    found: Mapping[str, Any]
    seconds: float


def command(name: str, words: Sequence[str]) -> Callable[[], Any]:
    """A call of the command line in the world of a name."""

    def call() -> Any:
        from attnlab.cli import main

        if name == "stored":
            on_disk()
        main([*words])

    return call


def world(out: Path, name: str) -> World:
    """Run a study untouched, and once more until its second run has a checkpoint."""
    place = out / "worlds" / name
    if (place / "whole.json").exists():
        return World(name, place, *json.loads((place / "whole.json").read_text()))
    shutil.rmtree(place, ignore_errors=True)
    here = out / HERE_ALWAYS

    def keep(stage: str) -> None:
        shutil.copytree(here, place / stage)
        shutil.rmtree(here)
        write_world(here, name)

    def killed_halfway(process: int, _: float) -> None:
        if any((here / STUDY).glob("*/seed-*/last/state.json")) and len(kept(here / STUDY)) > 1:
            kill_all(process)

    shutil.rmtree(here, ignore_errors=True)
    write_world(here, name)
    keep("fresh")
    code, said, seconds = in_child(here, command(name, RUN))
    if code != 0:
        raise SystemExit(f"the untouched study fails: {said}")
    keep("finished")
    in_child(here, command(name, RUN), meanwhile=killed_halfway)
    keep("half")
    (place / "whole.json").write_text(json.dumps([found(place / "finished" / STUDY), seconds]))
    return world(out, name)


# ---- trials ----


class Trial:
    """One fault that meets a study."""

    def __init__(self, kind: str, number: int, seed: int, folder: Path, world_of: Callable[[str], World]) -> None:
        self.kind, self.number, self.folder, self.world_of = kind, number, folder, world_of
        self.draw = random.Random(f"{seed} {kind} {number}")
        self.told: list[str] = []
        self.said, self.outcome = "", ""
        self.seconds = 0.0

    @property
    def study(self) -> Path:
        """The folder of the study."""
        return self.folder / STUDY

    def begin(self, *names: str, stages: Sequence[str] = ("fresh", "half")) -> None:
        """Copy a study, at a stage."""
        self.world = self.world_of(self.draw.choice(names or ("shapes", "shapes", "text")))
        stage = self.draw.choice(stages)
        self.told.append(f"{self.world.name}, {stage}")
        shutil.copytree(self.world.folder / stage, self.folder, dirs_exist_ok=True)

    def run(
        self,
        words: Sequence[str] | Callable[[], Any] = RUN,
        *,
        first: Callable[[], Any] = lambda: None,
        meanwhile: Callable[[int, float], Any] = lambda *_: None,
    ) -> str:
        """Give a command, `first` in its process, and say what becomes of it."""
        inner = words if callable(words) else command(self.world.name, words)
        code, self.said, seconds = in_child(
            self.folder, lambda: (first(), inner()), meanwhile=meanwhile, hangs_s=HANGS_S
        )
        self.seconds += seconds
        self.outcome = outcome(code, self.said)
        return self.outcome

    def moment(self, most: float = 1.1) -> float:
        """A time within that of the untouched study, in seconds."""
        return self.draw.uniform(0, most * self.world.seconds)

    def at(self, when_s: float, act: Callable[[int], Any]) -> Callable[[int, float], None]:
        """Do something once, so long after the command began."""
        left = [act]

        def meanwhile(process: int, seconds: float) -> None:
            if left and seconds >= when_s:
                left.pop()(process)

        return meanwhile

    def again(self, *, killed: bool = False) -> str:
        """Say what became of the command, after the same command without a fault: it ends as if nothing had been."""
        here, said = self.outcome, self.said
        if here == "killed" and not killed:
            return "without a reason"
        if here not in GOOD:
            return here
        before = kept(self.study)
        after = self.run()
        if after != "done":
            return after if after != "one clear line" else "without a reason"
        self.said = said
        if found(self.study) != self.world.found:
            return "wrong result"
        return "lost data" if lost(before, self.study) else here


def outcome(code: int | None, said: str) -> str:
    """What a command came to, by its exit code and words."""
    if code is None:
        return "hang"
    if re.search(r"^\s*Traceback \(most recent call last\)", said, re.MULTILINE):
        return "traceback"
    if code < 0:
        return "killed"
    if code in (0, 130):
        return "done"
    lines = [line.strip() for line in said.splitlines()]
    return "one clear line" if any(re.match("attnlab: |failed |! failed|╭─ Error", one) for one in lines) else KINDS[-1]


def below(process: int, whom: str) -> list[int]:
    """The processes of a command: itself, one or all of those that it started, or all."""
    workers = [one for one in children() if one != process]
    return {"command": [process], "workers": workers, "a worker": workers[-1:], "all": [process, *workers]}[whom]


def send(process: int, whom: str, what: int) -> None:
    """Send a signal to processes of a command."""
    for one in below(process, whom):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, what)


def kill_all(process: int) -> None:
    """Kill a command and what it started."""
    send(process, "all", signal.SIGKILL)


# ---- faults ----


def kills(trial: Trial) -> str:
    """Kill the command, its workers, or all, at any moment."""
    trial.begin()
    whom = trial.draw.choice(WHOM)
    moment = trial.moment()
    trial.told.append(f"{whom} after {moment:.2f} s")
    trial.run(meanwhile=trial.at(moment, lambda process: send(process, whom, signal.SIGKILL)))
    return trial.again(killed=True)


def signals(trial: Trial) -> str:
    """Send several signals, in any order."""
    trial.begin()
    names = ["INT", "TERM", "HUP", "QUIT", "STOP", "CONT", "USR1", "PIPE", "WINCH", "TSTP", "ALRM"]
    plan = sorted(
        (trial.moment(), trial.draw.choice(names), trial.draw.choice(WHOM)) for _ in range(trial.draw.randint(1, 4))
    )
    trial.told += [f"{name} to {whom}" for _, name, whom in plan]
    stopped = max([moment for moment, *_ in plan]) + 2.0

    def meanwhile(process: int, seconds: float) -> None:
        while plan and seconds >= plan[0][0]:
            _, name, whom = plan.pop(0)
            send(process, whom, getattr(signal, f"SIG{name}"))
        if seconds > stopped:  # as a person's shell does with a job that stopped
            send(process, "all", signal.SIGCONT)

    trial.run(meanwhile=meanwhile)
    return trial.again(killed=True)


def full_disk(trial: Trial) -> str:
    """Let the disk be full, of bytes or of files, and make room afterwards."""
    size = sum(
        -(-one.stat().st_size // 4096) for one in (trial.world_of("shapes").folder / "finished" / STUDY).rglob("*")
    )
    room = (
        f"size={trial.draw.randint(3, size) * 4096}"
        if trial.draw.random() < 0.7
        else f"nr_inodes={trial.draw.randint(2, 50)}"
    )
    trial.told.append(room)
    with disk(trial.folder / "runs", room) as again:
        trial.begin(stages=["fresh"])
        trial.run()
        again("size=64m,nr_inodes=9999")
        return trial.again()


def read_only(trial: Trial) -> str:
    """Let the disk be mounted read-only, or all that lies there be refused to writers from some moment on."""
    with disk(trial.folder / "runs", "size=64m") as again:
        trial.begin(stages=("fresh", "half", "finished"))
        if trial.draw.random() < 0.3:
            trial.told.append("mounted")
            again("size=64m", MS_RDONLY)
            trial.run()
            again("size=64m")
        else:
            moment = trial.moment()
            trial.told.append(f"after {moment:.2f} s")
            trial.run(meanwhile=trial.at(moment, lambda _: refuse(trial.folder / "runs", FS_IMMUTABLE)))
            refuse(trial.folder / "runs", 0)
        return trial.again()


def refuse(folder: Path, flag: int) -> None:
    """Set or take away the flag of all files and folders that lets nobody write there."""
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            fcntl.ioctl(descriptor, FS_SETFLAGS, flag.to_bytes(8, "little"))
            os.close(descriptor)


def vanishing(trial: Trial) -> str:
    """Let the study's folder, one of its runs, or the disk vanish, and come back where nothing has taken its place."""
    with disk(trial.folder / "runs", "size=64m"):
        trial.begin()
        what = trial.draw.choice((STUDY, STUDY / "plain", STUDY / "plain" / "seed-0", Path("runs")))
        moment, aside = trial.moment(), trial.folder / ("aside" if what == Path("runs") else "runs/aside")
        trial.told.append(f"{what} after {moment:.2f} s")

        def vanish(_: int) -> None:
            with contextlib.suppress(OSError):
                if what == Path("runs"):
                    LIBC.umount2(str(trial.folder / what).encode(), MNT_DETACH)
                else:
                    os.rename(trial.folder / what, aside)

        trial.run(meanwhile=trial.at(moment, vanish))
        if aside.exists() and not (trial.folder / what).exists():
            (trial.folder / what).parent.mkdir(parents=True, exist_ok=True)
            os.rename(aside, trial.folder / what)
        return trial.again()


def damaged(draw: random.Random, path: Path) -> str:
    """Do something to a file, and say what."""
    data = path.read_bytes()
    how = draw.choice(
        ("cut", "flipped", "flipped", "zeros", "empty", "deleted", "garbage", "a folder", "a list", "nan")
    )
    if how in ("a list", "nan") and path.suffix not in (".json", ".jsonl"):
        how = "flipped"
    path.unlink()
    match how:
        case "cut":
            path.write_bytes(data[: draw.randint(0, len(data))])
        case "flipped":
            flipped = bytearray(data or b"x")
            for _ in range(draw.choice((1, 1, 1, 8))):
                flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
            path.write_bytes(flipped)
        case "zeros":
            path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(draw.randbytes(draw.randint(1, 2 * len(data) + 9)))
        case "a folder":
            path.mkdir()
        case "a list":
            path.write_bytes(b"[" + data.replace(b"\n", b" ") + b"]\n")
        case "nan":
            path.write_bytes(
                re.sub(rb"(?<=: )[-0-9.e]+", draw.choice((b"NaN", b"-Infinity", b"1e999", b'"x"', b"null")), data)
            )
    return how


def asked_of_pages() -> int:
    """Ask for every page of what lies in ``runs``, as a browser does."""
    from page_fuzzer import Asking

    from attnlab.viewer.server import application

    asking = Asking(application(Path("runs")))
    runs = [f"/run/study/{one.parent.name}/{one.name}" for one in sorted(STUDY.glob("*/seed-*"))]
    for path in ("/", "/study/study", "/report/study", "/events/study", *runs):
        status, _, text = asking.ask("GET", path)
        if status >= 500 or b"Traceback (most recent" in text:
            print(f"Traceback (most recent call last) in {path}: {text[:300]!r}")
    for run in runs:
        status, _, text = asking.ask("POST", f"{run}/look", body=b'{"text": "0 1 2"}')
        if status >= 500:
            print(f"Traceback (most recent call last) in {run}/look: {text[:300]!r}")
    return 0


def damages(trial: Trial) -> str:
    """Damage files of a study, begun or finished, and give a command; nothing else may be lost."""
    trial.begin("shapes", "shapes", "text", "stored", "corpus", stages=("half", "finished"))
    files = [one for one in (trial.folder / "runs", trial.folder / "cache") for one in one.rglob("*") if one.is_file()]
    files = sorted(one for one in files if not one.name.endswith((".lock", ".log", ".png", ".html", ".md")))
    hit = trial.draw.choice(files)
    before = kept(trial.study)
    trial.told.append(f"{hit.relative_to(trial.folder)} {damaged(trial.draw, hit)}")
    words = trial.draw.choice(
        (RUN, RUN, RUN, ("report", str(STUDY)), "view", (*RUN, "--like", str(STUDY), "--out", "other"))
    )
    trial.told.append(words if isinstance(words, str) else " ".join(words))
    here = trial.run(asked_of_pages if words == "view" else words)
    if here not in GOOD[:2]:
        return "traceback" if here == "killed" else here
    spared = {name: value for name, value in before.items() if not hit.is_relative_to(trial.study / name)}
    if lost(spared, trial.study):
        return "lost data"
    if here == "done" and words not in ("view",):
        now, right = found(trial.folder / "other" if "other" in words else trial.study), trial.world.found
        few = all({*values} <= {None, *right["values"][name]} for name, values in now["values"].items())
        if not few or (now["complete"] and now != right):
            return "wrong result"
    return here


def clocks(trial: Trial) -> str:
    """Let clocks jump, and files be of another time."""
    trial.begin()
    draw, real, steady = trial.draw, time.time, time.monotonic
    wall = [(trial.moment(), draw.choice((-1, 1)) * 10 ** draw.uniform(0, 8.5)) for _ in range(draw.randint(1, 3))]
    on = (trial.moment(), 10 ** draw.uniform(0, 3.5))
    for path in draw.sample(files := sorted(trial.folder.rglob("*")), len(files) // 3):
        when = real() + draw.choice((-1, 1)) * 10 ** draw.uniform(0, 8.5)
        os.utime(path, (when, when))
    trial.told.append(f"by {[f'{jump:.0f} s' for _, jump in wall]} and {on[1]:.0f} s")

    def jumping() -> None:
        begun = steady()
        late = lambda: steady() - begun  # noqa: E731
        time.time = lambda: real() + sum(jump for moment, jump in wall if late() > moment)
        time.time_ns = lambda: int(time.time() * 1e9)
        time.monotonic = lambda: steady() + (on[1] if late() > on[0] else 0.0)
        time.perf_counter = time.monotonic

    trial.run(first=jumping)
    return trial.again()


def several(trial: Trial) -> str:
    """Give the command two to ten times at once."""
    trial.begin()
    count = trial.draw.randint(2, 10)
    gaps = [trial.draw.choice((0.0, 0.0, trial.moment(0.5))) for _ in range(count)]
    trial.told.append(f"{count} processes")

    def together() -> None:
        processes = []
        for number, gap in enumerate(gaps):
            processes.append(os.fork())
            if processes[-1] == 0:
                time.sleep(gap)
                said = os.open(f"said-{number}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(said, 1), os.dup2(said, 2)
                command(trial.world.name, RUN)()
        codes = [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in processes]
        os._exit(0 if 0 in codes else 3)

    trial.run(together)
    for number in range(count):
        said = (trial.folder / f"said-{number}.txt").read_text() if trial.outcome != "hang" else ""
        one = outcome(0 if "report: " in said else 2, said)
        if one not in GOOD and trial.outcome in GOOD:
            trial.outcome, trial.said = one, said
    return trial.again()


def out_of_memory(trial: Trial) -> str:
    """Let the memory of every process end a little above what it has at its start."""
    trial.begin()
    more = int(2 ** trial.draw.uniform(12, 27))
    trial.told.append(f"{more:,} bytes")

    def limited() -> None:
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + more, has + more))

    trial.run(first=limited)
    return trial.again()


def mutated(draw: random.Random, data: bytes) -> bytes:
    """A file in which a few things are wrong."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        at, end = sorted(draw.randint(0, len(data)) for _ in range(2))
        words = list(re.finditer(rb"[\w.]+", data))
        odd = draw.choice(ODD).encode()
        match draw.choice(("flip", "cut", "drop", "double", "odd", "word", "word", "word", "lines", "coded", "ends")):
            case "flip" if data:
                at = draw.randrange(len(data))
                data = data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
            case "cut":
                data = data[:at]
            case "drop":
                data = data[:at] + data[min(end, at + 40) :]
            case "double":
                data = data[:end] + data[at:end] * draw.choice((1, 1, 200)) + data[end:]
            case "odd":
                data = data[:at] + odd + data[at:]
            case "word" if words:
                word = draw.choice(words)
                data = data[: word.start()] + odd + data[word.end() :]
            case "lines":
                lines = data.splitlines(keepends=True)
                data = b"".join(draw.sample(lines, len(lines)))
            case "coded":
                data = data.decode("utf-8", "replace").encode(
                    draw.choice(("utf-16", "utf-8-sig", "latin-1")), "replace"
                )
            case "ends":
                data = data.replace(b"\n", draw.choice((b"\r\n", b"\r", b" ", b"\x0b")))
    return data


def inputs(trial: Trial) -> str:
    """Mutate a study file, or what a study reads, and ask what it would cost; a few are run."""
    worlds = {"study files": ("shapes", "text", "corpus", "treebank"), "texts": ("text", "stored")}
    trial.begin(*worlds.get(trial.kind, (trial.kind.removesuffix("s").replace("corpora", "corpus"),)), stages=["fresh"])
    files = {"study files": ["study.yaml"], "texts": ["text.txt"], "treebanks": ["train.mrg", "val.mrg"]}
    hit = trial.draw.choice(
        [*files.get(trial.kind, []), *map(str, trial.folder.glob("corpus/*" if trial.kind == "corpora" else "-"))]
    )
    path = trial.folder / hit
    path.write_bytes(mutated(trial.draw, path.read_bytes()))
    words = RUN if trial.kind != "study files" and trial.draw.random() < 0.1 else ("plan", "study.yaml", "--json")
    trial.told.append(f"{path.name}, {words[0]}")
    here = trial.run(words)
    return "wrong result" if (trial.folder / "hacked").exists() else here if here != "killed" else "traceback"


FAULTS: Mapping[str, tuple[int, Callable[[Trial], str]]] = {
    "kills": (1000, kills),
    "signals in odd order": (200, signals),
    "full disk": (200, full_disk),
    "read-only disk": (200, read_only),
    "vanishing folder": (200, vanishing),
    "damaged files": (200, damages),
    "jumping clocks": (200, clocks),
    "processes on one folder": (200, several),
    "out of memory": (200, out_of_memory),
    "study files": (500, inputs),
    "texts": (500, inputs),
    "treebanks": (500, inputs),
    "corpora": (500, inputs),
}
"""How often each happens in the whole campaign."""
MOUNTS = ("full disk", "read-only disk", "vanishing folder")

LIBC = ctypes.CDLL(None, use_errno=True)


def may_mount() -> bool:
    """Take a namespace of mounts of our own, if that is allowed."""
    return LIBC.unshare(CLONE_NEWNS) == 0 and LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0


@contextlib.contextmanager
def disk(place: Path, options: str) -> Iterator[Callable[..., None]]:
    """A disk of its own in memory; what is yielded mounts it anew with other options."""
    place.mkdir(parents=True, exist_ok=True)

    def mount(options: str, flags: int = MS_REMOUNT) -> None:
        if LIBC.mount(b"tmpfs", str(place).encode(), b"tmpfs", flags | (flags and MS_REMOUNT), options.encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    mount(options, 0)
    try:
        yield mount
    finally:
        LIBC.umount2(str(place).encode(), MNT_DETACH)


# ---- the campaign ----


def campaign(wanted: Mapping[str, int], seed: int, out: Path) -> Iterator[dict[str, Any]]:
    """Yield what became of every trial, those of an earlier call first; some of every kind come early."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # threads that share busy cores wait for each other
    prepared()
    importlib.import_module("scipy.stats")
    mounts = may_mount()
    vars(importlib.import_module("attnlab.core.files"))["WAITS_S"] = WAITS_S
    out.mkdir(parents=True, exist_ok=True)
    tried = out / "tried.jsonl"
    lines = tried.read_text().splitlines() if tried.exists() else []
    before = {(one["kind"], one["number"]): one for one in map(json.loads, lines)}
    yield from before.values()
    order = sorted((number / count, kind, number) for kind, count in wanted.items() for number in range(count))
    left = [
        (kind, number) for _, kind, number in order if (kind, number) not in before and (mounts or kind not in MOUNTS)
    ]
    if not left:
        return
    warmed(out)
    atexit.unregister(importlib.import_module("torch._dynamo.utils").dump_compile_times)  # there through us alone
    world_of = functools.cache(functools.partial(world, out))
    for name in ("shapes", "text") if any(kind in MOUNTS for kind, _ in left) else ():  # before a disk lies there
        world_of(name)
    for kind, number in left:
        shutil.rmtree(folder := out / HERE_ALWAYS, ignore_errors=True)
        trial = Trial(kind, number, seed, folder, world_of)
        became = FAULTS[kind][1](trial)
        told = {
            "kind": kind,
            "number": number,
            "became": became,
            "seconds": round(trial.seconds, 1),
            "what": trial.told,
        }
        if became not in GOOD:
            told["said"] = trial.said[-1500:]
            shutil.copytree(folder, out / f"{kind.replace(' ', '-')}-{number}", dirs_exist_ok=True)
        with tried.open("a") as file:
            file.write(json.dumps(told) + "\n")
        yield told


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """How often each fault came to each end."""
    counted = Counter((one["kind"], one["became"]) for one in results)
    rows = [[kind, *(counted[kind, end] for end in KINDS)] for kind in FAULTS]
    rows.append(["all", *(sum(counted[kind, end] for kind in FAULTS) for end in KINDS)])
    lines = [
        ["what happened", "times", *KINDS],
        ["---"] * (2 + len(KINDS)),
        *([row[0], sum(row[1:]), *row[1:]] for row in rows),
    ]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the whole campaign")
    parser.add_argument("--kinds", nargs="+", choices=[*FAULTS], default=[*FAULTS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no trial begins")
    parser.add_argument("--out", type=Path, default=Path("/tmp/attnlab-reliability"))
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=True)
    asked = parser.parse_args()
    until = time.monotonic() + 60 * asked.minutes
    results = []
    for one in campaign(
        {kind: max(1, round(asked.share * FAULTS[kind][0])) for kind in asked.kinds}, asked.seed, asked.out.absolute()
    ):
        results.append(one)
        if one["became"] not in GOOD:
            print(json.dumps(one), flush=True)
        if time.monotonic() > until:
            break
    print(table(results))
    if asked.write:
        RESULTS.write_text(
            "".join(
                json.dumps({key: one[key] for key in ("kind", "number", "became", "what")}) + "\n" for one in results
            )
        )
        text = PAGE.read_text()
        PAGE.write_text(text[: text.index(BEGIN) + len(BEGIN)] + table(results) + text[text.index(END) :])


if __name__ == "__main__":
    sys.exit(main())
