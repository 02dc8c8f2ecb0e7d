"""How an answer becomes a page: templates filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import HTMLResponse

from attnlab.studies.report.html import rendered

Crumbs = Sequence[tuple[str, str]]
"""Where a page lies: what it and every page above it is called, and its address, from the start on."""


def page(template: str, values: Mapping[str, Any], *, crumbs: Crumbs = (), status: int = 200) -> HTMLResponse:
    """A page from a template of the viewer, which extends ``base.html.j2``.

    Parameters
    ----------
    template : str
        Name of its file.
    values : mapping
        What the template names; texts are escaped.
    crumbs : sequence of pairs
        See `Crumbs`.
    status : int
        Of the answer.

    Returns
    -------
    HTMLResponse
        The answer.
    """
    return HTMLResponse(filled(template, {"crumbs": crumbs, **values}), status)


def filled(template: str, values: Mapping[str, Any]) -> str:
    """A template of the viewer filled in."""
    return rendered(template, values, "attnlab.viewer")
