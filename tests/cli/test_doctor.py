"""``attnlab doctor`` as a person meets it: what is printed where, exit codes, every bad input in one sentence."""

from __future__ import annotations

import json
import textwrap

import pytest

from attnlab.cli import call
from attnlab.cli import doctor as command
from attnlab.cli.doctor import ERRORS_FOUND, HEALTHY, NOT_EXAMINED
from attnlab.cli.words import argument

UNSCALED = '''
class Mine(nn.Module):
    """Self-attention over (batch, length, d_model); every position sees every other."""

    def __init__(self, d_model):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        print("noise")
        return (self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1) @ self.v(x)
'''
PLAIN = '''
class Mine(nn.Module):
    """A position-wise layer over (batch, length, d_model)."""

    def __init__(self, d_model, rank=2):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.linear(x)
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "mine.py").write_text("import torch\nfrom torch import nn\n" + textwrap.dedent(text))
        return "mine.py:Mine"

    return write


def test_errors_are_exit_code_1_with_evidence_and_remedy(mine, capfd):
    assert call(["doctor", mine(UNSCALED)]) == ERRORS_FOUND
    printed = capfd.readouterr().out
    assert "noise\nnoise" not in printed
    for word in ("mine.py:Mine", "layout", "error scale", "evidence:", "remedy:", "source:", "verdict: bug"):
        assert word in printed


def test_json_is_alone_on_standard_output(mine, capfd):
    assert call(["doctor", mine(UNSCALED), "--json", "--arg", "d_model=48"]) == ERRORS_FOUND
    data = json.loads(capfd.readouterr().out)
    assert data["verdict"] == "bug"
    assert {"verdict", "findings", "assumptions"} <= set(data)
    assert "48" in json.dumps(data["assumptions"])
    for finding in data["findings"]:
        assert {"check", "severity", "message", "evidence", "remedy", "source"} <= set(finding)


def test_a_whole_model_need_not_pass_its_input_on(mine, capfd):
    squeezed = """
        class Mine(nn.Module):
            def __init__(self, d_model=16):
                super().__init__()
                self.attention = nn.MultiheadAttention(d_model, 2, batch_first=True)
                self.linear = nn.Linear(d_model, d_model)

            def forward(self, x):
                return torch.relu(self.linear(x + self.attention(x, x, x)[0]))
    """
    assert call(["doctor", mine(squeezed), "--bidirectional"]) == ERRORS_FOUND
    assert "error residual" in capfd.readouterr().out
    assert call(["doctor", mine(squeezed), "--bidirectional", "--whole"]) == HEALTHY


def test_a_clean_layer_is_exit_code_0(mine, capfd):
    assert call(["doctor", mine(PLAIN), "--bidirectional", "--json"]) == HEALTHY
    assert not [f for f in json.loads(capfd.readouterr().out)["findings"] if f["severity"] == "error"]


UNKNOWN_ARGUMENT = """
class Mine(nn.Module):
    def __init__(self, d_model, temperament):
        super().__init__()
        self.linear = temperament.layer(d_model)
    def forward(self, x):
        return self.linear(x)
"""
OTHER_SHAPE = """
class Mine(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
    def forward(self, x):
        return self.linear(x).flatten()[:5]
"""
RAISES = """
class Mine(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
    def forward(self, x):
        raise ValueError("I never run")
"""
MANY_LINES = """
class Mine(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
    def forward(self, x):
        raise ValueError("one\\ntwo")
"""
SEGFAULT = """
import ctypes
ctypes.string_at(0)
"""
KILLED = """
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
DIES = """
import os
class Mine(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        os._exit(5)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Mine = 1 / 0\n", ["ZeroDivisionError: division by zero", "line 3"]),
        ("class Other(nn.Module):\n    pass\n", ["defines no 'Mine'"]),
        ("class Mine(nn.Module:\n    pass\n", ["SyntaxError", "line 3"]),
        ("Mine = 3\n", ["Mine", "int"]),
        (UNKNOWN_ARGUMENT, ["temperament", "--arg temperament="]),
        (OTHER_SHAPE, ["(5,)"]),
        (RAISES, ["ValueError: I never run", "line 9"]),
        (MANY_LINES, ["ValueError: one two"]),
        (DIES, ["ended with exit code 5, while it was loaded or first called"]),
        (SEGFAULT, ["was ended by signal 11 (segmentation fault) in <module> (mine.py, line 5)"]),
        (KILLED, ["was ended by signal 9 (killed, perhaps for lack of memory)"]),
    ],
    ids=[
        *("import", "class", "syntax", "no module", "argument", "shape", "forward"),
        *("many lines", "death", "segmentation fault", "killed"),
    ],
)
def test_what_cannot_be_examined_is_one_sentence_and_exit_code_2(mine, capfd, text, said):
    assert call(["doctor", mine(text), "--json"]) == NOT_EXAMINED
    captured = capfd.readouterr()
    error = json.loads(captured.out)["error"]
    assert "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    for words in said:
        assert words in error
        assert words in captured.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.py:Mine"], "no file"),
        (["mine.py"], "mine.py:Name; it defines Mine"),
        (["mine.py:Mine", "--arg", "d_model"], "--arg must be name=value; got 'd_model'"),
        (["mine.py:Mine", "--depth", "0"], "--depth must be at least 1; got 0"),
        (["mine.py:Mine", "--arg", "colour=3"], "colour"),
        (["mine.py:Mine", "--text", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_wrong_use_is_exit_code_2(mine, capfd, arguments, said):
    mine(PLAIN)
    assert call(["doctor", *arguments]) == NOT_EXAMINED
    assert said in capfd.readouterr().err


def test_a_process_that_does_not_end_is_killed(mine, capfd, monkeypatch):
    monkeypatch.setattr(command, "LIMIT_S", 0.5)
    assert call(["doctor", mine("import time\ntime.sleep(60)\n")]) == NOT_EXAMINED
    assert "did not end within 0.5 s" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a=3", 3),
        ("a=0.5", 0.5),
        ("a=true", True),
        ("a=None", None),
        ("a=relu", "relu"),
        ("a=[1, 2]", [1, 2]),
        ("a=", ""),
    ],
)
def test_values_of_arguments_are_read_as_what_they_look_like(word, value):
    assert argument(word) == ("a", value)


def test_threads_that_a_module_leaves_behind_are_not_waited_for(mine, capfd):
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    assert call(["doctor", mine(threads + PLAIN), "--bidirectional", "--json"]) == HEALTHY
    assert json.loads(capfd.readouterr().out)["verdict"]
