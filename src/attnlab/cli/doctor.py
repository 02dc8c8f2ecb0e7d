"""``attnlab doctor``: examine an attention, a block or a model of a person's own.

The module is examined in a process of its own: whatever it does, this one stays.
"""

from __future__ import annotations

import ast
import json as json_format
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.padding import Padding
from rich.text import Text

from attnlab.cli.terminal import Terminal
from attnlab.cli.words import Whole, argument
from attnlab.core.errors import ModuleError, SpecError
from attnlab.core.files import user_path
from attnlab.core.processes.apart import ProcessApart, call_apart

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
OF_TASKS = frozenset({"train_batch", "evaluate", "model_arguments"})
ENDINGS = frozenset({"diagnosis", "error"})  # the messages after which nothing comes


def doctor(
    target: str,
    /,
    *,
    arg: list[str] | None = None,
    causal: Annotated[bool | None, Parameter(negative=["--not-causal", "--bidirectional"])] = None,
    layout: str | None = None,
    mask: str | None = None,
    whole: bool = False,
    accept: list[str] | None = None,
    depth: Whole = 6,
    text: Path | None = None,
    json: bool = False,
) -> int:
    """Say what is wrong with an attention layer, a block, a model or a task of your own, and how that is known.

    Parameters
    ----------
    target : str
        ``FILE.py:Name``: a class, a function that returns a module, or an instance; or the class of a task, of which
        every member that studies call is called (of the options, ``--arg`` alone is for it).
    arg : list of str, optional
        A constructor argument as ``name=value``; may be repeated.
    causal : bool, optional
        Whether a position is meant to see no later one. Without it: what the class says, else how it behaves.
    layout : str, optional
        The axes of its input: "batch first", "length first" or "channels first". Without it: what the class says.
    mask : str, optional
        What True means in its masks: "True = keep" or "True = blocked". Without it: what the class says, or calls show.
    whole : bool
        It is a whole model, called at its task's length: it need not pass its input on, nor run at other lengths.
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
    arguments = dict(argument(word) for word in arg or [])
    if _is_task(target):
        return _examine_task(target, arguments)
    request = {
        "target": target,
        "arguments": arguments,
        "causal": causal,
        "layout": layout,
        "mask": mask,
        "whole": whole,
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
        _print(diagnosis, Terminal())
    if text is not None:
        _write_study(diagnosis["study"], target.rpartition(":")[2], text)
    errors = [one for one in diagnosis["findings"] if one["severity"] == "error" and not one["accepted"]]
    if not errors and diagnosis["verdict"] == "not examined":
        return NOT_EXAMINED
    return ERRORS_FOUND if errors else HEALTHY


def _is_task(target: str) -> bool:
    """Whether a file defines a class of that name with a method that tasks alone have, and none that modules have."""
    path, _, name = target.rpartition(":")
    try:
        tree = ast.parse(user_path(path).read_bytes())
    except (OSError, ValueError, SyntaxError):
        return False
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name]
    methods = {one.name for found in classes for one in found.body if isinstance(one, ast.FunctionDef)}
    return not methods.isdisjoint(OF_TASKS) and "forward" not in methods


def _examine_task(target: str, arguments: Mapping[str, Any]) -> int:
    from attnlab.studies.define.own_task import examine_named

    try:
        call_apart(examine_named, target, arguments)
    except SpecError as error:
        Terminal(stderr=True).print(Text(str(error)), soft_wrap=True)
        return ERRORS_FOUND
    print(f"{target} keeps all that a task must keep")
    return HEALTHY


def _positive(depth: int) -> int:
    if depth < 1:
        raise SpecError(f"--depth must be at least 1; got {depth}")
    return depth


# The other process


def _examine(request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    """The diagnosis made in another process, showing progress meanwhile."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as spoken:
        with ProcessApart("attnlab.doctor.__main__", imports=["attnlab.doctor.engine"], log=spoken) as process:
            process.tell(request)
            before, last = _follow(process, time.monotonic() + limit_s)
            cause = f"the process that examined it {process.cause()}" if last is None else ""
            if process.overdue_s is not None:
                cause = f"the examination did not end within {limit_s:g} s{process.place()}"
        if last is not None and "diagnosis" in last:
            return last["diagnosis"]
        if last is None:
            step = f"in check {before['check']}" if before else "while it was loaded or first called"
            spoken.seek(0)
            tail = "; ".join(spoken.read().strip().splitlines()[-_SHOWN_LINES:])
            last = {"error": f"{cause}, {step}" + (f": {tail}" if tail else "")}
        raise ModuleError(" ".join(last["error"].split()))


def _follow(process: ProcessApart, deadline: float) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Show each step on standard error while it runs; return the last one and the answer, None if there is none."""
    step: dict[str, Any] = {}
    with Terminal(stderr=True).status("loading it") as status:
        while (message := process.hear(max(0.0, deadline - time.monotonic()))) and not ENDINGS & message.keys():
            step = message
            status.update(f"{step['check']} ({step['index'] + 1} of {step['count']})")
    return step, message


def _write_study(study: Mapping[str, Any], name: str, text: Path) -> None:
    """Write the study beside what is run from here, and say how to run it."""
    path = Path(f"{name}-on-{text.stem}.yaml")
    if path.exists() and path.read_text(encoding="utf-8") != _yaml(study):
        raise SpecError(f"{path} exists and holds another study; move it away to write this one")
    path.write_text(_yaml(study), encoding="utf-8")
    Terminal(stderr=True).print(Text(f"to train it on {text}: attnlab plan {path}; attnlab run {path}"), soft_wrap=True)


def _yaml(study: Mapping[str, Any]) -> str:
    """A study file; JSON is YAML too."""
    return json_format.dumps(study, indent=2) + "\n"


# What a person reads


def _print(diagnosis: Mapping[str, Any], console: Terminal) -> None:
    """Print what was assumed, what was found, and the verdict."""
    console.print(Text(diagnosis["name"], style="bold"))
    for what, how in diagnosis["assumptions"].items():
        console.print(Padding(Text.assemble((f"{what}: ", "dim"), how), (0, 0, 0, 2)))
    for finding in diagnosis["findings"]:
        _print_finding(finding, console)
    verdict = diagnosis["verdict"]
    console.print()
    console.print(Text.assemble(("verdict: ", "bold"), (verdict, _VERDICT_COLORS[verdict]), ": ", diagnosis["summary"]))


def _print_finding(finding: Mapping[str, Any], console: Terminal) -> None:
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
