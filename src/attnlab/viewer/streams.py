"""Streams of events: one look at a study or a run for all who watch it, and what changed to each of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol, final

from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from attnlab.core.files import finite

LOOK_EVERY_S = 0.5
SHARE = 0.01
"""Of a core, that looking and telling may take: a model trains beside it. Where they take more, looks are rarer."""
RAREST_S = 5.0
"""Between two looks, whatever they take."""
MOST_STREAMS = 256
"""At once, of all studies and runs."""
MOST_WAITING = 64
"""Changes that a viewer may be behind; a slower one is let go, and its browser asks anew for everything."""
HEARTBEAT_S = 15.0
"""Silence after which a viewer is written to, so that one who has gone is noticed."""
END, HEARTBEAT = b"", b":\n\n"

Queue = asyncio.Queue[bytes]


class Followed(Protocol):
    """Say what changes in a folder, in JSON types."""

    def look(self) -> Any | None:
        """What has changed since the last look; None if nothing has."""

    def everything(self) -> Any:
        """All that is known, as the change that a new viewer begins with."""


Follow = Callable[[Path], Followed]
"""From a folder to what follows it; raise an `AttnlabError` where that cannot be."""


@final
class SharedLooks:
    """Look at one study or run for all its viewers, as long as there is one.

    Parameters
    ----------
    follow : callable
        Begins to follow the folder.
    folder : Path
        Of the study or run.
    """

    def __init__(self, follow: Follow, folder: Path) -> None:
        self._follow, self._folder = follow, folder
        self._followed: Followed | None = None
        self._everything = b""
        self._turn = asyncio.Lock()  # a viewer comes between two looks, and misses no change
        self._looking: asyncio.Task[None] | None = None
        self.viewers: set[Queue] = set()

    async def join(self) -> Queue:
        """Take in a viewer, who is told everything first."""
        async with self._turn:
            followed = self._followed or await asyncio.to_thread(self._follow, self._folder)
            everything = self._everything or await asyncio.to_thread(lambda: encoded(followed.everything()))
            self._followed, self._everything = followed, everything
            viewer = Queue(MOST_WAITING)
            viewer.put_nowait(everything)
            self.viewers.add(viewer)
            self._looking = self._looking or asyncio.create_task(self._look(followed))
        return viewer

    def leave(self, viewer: Queue) -> None:
        """Let a viewer go."""
        self.viewers.discard(viewer)

    async def _look(self, followed: Followed) -> None:
        """Look until nobody watches any more; where a look fails, viewers are let go."""
        pause_s, silent_s, busy_s = LOOK_EVERY_S, 0.0, time.thread_time()
        try:
            while self.viewers:
                await asyncio.sleep(pause_s)
                silent_s += pause_s
                async with self._turn:
                    event, looking_s = await asyncio.to_thread(_event_of, followed)
                    if event:
                        self._everything = END
                    if event or silent_s >= HEARTBEAT_S:
                        self._tell(event or HEARTBEAT)
                        silent_s = 0.0
                spent_s, busy_s = time.thread_time() - busy_s + looking_s, time.thread_time()
                pause_s = min(max(LOOK_EVERY_S, spent_s / SHARE), RAREST_S)
        finally:
            self._looking = self._followed = None
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
    """Hold the studies and runs that are watched now."""

    def __init__(self) -> None:
        self._shared: dict[tuple[Follow, Path], SharedLooks] = {}

    async def watch(self, follow: Follow, folder: Path) -> StreamingResponse:
        """Begin to watch a study or run.

        Parameters
        ----------
        follow : callable
            Begins to follow the folder.
        folder : Path
            Of the study or run.

        Returns
        -------
        StreamingResponse
            Server-sent events, until the viewer or the server goes.

        Raises
        ------
        RunError
            If the folder cannot be followed.
        HTTPException
            503, if too many watch already.
        """
        if sum(len(shared.viewers) for shared in self._shared.values()) >= MOST_STREAMS:
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_STREAMS} pages watch already; close one of them"
            )
        shared = self._shared.setdefault((follow, folder), SharedLooks(follow, folder))
        viewer = await shared.join()
        events = _events(viewer, lambda: shared.leave(viewer))
        return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})

    def close(self) -> None:
        """End all streams, so that the server can end."""
        for shared in self._shared.values():
            shared.end()


async def _events(viewer: Queue, leave: Callable[[], None]) -> AsyncIterator[bytes]:
    """Yield what a viewer is told."""
    try:
        while (event := await viewer.get()) != END:
            yield event
    finally:
        leave()


def end(viewer: Queue) -> None:
    """Tell a viewer nothing more."""
    while not viewer.empty():
        viewer.get_nowait()
    viewer.put_nowait(END)


def _event_of(followed: Followed) -> tuple[bytes, float]:
    """What a look has found as an event, empty for nothing; and the seconds of a core that it took."""
    began = time.thread_time()
    change = followed.look()
    return END if change is None else encoded(change), time.thread_time() - began


def encoded(change: Any) -> bytes:
    """A change as an event."""
    return f"data: {json.dumps(finite(change), ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
