"""Leases: who holds a folder, seen from every machine that sees it.

A lock keeps apart the processes of one machine, and those of several only where the file system that they share passes
locks on. A lease is a file that its holder touches again and again: a holder that died is known by its silence.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import platform
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import Interrupted, RunError
from attnlab.core.files import read_json, write_json, writing
from attnlab.training.keeping.runs import holder_named, this_process

LEASE = ".lease.json"
LEASE_S = 60.0
"""How long after its last sign a holder counts as alive: many times what a network file system holds an answer back."""
SIGN_EVERY_S = 10.0
"""How often a holder gives a sign."""
SETTLED_S = 1.0
"""How long who took over waits to see whether another did so in the same moment."""
POLL_S = 1.0


@contextlib.contextmanager
def lease(
    folder: Path, *, patience_s: float = 0.0, lost: Callable[[], object] = _thread.interrupt_main
) -> Iterator[None]:
    """Hold a folder, the lock of which is free on this machine, among all machines that see it.

    Parameters
    ----------
    folder : Path
        The folder.
    patience_s : float
        How long to wait for who holds it.
    lost : callable
        Is called, in another thread, once another process has taken the folder; by default it interrupts this one.

    Yields
    ------
    None
        While it is held.

    Raises
    ------
    RunError
        If another process holds it, or took it over because this one gave no sign; the text names process and host.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + patience_s
    while (holder := _living_holder(folder)) and time.monotonic() < until:
        time.sleep(POLL_S)
    if holder:
        raise RunError(
            f"{folder} is held by {holder_named(holder)}; wait for it, or stop it first: its lease ends "
            f"{LEASE_S:.0f} s after its last sign"
        )
    held = _Held(folder, lost)
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        if held.successor:
            raise RunError(
                f"{folder} was taken over by {holder_named(held.successor)}, as this process gave no sign for "
                f"{LEASE_S:.0f} s; what it had computed lies there"
            ) from None
        raise
    finally:
        held.let_go()


@final
class _Held:
    """Give signs that a folder is held, and break off where another process has taken it."""

    def __init__(self, folder: Path, lost: Callable[[], object]) -> None:
        self._path, self._lost, self._ended = folder / LEASE, lost, threading.Event()
        self._own = {**this_process(), "mark": uuid.uuid4().hex}
        self.successor: Mapping[str, Any] | None = None
        left = _left(self._path)
        write_json(self._path, self._own)
        if left and left["host"] != self._own["host"]:
            time.sleep(SETTLED_S)
            holder = _left(self._path)
            if holder and holder != self._own:
                raise RunError(f"{folder} was taken by {holder_named(holder)} in the same moment; wait for it")
        self._thread = threading.Thread(target=self._give_signs, daemon=True)
        self._thread.start()

    def let_go(self) -> None:
        """Give the folder back, unless another process has it."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(RunError, OSError):
            if _left(self._path) == self._own:
                self._path.unlink()

    def _give_signs(self) -> None:
        while not self._ended.wait(SIGN_EVERY_S):
            with contextlib.suppress(RunError, OSError):  # of storage that fails for a while
                holder = _left(self._path)
                if holder and holder != self._own:
                    self.successor = holder
                    self._lost()
                    return
                os.utime(self._path)


def _living_holder(folder: Path) -> Mapping[str, Any] | None:
    """The process of another machine that holds a folder; None where there is none, or it gave no sign for too long."""
    path = folder / LEASE
    holder = _left(path)
    if holder is None or holder["host"] == platform.node():
        return None
    signed = path.stat().st_mtime
    with tempfile.TemporaryFile(dir=folder) as probe:  # the clock of the file system, as machines may differ
        silence_s = os.fstat(probe.fileno()).st_mtime - signed
    return holder if silence_s < LEASE_S else None


def _left(path: Path) -> Mapping[str, Any] | None:
    """What the last holder wrote; None where it has given the folder back."""
    try:
        return read_json(path)
    except RunError:
        if path.exists():
            raise
        return None
