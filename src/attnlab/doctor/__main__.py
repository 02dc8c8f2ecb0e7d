"""Examine in a process of its own: a request as JSON on standard input, JSON lines on what was standard output.

Whatever the module itself prints, even from compiled code, goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from attnlab.core.errors import AttnlabError


def _channel() -> Callable[[dict[str, Any]], None]:
    """A function that sends one line, and turn standard output into standard error for everything else."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    return send


def main() -> None:
    """Answer one request."""
    send = _channel()
    request = json.loads(sys.stdin.read())
    from attnlab.doctor.engine import doctor

    def on_check(check: str, index: int, count: int) -> None:
        send({"check": check, "index": index, "count": count})

    try:
        diagnosis = doctor(**request, on_check=on_check)
    except AttnlabError as error:
        send({"error": str(error)})
    except KeyboardInterrupt:
        send({"error": "it was interrupted"})
    else:
        send({"diagnosis": diagnosis.to_json()})


if __name__ == "__main__":
    main()
    os._exit(0)  # threads that the module left behind are not waited for
