"""A person's code in a process of its own: whatever it does, the answer is a value or one sentence."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from attnlab.core.build import load_object
from attnlab.core.errors import LONGEST_TEXT, RunError, SpecError, text_of
from attnlab.core.processes import forking
from attnlab.core.processes.apart import LONGER, PATIENCE, PATIENCE_S, call_apart, patience_s


@pytest.fixture
def loaded(tmp_path):
    """Load ``Mine`` of a file with this text in a process of its own."""

    def load(text):
        (tmp_path / "mine.py").write_text(text)
        return call_apart(load_object, f"{tmp_path}/mine.py:Mine")

    return load


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os\nos._exit(4)", "the process in which its code was tried ended with exit code 4"),
        (
            "import ctypes\nctypes.string_at(0)",
            "the process in which its code was tried was ended by signal 11 (segmentation fault) in <module> "
            "(mine.py, line 2)",
        ),
        ("raise KeyboardInterrupt", "KeyboardInterrupt (mine.py, line 1)"),
        ("class Stop(BaseException): ...\nraise Stop('enough')", "Stop: enough (mine.py, line 2)"),
        ("import sys\nsys.exit(3)", "mine.py raised while it was imported: SystemExit: 3 (mine.py, line 2)"),
        ("input()", "EOFError: EOF when reading a line (mine.py, line 1)"),
    ],
    ids=["exit code", "signal", "interrupt", "base exception", "exit", "input"],
)
def test_what_ends_the_code_is_one_sentence(loaded, capfd, text, said):
    with pytest.raises(SpecError) as refused:
        loaded(text)
    assert str(refused.value).endswith(said)
    assert "Traceback" not in capfd.readouterr().err


def test_what_it_warns_of_is_warned_of_here(loaded):
    with pytest.warns(UserWarning, match="beware") as found:
        loaded("import warnings\nwarnings.warn('beware')\nMine = 3")
    places = [(Path(one.filename).name, one.lineno) for one in found if one.category is UserWarning]
    assert places == [("mine.py", 2)]
    with pytest.warns(UserWarning, match="of its own"), pytest.raises(SpecError, match="enough"):
        loaded("import warnings\nclass Kind(UserWarning): ...\nwarnings.warn('of its own', Kind)\nassert 0, 'enough'")


def test_silence_ends_the_code_and_says_where_it_was(loaded, monkeypatch):
    monkeypatch.setenv(PATIENCE, "5")
    with pytest.raises(SpecError) as refused:
        loaded("import time\ntry:\n    time.sleep(999)\nexcept BaseException:\n    time.sleep(999)")
    said = "gave no sign of life for 5 s in <module> (mine.py, line 3) and was ended"
    assert str(refused.value) == f"the process in which its code was tried {said}; {LONGER}"


def test_what_it_leaves_behind_is_not_waited_for(loaded, capfd):
    text = """
import atexit, json, os, threading, time
json.dump = json.dumps = json.loads = os._exit = os.getpid = None
atexit.register(time.sleep, 999)
threading.Thread(target=time.sleep, args=(999,)).start()
failing = threading.Thread(target=lambda: 1 / 0)
failing.start()
failing.join()  # else what it says is in a race with the end of the process
if os.fork() == 0:
    os.setsid()
    time.sleep(100)
Mine = 7
"""
    begun = time.monotonic()
    assert loaded(text) == 7
    assert time.monotonic() - begun < 100, "the process that it forked was waited for"
    said = capfd.readouterr().err
    assert "a thread of its code raised ZeroDivisionError: division by zero (mine.py, line 6)" in said
    assert "Traceback" not in said


def test_a_process_that_it_forks_does_not_go_on_as_ours(loaded, tmp_path):
    loaded(f"""
import builtins, os
forked = os.fork()
forked and os.waitpid(forked, 0)
def noted(module, name):  # is called where the lab goes on after the import
    open("{tmp_path}/gone-on", "a").write("x")
    return True
