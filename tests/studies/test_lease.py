"""A folder has one holder among all machines, and one that died holds nothing for long."""

from __future__ import annotations

import os
import threading
import time

import pytest

from attnlab.core.errors import Interrupted, RunError
from attnlab.core.files import read_json, write_json
from attnlab.studies.run import lease as leases
from attnlab.studies.run.lease import LEASE, LEASE_S, FileSign, lease

ELSEWHERE = {"pid": 71, "host": "elsewhere", "mark": "a"}


def held_elsewhere(folder, *, silent_s=0.0):
    """A folder that a process of another machine holds, which gave its last sign so many seconds ago."""
    write_json(folder / LEASE, ELSEWHERE)
    signed = time.time() - silent_s
    os.utime(folder / LEASE, (signed, signed))
    return folder


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(leases, "SIGN_EVERY_S", 0.01)
    monkeypatch.setattr(leases, "SETTLED_S", 0.01)
    monkeypatch.setattr(leases, "POLL_S", 0.01)


def test_a_second_holder_is_told_who_the_first_is(tmp_path):
    sentence = f"{tmp_path} is held by process 71 on elsewhere; wait for it, or stop it first: its lease ends 60 s"
    with pytest.raises(RunError, match=sentence), lease(FileSign(held_elsewhere(tmp_path))):
        pass
    assert read_json(tmp_path / LEASE) == ELSEWHERE


def test_who_gives_no_sign_holds_nothing(tmp_path):
    with lease(FileSign(held_elsewhere(tmp_path, silent_s=LEASE_S + 1))):
        assert read_json(tmp_path / LEASE)["pid"] == os.getpid()
    assert not (tmp_path / LEASE).exists()


def test_who_waits_gets_a_folder_once_it_is_given_back(tmp_path):
    held_elsewhere(tmp_path)
    threading.Timer(0.1, (tmp_path / LEASE).unlink).start()
    with lease(FileSign(tmp_path), patience_s=30):
        assert read_json(tmp_path / LEASE)["pid"] == os.getpid()


def test_a_holder_gives_signs(tmp_path):
    with lease(FileSign(held_elsewhere(tmp_path, silent_s=LEASE_S + 1))):
        os.utime(tmp_path / LEASE, (0, 0))
        while (tmp_path / LEASE).stat().st_mtime == 0:
            time.sleep(0.01)


def taken_over(folder):
    """Hold a folder until another machine has taken it."""
    taken = threading.Event()
    with lease(FileSign(folder), lost=taken.set):
        held_elsewhere(folder)
        assert taken.wait(30)
        raise Interrupted("stopped")


def test_who_was_taken_over_is_interrupted_and_leaves_the_lease_alone(tmp_path):
    with pytest.raises(
        RunError, match="was taken over by process 71 on elsewhere, as this process gave no sign for 60"
    ):
        taken_over(tmp_path)
    assert read_json(tmp_path / LEASE) == ELSEWHERE


def test_of_two_that_take_over_in_one_moment_one_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(leases.time, "sleep", lambda _: held_elsewhere(tmp_path))
    with pytest.raises(RunError, match="taken by process 71 on elsewhere in the same moment"):
        lease(FileSign(held_elsewhere(tmp_path, silent_s=LEASE_S + 1))).__enter__()


def test_what_a_process_of_this_machine_left_is_no_obstacle(tmp_path):
    write_json(tmp_path / LEASE, {**ELSEWHERE, "host": leases.platform.node()})
    with lease(FileSign(tmp_path)):
        assert read_json(tmp_path / LEASE)["pid"] == os.getpid()
