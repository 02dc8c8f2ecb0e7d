"""What README and docs/doctor.md say of the doctor: their commands run, and what they show is what is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from attnlab.cli import call
from attnlab.doctor.checks import CHECKS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\b\d[\d.]*(e[+-]?\d+)?")


def blocks(text: str, words: str) -> list[str]:
    return [body for info, body in FENCE.findall(text) if info.strip() == words]


def commands(text: str) -> list[str]:
    lines = [line.partition("#")[0].strip() for body in blocks(text, "sh") for line in body.splitlines()]
    return [line.removeprefix(".venv/bin/") for line in lines if line.startswith(".venv/bin/attnlab doctor")]


def words_of(text: str) -> str:
    """Return a text without numbers, which differ from run to run, and without line ends, which differ with them."""
    return " ".join(NUMBER.sub("#", text).split())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files of README and page, and lines of 80 characters."""
    mine = next(body for body in blocks(README, "python") if "class MyAttention" in body)
    (tmp_path / "mine.py").write_text(mine, encoding="utf-8")
    for name in ("residual.py", "repaired.py"):
        (tmp_path / name).write_text(blocks(PAGE, f"python {name}")[0], encoding="utf-8")
    (tmp_path / "some-text.txt").write_text("to be, or not to be. " * 100, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def run(command: str) -> int:
    return call(shlex.split(command.partition(">")[0])[1:])


@pytest.mark.parametrize("command", dict.fromkeys([*commands(README), *commands(PAGE)]))
def test_every_command_runs(folder, command, capfd):
    code, printed = run(command), capfd.readouterr()
    assert code in (0, 1), printed.err
    assert "verdict" in printed.out


def test_what_is_shown_is_what_is_printed(folder, capfd):
    assert blocks(README, "python residual.py") == blocks(PAGE, "python residual.py")
    assert run("attnlab doctor residual.py:ResidualAttention") == 1
    printed = words_of(capfd.readouterr().out)
    assert printed == words_of(blocks(PAGE, "text residual.py")[0]), "run .venv/bin/python docs/make_doctor_examples.py"
    for part in blocks(README, "text residual.py")[0].split("\n\n"):
        assert words_of(part) in printed


def test_the_repaired_module_is_healthy(folder, capfd):
    assert run("attnlab doctor repaired.py:ResidualAttention") == 0
    assert words_of(blocks(PAGE, "text repaired.py")[0]) in words_of(capfd.readouterr().out)


def test_the_python_examples_run():
    for text in [*blocks(PAGE, "python"), *blocks(README, "python in your tests")]:
        names: dict[str, object] = {}
        exec(compile(text, "an example", "exec"), names)
        names["test_my_attention"]()


def test_every_check_is_in_the_table():
    assert re.findall(r"^\| `([a-z][a-z-]+)` \| (?!\d+ \|)", PAGE, re.MULTILINE) == list(CHECKS)
    assert f"It runs {len(CHECKS)} checks" in README
