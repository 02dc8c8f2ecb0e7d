"""Whether a run or a study goes on, has ended, or was left: read from its files, never by touching its lock."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from attnlab.core.errors import RunError
from attnlab.core.files import read_json
from attnlab.training.keeping.runs import FAILED, HOLDER, METRICS, RESULT, SPEC

State = Literal["waiting", "running", "stopped", "failed", "finished"]
FRESH_S = 120.0
"""How long after its last record a run on another machine counts as running: its process cannot be asked."""


def state_of_run(folder: Path) -> State:
    """The state of one run; waiting where nothing of it is on disk."""
    if (folder / RESULT).exists():
        return "finished"
    if (folder / FAILED).exists():
        return "failed"
    if is_held(folder):
        return "running"
    return "stopped" if (folder / SPEC).exists() else "waiting"


def state_of_study(folder: Path, runs: Collection[State]) -> State:
    """The state of a study whose runs have these states."""
    if is_held(folder):
        return "running"
    if "failed" in runs:
        return "failed"
    return "finished" if runs and set(runs) == {"finished"} else "stopped"


def is_held(folder: Path) -> bool:
    """Whether a process writes into a folder, by the note that it leaves beside its lock.

    Notes
    -----
    The lock itself is not tried: a trainer that wants it in the same moment would be refused.
    """
    try:
        holder = read_json(folder / HOLDER)
        process, host = int(holder["pid"]), holder["host"]
    except (RunError, KeyError, TypeError, ValueError):
        return False
    if host == platform.node() and os.name == "posix":  # elsewhere a signal of 0 ends the process
        return _is_alive(process)
    return _is_fresh(folder)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:  # of another person
        return True
    except (OSError, OverflowError):
        return False
    return process > 0


def _is_fresh(folder: Path) -> bool:
    written = [path.stat().st_mtime for path in (folder / HOLDER, *folder.glob(f"**/{METRICS}")) if path.exists()]
    return time.time() - max(written, default=0.0) < FRESH_S
