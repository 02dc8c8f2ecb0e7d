"""A process that runs cells, some of them together: a JSON line in, JSON lines of events out.

What a user's module prints goes to standard error.
"""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable, Mapping
from typing import Any

from attnlab.core.errors import Interrupted
from attnlab.core.processes.apart import begin_apart, in_words
from attnlab.studies.run.pool import BROKEN

READY = "ready"


def main() -> None:
    """Serve the parent until it goes away."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what they start with & ignore it
    asked, tell = begin_apart()
    importlib.import_module("attnlab.studies.run.cell")  # takes seconds, in which no code of a person's own is silent
    tell({"kind": READY})
    while True:
        tell(_serve(asked(), tell))


def _serve(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Do what is asked and return the last message about it."""
    from attnlab.studies.run.executor import Job, compute

    try:
        for message in compute(Job(**request), tell):
            tell(message)
    except Interrupted as error:
        return {"kind": "interrupted", "error": str(error)}
    except KeyboardInterrupt:
        return {"kind": "interrupted", "error": "interrupted"}
    except BaseException as error:  # SystemExit too: it is a run that failed, not a process that ends
        return {"kind": BROKEN, "error": in_words(error)}
    return {"kind": "served"}


if __name__ == "__main__":
    main()
