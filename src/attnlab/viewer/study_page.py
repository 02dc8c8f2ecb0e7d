"""The page of a study, the stream of what changes in it, and its report."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from attnlab.viewer.following import REPORT, FollowedStudy, has_report, told
from attnlab.viewer.known import known
from attnlab.viewer.pages import Crumbs, page
from attnlab.viewer.places import address, inside, path_below
from attnlab.viewer.states import state_of_run, state_of_study
from attnlab.viewer.streams import Streams

REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A report is one file with its own script and style; in a sandbox it has no origin and can ask the server nothing."""


def routes(folder: Path, streams: Streams) -> list[Route]:
    """The pages of studies below a folder."""

    def study(request: Request) -> Response:
        """Show a study; its script asks for the stream."""
        place = inside(folder, request.path_params["path"])
        path, said = path_below(folder, place), known(place)
        states = [state_of_run(place / run.folder) for run in said.runs]
        values = told(said, state_of_study(place, states), states) | {
            "events": address("events", path),
            "runs": address("run", f"{path}/" if path else ""),
            "report": address("report", path),
            "has_report": has_report(place),
        }
        return page("study.html.j2", values, crumbs=crumbs(path))

    async def events(request: Request) -> StreamingResponse:
        """Send what changes, as server-sent events."""
        return await streams.watch(FollowedStudy, inside(folder, request.path_params["path"]))

    def report(request: Request) -> FileResponse:
        """Send the report that was written into a study's folder."""
        file = inside(folder, f"{request.path_params['path']}/{REPORT}".lstrip("/"))
        return FileResponse(file, media_type="text/html", headers={"content-security-policy": REPORT_POLICY})

    pages = {"study": study, "events": events, "report": report}
    return [Route(f"/{name}/{{path:path}}", endpoint) for name, endpoint in pages.items()]


def crumbs(path: str) -> Crumbs:
    """Where a study lies: folders above it have no page."""
    return [(path, address("study", path))] if path else []
