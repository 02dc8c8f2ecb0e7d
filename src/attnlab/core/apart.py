"""Call a function in a process of its own: what a person's code does there, to globals or to itself, ends with it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from attnlab.core.build import is_path
from attnlab.core.errors import AttnlabError, SpecError


def names_own_code(value: Any) -> bool:
    """Whether a specification names code of a person's own anywhere in it."""
    return any(is_path(text) for text in texts_in(value))


def texts_in(value: Any) -> Iterator[str]:
    """Every text within nested values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)


def call_apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a fresh process.

    Parameters
    ----------
    function : callable
        A function that its module knows by its name.
    *arguments : Any
        Its arguments, in JSON types.

    Returns
    -------
    Any
        What it returned, in JSON types.

    Raises
    ------
    SpecError
        If the function raises, with its text; or if the process ends without an answer.
    """
    request = {"module": function.__module__, "function": function.__name__, "arguments": arguments}
    command = [sys.executable, "-P", "-m", "attnlab.core.apart"]  # -P: a queue.py of the user's is not ours
    done = subprocess.run(command, input=json.dumps(request).encode(), stdout=subprocess.PIPE, check=False)
    if not done.stdout:
        raise SpecError(f"its code ended the process in which it was tried, with exit code {done.returncode}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise SpecError(answer["error"])
    return answer["result"]


def take_stdout() -> IO[str]:
    """Keep the real standard output for a protocol, and send everything else that is printed to standard error."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return channel


def in_words(error: Exception) -> str:
    """An error's text; one that was not raised on purpose goes to standard error with its traceback."""
    if isinstance(error, AttnlabError):
        return str(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    function = getattr(importlib.import_module(request["module"]), request["function"])
    try:
        return {"result": function(*request["arguments"])}
    except Exception as error:
        return {"error": in_words(error)}


if __name__ == "__main__":
    with take_stdout() as out:
        out.write(json.dumps(_answer(json.load(sys.stdin))))
