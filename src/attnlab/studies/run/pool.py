"""Worker processes that outlive a cell, and survive each other: a crash costs one cell, never the study."""

from __future__ import annotations

import contextlib
import math
import queue
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, final

from attnlab.core.errors import Interrupted, RunError
from attnlab.core.processes.apart import LONGER, POLL_S, ProcessApart, patience_s

INTERRUPT_PATIENCE_S = 120.0
"""How long workers may take to reach the end of a step and write its checkpoint after Ctrl-C."""
SILENT_STEPS = 1000
"""In how many times that a step takes a run with a person's own code must give a sign of life, evaluation included."""
BROKEN = "broken"
"""Kind of the last message about a request that could not be served: its worker died, or it was wrong."""
FINAL = ("served", BROKEN, "interrupted")
"""Kinds of a last message."""

OnMessage = Callable[[int, Mapping[str, Any]], None]
_Inbox = queue.Queue[tuple["_Worker", Any]]


@final
class _Worker:
    """One worker process, and what is known of the request that it serves.

    Its messages go to the inbox as (worker, message); message None says that the process has ended.
    """

    def __init__(self, number: int, threads: int, inbox: _Inbox, log: Path) -> None:
        self.number = number
        self.request: int | None = None
        self.runs_own_code: bool | None = None  # None before its first request
        self._heard_at = math.inf  # until it says that it is ready
        self._steps: list[tuple[int, float]] = []  # the first and the last that were told, and when
        with log.open("ab") as log_file:
            self.apart = ProcessApart(
                "attnlab.studies.run.worker",
                imports=["attnlab.studies.run.cell"],
                log=log_file,
                environment={"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
                on_message=lambda message: inbox.put((self, message)),
            )

    def ask(self, index: int, request: Mapping[str, Any]) -> None:
        """Hand over one request; its answers carry no number, so one at a time."""
        self.request, self.runs_own_code = index, bool(request["apart"])
        self._heard_at = max(self._heard_at, time.monotonic())
        self._steps = []
        self.apart.tell(request)

    def note(self, message: Mapping[str, Any] | None) -> None:
        """Note a sign of life."""
        self._heard_at = time.monotonic()
        if message and "step" in message and message["kind"] != "preparing":
            self._steps = [*self._steps[:1], (message["step"], self._heard_at)]

    def interrupt(self) -> None:
        """Ask for a checkpoint and an end, as Ctrl-C does."""
        with contextlib.suppress(ProcessLookupError):
            self.apart.process.send_signal(signal.SIGINT)

    def after(self) -> str:
        """After which step of its run it was heard of last, in words."""
        return f", after step {self._steps[-1][0]}" if self._steps else ""

    def has_ended(self) -> bool:
        """Whether the process is dead; one whose own code gave no sign of life for too long is, from now on."""
        if self.request is not None and self.runs_own_code:
            (first, began), (last, ended) = (self._steps[0], self._steps[-1]) if self._steps else ((0, 0.0), (0, 0.0))
            limit_s = max(patience_s(), SILENT_STEPS * (ended - began) / max(1, last - first))
            if time.monotonic() - self._heard_at > limit_s:
                self.apart.end_silent(limit_s)
        return self.apart.process.poll() is not None


@final
class Pool:
    """Run requests on a number of worker processes.

    Parameters
    ----------
    workers : int
        Number of processes.
    threads : int
        Threads of each.
    log : Path
        File for what the workers print.
    """

    def __init__(self, workers: int, threads: int, log: Path) -> None:
        self._threads = threads
        self._log = log
        self._inbox: _Inbox = queue.Queue()
        self._workers = [self._start(number) for number in range(workers)]

    def __enter__(self) -> Self:
        """The pool."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.apart.end()

    def _start(self, number: int) -> _Worker:
        return _Worker(number, self._threads, self._inbox, self._log)

    def run(self, requests: Sequence[Mapping[str, Any]], on_message: OnMessage) -> None:
        """Run all requests, in order, as workers become free; `on_message` may append to them."""
        waiting: deque[tuple[int, Mapping[str, Any]]] = deque()
        taken = served = 0
        try:
            while served < len(requests):
                waiting.extend((number, requests[number]) for number in range(taken, len(requests)))
                taken = len(requests)
                self._hand_out(waiting)
                worker, message = self._next_message()
                if worker is not self._workers[worker.number]:  # one that made room for another
                    continue
                index = worker.request
                if message is None:
                    message = self._replace(worker)
                if message["kind"] == "interrupted":  # not from here
                    error = "its process was interrupted, or its code raised KeyboardInterrupt"
                    message = {"kind": BROKEN, "error": error}
                if index is not None:
                    on_message(index, message)
                    if message["kind"] in FINAL:
                        served += 1
                        worker.request = None
        except KeyboardInterrupt:
            self._interrupt()
            raise Interrupted(
                "stopped; every cell is at its last step on disk. The same command goes on from there"
            ) from None

    def _next_message(self) -> tuple[_Worker, Any]:
        """The next message, or that a worker has ended; one may leave processes behind that hold its pipe open."""
        while True:
            try:
                worker, message = self._inbox.get(timeout=POLL_S)
            except queue.Empty:
                message, ended = None, [worker for worker in self._workers if worker.has_ended()]
                if not ended:
                    continue
                worker = ended[0]
            worker.note(message)
            return worker, message

    def _hand_out(self, waiting: deque[tuple[int, Mapping[str, Any]]]) -> None:
        """Give free workers the first requests they may serve: what ran a person's own code serves no other."""
        for number, worker in enumerate(self._workers):
            if not waiting or worker.request is not None:
                continue
            first = worker.runs_own_code is None
            fits = (one for one in waiting if first or not (worker.runs_own_code or one[1]["apart"]))
            chosen = next(fits, None)
            if chosen is None:
                worker.apart.end()
                self._workers[number] = self._start(number)
                chosen = waiting[0]
            waiting.remove(chosen)
            self._workers[number].ask(*chosen)

    def _replace(self, worker: _Worker) -> dict[str, Any]:
        """Replace a worker that died, and return the message about its request."""
        if worker.request is None:
            raise RunError(f"a worker process could not start: it {worker.apart.cause()}; see {self._log}")
        cause = worker.apart.cause() + worker.after()
        cause += "" if worker.apart.overdue_s is None else f"; {LONGER}"
        worker.apart.end()
        self._workers[worker.number] = self._start(worker.number)
        return {"kind": BROKEN, "error": f"its process {cause}; see {self._log}"}

    def _interrupt(self) -> None:
        """Ask busy workers to stop, and wait until they have."""
        busy = {worker for worker in self._workers if worker.request is not None}
        for worker in busy:
            worker.interrupt()
        end_s = time.monotonic() + INTERRUPT_PATIENCE_S
        while busy:
            try:
                worker, message = self._inbox.get(timeout=max(end_s - time.monotonic(), 0.0))
            except queue.Empty:
                return
            if message is None or message["kind"] in FINAL:
                busy.discard(worker)
