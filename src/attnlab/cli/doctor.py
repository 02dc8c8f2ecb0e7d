"""``attnlab doctor``: examine an attention, a block or a model of a person's own.

The module is examined in a process of its own: whatever it does, this one stays.
"""

from __future__ import annotations

import contextlib
import json as json_format
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from attnlab.cli.words import Whole, argument
from attnlab.core.errors import ModuleError, SpecError

HEALTHY, ERRORS_FOUND, NOT_EXAMINED = 0, 1, 2
LIMIT_S = 240.0  # for the whole examination; the checks stop themselves long before
_SHOWN_LINES = 4  # of what a process that died left on standard error
_COLORS = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_VERDICT_COLORS = {
    "bug": "bold red",
    "not examined": "bold red",
    "known effect": "bold yellow",
    "set-up": "bold yellow",
    "healthy": "bold green",
}
ENDINGS = frozenset({"diagnosis", "error"})  # the messages after which nothing comes


def doctor(
    target: str,
    /,
    *,
    arg: Annotated[list[str] | None, Parameter(negative="")] = None,
    causal: Annotated[bool | None, Parameter(negative=["--not-causal", "--bidirectional"])] = None,
    layout: str | None = None,
    mask: str | None = None,
    accept: Annotated[list[str] | None, Parameter(negative="")] = None,
    depth: Whole = 6,
    text: Path | None = None,
    json: bool = False,
) -> int:
    """Say what is wrong with an attention layer, a block or a model of your own, and how that is known.

    Parameters
    ----------
    target : str
        ``FILE.py:Name``: a class, a function that returns a module, or an instance.
    arg : list of str, optional
        A constructor argument as ``name=value``; may be repeated.
    causal : bool, optional
        Whether a position is meant to see no later one. Without it: what the class says, else how it behaves.
    layout : str, optional
        The axes of its input: "batch first", "length first" or "channels first". Without it: what the class says.
    mask : str, optional
        What True means in its masks: "True = keep" or "True = blocked". Without it: what the class says, or calls show.
    accept : list of str, optional
        A check whose findings are meant: they are shown as accepted, and do not count; may be repeated.
    depth : int
        Number of layers to stack where an effect grows with depth.
    text : Path, optional
        A text: write the study that trains it there and places its loss among n-grams, for ``attnlab run``.
    json : bool
        Print the diagnosis as JSON.

    Returns
    -------
    int
        0: no error found; 1: errors found; 2: it could not be examined, or too little of it.
    """
    request = {
        "target": target,
        "arguments": dict(argument(word) for word in arg or []),
        "causal": causal,
        "layout": layout,
        "mask": mask,
        "accept": accept or [],
        "depth": _positive(depth),
        "text": None if text is None else str(text),
    }
    try:
        diagnosis = _examine(request, LIMIT_S)
    except ModuleError as error:
        if json:
            print(json_format.dumps({"error": str(error)}))
        raise SpecError(str(error)) from error  # wrong use, not a failed run: exit code 2
    if json:
        print(json_format.dumps(diagnosis, indent=2))
    else:
        _print(diagnosis, Console())
    if text is not None:
        _write_study(diagnosis["study"], target.rpartition(":")[2], text)
    errors = [one for one in diagnosis["findings"] if one["severity"] == "error" and not one["accepted"]]
    if not errors and diagnosis["verdict"] == "not examined":
        return NOT_EXAMINED
    return ERRORS_FOUND if errors else HEALTHY


def _positive(depth: int) -> int:
    if depth < 1:
        raise SpecError(f"--depth must be at least 1; got {depth}")
    return depth


# The other process


