"""What people named is printed as they wrote it, and does nothing to the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from attnlab.cli.terminal import Terminal


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
