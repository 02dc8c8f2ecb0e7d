"""Begin a process by forking one that has imported what it needs: to import torch takes seconds, to fork milliseconds.

What is forked is a server that only imports, in one thread. Beside each process forked from it a second one waits for
its end, and tells its exit code. Of Linux alone: elsewhere what is imported may not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, final

CAN_FORK = sys.platform == "linux"
_LIBRARIES = re.compile(
    "(OMP|GOMP|KMP|MKL|OPENBLAS|ATEN|DNNL|ONEDNN|TORCH|PYTORCH|CUDA|NVIDIA|NCCL|PYTHON|LD|MALLOC)_?"
)
"""Of environment variables that are read when something is imported."""
_NOT_FOR_IT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if CAN_FORK else ()
"""Signals that may reach a server and what waits beside a process too; each ends with what it is there for."""
_MOST_SERVERS = 2  # in use at once: for what is tried, and for runs with their number of threads

_servers: dict[frozenset[tuple[str, str]], socket.socket] = {}
_lock = threading.Lock()


@final
class Forked:
    """A process forked from one that has imported its module, with what `subprocess.Popen` offers.

    Parameters
    ----------
    module : str
        Its ``main`` is what the process runs.
    arguments : sequence of str
        Its ``sys.argv[1:]``.
    environment : mapping
        All its environment variables.
    log : int
        File descriptor for its standard error.
    imports : sequence of str
        Modules beside its own that are imported before.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: int, imports: Sequence[str]
    ) -> None:
        self.returncode: int | None = None
        self._pid = 0
        self._module = module
        self._has_begun, self._has_ended = threading.Event(), threading.Event()
        folder = os.open(".", os.O_PATH)  # type: ignore[attr-defined]  # which may be deleted, and stays so
        (child_reads, writes), (reads, child_writes), (status, child_status) = os.pipe(), os.pipe(), os.pipe()
        self.stdin = os.fdopen(writes, "w", encoding="utf-8")
        self.stdout = os.fdopen(reads, encoding="utf-8", errors="replace")
        try:
            asked = {"imports": [module, *imports], "arguments": arguments, "environment": environment}
            _ask(asked, [child_reads, child_writes, log, folder, child_status])
        finally:
            for one in (child_reads, child_writes, folder, child_status):
                os.close(one)
        threading.Thread(target=self._watch, args=(status,), daemon=True).start()

    def _watch(self, status: int) -> None:
        with open(status) as told:
            self._pid = int(told.readline() or 0)
            self._has_begun.set()
            self.returncode = int(told.readline() or -signal.SIGKILL)  # what should tell was ended itself
        self._has_ended.set()

    @property
    def pid(self) -> int:
        """Its number, as soon as it has one; raise `ProcessLookupError` where it never began."""
        self._has_begun.wait()
        if not self._pid:
            raise ProcessLookupError
        return self._pid

    def poll(self) -> int | None:
        """Its exit code, negative where a signal ended it; None while it lives."""
        return self.returncode if self._has_ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; raise `subprocess.TimeoutExpired` where that takes longer."""
        if not self._has_ended.wait(timeout):
            raise subprocess.TimeoutExpired(self._module, timeout or 0.0)
        return self.returncode or 0

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _ask(asked: Mapping[str, Any], files: Sequence[int]) -> None:
    """Have a server fork a process; a server that has ended is begun anew."""
    variables = asked["environment"]
    key = frozenset((name, text) for name, text in variables.items() if _LIBRARIES.match(name))
    with _lock, open(os.memfd_create("asked"), "w+") as text:
        json.dump(asked, text)
        text.flush()
        server = _servers.pop(key, None) or begin_server(variables)
        if not _sent(server, [text.fileno(), *files]):
            server = begin_server(variables)
            if not _sent(server, [text.fileno(), *files]):
                return  # it was ended too, and so is what it should have forked
        _servers[key] = server  # the last that was used stands last
        while len(_servers) > _MOST_SERVERS:
            _servers.pop(next(iter(_servers))).close()  # and what it forked goes on


def _sent(server: socket.socket, files: Sequence[int]) -> bool:
    os.lseek(files[0], 0, os.SEEK_SET)
    try:
        return bool(socket.send_fds(server, [b"a process"], files))
    except OSError:
        server.close()
        return False


def begin_server(environment: Mapping[str, str]) -> socket.socket:
    """Start a server; it ends with the connection that is given back."""
    connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        started = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],  # -P: a queue.py of the user's is not ours
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C reaches the parent alone
        )
    threading.Thread(target=started.wait, daemon=True).start()
    return connection


# ---- in the server ----


def serve(connection: socket.socket) -> NoReturn:
    """Fork what the parent asks for, until it is gone."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (*_NOT_FOR_IT, signal.SIGCHLD)}
    while True:
        _, files, *_ = socket.recv_fds(connection, 16, 6)
        if not files:
            os._exit(0)
        with open(files.pop(0)) as text:
            asked = json.load(text)
        with contextlib.suppress(Exception):  # the process says it itself
            for name in asked["imports"]:
                importlib.import_module(name)
            if "torch" in sys.modules:
                importlib.import_module("torch._dynamo")  # which the first optimizer and the first tape would import
            gc.freeze()
        if _fork() == 0:
            connection.close()
            _beside(asked, files, handlers)
        for one in files:
            os.close(one)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which numpy's library mends after a fork
        return os.fork()


def _beside(asked: Mapping[str, Any], files: Sequence[int], handlers: Mapping[signal.Signals, Any]) -> NoReturn:
    """Fork what is asked for, and tell its number and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored nobody learns an exit code
    *its, status = files
    process = _fork()
    if process == 0:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _become(asked, its, status)
    for one in its:
        os.close(one)
    _, code = os.waitpid(process, 0)
    _tell(status, os.waitstatus_to_exitcode(code))
    os._exit(0)


def _tell(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more
        os.write(status, f"{number}\n".encode())


def _become(asked: Mapping[str, Any], its: Sequence[int], status: int) -> NoReturn:
    """Run what is asked for in this process, which is as one that was started."""
    os.setsid()
    *its, folder = its
    os.fchdir(folder)
    for source, target in zip(its, range(3), strict=True):
        os.dup2(source, target)
    _tell(status, os.getpid())
    for one in (*its, folder, status):
        os.close(one)
    os.environ.clear()
    os.environ.update(asked["environment"])
    module = asked["imports"][0]
    sys.argv = [module, *asked["arguments"]]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else every process draws the same
    end_with(lambda: importlib.import_module(module).main())


def end_with(call: Callable[[], object]) -> NoReturn:
    """Call a function, and end this process with the exit code that an interpreter would have."""
    code: object = 0
    try:
        call()
    except SystemExit as error:
        code = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
