"""Several machines that train one model: here two on the loopback, whose processes give the numbers of one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.training import on_ranks

from attnlab.core.errors import RunError, SpecError
from attnlab.training import on_devices
from attnlab.training.devices import nodes
from attnlab.training.devices.nodes import Meeting, Nodes, meeting_of

FIELDS = {"steps": 7, "clip": 0.5, "sharding": "none"}
OTHER = """
import json, sys
from tests.training.on_ranks import trained
from attnlab.training import on_devices
from attnlab.training.devices.nodes import Nodes

if __name__ == "__main__":
    found = on_devices(2, trained, "decoder", json.loads(sys.argv[2]), nodes=Nodes(2, 1, "127.0.0.1", int(sys.argv[1])))
    print(json.dumps(found))
"""


@pytest.fixture
def port():
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(nodes, "PATIENCE_S", 0.5)


def test_two_machines_give_the_numbers_of_one_process(port, tmp_path):
    fields = {**FIELDS, "devices": 2}
    (tmp_path / "other.py").write_text(OTHER)
    command = [sys.executable, str(tmp_path / "other.py"), str(port), json.dumps(fields)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, env=on_path(root), stdout=subprocess.PIPE, text=True) as other:
        found = on_devices(2, on_ranks.trained, "decoder", fields, nodes=Nodes(2, 0, "127.0.0.1", port))
        assert json.loads(other.communicate()[0]) is None, "the first machine has the result"
    alone = on_ranks.trained("decoder", FIELDS)
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert found["metrics"] == pytest.approx(alone["metrics"], rel=1e-9)


def on_path(root):
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}


def test_what_is_called_on_the_first_machine_is_heard_on_the_others(port):
    with meeting_of(2, f"127.0.0.1:{port}") as first:
        other = Meeting(2, f"127.0.0.1:{port}")
        assert (first.number, other.number) == (0, 1)
        place = first.call({"job": "this"})
        what, heard = other.heard()
        assert what["job"] == "this"
        assert heard == Nodes(2, 1, "127.0.0.1", place.port)
        other.tell_end()
        assert first.errors() == []
        first.call({"job": "that"})
        other.heard()
        other.tell_end("it failed here")
        assert first.errors() == ["it failed here"]
        other.be_ready()
        first.gather()
        ends = []
        listener = threading.Thread(target=lambda: ends.append(other.heard()))
        listener.start()
    listener.join()
    assert ends == [None]


def test_a_machine_that_says_nothing_any_more_has_no_error(port, monkeypatch):
    monkeypatch.setattr(nodes, "PARTING_S", 0.1)
    with meeting_of(3, f"127.0.0.1:{port}") as first:
        others = [Meeting(3, f"127.0.0.1:{port}") for _ in range(2)]
        first.call({"job": "this"})
        for other in others:
            other.heard()
        others[1].tell_end("it failed here")
        assert first.errors() == ["it failed here"]


def test_others_hear_of_an_error_of_the_first_machine(port):
    heard, listeners = [], []

    def listen(other):
        try:
            other.heard()
        except RunError as error:
            heard.append(str(error))

    def lead():
        with meeting_of(2, f"127.0.0.1:{port}"):
            listeners.append(threading.Thread(target=listen, args=[Meeting(2, f"127.0.0.1:{port}")]))
            listeners[0].start()
            raise SpecError("too few rows")

    with pytest.raises(SpecError, match="too few rows"):
        lead()
    listeners[0].join()
    assert heard == [f"the machine at 127.0.0.1:{port} ended: too few rows"]


def test_a_first_machine_that_is_gone_is_an_error(port):
    first = Meeting(2, f"127.0.0.1:{port}")
    other = Meeting(2, f"127.0.0.1:{port}")
    del first._store
    with pytest.raises(RunError, match=r"does not answer any more; the same command on each goes on from the last"):
        other.heard()
    with pytest.raises(RunError, match="does not answer any more"):
        other.tell_end()


def test_machines_that_do_not_come_are_an_error(port, hurried):
    with pytest.raises(SpecError, match=r"1 of 3 nodes came to 127\.0\.0\.1:\d+ within 0 s; start the same command"):
        Meeting(3, f"127.0.0.1:{port}").gather()


def test_a_machine_that_refuses_ends_the_wait(port):
    first = Meeting(2, f"127.0.0.1:{port}")
    Meeting(2, f"127.0.0.1:{port}").refuse("it has no such disk")
    with pytest.raises(SpecError, match="it has no such disk"):
        first.gather()


def test_an_address_where_nothing_answers_is_an_error(hurried):
    with pytest.raises(
        SpecError, match=r"nothing answers at 192\.0\.2\.1:29500 within 0 s .*must be an address of one"
    ):
        Meeting(2, "192.0.2.1:29500")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (None, "--nodes 2 needs --rendezvous HOST:PORT, an address of one of the machines"),
        ("somewhere", "--rendezvous must be HOST:PORT, such as 10.0.0.1:29500; got somewhere"),
        ("here:0", "--rendezvous must be HOST:PORT"),
        (":29500", "--rendezvous must be HOST:PORT"),
        ("here:99999", "--rendezvous must be HOST:PORT"),
    ],
)
def test_no_address_is_an_error(address, said):
    with pytest.raises(SpecError, match=said):
        Meeting(2, address)


def test_devices_that_machines_do_not_divide_are_an_error():
    with pytest.raises(SpecError, match="devices 3 cannot be divided among 2 nodes"):
        on_devices(3, print, nodes=Nodes(2))
