"""Leases: who holds a folder, seen from every machine that sees it.

A lock keeps apart the processes of one machine, and those of several only where the file system that they share passes
locks on. A lease is a file that its holder touches again and again, or an object of a store that it writes anew: a
holder that died is known by its silence.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import math
import os
import platform
import tempfile
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, final

from attnlab.core.errors import Interrupted, RunError
from attnlab.core.files import read_json, write_json, writing
from attnlab.core.storage.store import Store
from attnlab.training.keeping.runs import holder_named, this_process

LEASE = ".lease.json"
LEASES = ".lease-"
"""Begins the names of leases in a store, which end in their numbers."""
LEASE_S = 60.0
"""How long after its last sign a holder counts as alive: many times what a network file system holds an answer back."""
SIGN_EVERY_S = 10.0
"""How often a holder gives a sign."""
SETTLED_S = 1.0
"""How long who took over waits to see whether another did so in the same moment."""
POLL_S = 1.0


@contextlib.contextmanager
def lease(
    sign: AbstractSign, *, patience_s: float = 0.0, lost: Callable[[], object] = _thread.interrupt_main
) -> Iterator[None]:
    """Hold a folder, the lock of which is free on this machine, among all machines that see it.

    Who holds it is waited for, for so long. Once another process has taken it, `lost` is called, in another thread; by
    default it interrupts this one.

    Raises
    ------
    RunError
        If another process holds it, or took it over because this one gave no sign; the text names process and host.
    """
    until = time.monotonic() + patience_s
    while (holder := _living_holder(sign)) and time.monotonic() < until:
        time.sleep(POLL_S)
    if holder:
        raise RunError(
            f"{sign.folder} is held by {holder_named(holder)}; wait for it, or stop it first: its lease ends "
            f"{LEASE_S:.0f} s after its last sign"
        )
    held = _Held(sign, lost)
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        if held.successor:
            raise RunError(
                f"{sign.folder} was taken over by {holder_named(held.successor)}, as this process gave no sign for "
                f"{LEASE_S:.0f} s; what it had computed lies there"
            ) from None
        raise
    finally:
        held.let_go()


def _living_holder(sign: AbstractSign) -> Mapping[str, Any] | None:
    """The process that holds a folder; None where there is none, its lock is free, or it gave no sign for too long."""
    holder = sign.left()
    if holder is None or sign.is_under_lock(holder):
        return None
    return holder if sign.silence_s() < LEASE_S else None


class AbstractSign(ABC):
    """Leave signs of who holds a folder where all machines see them."""

    folder: str
    """The folder, as messages name it."""
    own: Mapping[str, Any]
    """What this process leaves of itself."""

    @abstractmethod
    def left(self) -> Mapping[str, Any] | None:
        """What the last holder wrote; None where it has given the folder back."""

    @abstractmethod
    def is_under_lock(self, holder: Mapping[str, Any]) -> bool:
        """Whether a holder would hold the lock that this process has, so that it is gone."""

    @abstractmethod
    def silence_s(self) -> float:
        """How long ago the last sign was given, by a clock that all machines share."""

    @abstractmethod
    def take(self) -> None:
        """Leave the first sign; raise `RunError` if another process did so in the same moment."""

    @abstractmethod
    def renew(self) -> None:
        """Give another sign."""

    @abstractmethod
    def remove(self) -> None:
        """Take the sign away."""

    def _give_way(self, holder: Mapping[str, Any] | None) -> NoReturn:
        """Say that another process has left a sign in the same moment."""
        other = holder_named(holder) if holder and holder != self.own else "another process"
        raise RunError(f"{self.folder} was taken by {other} in the same moment; wait for it")


@final
class FileSign(AbstractSign):
    """Leave signs in a folder of a file system: a file that is touched.

    Parameters
    ----------
    folder : Path
        The folder; it is created if need be.
    """

    def __init__(self, folder: Path) -> None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._path = str(folder), folder / LEASE
        self.own = {**this_process(), "mark": uuid.uuid4().hex}

    def left(self) -> Mapping[str, Any] | None:
        """What the file holds."""
        try:
            return read_json(self._path)
        except RunError:
            if self._path.exists():
                raise
            return None

    def is_under_lock(self, holder: Mapping[str, Any]) -> bool:
        """Whether it is of this machine."""
        return holder["host"] == platform.node()

    def silence_s(self) -> float:
        """How long ago the file was touched, by the clock of the file system."""
        try:
            signed = self._path.stat().st_mtime
        except FileNotFoundError:  # it was given back in this moment
            return math.inf
        with tempfile.TemporaryFile(dir=self.folder) as probe:
            return os.fstat(probe.fileno()).st_mtime - signed

    def take(self) -> None:
        """Write the file, and see whether another machine has done so too."""
        before = self.left()
        write_json(self._path, self.own)
        if before and not self.is_under_lock(before):
            time.sleep(SETTLED_S)
            holder = self.left()
            if holder and holder != self.own:
                self._give_way(holder)

    def renew(self) -> None:
        """Touch the file."""
        os.utime(self._path)

    def remove(self) -> None:
        """Remove the file."""
        self._path.unlink()


@final
class ObjectSign(AbstractSign):
    """Leave signs in a store: of numbered objects, each of which only one process can create, the last counts.

    Parameters
    ----------
    store : Store
        The store.
    copy : str
        What identifies the copy here, which is locked: another copy on this machine has another lock.
    below : str
        The folder in the store; by default all of it.

    Notes
    -----
    Who takes over an object that got no sign for too long creates the next one, and goes if another process did, or if
    the former one was gone by then. In a store that ignores the condition the last writer counts: who creates an object
    tries it twice, and where the store lets it, looks again a second later who that was.
    """

    def __init__(self, store: Store, copy: str, below: str = "") -> None:
        self._store, self._below = store, f"{below}/" if below else ""
        self.folder = f"{store.url}/{below}".rstrip("/")
        self.own = {**this_process(), "copy": copy, "mark": uuid.uuid4().hex}
        self._name = ""  # of this process's lease, while it has one

    def _names(self) -> list[str]:
        return sorted(self._store.tags(self._below, LEASES))

    def left(self) -> Mapping[str, Any] | None:
        """What the last object holds."""
        for name in reversed(self._names()):
            with self._unless_gone():
                return json.loads(dict(self._store.read([name]))[name])
        return None

    def is_under_lock(self, holder: Mapping[str, Any]) -> bool:
        """Whether it is of this copy."""
        return holder["host"] == platform.node() and holder["copy"] == self.own["copy"]

    def silence_s(self) -> float:
        """How long ago the last object was written, by the clock of the store."""
        with self._unless_gone():
            return self._store.seconds_since(self._names()[-1])
        return math.inf

    def take(self) -> None:
        """Create the next object."""
        before = self._names()
        number = int(before[-1].removeprefix(self._below + LEASES)) + 1 if before else 1
        self._name, content = f"{self._below}{LEASES}{number:08}", json.dumps(self.own).encode()
        if not self._store.create(self._name, content):
            self._give_way(self.left())
        if self._store.create(self._name, content):  # it ignores the condition
            time.sleep(SETTLED_S)
        names, holder = self._names(), self.left()
        if holder != self.own or not {*before} < {*names}:
            if holder == self.own or self._name != names[-1]:
                self.remove()
            self._give_way(holder)
        self._store.delete(before)

    def renew(self) -> None:
        """Write the object anew."""
        self._store.write({self._name: json.dumps(self.own).encode()})

    def remove(self) -> None:
        """Delete the object."""
        self._store.delete([self._name])

    @contextlib.contextmanager
    def _unless_gone(self) -> Iterator[None]:
        """Pass over an object that is deleted in this moment."""
        try:
            yield
        except IndexError:
            return
        except RunError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise


@final
class _Held:
    """Give signs that a folder is held, and break off where another process has taken it."""

    def __init__(self, sign: AbstractSign, lost: Callable[[], object]) -> None:
        self._sign, self._lost, self._ended = sign, lost, threading.Event()
        self.successor: Mapping[str, Any] | None = None
        sign.take()
        self._thread = threading.Thread(target=self._give_signs, daemon=True)
        self._thread.start()

    def let_go(self) -> None:
        """Give the folder back, unless another process has it."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(RunError, OSError):
            if self._sign.left() == self._sign.own:
                self._sign.remove()

    def _give_signs(self) -> None:
        while not self._ended.wait(SIGN_EVERY_S):
            with contextlib.suppress(RunError, OSError):  # of storage that fails for a while
                holder = self._sign.left()
                if holder and holder != self._sign.own:
                    self.successor = holder
                    self._lost()
                    return
                self._sign.renew()
