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
from attnlab.core.errors import DataError, SpecError
from attnlab.viewer import server
from attnlab.viewer.inside.asked import Asked
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

    end = server.StreamingServer.shutdown

    async def ended(one, sockets=None):
        os.kill(os.getpid(), signal.SIGINT)  # a person in a hurry presses Ctrl-C twice
        await end(one, sockets)

    monkeypatch.setattr(server.StreamingServer, "shutdown", ended)
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


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "marian"])
def test_a_checkpoint_of_transformers_reads_texts_if_it_has_a_tokenizer(tmp_path, family):
    pytest.importorskip("transformers")
    from tests.models import checkpoints

    checkpoints.saved(tmp_path, getattr(checkpoints, family)())
    viewed, begin = own_in_view(_module(str(tmp_path), None, [], None))
    told, text = viewed.look(Asked("the old man reads")), ["the", "old", "man", "reads"]
    assert [token["text"].strip() for token in told["sides"][0]["tokens"]][:4] == text
    judged = [token.get("loss") for token in told["sides"][-1]["tokens"]]
    kind, losses = {"gpt2": ("text", 3), "bert": ("tokens", 0)}.get(family, ("sentences", len(judged) - 1))
    assert (begin["kind"], sum(loss is not None for loss in judged)) == (kind, losses)
    assert viewed.look(Asked("the old man reads", off=(f"{told['layers'][0]['name']}:0",)))["layers"] != told["layers"]
    (tmp_path / "tokenizer.json").unlink()
    viewed, begin = own_in_view(_module(str(tmp_path), None, [], None))
    assert begin["kind"] == "module"
    with pytest.raises(DataError, match=r"to type texts, start a module with --text FILE, and keep tokenizer.json in"):
        viewed.look(Asked("the old man reads"))
    with pytest.raises(SpecError, match="--arg is of a module"):
        _module(str(tmp_path), None, ["d_model=3"], None)


@pytest.mark.parametrize("library", ["starlette", "uvicorn"])
def test_a_missing_library_is_said_with_what_installs_it(monkeypatch, capfd, library):
    for name in [name for name in sys.modules if name.startswith(("attnlab.viewer", f"{library}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    assert call(["view"]) == WRONG_USE
    assert f"this needs {library}: pip install 'attnlab[web]'" in capfd.readouterr().err
