"""A tiny study that has run, a server of the viewer on a free port, a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest
from tests.conftest import in_this_process
from tests.studies.conftest import TINY

from attnlab.studies import parse_study, run_study
from attnlab.viewer import streams
from attnlab.viewer.server import StreamingServer, application

CHROMIUM = Path("/usr/bin/chromium")
PATIENCE_S = 60  # on a machine that is busy with more than these tests


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    """Look as often as a test can wait for."""
    monkeypatch.setattr(streams, "LOOK_EVERY_S", 0.02)


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """Return the folder of a study that has ended, not to be changed."""
    out = tmp_path_factory.mktemp("ran") / "tiny"
    with in_this_process():
        run_study(parse_study(TINY, name="tiny", path=Path("tiny.yaml")), out)
    (out / "report.html").write_text("<title>the report</title>")
    return out


@pytest.fixture
def runs(ran, tmp_path):
    """Return a folder with a study in it, ``tiny``, that a test may change."""
    folder = tmp_path / "runs"
    shutil.copytree(ran, folder / "tiny")
    return folder


@pytest.fixture
def unfinished(runs):
    """Return the records of a run that has not ended, in the study of `runs`: two of its five steps are written."""
    run = runs / "tiny" / "with-attention" / "seed-1"
    (run / "result.json").unlink()
    (run / "metrics.jsonl").unlink()
    write(run / "metrics.jsonl", record(1), record(2))
    return run / "metrics.jsonl"


def record(step, **more):
    """One record of a run of two steps a second, of 2000 tokens each."""
    return {"step": step, "tokens": 2000 * step, "seconds": 0.5 * step, "lr": 0.001, "train_loss": 1 / step, **more}


def write(records, *lines):
    """Append records as a trainer does."""
    with records.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


@contextlib.contextmanager
def serving(folder, **how):
    """Serve a folder on a free port; yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = StreamingServer(application(folder, **how))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listener.close()
    assert not thread.is_alive(), "streams kept the server from ending"


@pytest.fixture
def port(runs):
    """Return the port of a server of `runs`."""
    with serving(runs) as number:
        yield number


def asked(port, path, method="GET", headers=None, body=None):
    """The answer to one request: status, headers, text; the path is sent as it stands."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.putrequest(method, path, skip_host="Host" in (headers or {}))
    for name, value in {**(headers or {}), **({"Content-Length": str(len(body))} if body else {})}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), text


@contextlib.contextmanager
def watching(port, path="/events/tiny"):
    """Yield a function that waits for the next event."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")

    def following():
        while line := answer.readline():
            if line.startswith(b"data: "):
                return json.loads(line.removeprefix(b"data: "))
        return None

    yield following
    answer.close()
    connection.close()


@pytest.fixture(scope="module")
def browser():
    """Return a running chromium, or skip."""
    if not CHROMIUM.exists():
        pytest.skip("needs Debian's chromium at /usr/bin/chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        running = playwright.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        yield running
        running.close()
