"""Studies whose folder lies in a store: held there, computed in its copy here, sent back while runs go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from attnlab.core.errors import RunError
from attnlab.core.files import patiently, read_json
from attnlab.core.storage.store import address
from attnlab.studies.run.folder import is_done
from attnlab.studies.run.lease import FileSign, ObjectSign, lease
from attnlab.studies.storage.mirror import Mirror
from attnlab.training.keeping.runs import HOLDER, SPEC, lock

SEND_EVERY_S = 30.0
"""How often what changed is sent while runs go on: what a machine loses that is lost with its disk."""


Say = Callable[[str], None]
"""Is told, once, that something could not be sent."""


@contextlib.contextmanager
def holding(out: Path, *, trains: bool = True, say: Say = lambda _: None) -> Iterator[tuple[Path, Mirror | None]]:
    """Hold a folder among all processes and machines; yield where to work, and the mirror of the store if it is in one.

    Where it `trains`, checkpoints are there from which runs go on.

    Raises
    ------
    SpecError
        If it is a URL of no store.
    RunError
        If another process holds it, or the store fails to the end.
    """
    found = address(out)
    if isinstance(found, Path):
        with lock(found), lease(FileSign(found)):
            yield found, None
        return
    mirror = Mirror(found, "work")
    with lock(mirror.folder), lease(ObjectSign(mirror.store, mirror.identity())):
        mirror.pull(
            checkpoints=lambda run: trains and not ((run / SPEC).exists() and is_done(run, read_json(run / SPEC)))
        )
        try:
            with sending(mirror, say=say):
                yield mirror.folder, mirror
        finally:
            with contextlib.suppress(RunError):
                mirror.store.delete([HOLDER])


@contextlib.contextmanager
def sending(mirror: Mirror, below: str = "", *, say: Say = lambda _: None) -> Iterator[None]:
    """Send what changed now and then, and at the end until nothing is left; storage that fails is waited for then."""
    ended = threading.Event()

    def send() -> None:
        failed = False
        while not ended.wait(SEND_EVERY_S):
            try:
                mirror.push(below)
                failed = False
            except RunError as error:
                if not failed:
                    say(f"{error}; runs go on, and what they leave is sent later")
                failed = True

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        ended.set()
        thread.join()
        with contextlib.suppress(RunError):
            mirror.push(below)
        raise
    ended.set()
    thread.join()
    send_all(mirror, below, say=say)


def send_all(mirror: Mirror, below: str = "", *, say: Say = lambda _: None) -> None:
    """Send what changed; storage that fails is waited for."""
    try:
        patiently(lambda: mirror.push(below), say)
    except RunError as error:
        raise RunError(
            f"{error}. What was computed lies in {mirror.folder}; the same command on this machine sends it and goes on"
        ) from error