def _examine(request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    """The diagnosis made in another process, showing progress meanwhile."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as spoken:
        process = subprocess.Popen(
            [sys.executable, "-m", "attnlab.doctor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=spoken,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        overdue = threading.Event()
        timer = threading.Timer(limit_s, _kill_overdue, (process, overdue))
        timer.start()
        try:
            last = _talk(process, json_format.dumps(request))
            if not ENDINGS & last.keys():
                process.wait()
        finally:
            timer.cancel()
            code = process.poll()
            process.kill()
            process.wait()
        if "diagnosis" in last:
            return last["diagnosis"]
        spoken.seek(0)
        died = "" if "error" in last else _how_it_died(code, last, spoken.read(), limit_s if overdue.is_set() else None)
        raise ModuleError(" ".join((last.get("error") or died).split()))


def _kill_overdue(process: subprocess.Popen[str], overdue: threading.Event) -> None:
    """Kill a process that took too long, and remember that it was for that."""
    overdue.set()
    process.kill()


def _talk(process: subprocess.Popen[str], request: str) -> dict[str, Any]:
    """Send the request and follow what comes back; return the last message."""
    if process.stdin is None or process.stdout is None:
        raise ModuleError("the examining process has no pipes")
    with contextlib.suppress(BrokenPipeError):  # it died at once; what it left behind says why
        process.stdin.write(request)
        process.stdin.close()
    return _follow(process.stdout)


def _follow(lines: Iterable[str]) -> dict[str, Any]:
    """Show each step on standard error while it runs, and return the last message: the answer, if there is one."""
    last: dict[str, Any] = {}
    with Console(stderr=True).status("loading it") as status:
        for line in lines:
            last = json_format.loads(line)
            if ENDINGS & last.keys():
                break
            status.update(f"{last['check']} ({last['index'] + 1} of {last['count']})")
    return last


def _how_it_died(code: int | None, last: Mapping[str, Any], spoken: str, overdue_s: float | None) -> str:
    """A sentence for a process that ended without an answer."""
    step = f"in check {last['check']}" if "check" in last else "while it was loaded or first called"
    if overdue_s is not None:
        return f"the examination did not end within {overdue_s:g} s ({step}), and could not be interrupted"
    tail = "; ".join(spoken.strip().splitlines()[-_SHOWN_LINES:])
    return f"the process that examined it died {step}, {_cause(code)}" + (f": {tail}" if tail else "")


def _cause(code: int | None) -> str:
    """Why a process ended, in words."""
    if code == -signal.SIGSEGV:
        return "of a segmentation fault"
    if code == -9:  # SIGKILL, which not every system names
        return "killed from outside, perhaps for lack of memory"
    return f"exit code {code}"


def _write_study(study: Mapping[str, Any], name: str, text: Path) -> None:
    """Write the study beside what is run from here, and say how to run it."""
    path = Path(f"{name}-on-{text.stem}.yaml")
    if path.exists() and path.read_text(encoding="utf-8") != _yaml(study):
        raise SpecError(f"{path} exists and holds another study; move it away to write this one")
    path.write_text(_yaml(study), encoding="utf-8")
    Console(stderr=True).print(Text(f"to train it on {text}: attnlab plan {path}; attnlab run {path}"), soft_wrap=True)


def _yaml(study: Mapping[str, Any]) -> str:
    """A study file; JSON is YAML too."""
    return json_format.dumps(study, indent=2) + "\n"


# What a person reads


def _print(diagnosis: Mapping[str, Any], console: Console) -> None:
    """Print what was assumed, what was found, and the verdict."""
    console.print(Text(diagnosis["name"], style="bold"))
    for what, how in diagnosis["assumptions"].items():
        console.print(Padding(Text.assemble((f"{what}: ", "dim"), how), (0, 0, 0, 2)))
    for finding in diagnosis["findings"]:
        _print_finding(finding, console)
    verdict = diagnosis["verdict"]
    console.print()
    console.print(Text.assemble(("verdict: ", "bold"), (verdict, _VERDICT_COLORS[verdict]), ": ", diagnosis["summary"]))


def _print_finding(finding: Mapping[str, Any], console: Console) -> None:
    """Print one finding: what, how it is known, what to do, where it is described."""
    console.print()
    accepted = " (accepted)" if finding["accepted"] else ""
    title = Text.assemble(
        (finding["severity"] + accepted, _COLORS[finding["severity"]]), " ", (finding["check"], "bold")
    )
    console.print(Text.assemble(title, ": ", finding["message"]))
    for part in ("evidence", "remedy", "source"):
        if finding[part]:
            console.print(Padding(Text.assemble((f"{part}: ", "dim"), finding[part]), (0, 0, 0, 2)))