plain = builtins.hasattr
builtins.hasattr = lambda module, name: noted(module, name) if name == "Mine" else plain(module, name)
Mine = 7
""")
    assert (tmp_path / "gone-on").read_text() == "x"


@pytest.mark.parametrize("said", ["0", "-1", "soon", "nan"])
def test_a_patience_that_is_none(monkeypatch, said):
    monkeypatch.setenv(PATIENCE, said)
    with pytest.raises(SpecError, match=f"{PATIENCE} must be a number of seconds above 0; got '{said}'"):
        patience_s()
    monkeypatch.delenv(PATIENCE)
    assert patience_s() == PATIENCE_S


class Mute(Exception):
    """Raises when it is asked for its text."""

    def __str__(self):
        raise Mute


def test_the_text_of_an_error_is_one_short_line():
    assert text_of(ValueError("one\ntwo")) == "ValueError: one two"
    assert text_of(ValueError()) == "ValueError"
    assert text_of(Mute()) == "Mute: (no text: asked for it, it raised Mute)"
    assert len(text_of(ValueError("x" * 10_000))) < LONGEST_TEXT + 20


def test_processes_begin_where_their_parent_is_with_its_variables_now(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAID_LATER", "yes")
    (tmp_path / "mine.py").write_text("import os\nMine = [os.getcwd(), os.environ.get('SAID_LATER'), os.getpid()]")
    folder, said, process = call_apart(load_object, f"{tmp_path}/mine.py:Mine")
    monkeypatch.delenv("SAID_LATER")
    again, nothing, other = call_apart(load_object, f"{tmp_path}/mine.py:Mine")
    assert (folder, said) == (str(tmp_path), "yes")
    assert (again, nothing) == (str(tmp_path), None)
    assert process != other


def test_a_file_that_changed_within_its_second_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    mine = tmp_path / "mine.py"
    for value in (3, 4):
        mine.write_text(f"Mine = {value}")
        os.utime(mine, ns=(value, value))
        assert load_object(f"{mine}:Mine") == value
    assert not sys.dont_write_bytecode
    assert [*tmp_path.rglob("*.pyc")] == []


def test_processes_do_not_draw_the_same_random_numbers(loaded):
    text = "import numpy, random\nMine = [float(numpy.random.rand()), random.random()]"
    first, second = loaded(text), loaded(text)
    assert not set(first) & set(second)


@pytest.mark.skipif(not forking.CAN_FORK, reason="processes are started, not forked")
def test_a_server_that_was_ended_is_begun_anew(loaded):
    assert loaded("Mine = 3") == 3
    for server in forking._servers.values():
        server.shutdown(socket.SHUT_RDWR)
    assert loaded("Mine = 4") == 4


def test_a_process_for_which_there_is_no_memory_is_one_sentence(loaded, monkeypatch):
    def no_room(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_room)
    with pytest.raises(RunError, match="no process could be begun: can't start new thread; free some memory"):
        loaded("Mine = 1")


@pytest.mark.skipif(not forking.CAN_FORK, reason="processes are started, not forked")
def test_signals_to_all_reach_a_persons_code_and_no_server(loaded, capfd):
    """What this process does at a signal is what forked ones do; to ignore it is what servers do."""
    loaded("""
import os, signal
for process in (os.getppid(), os.getsid(os.getppid())):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(process, number)
Mine = 1
""")
    text = """
import os, signal
numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
Mine = [os.getsid(os.getppid()), *(signal.getsignal(number) == signal.SIG_IGN for number in numbers)]
"""
    first, *ignored = loaded(text)
    second, *_ = loaded(text)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    assert ignored == [signal.getsignal(number) == signal.SIG_IGN for number in numbers]
    assert first == second, "another server was begun"
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.skipif(not forking.CAN_FORK, reason="processes are started, not forked")
def test_exit_codes_are_told_where_ends_of_processes_are_ignored(loaded, monkeypatch, capfd):
    monkeypatch.setenv("MKL_NUM_THREADS", "7")  # a server of its own, which begins as this process is now
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(SpecError, match="ended with exit code 4"):
            loaded("import os\nos._exit(4)")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.skipif(not forking.CAN_FORK, reason="processes are started, not forked")
def test_variables_that_libraries_read_have_servers_of_their_own_and_few_are_kept(loaded, monkeypatch):
    seen = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("MKL_NUM_THREADS", threads)
        seen.append(loaded("import os\nMine = [os.environ['MKL_NUM_THREADS'], os.getsid(os.getppid())]"))
    assert [threads for threads, _ in seen] == ["1", "2", "3"]
    assert len({server for _, server in seen}) == 3
    assert len(forking._servers) == 2


@pytest.mark.skipif(not forking.CAN_FORK, reason="its parent would be this process")
def test_an_end_that_nobody_told_of_is_an_end_by_a_signal(loaded):
    with pytest.raises(SpecError, match="was ended by signal 9"):
        loaded("import os\nos.kill(os.getppid(), 9)\nos.kill(os.getpid(), 9)")
