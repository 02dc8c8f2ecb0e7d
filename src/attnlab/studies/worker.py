"""A process that runs cells one after another: a JSON line in, JSON lines of events out.

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

from attnlab.errors import AttnlabError, Interrupted

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
            return {"kind": "timed", "seconds": _time_steps(request)}
        return {"kind": "finished", "metrics": _run(request, channel)}
    except Interrupted as error:
        return {"kind": "interrupted", "error": str(error)}
    except KeyboardInterrupt:
        return {"kind": "interrupted", "error": "interrupted"}
    except AttnlabError as error:
        return {"kind": "failed", "error": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"kind": "failed", "error": f"{type(error).__name__}: {error}"}


def _run(request: Mapping[str, Any], channel: IO[str]) -> dict[str, float]:
    from attnlab.studies.cell import run_cell
    from attnlab.training.tensorboard import tensorboard_events

    folder = Path(request["folder"])
    listeners = [tensorboard_events(folder)] if request["tensorboard"] else []

    def tell(event: Mapping[str, Any]) -> None:
        for listener in (*listeners, lambda event: _send(channel, event)):
            listener(event)

    return run_cell(folder, request["spec"], threads=request["threads"], device=request["device"], on_event=tell)


def _time_steps(request: Mapping[str, Any]) -> float:
    """Return the seconds of one training step of a cell's model with a number of threads."""
    import torch

    from attnlab.studies.assemble import build_model, build_task
    from attnlab.studies.plan import step_seconds

    torch.set_num_threads(request["threads"])
    task = build_task(request["spec"]["task"])
    return step_seconds(build_model(request["spec"]["model"], task), task)


if __name__ == "__main__":
    main()
