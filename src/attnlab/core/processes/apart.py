"""Run a person's code in a process of its own: what it does there, to globals or to itself, ends with it.

Parent and process tell each other lines of JSON. What goes wrong is a sentence: an exit, a signal, a silence too long.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import importlib
import math
import os
import queue
import re
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from json import dumps, loads  # bound here, as the next ones: a person's code may replace those of the library
from os import _exit, getpid, write
from pathlib import Path
from types import FrameType
from typing import IO, Any, Self, final

import attnlab
from attnlab.core.build import describe_exception, is_path
from attnlab.core.errors import AttnlabError, RunError, SpecError, text_of
from attnlab.core.processes.forking import CAN_FORK, Forked

PATIENCE = "ATTNLAB_PATIENCE_S"
"""Variable with the seconds for which code of a person's own may give no sign of life."""
LONGER = f"{PATIENCE}=SECONDS waits longer"
PATIENCE_S = 600.0
"""Unless the variable says otherwise: an import, a construction and a first call take far less."""
POLL_S = 0.5  # between looks whether a process that says nothing still lives
DUMP_S = 0.5  # for writing down where a process is, before it is ended

_LIBRARIES = (str(Path(attnlab.__file__).parent), sysconfig.get_path("stdlib"), *site.getsitepackages())
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def patience_s() -> float:
    """Seconds for which code of a person's own may give no sign of life."""
    said = os.environ.get(PATIENCE, "")
    try:
        seconds = float(said or PATIENCE_S)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise SpecError(f"{PATIENCE} must be a number of seconds above 0; got '{said}'")
    return seconds


def names_own_code(value: Any) -> bool:
    """Whether a specification names code of a person's own anywhere in it."""
    return bool(own_code_in(value))


def own_code_in(value: Any) -> list[str]:
    """The code of a person's own that a specification names, ``path.py:Name``, each once."""
    return list(dict.fromkeys(filter(is_path, _texts_in(value))))


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(item)


@final
class ProcessApart:
    """A process of the lab's in which a person's code runs.

    Parameters
    ----------
    module : str
        Its ``main`` is what it runs, and begins with `begin_apart`.
    imports : sequence of str
        Modules that its ``main`` imports, where those of several processes can be imported once.
    log : file, optional
        Where goes what is printed there; standard error by default.
    environment : mapping, optional
        Variables beside those of this process.
    on_message : callable, optional
        Is given every message, None at the end, in a thread; by default they wait for `hear`.
    """

    def __init__(
        self,
        module: str,
        *,
        imports: Sequence[str] = (),
        log: IO[Any] | None = None,
        environment: Mapping[str, str] | None = None,
        on_message: Callable[[Any], None] | None = None,
    ) -> None:
        self._heard: queue.Queue[Any] = queue.Queue()
        self._pass_on = on_message or self._heard.put
        self.overdue_s: float | None = None  # after how many seconds of silence it was ended
        handle, name = tempfile.mkstemp(prefix="attnlab-")
        os.close(handle)
        self._dump = Path(name)
        variables = {**os.environ, **(environment or {})}
        try:
            self.process = _begun(module, name, variables, log, imports)
            threading.Thread(target=self._listen, daemon=True).start()
        except RuntimeError as error:  # of threads, for which there is no memory
            raise RunError(f"no process could be begun: {error}; free some memory, or ask for fewer at once") from None

    def __enter__(self) -> Self:
        """The process."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.end()

    def _listen(self) -> None:
        pipe: IO[str] = self.process.stdout  # type: ignore[assignment]
        with contextlib.suppress(ValueError):  # no JSON, or closed: nothing that follows can be trusted
            for line in pipe:
                self._pass_on(loads(line))
        self._pass_on(None)

    def tell(self, message: Any) -> None:
        """Send a message; one that ended does not read it, which `hear` notices."""
        pipe: IO[str] = self.process.stdin  # type: ignore[assignment]
        with contextlib.suppress(BrokenPipeError):
            pipe.write(dumps(message) + "\n")
            pipe.flush()

    def hear(self, limit_s: float = math.inf) -> Any:
        """The next message; None where none comes in time or the process has ended, which `cause` explains."""
        until = time.monotonic() + limit_s
        while True:
            left = until - time.monotonic()
            try:
                return self._heard.get(timeout=min(POLL_S, max(0.0, left)))
            except queue.Empty:
                if self.process.poll() is not None:  # a process that it left behind may hold its pipe open
                    return None
                if left <= 0.0:
                    self.end_silent(limit_s)
                    return None

    def end_silent(self, limit_s: float) -> None:
        """End a process that gave no sign of life for so long."""
        self.overdue_s = limit_s
        if hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(DUMP_S)
        self._kill()

    def end(self) -> None:
        """End the process at once, with all that it started."""
        self._kill()
        self._dump.unlink(missing_ok=True)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()

    def cause(self) -> str:
        """Why the process ended, in words, with the line of a person's file where it was if that is known."""
        if self.overdue_s is not None:
            return f"gave no sign of life for {self.overdue_s:.4g} s{self.place()} and was ended"
        try:
            code = self.process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            return "sent no JSON"
        if code >= 0:
            return f"ended with exit code {code}{self.place()}"
        words = (signal.strsignal(-code) or "").lower()
        words += ", perhaps for lack of memory" if code == -9 else ""  # SIGKILL, which not every system names
        return f"was ended by signal {-code} ({words}){self.place()}"

    def place(self) -> str:
        """Where a person's code was when the process died or was asked."""
        try:
            frames = _FRAME.findall(self._dump.read_text(errors="replace"))
        except OSError:
            return ""
        own = [frame for frame in frames if not frame[0].startswith((*_LIBRARIES, "<"))]
        return "".join(f" in {name} ({Path(file).name}, line {line})" for file, line, name in own[:1])


