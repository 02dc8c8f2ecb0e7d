"""``attnlab view`` as a person meets it: an address, an end, errors in words."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import urllib.request

import pytest
import torch

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.cli.view import _module
from attnlab.viewer import server
from attnlab.viewer.inside.own import own_in_view
from attnlab.viewer.server import application


def test_it_prints_an_address_serves_it_and_ends_cleanly(tmp_path, capfd, monkeypatch):
    pages, threads = [], []

    def visit():
        try:
            while not (said := capfd.readouterr().out):
                time.sleep(0.01)
            with urllib.request.urlopen(said.split()[0]) as answer:
                pages.append(answer.read().decode())
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    visitor = threading.Thread(target=visit)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    visitor.start()
    assert call(["view", str(tmp_path), "--port", "0", "--no-open"]) == FINE
    visitor.join()
    assert "There is no study and no run" in pages[0]
    assert threads == [1], "models train beside it"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("variables", "opens"), [({}, False), ({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "w"}, True)]
)
def test_a_browser_is_opened_where_there_is_a_display(monkeypatch, tmp_path, variables, opens):
    served = []
    monkeypatch.setattr(server, "serve", lambda folder, **how: served.append(how["browser"]))
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(sys, "platform", "linux")
    assert call(["view", str(tmp_path)]) == call(["view", str(tmp_path), "--open"]) == FINE
    assert served == [opens, True]


def test_beyond_this_machine_the_address_holds_a_token(monkeypatch, tmp_path, capfd):
    made = []
    monkeypatch.setattr(server.StreamingServer, "run", lambda *_: None)
    monkeypatch.setattr(server, "application", lambda folder, **how: made.append(how) or application(folder, **how))
    assert call(["view", str(tmp_path), "--port", "0", "--host", "0.0.0.0", "--no-open"]) == FINE
    (how,) = made
    assert f"/?token={how['token']}" in capfd.readouterr().out
    assert len(how["token"]) >= 32
    assert {"127.0.0.1", socket.gethostname().lower()} <= how["hosts"]


def test_a_folder_that_is_not_there_is_said(tmp_path, capfd):
    assert call(["view", str(tmp_path / "runs")]) == WRONG_USE
    assert "there is no folder" in capfd.readouterr().err


def test_a_checkpoint_of_transformers_is_shown_like_a_module(tmp_path):
    pytest.importorskip("transformers")
    from tests.models.checkpoints import gpt2, saved

    saved(tmp_path, gpt2())
    module = _module(str(tmp_path), None, [], None)
    viewed, begin = own_in_view(module)
    assert (begin["name"], module.shown, viewed.measures) == ("Decoder", str(tmp_path), False)


@pytest.mark.parametrize("library", ["starlette", "uvicorn"])
def test_a_missing_library_is_said_with_what_installs_it(monkeypatch, capfd, library):
    for name in [name for name in sys.modules if name.startswith(("attnlab.viewer", f"{library}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    assert call(["view"]) == WRONG_USE
    assert f"this needs {library}: pip install 'attnlab[web]'" in capfd.readouterr().err
