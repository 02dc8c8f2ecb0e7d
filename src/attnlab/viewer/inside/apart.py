"""A model looked at in a process of its own: whatever a person's code does, the server stays, and looks go on.

The process is told what to load, then asked line by line as JSON; what the code prints goes to standard error.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch

from attnlab.core.errors import SpecError
from attnlab.core.processes.apart import ProcessApart, begin_apart, sentence_of
from attnlab.viewer.inside.looking import run_in_view
from attnlab.viewer.inside.own import OwnModule, own_in_view
from attnlab.viewer.inside.questions import Answering, Body, answering

THREADS = 1
"""With which a page computes: a model trains beside it, and threads that wait for each other there take seconds."""
LIMIT_S = 120.0
"""For one answer of a person's own code; what takes longer is ended."""
ASIDE = 10
"""By how much the process that measures is nicer than the server: looks, and what trains beside it, come first."""


@final
class AnsweringApart:
    """Answer questions from another process, one at a time; it is begun anew where it ended.

    Parameters
    ----------
    opened : OwnModule or Path
        A module of a person's own, or the folder of a run.
    aside : bool
        Whether the process gives way to others.
    limit_s : float
        For one answer.
    """

    def __init__(self, opened: OwnModule | Path, *, aside: bool = False, limit_s: float = LIMIT_S) -> None:
        kind = {"own": asdict(opened)} if isinstance(opened, OwnModule) else {"run": str(opened)}
        self._opened, self._limit_s = {**kind, "aside": aside}, limit_s
        self._turn = threading.RLock()
        self._process: ProcessApart | None = None
        self._is_over = False
        self.begin: Mapping[str, Any] = {}

    def __call__(self, question: str, body: Body) -> dict[str, Any]:
        """The answer; raise `SpecError` where the code raises, takes too long, or ends its process."""
        with self._turn:
            self.open()
            return self._asked({"question": question, "body": body})

    def open(self) -> None:
        """Begin the process, unless it runs; raise as a question does."""
        with self._turn:
            if self._process is None or self._process.process.poll() is not None:
                self._begin()

    def end(self) -> None:
        """End for good, in the middle of an answer too."""
        self._is_over = True
        if self._process is not None:
            self._process.end()

    def _begin(self) -> None:
        if self._is_over:
            raise SpecError("the server has ended")
        self._process = ProcessApart("attnlab.viewer.inside.apart")
        weakref.finalize(self, self._process.end)
        try:
            self.begin = self._asked(self._opened)
        except SpecError:
            self._process.end()
            raise

    def _asked(self, message: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None:
            raise SpecError("the process that runs its code has ended")
        process.tell(message)
        answer = process.hear(self._limit_s)
        if answer is None:
            cause = process.cause()
            process.end()
            again = "" if message is self._opened else "; it is begun anew when you ask again"
            raise SpecError(f"the process that ran the model {cause}{again}")
        if "error" in answer:
            raise SpecError(answer["error"])
        return answer["result"]


def _open(opened: Mapping[str, Any]) -> tuple[Answering, Any]:
    """What is to be asked, and what its page begins with."""
    if opened["aside"] and os.name == "posix":
        os.nice(ASIDE)
    if "run" in opened:
        return answering(run_in_view(Path(opened["run"]))), {}
    view, begin = own_in_view(OwnModule(**opened["own"]))
    return answering(view), begin


def main() -> None:
    """Answer until there are no more questions; the first message says what is looked at."""
    answer: Answering | None = None
    torch.set_num_threads(THREADS)
    asked, tell = begin_apart()
    while True:
        message = asked()
        try:
            if answer is None:
                answer, found = _open(message)
            else:
                found = answer(message["question"], message["body"])
            told = {"result": found}
        except BaseException as error:
            told = {"error": sentence_of(error)}
        tell(told)


if __name__ == "__main__":
    main()
