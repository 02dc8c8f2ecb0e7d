"""A process that runs cells, some of them together: a JSON line in, JSON lines of events out.

Standard output belongs to the protocol; what a user's module prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import IO, Any

from attnlab.core.apart import in_words, take_stdout
from attnlab.core.errors import Interrupted
from attnlab.studies.run.pool import BROKEN

READY = "ready"


def main() -> None:
    """Serve the parent until it goes away."""
    channel = take_stdout()
    _send(channel, {"kind": READY})
    for request in _requests():
        _send(channel, _serve(request, channel))


def _requests() -> Iterator[dict[str, Any]]:
    """Yield requests as they come; end the process at once when the parent is gone."""
    inbox: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(inbox,), daemon=True).start()
    while True:
        yield json.loads(inbox.get())


def _listen(inbox: queue.Queue[str]) -> None:
    """Pass on what the parent writes. A closed pipe means that it died: nobody wants the results any more."""
    for line in sys.stdin:
        inbox.put(line)
    os._exit(0)


def _send(channel: IO[str], message: Mapping[str, Any]) -> None:
    channel.write(json.dumps(message) + "\n")
    channel.flush()


def _serve(request: Mapping[str, Any], channel: IO[str]) -> dict[str, Any]:
    """Do what is asked and return the last message about it."""
    from attnlab.studies.run.executor import Job, compute

    try:
        for message in compute(Job(**request), lambda message: _send(channel, message)):
            _send(channel, message)
    except Interrupted as error:
        return {"kind": "interrupted", "error": str(error)}
    except KeyboardInterrupt:
        return {"kind": "interrupted", "error": "interrupted"}
    except Exception as error:
        return {"kind": BROKEN, "error": in_words(error)}
    return {"kind": "served"}


if __name__ == "__main__":
    main()
