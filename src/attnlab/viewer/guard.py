"""Who may ask, and for how much: the name the server was called by, where a request comes from, token, size of a body.

A page of the internet in the same browser must not read what lies here: neither through a name that it lets point to
this machine (DNS rebinding), nor by sending a form.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import final
from urllib.parse import parse_qsl

from starlette.datastructures import URL, Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
MOST_BYTES = 64 * 1024
"""Of the body of a request: a text to look at, with room to spare."""
MOST_DIGITS = 20  # more are refused unread: Python reads no number of thousands
TOKEN = "token"
"""Name of the token in an address."""
READING = ("GET", "HEAD")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
"""Of every answer that does not set them itself."""


@final
class Guard:
    """Refuse what does not come from this viewer's own pages, and bound what does.

    Parameters
    ----------
    app : ASGIApp
        What answers the rest.
    hosts : collection of str
        Names and addresses by which the server may be called, without port.
    token : str or None
        What must be known to see anything, once in the address and then in a cookie; None asks for nothing.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], token: str | None) -> None:
        self._app, self._hosts, self._token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._refusal(scope) or self._without_token(scope)
        await (answer or self._app)(scope, _bounded(receive, scope["method"] in READING), _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        """What is said to a request that may not be answered."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if _name_of(host) not in self._hosts:
            return refused(
                HTTPStatus.FORBIDDEN, f"this server is not called {host!r}; open the address that it printed"
            )
        own = f"{scope['scheme']}://{host}"
        if origin != own and (origin is not None or scope["method"] not in READING):
            return refused(HTTPStatus.FORBIDDEN, f"a request must come from {own}, this one comes from {origin}")
        length = headers.get("content-length") or "0"
        if not (length.isascii() and length.isdigit()):
            return refused(HTTPStatus.BAD_REQUEST, f"content-length must be a number of bytes; got {length[:20]!r}")
        if len(length) > MOST_DIGITS or int(length) > MOST_BYTES:
            return refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LARGE)
        return None

    def _without_token(self, scope: Scope) -> Response | None:
        """What is said to a request that does not show the token in its cookie; one in its address becomes a cookie."""
        if self._token is None:
            return None
        name, url = f"attnlab-{scope['server'][1]}", URL(scope=scope)
        if self._is_token(_cookie(Headers(scope=scope).get("cookie", ""), name)):
            return None
        given = dict(parse_qsl(url.query)).get(TOKEN, "")
        if not self._is_token(given):
            return refused(HTTPStatus.UNAUTHORIZED, "the address lacks the token; open the one that the terminal shows")
        answer = RedirectResponse(str(url.remove_query_params(TOKEN)), HTTPStatus.SEE_OTHER)
        answer.set_cookie(name, given, httponly=True, samesite="lax")  # strict is not sent after a link in a mail
        return answer

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())


TOO_LARGE = f"the body of a request has at most {MOST_BYTES} bytes; send less"


def refused(status: int, sentence: str) -> JSONResponse:
    """An error as every client gets it."""
    return JSONResponse({"error": sentence}, status)


def _name_of(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    name = host.lower()
    return name[1 : name.index("]")] if name.startswith("[") and "]" in name else name.partition(":")[0]


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _bounded(receive: Receive, is_answered_unread: bool) -> Receive:
    """Receive a body that says nothing of its size, up to the most bytes; who sends more of one not read has gone."""
    count = 0

    async def receive_some() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        if count > MOST_BYTES and is_answered_unread:
            return {"type": "http.disconnect"}
        if count > MOST_BYTES:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LARGE)
        return message

    return receive_some


def _with_headers(send: Send) -> Send:
    """Send an answer with the headers that keep a page to itself."""

    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with
