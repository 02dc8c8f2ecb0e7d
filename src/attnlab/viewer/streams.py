"""Streams of events: one look at a study for all who watch it, and what changed to each of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, final

from starlette.exceptions import HTTPException

from attnlab.core.files import finite
from attnlab.viewer.following import FollowedStudy

LOOK_EVERY_S = 0.5
MOST_STREAMS = 256
"""At once, of all studies."""
MOST_WAITING = 64
"""Changes that a viewer may be behind; a slower one is let go, and its browser asks anew for everything."""
HEARTBEAT_S = 15.0
"""Silence after which a viewer is written to, so that one who has gone is noticed."""
END = b""

Queue = asyncio.Queue[bytes]


@final
class SharedStudy:
    """Look at one study for all its viewers, as long as there is one.

    Parameters
    ----------
    folder : Path
        The study's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._study: FollowedStudy | None = None
        self._everything = b""
        self._turn = asyncio.Lock()  # a viewer comes between two looks, and misses no change
        self._looking: asyncio.Task[None] | None = None
        self.viewers: set[Queue] = set()

    async def join(self) -> Queue:
        """Take in a viewer, who is told everything first."""
        async with self._turn:
            study = self._study or await asyncio.to_thread(FollowedStudy, self._folder)
            everything = self._everything or await asyncio.to_thread(lambda: encoded(study.everything()))
            self._study, self._everything = study, everything
            viewer = Queue(MOST_WAITING)
            viewer.put_nowait(everything)
            self.viewers.add(viewer)
            self._looking = self._looking or asyncio.create_task(self._look(study))
        return viewer

    def leave(self, viewer: Queue) -> None:
        """Let a viewer go."""
        self.viewers.discard(viewer)

    async def _look(self, study: FollowedStudy) -> None:
        """Look until nobody watches any more; where a look fails, viewers are let go."""
        try:
            while self.viewers:
                await asyncio.sleep(LOOK_EVERY_S)
                async with self._turn:
                    change = await asyncio.to_thread(study.look)
                    if change is not None:
                        self._everything = END
                        self._tell(await asyncio.to_thread(encoded, change))
        finally:
            self._looking = self._study = None
            self._everything = END
            self.end()

    def end(self) -> None:
        """Tell viewers nothing more."""
        for viewer in self.viewers:
            end(viewer)

    def _tell(self, event: bytes) -> None:
        for viewer in list(self.viewers):
            if viewer.full():
                end(viewer)
                self.leave(viewer)
            else:
                viewer.put_nowait(event)


@final
class Streams:
    """Hold the studies that are watched now."""

    def __init__(self) -> None:
        self._studies: dict[Path, SharedStudy] = {}

    async def watch(self, folder: Path) -> AsyncIterator[bytes]:
        """Begin to watch a study.

        Parameters
        ----------
        folder : Path
            The study's folder.

        Returns
        -------
        AsyncIterator of bytes
            Server-sent events, until the viewer or the server goes.

        Raises
        ------
        RunError
            If the folder holds no study that can be read.
        HTTPException
            503, if too many watch already.
        """
        if sum(len(study.viewers) for study in self._studies.values()) >= MOST_STREAMS:
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_STREAMS} pages watch studies already; close one of them"
            )
        study = self._studies.setdefault(folder, SharedStudy(folder))
        viewer = await study.join()
        return _events(viewer, lambda: study.leave(viewer))

    def close(self) -> None:
        """End all streams, so that the server can end."""
        for study in self._studies.values():
            study.end()


async def _events(viewer: Queue, leave: Callable[[], None]) -> AsyncIterator[bytes]:
    """Yield what a viewer is told."""
    try:
        while True:
            try:
                event = await asyncio.wait_for(viewer.get(), HEARTBEAT_S)
            except TimeoutError:
                yield b":\n\n"
                continue
            if event == END:
                return
            yield event
    finally:
        leave()


def end(viewer: Queue) -> None:
    """Tell a viewer nothing more."""
    while not viewer.empty():
        viewer.get_nowait()
    viewer.put_nowait(END)


def encoded(change: Any) -> bytes:
    """A change as an event."""
    return f"data: {json.dumps(finite(change), ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
