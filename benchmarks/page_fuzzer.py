"""Ask the viewer's server a thousand broken and hostile things, and count how it answers.

Use: ``python benchmarks/page_fuzzer.py --count 1000``; writes ``page_fuzzer.json`` beside this file and the table of
``docs/reliability.md``. Most requests go to the application in this process, every tenth through a socket of a server,
byte by byte, cut off, or slowly. A folder with a secret beside it is served; no answer may hold the secret.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "page_fuzzer.json", HERE.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- requests: written by benchmarks/page_fuzzer.py -->\n", "<!-- end of requests -->\n"
KINDS = ("answered", "refused", "failed (500)", "traceback", "hang", "left the folder")
SECRET = "a secret that lies beside the folder"
HANGS_S = 20.0
TOKEN = "right-token"
Answer = tuple[int, dict[str, str], bytes]

PAGES = ("/", "/study/tiny", "/run/tiny/plain/seed-0", "/report/tiny", "/events/tiny", "/run/tiny/plain/seed-0/watched")
ASKED = ("look", "map", "write", "explain", "heads", "worth", "cost")
DOTS = (
    "..",
    "%2e%2e",
    "..%2f",
    "%2e%2e%2f",
    "..%5c",
    "..\\",
    "%252e%252e%252f",
    "....//",
    "..;/",
    "%c0%ae%c0%ae/",
    ".",
    "//",
)
ODD = (
    "%00",
    "\x00",
    "\n",
    "%0a",
    "%0d%0aSet-Cookie:a=b",
    "\ud800",
    "é",
    "%ff%fe",
    "<script>",
    "'\"",
    "{{7*7}}",
    "a" * 5000,
    "~",
    "*",
    "CON",
    "%",
)
METHODS = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PATCH",
    "get",
    "G\x00T",
    "",
    "A" * 300,
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        10**30,
        -(10**9),
        1e308,
        "NaN",
        "",
        "x",
        "0 1 2",
        "\x00",
        "\ud800",
        "<img src=x onerror=alert(1)>",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        ["x"] * 50,
        {"a": {"b": []}},
        "a" * 3000,
        "9" * 400,
        "0 " * 1500,
        "-1 -1",
        "𝟙 ٣",
        float("inf"),
        float("nan"),
    ),
)
FIELDS = (
    "text",
    "target",
    "off",
    "how",
    "values",
    "wanted",
    "layer",
    "head",
    "piece",
    "place",
    "shown",
    "trust",
    "other",
    "__proto__",
)
HEADERS: Mapping[str, Sequence[str]] = {
    "host": (
        "127.0.0.1",
        "localhost:1",
        "evil.example",
        "",
        "[::1]",
        "[",
        "127.0.0.1:99999999",
        "127.0.0.1@evil",
        "\xff",
        "LOCALHOST",
    ),
    "origin": ("null", "http://127.0.0.1", "http://evil.example", "http://127.0.0.1:80", "\xff", ""),
    "content-length": ("0", "-1", "99999999999999999999", "x", "", "1e3", "٣", "65537", "+5"),
    "cookie": (
        "attnlab-80=x",
        "attnlab-80=" + TOKEN,
        "a" * 9000,
        ";;;=;",
        'attnlab-80="\\',
        "\xff=\xff",
        f"attnlab-80={'é' * 9}",
    ),
    "range": ("bytes=0-", "bytes=-1", "bytes=5-1", "bytes=0-99999999999999", "bytes=" + "0-1," * 500, "x", "bytes=a-b"),
    "accept": ("text/html", "*/*", "", "\xff", "text/html" * 500),
    "content-type": ("application/json", "multipart/form-data", "text/html; charset=nonsense", ""),
    "if-modified-since": ("never", "Thu, 01 Jan 1970 00:00:00 GMT", "\xff"),
    "if-none-match": ("*", '"x"', "\xff"),
    "transfer-encoding": ("chunked", "gzip, chunked", "x"),
    "upgrade": ("websocket", "h2c"),
    "x-forwarded-host": ("evil.example",),
}


class Asking:
    """Ask an application in this process, without a server."""

    def __init__(self, app: Any, *, hosts: str = "127.0.0.1") -> None:
        self._app, self._host = app, hosts

    def ask(
        self, method: str, path: str, *, query: str = "", headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        """The status, headers and body of an answer; events are cut off after the first."""
        from urllib.parse import unquote

        given = {"host": self._host, "origin": f"http://{self._host}", **(headers or {})}
        scope = {
            **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http"},
            **{"path": unquote(path), "raw_path": path.encode("utf-8", "replace"), "root_path": ""},
            **{
                "query_string": query.encode("utf-8", "replace"),
                "client": ("127.0.0.1", 5),
                "server": ("127.0.0.1", 80),
            },
            "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in given.items()],
        }
        return asyncio.run(self._asked(scope, body))

    async def _asked(self, scope: dict[str, Any], body: bytes) -> Answer:
        sent: list[dict[str, Any]] = []
        gone, messages = asyncio.Event(), [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not messages:
                await gone.wait()
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if message.get("more_body") and b"data: " in message.get("body", b""):
                gone.set()

        with contextlib.suppress(OSError):  # the client has gone
            await asyncio.wait_for(self._app(scope, receive, send), HANGS_S)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers, b"".join(one.get("body", b"") for one in sent[1:])


def mutated(draw: random.Random) -> dict[str, Any]:
    """A request in which a few things are wrong."""
    path, query, body, headers, method = draw.choice(PAGES), "", b"", {}, "GET"
    if draw.random() < 0.4:
        path, method = f"/run/tiny/plain/seed-0/{draw.choice(ASKED)}", "POST"
        fields = {draw.choice(FIELDS): draw.choice(VALUES) for _ in range(draw.randint(0, 5))}
        body = json.dumps({"text": "0 1", **fields}).encode("utf-8", "replace")
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
        kind = draw.choice(
            ("path", "path", "odd", "method", "body", "body", "header", "header", "query", "query", "token")
        )
        if kind == "path":
            pieces = path.split("/")
            pieces.insert(draw.randint(1, len(pieces)), draw.choice(DOTS) * draw.choice((1, 1, 3, 9)))
            path = "/".join(pieces) + draw.choice(
                ("", "", "/secret.txt", "%2fsecret.txt", "/../secret.txt", "/../../secret.txt")
            )
        elif kind == "odd":
            at = draw.randint(0, len(path))
            path = path[:at] + draw.choice(ODD) + path[at:]
        elif kind == "method":
            method = draw.choice(METHODS)
        elif kind == "body":
            body = draw.choice(
                (
                    b"",
                    b"[" * 60_000,
                    b"{" * 999,
                    b"\xff\xfe",
                    b"null",
                    b"[]",
                    b"0" * 70_000,
                    b'{"a":' * 20_000,
                    body[:9],
                    b"9" * 5000,
                )
            )
        elif kind == "header":
            name = draw.choice([*HEADERS])
            headers[name] = draw.choice(HEADERS[name])
        elif kind == "query":
            other = draw.choice(
                ("../../secret.txt", "tiny/plain/seed-0", "%00", "\x00", "/etc/passwd", "a" * 9000, "", "&=&&=;")
            )
            query = f"{draw.choice(('other', 'token', 'x'))}={other}"
        else:
            query = f"token={draw.choice((TOKEN, '', 'wrong', TOKEN[:-1], 'é', '%00', 'a' * 9000))}"
    return {"method": method, "path": path, "query": query, "headers": headers, "body": body}


def bytes_of(request: Mapping[str, Any], host: str) -> bytes:
    """A request as it goes over a socket."""
    headers = {
        "host": host,
        "origin": f"http://{host}",
        "content-length": str(len(request["body"])),
        **request["headers"],
    }
    path = request["path"] + (f"?{request['query']}" if request["query"] else "")
    lines = [
        f"{request['method']} {path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
        "connection: close",
    ]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + request["body"]


def over_socket(port: int, request: Mapping[str, Any], how: str) -> tuple[int, bytes]:
    """The status and the bytes that a server answers to a request: whole, cut, slow, or none at all."""
    with socket.create_connection(("127.0.0.1", port), timeout=HANGS_S) as connection:
        data = bytes_of(request, f"127.0.0.1:{port}")
        data = {"cut": data[: len(data) // 2], "garbage": bytes(reversed(data)), "nothing": b""}.get(how, data)
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(data), max(1, len(data) // 5)):
                connection.sendall(data[at : at + max(1, len(data) // 5)])
                time.sleep(0.02 if how == "slow" else 0.0)
            if how in ("cut", "nothing"):
                return 0, b""  # gone; whether the server still answers, the next request says
            connection.settimeout(HANGS_S)
            said = b""
            while chunk := connection.recv(65_536):
                said += chunk
                if b"data: " in said:
                    break
            return int(said.split(b" ", 2)[1]) if said.startswith(b"HTTP/") else 0, said
    return 0, b""


def kind_of(status: int, body: bytes, printed: str) -> str:
    """How a request was answered."""
    if SECRET.encode() in body:
        return "left the folder"
    if "Traceback" in printed or b"Traceback" in body:
        return "traceback"
    if status >= 500:
        return "failed (500)"
    return "answered" if 200 <= status < 400 else "refused"


def campaign(count: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Ask so many things about a folder in which a study named tiny lies, and how each was answered."""
    from attnlab.viewer.server import StreamingServer, application

    (folder.parent / "secret.txt").write_text(SECRET)
    draw, results = random.Random(seed), []
    apps = [Asking(application(folder)), Asking(application(folder, token=TOKEN))]
    listener = socket.create_server(("127.0.0.1", 0))
    server = StreamingServer(application(folder))
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    port = listener.getsockname()[1]
    for number in range(count):
        request, printed = mutated(draw), io.StringIO()
        how = draw.choice(("whole", "cut", "slow", "garbage", "nothing")) if number % 10 == 9 else "in process"
        begun = time.monotonic()
        with contextlib.redirect_stderr(printed):
            try:
                if how == "in process":
                    status, _, body = draw.choices(apps, (3, 1))[0].ask(**request)
                else:
                    status, body = over_socket(port, request, how)
                kind = kind_of(status, body, printed.getvalue())
            except TimeoutError:
                status, kind = 0, "hang"
            except Exception as error:
                status, kind = 0, "traceback"
                printed.write(repr(error))
        told = {"status": status, "kind": kind, "seconds": round(time.monotonic() - begun, 2)}
        if kind not in KINDS[:2]:
            told |= {
                "printed": printed.getvalue()[-2000:],
                "request": {key: repr(value)[:300] for key, value in request.items()},
            }
        results.append({"number": number, "how": how, **told})
    server.should_exit = True
    return results


