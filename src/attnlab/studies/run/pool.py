"""Worker processes that outlive a cell, and survive each other: a crash costs one cell, never the study."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self, final

from attnlab.core.errors import Interrupted, RunError

INTERRUPT_PATIENCE_S = 120.0
"""How long a worker may take to reach the end of a step and write its checkpoint after Ctrl-C."""
START_PATIENCE_S = 300.0
"""How long a worker may take to start; importing torch takes seconds, on a busy machine more."""
BROKEN = "broken"
"""Kind of the last message about a request that could not be served: its worker died, or it was wrong."""
FINAL = ("served", BROKEN, "interrupted")
"""Kinds of a last message."""

OnMessage = Callable[[int, Mapping[str, Any]], None]


@final
class Worker:
    """One worker process and the thread that listens to it.

    Parameters
    ----------
    number : int
        Number of the worker, from 0.
    threads : int
        Threads its numerical libraries may use.
    inbox : queue.Queue
        Where its messages go, as (worker, message); message None says that the process ended.
    log : Path
        File for what it prints.
    """

    def __init__(self, number: int, threads: int, inbox: queue.Queue[tuple[Worker, Any]], log: Path) -> None:
        self.number = number
        self.request: int | None = None
        self.serves: str | None = None  # whose own code it may run; None before its first request
        with log.open("ab") as log_file:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "attnlab.studies.run.worker"],  # -P: a queue.py of the user's is not ours
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                text=True,
                encoding="utf-8",
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
                start_new_session=True,  # Ctrl-C reaches the parent alone, which then asks each worker to stop
            )
        self._listener = threading.Thread(target=self._listen, args=(inbox,), daemon=True)
        self._listener.start()

    def _listen(self, inbox: queue.Queue[tuple[Worker, Any]]) -> None:
        pipe: IO[str] = self.process.stdout  # type: ignore[assignment]
        for line in pipe:
            inbox.put((self, json.loads(line)))
        self.process.wait()
        inbox.put((self, None))

    def ask(self, index: int, request: Mapping[str, Any]) -> None:
        """Hand over one request; its answers carry no number, so one at a time."""
        self.request, self.serves = index, request["apart"]
        pipe: IO[str] = self.process.stdin  # type: ignore[assignment]
        with contextlib.suppress(BrokenPipeError):  # a dead worker is noticed by its listener
            pipe.write(json.dumps(request) + "\n")
            pipe.flush()

    def interrupt(self) -> None:
        """Ask for a checkpoint and an end, as Ctrl-C does."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """End the process at once; nothing is lost but the current cell's last steps."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def cause_of_death(self) -> str:
        """Why the process ended, in words."""
        code = self.process.returncode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
            return f"its process was killed by {name}{hint}"
        return f"its process ended with exit code {code}"


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
        self._inbox: queue.Queue[tuple[Worker, Any]] = queue.Queue()
        self._workers = [self._start(number) for number in range(workers)]

    def __enter__(self) -> Self:
        """The pool."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.end()

    def _start(self, number: int) -> Worker:
        return Worker(number, self._threads, self._inbox, self._log)

    def run(self, requests: Sequence[Mapping[str, Any]], on_message: OnMessage) -> None:
        """Run all requests, in order, as workers become free."""
        waiting = deque(enumerate(requests))
        served = 0
        try:
            self._hand_out(waiting)
            while served < len(requests):
                worker, message = self._next_message()
                if worker is not self._workers[worker.number]:  # one that made room for another
                    continue
                index = worker.request
                if message is None:
                    message = self._replace(worker)
                if index is not None:
                    on_message(index, message)
                    if message["kind"] in FINAL:
                        served += 1
                        worker.request = None
                self._hand_out(waiting)
        except KeyboardInterrupt:
            self._interrupt()
            raise Interrupted(
                "stopped; every cell is at its last step on disk. The same command goes on from there"
            ) from None

    def _next_message(self) -> tuple[Worker, Any]:
        while True:
            try:
                return self._inbox.get(timeout=START_PATIENCE_S)
            except queue.Empty:
                if not any(worker.process.poll() is None for worker in self._workers):
                    raise RunError(f"no worker process is alive; see {self._log}") from None

    def _hand_out(self, waiting: deque[tuple[int, Mapping[str, Any]]]) -> None:
        """Give free workers the first requests they may serve: a process has run the code of one person at most."""
        for number, worker in enumerate(self._workers):
            if not waiting or worker.request is not None:
                continue
            fits = [one for one in waiting if worker.serves in (None, one[1]["apart"])]
            if not fits:
                worker.end()
                self._workers[number] = self._start(number)
            chosen = (fits or waiting)[0]
            waiting.remove(chosen)
            self._workers[number].ask(*chosen)

    def _replace(self, worker: Worker) -> dict[str, Any]:
        """Replace a worker that died, and return the message about its request."""
        if worker.request is None:
            raise RunError(f"a worker process could not start: {worker.cause_of_death()}; see {self._log}")
        self._workers[worker.number] = self._start(worker.number)
        return {"kind": BROKEN, "error": f"{worker.cause_of_death()}; see {self._log}"}

    def _interrupt(self) -> None:
        """Ask busy workers to stop, and wait until they have."""
        busy = {worker for worker in self._workers if worker.request is not None}
        for worker in busy:
            worker.interrupt()
        while busy:
            try:
                worker, message = self._inbox.get(timeout=INTERRUPT_PATIENCE_S)
            except queue.Empty:
                return
            if message is None or message["kind"] in FINAL:
                busy.discard(worker)
