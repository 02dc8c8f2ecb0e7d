"""The start page: what there is to see below the folder."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from attnlab.viewer.found import found
from attnlab.viewer.pages import page


def routes(folder: Path) -> list[Route]:
    """The start page of a folder."""

    def start(_: Request) -> HTMLResponse:
        """List studies and runs."""
        return page("start.html.j2", {"folder": folder, "found": found(folder)})

    return [Route("/", start)]