def table(results: list[dict[str, Any]]) -> str:
    """How requests were answered, by the way they came."""
    counted = Counter(("in process" if one["how"] == "in process" else "socket", one["kind"]) for one in results)
    rows = [[how, *(str(counted[how, kind]) for kind in KINDS)] for how in ("in process", "socket")]
    lines = [["requests", *KINDS], ["---"] * (1 + len(KINDS)), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main() -> None:
    """Run a tiny study, serve it, and ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=True)
    asked = parser.parse_args()
    from hostile import STUDY

    from attnlab.cli import call

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "tiny.yaml").write_text(STUDY.replace('  mine: {mixer: "./mine.py:Mine", mixer_at: 1}\n', ""))
        call(["run", str(place / "tiny.yaml"), "--out", str(place / "runs" / "tiny"), "--jobs", "1"])
        results = campaign(asked.count, asked.seed, place / "runs")
    for one in results:
        if one["kind"] not in KINDS[:2]:
            print(json.dumps(one))
    print(table(results))
    if asked.write:
        RESULTS.write_text(
            json.dumps([{key: one[key] for key in ("number", "how", "status", "kind")} for one in results]) + "\n"
        )
        text = PAGE.read_text()
        PAGE.write_text(text[: text.index(BEGIN) + len(BEGIN)] + table(results) + text[text.index(END) :])


if __name__ == "__main__":
    sys.exit(main())
