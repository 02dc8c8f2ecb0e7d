"""Examine in a process of its own: a line of JSON in, lines of JSON on what was standard output.

Whatever the module itself prints, even from compiled code, goes to standard error.
"""

from __future__ import annotations

import os
from os import _exit  # bound here: a person's code may replace it

from attnlab.core.processes.apart import begin_apart, sentence_of

_OFFLINE = "HF_HUB_OFFLINE"  # of the libraries of Hugging Face


def main() -> None:
    """Answer one request."""
    asked, send = begin_apart()
    request = asked()
    os.environ.setdefault(_OFFLINE, "1")  # what downloads weights would wait for a network, or fill a disk
    from attnlab.doctor.engine import doctor

    def on_check(check: str, index: int, count: int) -> None:
        send({"check": check, "index": index, "count": count})

    try:
        send({"diagnosis": doctor(**request, on_check=on_check).to_json()})
    except BaseException as error:
        send({"error": sentence_of(error)})
    _exit(0)  # threads that the module left behind are not waited for


if __name__ == "__main__":
    main()
