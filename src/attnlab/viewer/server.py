"""The server of the viewer: its pages, guarded, on a port of this machine."""

from __future__ import annotations

import contextlib
import errno
import gc
import secrets
import socket
import weakref
import webbrowser
from collections.abc import Collection
from http import HTTPStatus
from pathlib import Path
from typing import final

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from attnlab.core.errors import AttnlabError, SpecError
from attnlab.core.processes.apart import in_words
from attnlab.viewer import run_page, start_page, study_page
from attnlab.viewer.guard import LOOPBACK, TOKEN, Guard, refused
from attnlab.viewer.inside.apart import THREADS, AnsweringApart
from attnlab.viewer.inside.own import OwnModule
from attnlab.viewer.pages import page
from attnlab.viewer.streams import Streams

STATIC = Path(__file__).parent / "static"
LAST_PORT = 65_535
TRIED = 100
"""Ports above a taken one among which a free one is looked for."""
NOWHERE = ("192.0.2.1", 9)
"""An address kept for documentation: choosing the way there sends nothing, and says what this machine is called."""


def application(shown: Path | OwnModule, *, token: str | None = None, hosts: Collection[str] = LOOPBACK) -> Starlette:
    """The viewer of a folder or of a module, as an ASGI application.

    Parameters
    ----------
    shown : Path or OwnModule
        A run, a study, or what has such below it; or a module of a person's own.
    token : str, optional
        What a visitor must know; without it everybody who reaches the server sees everything.
    hosts : collection of str
        Names and addresses by which the server may be called.

    Returns
    -------
    Starlette
        The application, with ``state.streams`` and ``state.processes``, which its server ends; it reads the folder and
        never writes.

    Raises
    ------
    SpecError
        If the module cannot be loaded or called.
    """
    streams, processes = Streams(), weakref.WeakSet[AnsweringApart]()
    if isinstance(shown, OwnModule):
        pages = run_page.own_routes(shown, processes)
    else:
        pages = [*start_page.routes(shown), *study_page.routes(shown, streams)]
        pages += run_page.routes(shown, streams, processes)
    made = Starlette(
        routes=[*pages, Mount("/static", StaticFiles(directory=STATIC))],
        middleware=[Middleware(Guard, hosts=hosts, token=token)],
        exception_handlers={
            AttnlabError: _mistake,
            HTTPException: _not_there,
            ClientDisconnect: _gone,
            Exception: _failure,
        },
    )
    made.state.streams, made.state.processes = streams, processes
    return made


def serve(shown: Path | OwnModule, *, host: str = "127.0.0.1", port: int = 8765, browser: bool = False) -> None:
    """Serve the viewer of a folder or of a module until Ctrl-C.

    Parameters
    ----------
    shown : Path or OwnModule
        See `application`.
    host : str
        Address or name to listen on. Beyond this machine, a token is made and asked for.
    port : int
        Port; 0 takes any that is free.
    browser : bool
        Whether to open the start page in the person's browser.

    Raises
    ------
    SpecError
        If there is no such folder or module, or one cannot listen there.
    """
    if isinstance(shown, Path) and not shown.is_dir():
        raise SpecError(f"there is no folder {shown}; name that of a run, of a study, or one with such below it")
    with _listening(host, port, shown if isinstance(shown, Path) else shown.target) as listener:
        open_to_all = host not in LOOPBACK
        token = secrets.token_urlsafe() if open_to_all else None
        names = {*LOOPBACK, host.lower(), *(_own_names() if open_to_all else ())}
        address = _address(host, listener.getsockname()[1], token)
        server = StreamingServer(application(shown, token=token, hosts=names))
        print(f"{address}  (Ctrl-C ends)", flush=True)
        if browser:
            webbrowser.open(address)
        torch.set_num_threads(THREADS)
        gc.freeze()  # what was imported stays: to look for garbage in it takes a tenth of a first look
        with contextlib.suppress(KeyboardInterrupt):
            server.run([listener])


@final
class StreamingServer(uvicorn.Server):
    """Serve until a person ends it; streams, which have no end, and what is being measured are ended first.

    Parameters
    ----------
    app : Starlette
        What `application` made.
    """

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
        config.lifespan = "off"  # what is begun with an application ends in a traceback at a second Ctrl-C
        super().__init__(config)
        self._state = app.state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End streams and processes, then the rest."""
        self._state.streams.close()
        for process in list(self._state.processes):
            process.end()
        await super().shutdown(sockets)


def _listening(host: str, port: int, shown: Path | str) -> socket.socket:
    """A socket that listens; one error for each reason why it cannot."""
    if not 0 <= port <= LAST_PORT:
        raise SpecError(f"--port must be between 0 and {LAST_PORT}; got {port}")
    try:
        return _socket(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            other = next(filter(lambda one: _is_free(host, one), range(port + 1, min(port + TRIED, LAST_PORT) + 1)), 0)
            raise SpecError(f"port {port} is taken; choose another: attnlab view {shown} --port {other}") from error
        raise SpecError(f"cannot listen on {host}, port {port}: {error.strerror}") from error


def _socket(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)


def _is_free(host: str, port: int) -> bool:
    try:
        _socket(host, port).close()
    except OSError:
        return False
    return True


def _address(host: str, port: int, token: str | None) -> str:
    """The address of the start page, by a name that others can call."""
    name = _own_address() if host in ("0.0.0.0", "::") else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/" + (f"?{TOKEN}={token}" if token else "")


def _own_names() -> set[str]:
    """What this machine may be called from others."""
    return {socket.gethostname().lower(), socket.getfqdn().lower(), _own_address()}


def _own_address() -> str:
    """The address of this machine that others see; its name where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(NOWHERE)
            return asking.getsockname()[0]
        except OSError:
            return socket.gethostname()


def _mistake(request: Request, error: Exception) -> Response:
    """Answer what a person can mend."""
    return _sentence(request, HTTPStatus.UNPROCESSABLE_ENTITY, str(error))


def _not_there(request: Request, error: Exception) -> Response:
    """Answer a request that is refused."""
    return (
        _sentence(request, error.status_code, error.detail)
        if isinstance(error, HTTPException)
        else _failure(request, error)
    )


def _gone(_request: Request, _error: Exception) -> Response:
    """Answer nobody: who asked has gone in the middle of a body."""
    return Response(status_code=HTTPStatus.BAD_REQUEST)


def _failure(request: Request, error: Exception) -> Response:
    """Answer where the viewer itself is wrong."""
    return _sentence(
        request, HTTPStatus.INTERNAL_SERVER_ERROR, f"the viewer failed ({in_words(error)}); its terminal says where"
    )


def _sentence(request: Request, status: int, sentence: str) -> Response:
    """An error as a page where a person asks, as JSON where a script does."""
    if "text/html" in request.headers.get("accept", ""):
        return page("error.html.j2", {"sentence": sentence}, status=status)
    return refused(status, sentence)
