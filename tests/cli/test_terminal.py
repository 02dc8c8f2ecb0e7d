"""What people named is printed as they wrote it, and does nothing to the terminal."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnlab.cli import main
from attnlab.cli.progress import print_alarm
from attnlab.cli.run import print_json
from attnlab.cli.terminal import Terminal, adapt_to_surroundings
from attnlab.studies.judge.results import Alarm


def test_names_are_shown_as_they_are_written(capsys):
    name = ":M: \x1b[31mred\x1b[0m \x07\x9b5A \u202eevil :smile:"
    table = Table("name")
    table.add_row(name)
    terminal = Terminal()
    terminal.print(table)
    terminal.print(name, markup=False)
    terminal.print(Text(name))
    terminal.print("[bold]" + name.replace("[", r"\["))
    out = capsys.readouterr().out
    assert out.count(":M: \\x1b[31mred\\x1b[0m") == 4
    assert out.count("\\x9b5A \\u202eevil :smile:") == 4
    assert not set(out) & set("\x1b\x07\x9b\u202e")


def test_the_colors_of_a_terminal_stay(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    Terminal().print("[bold red]attnlab:[/] \x1b[31m", end="", highlight=False)
    assert capsys.readouterr().out == "\x1b[1;31mattnlab:\x1b[0m \\x1b[31m"


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", "\u22120.5 \u00b1 1\u202f% \u2581\u2588 \u00fc \u65e5 \\udc80"),
        ("ascii", "-0.5 +- 1 % _# \\u00fc \\u65e5 \\udc80"),
        ("cp1252", "-0.5 \u00b1 1 % _# \u00fc \\u65e5 \\udc80"),
    ],
)
def test_what_an_encoding_lacks_is_printed_in_plain_characters_or_escaped(encoding, shown, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit):
        main(["--version"])
    said = "\u22120.5 \u00b1 1\u202f% \u2581\u2588 \u00fc \u65e5"
    Terminal().print(said + " \udc80", markup=False)
    print_json({said: 1})
    stream.flush()
    _, first, *rest = stream.buffer.getvalue().decode(encoding).splitlines()
    assert first == shown
    assert json.loads("".join(rest)) == {said: 1}


@pytest.mark.parametrize(("columns", "kept"), [("0", False), ("19", False), ("20", True), ("abc", True)])
def test_a_width_in_which_nothing_fits_counts_as_none(columns, kept, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    adapt_to_surroundings()
    assert ("COLUMNS" in os.environ) == kept


def test_an_alarm_fits_the_terminal_and_has_a_colon_after_its_kind():
    console = Console(file=io.StringIO(), width=40)
    print_alarm(console, Alarm("not learned", "it [red]", "is no better than the simplest guess, which sees nothing"))
    lines = console.file.getvalue().splitlines()
    assert lines[0].startswith("! not learned: it [red]: is no better")
    assert max(map(len, lines)) <= 40
