"""A process that runs cells, some of them together: a JSON line in, JSON lines of events out.

Standard output belongs to the protocol; what a user's module prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from attnlab.core.errors import AttnlabError, Interrupted
from attnlab.studies.run.pool import BROKEN

READY = "ready"


def main() -> None:
    """Serve the parent until it goes away."""
    channel = _take_stdout()
    _send(channel, {"kind": READY})
    for request in _requests():
        _send(channel, _serve(request, channel))


def _take_stdout() -> IO[str]:
    """Keep the real standard output for the protocol, and send everything else to standard error."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return channel


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
    try:
        if request["do"] == "time":
            return {"kind": "timed", **_time_steps(request)}
        _run(request, channel)
        return {"kind": "served"}
    except Interrupted as error:
        return {"kind": "interrupted", "error": str(error)}
    except KeyboardInterrupt:
        return {"kind": "interrupted", "error": "interrupted"}
    except Exception as error:
        return {"kind": BROKEN, "error": _in_words(error)}


def _run(request: Mapping[str, Any], channel: IO[str]) -> None:
    """Run cells, together if there are several, and say how each of them ended."""
    from attnlab.studies.run.cell import run_cells
    from attnlab.training.run.tensorboard import tensorboard_events

    folders = [Path(cell["folder"]) for cell in request["cells"]]
    listeners = [tensorboard_events(folder) for folder in folders] if request["tensorboard"] else None

    def tell(cell: int, event: Mapping[str, Any]) -> None:
        if listeners:
            listeners[cell](event)
        _send(channel, {**event, "cell": cell})

    specs = [cell["spec"] for cell in request["cells"]]
    how = {"threads": request["threads"], "device": request["device"]}
    for cell, outcome in enumerate(run_cells(folders, specs, on_event=tell, **how)):
        if isinstance(outcome, Exception):
            _send(channel, {"kind": "failed", "cell": cell, "error": _in_words(outcome)})
        else:
            _send(channel, {"kind": "finished", "cell": cell, "metrics": outcome})


def _in_words(error: Exception) -> str:
    """An error's text; one that was not raised on purpose goes to the log with its traceback."""
    if isinstance(error, AttnlabError):
        return str(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


def _time_steps(request: Mapping[str, Any]) -> dict[str, float | None]:
    """The seconds of a training step of a cell's model, alone and with others."""
    import torch

    from attnlab.studies.run.timing import step_times

    torch.set_num_threads(request["threads"])
    alone, together = step_times(request["spec"], request["together"])
    return {"alone": alone, "together": together}


if __name__ == "__main__":
    main()