def _begun(
    module: str, dump: str, variables: Mapping[str, str], log: IO[Any] | None, imports: Sequence[str]
) -> Forked | subprocess.Popen[str]:
    if CAN_FORK:
        return Forked(module, [dump], variables, 2 if log is None else log.fileno(), imports)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, dump],  # -P: a queue.py of the user's is not ours
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=variables,
        start_new_session=True,  # Ctrl-C reaches the parent alone; what it starts is ended with it
    )


def call_apart(function: Callable[..., Any], *arguments: Any, takes_s: float = 0.0) -> Any:
    """Call a function of a module in a fresh process; what it warns of is warned of here.

    Parameters
    ----------
    function : callable
        A function that its module knows by its name.
    *arguments : Any
        Its arguments, in JSON types.
    takes_s : float
        Seconds that it may take beyond those that code of a person's own may be silent.

    Returns
    -------
    Any
        What it returned, in JSON types.

    Raises
    ------
    SpecError
        If the function raises, with its text; if the process ends without an answer, or gives none in time where
        the arguments name code of a person's own.
    """
    limit_s = patience_s() + takes_s if names_own_code(arguments) else math.inf
    with ProcessApart("attnlab.core.processes.apart", imports=[function.__module__]) as process:
        process.tell({"module": function.__module__, "function": function.__name__, "arguments": arguments})
        answer = process.hear() and process.hear(limit_s)  # the first says that it is ready
        if answer is None:
            longer = "" if process.overdue_s is None else f"; {LONGER}"
            raise SpecError(f"the process in which its code was tried {process.cause()}{longer}")
    for text, category, file, line in answer["warnings"]:
        warnings.warn_explicit(text, getattr(builtins, category, UserWarning), file, line)
    if "error" in answer:
        raise SpecError(answer["error"])
    return answer["result"]


# ---- in the process ----


def begin_apart() -> tuple[Callable[[], Any], Callable[[Mapping[str, Any]], None]]:
    """Make this process one in which a person's code may run.

    Its standard input and output are kept for messages: there is nothing to read, and what is printed goes to standard
    error. A process that the code forks ends where it would go on as this one; threads and finalizers that raise say
    so in a line; where a crash happened is written down.

    Returns
    -------
    asked : callable
        Waits for the next message of the parent; once it is gone, the process ends at once.
    tell : callable
        Sends one to the parent.
    """
    owner, inbox = getpid(), queue.Queue[Any]()
    lines = os.fdopen(os.dup(0), encoding="utf-8")
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    if len(sys.argv) > 1:
        dump = open(sys.argv[1], "w")  # noqa: SIM115 open until the end
        faulthandler.enable(dump, all_threads=False)
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGUSR1, dump, all_threads=False)
    sys.excepthook = lambda _kind, error, _trace: _mention("the process of its code", error)
    threading.excepthook = lambda told: _mention("a thread of its code", told.exc_value)
    sys.unraisablehook = lambda told: _mention("a finalizer", told.exc_value)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_end_at_return)

    def listen() -> None:
        for line in lines:
            inbox.put(loads(line))
        _exit(0)  # nobody wants the results any more

    def tell(message: Mapping[str, Any]) -> None:
        if getpid() != owner:
            _exit(0)
        channel.write(dumps(message) + "\n")
        channel.flush()

    threading.Thread(target=listen, daemon=True).start()
    return inbox.get, tell


def _mention(who: str, error: BaseException | None) -> None:
    with contextlib.suppress(BaseException):  # print and the like may be the person's own, or closed
        write(2, f"{who} raised {describe_exception(error or BaseException())}\n".encode(errors="replace"))


def _end_at_return() -> None:
    """End a process that a person's code forked as soon as it comes back into the lab's."""
    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_code.co_filename.startswith(_LIBRARIES[0]):
            frame.f_trace = _leave
        frame = frame.f_back
    sys.settrace(lambda *_: None)


def _leave(_frame: FrameType, _event: str, _argument: Any) -> None:
    _exit(0)


def sentence_of(error: BaseException) -> str:
    """An error's text; one that was not raised on purpose with its kind and line."""
    return str(error) if isinstance(error, AttnlabError) else describe_exception(error)


def in_words(error: BaseException) -> str:
    """As `sentence_of`; what was not raised on purpose goes to standard error with its traceback."""
    if not isinstance(error, AttnlabError):
        traceback.print_exception(error)
    return sentence_of(error)


def _answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    function = getattr(importlib.import_module(request["module"]), request["function"])
    tell({"ready": True})
    with warnings.catch_warnings(record=True) as found:
        try:
            answer = {"result": function(*request["arguments"])}
        except BaseException as error:
            answer = {"error": sentence_of(error)}
    said = [text_of(one.message).partition(": ")[2] for one in found]  # type: ignore[arg-type]  # their kind stands apart
    warned = [[text, one.category.__name__, one.filename, one.lineno] for text, one in zip(said, found, strict=True)]
    return {**answer, "warnings": warned}


def main() -> None:
    """Answer one call."""
    asked, tell = begin_apart()
    tell(_answer(asked(), tell))
    _exit(0)  # threads and exit handlers that the code left behind are not waited for


if __name__ == "__main__":
    main()
