"""Things that make training steps, each in a process of its own.

What one of them does to its process (an allocator's settings, compiled kernels, threads) then meets none of the others.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, final

import torch

from attnlab.benchmarks.contenders.steps import AbstractStepper
from attnlab.core.errors import AttnlabError, RunError

Make = Callable[[], AbstractStepper]
PATIENCE_S = 10.0  # for a process to end by itself
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
"""glibc gives each thread a heap of its own, in which large blocks cannot be kept; the lab's steps run in a thread."""
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""The command line sets it for what it runs; whoever writes a loop by hand usually does not."""


@final
class Apart(AbstractStepper):
    """Make training steps in another process, which waits in between without using the machine.

    Parameters
    ----------
    make : callable
        Makes what makes the steps; called there, so it must be picklable.
    by_command_line : bool
        Whether torch's settings are those of a process that attnlab's command line started, else torch's own.

    Raises
    ------
    AttnlabError or RuntimeError
        What `make` raises.
    RunError
        If the process dies.
    """

    def __init__(self, make: Make, *, by_command_line: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, torch.get_num_threads()), daemon=True)
        with _environment(ONE_HEAP | {HUGE_PAGES: str(int(by_command_line))}):
            self._process.start()
        theirs.close()
        try:
            self._take()
        except BaseException:
            self.close()
            raise

    def settle(self) -> None:
        """Warm up and time a few steps, over there."""
        self._ask("settle")

    def step_ms(self, steps: int) -> float:
        """Make some steps and return the milliseconds of one."""
        return self._ask("step_ms", steps)

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._connection.close()
        self._process.join(PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _ask(self, method: str, *arguments: Any) -> Any:
        with contextlib.suppress(BrokenPipeError):  # a dead process is noticed when its answer is taken
            self._connection.send((method, arguments))
        return self._take()

    def _take(self) -> Any:
        """An answer; take over what is known of the stepper by now."""
        try:
            answer, error, known = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(PATIENCE_S)
            raise RunError(f"the process that made training steps died (exit code {self._process.exitcode})") from None
        if error is not None:
            raise error
        vars(self).update(known)
        return answer


def _serve(connection: Connection, make: Make, threads: int) -> None:
    """Make a stepper, then do what is asked of it until nothing more is."""
    torch.set_num_threads(threads)
    stepper: AbstractStepper | None = None
    request: tuple[str, tuple[Any, ...]] | None = ("make", ())
    while request is not None:
        method, arguments = request
        try:
            if stepper is None:
                stepper, answer = make(), None
            else:
                answer = getattr(stepper, method)(*arguments)
            connection.send((answer, None, stepper.known()))
        except Exception as error:  # whatever a peer raises belongs to who asked
            connection.send((None, _plain(error), {}))
        request = connection.recv()
    if stepper is not None:
        stepper.close()


def _plain(error: Exception) -> Exception:
    """An error that can be sent: of the lab's own kind, or a RuntimeError with its text."""
    if isinstance(error, AttnlabError):
        return type(error)(str(error))
    return RuntimeError(f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Any:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
