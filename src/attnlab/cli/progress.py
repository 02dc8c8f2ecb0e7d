"""What a person sees while a study runs: a bar per running cell on a terminal, a line per finished one elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from attnlab.studies.judge.results import Alarm
from attnlab.studies.plan.plan import CellPlan


@final
class TerminalWatcher:
    """Show the progress of a study.

    Parameters
    ----------
    console : Console
        Where to show it.
    metric : str, optional
        What is told of a finished run that has it, of others the first of its metrics; by default always that.
    """

    def __init__(self, console: Console, metric: str | None = None) -> None:
        self._console, self._metric = console, metric
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[shown]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bars: dict[str, TaskID] = {}
        self._overall: TaskID | None = None
        self._count = (0, 0)
        self._begun: float | None = None  # when the first runs were

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._overall = self._progress.add_task("reading the data, building every variant", total=None, shown="")
        self._progress.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Leave the terminal as it was."""
        self._progress.stop()

    def alarms(self, found: Sequence[Alarm]) -> None:
        """Show what is suspicious before anything is trained."""
        for alarm in found:
            print_alarm(self._console, alarm)

    def phase(self, title: str, cells: Sequence[CellPlan], done: int) -> None:
        """Add runs to those that are there, and to the bar of all."""
        already = f", {done} of them done before" if done else ""
        self._console.print(f"{title}: {len(cells) + done}{already}", markup=False)
        done, total = self._count[0] + done, self._count[1] + done + len(cells)
        self._count = (done, total)
        self._begun = self._begun or time.monotonic()
        if self._overall is not None:
            self._progress.remove_task(self._overall)
        self._overall = self._progress.add_task(title, total=total, completed=done, shown="starting")

    def message(self, cell: CellPlan, message: Mapping[str, Any]) -> None:
        """Show one message about a cell."""
        if self._overall is not None:
            self._progress.update(self._overall, shown="")
        if message["kind"] in {"finished", "failed"}:
            self._finish(cell, message)
        elif message["kind"] in {"preparing", "step", "evaluation"}:
            self._update(cell, message)
        elif message["kind"] == "start" and message.get("division"):
            self._console.print(f"[dim]{escape(title_of(cell))}: {escape(message['division'])}[/]")
        elif message["kind"] == "warning":
            self._console.print(f"[bold yellow]![/] {escape(title_of(cell))}: {escape(message['text'])}")

    def _update(self, cell: CellPlan, message: Mapping[str, Any]) -> None:
        name = title_of(cell)
        if name not in self._bars:
            self._bars[name] = self._progress.add_task("  " + name, total=message.get("steps"), shown="")
        loss = message.get("loss")
        rate = message.get("rate", 0.0)
        shown = message.get("doing", "") if loss is None else f"loss {loss:.4g}  {rate:,.0f} tokens/s"
        step = None if message["kind"] == "preparing" else message["step"]
        self._progress.update(self._bars[name], completed=step, total=message.get("steps"), shown=shown)

    def _finish(self, cell: CellPlan, message: Mapping[str, Any]) -> None:
        bar = self._bars.pop(title_of(cell), None)
        if bar is not None:
            self._progress.remove_task(bar)
        done, total = self._count[0] + 1, self._count[1]
        self._count = (done, total)
        if self._overall is not None:
            self._progress.update(self._overall, completed=done)
        if message["kind"] == "failed":
            self._console.print(f"[bold red]failed[/] {escape(title_of(cell))}: {escape(str(message['error']))}")
        else:
            measured = message["metrics"]
            name = self._metric if self._metric in measured else next(iter(measured))
            metrics = f"{name} {measured[name]:.4g}"
            elapsed = time.monotonic() - (self._begun or time.monotonic())
            told = f"[dim]{done}/{total} {elapsed:5.0f} s[/]  {escape(title_of(cell))}  [dim]{metrics}[/]"
            self._console.print(told, soft_wrap=True)  # a line for each run, however long its name


def title_of(cell: CellPlan) -> str:
    """How a run is called on a terminal; no two runs of a study have one title."""
    tuned = " ".join(f"{key} {value:g}" for key, value in cell.tuned.items())
    nth = cell.tuning_run
    run = f"seed {cell.seed}" if nth is None else "tuning" if nth == 1 else f"tuning {nth}"
    return f"{cell.variant}, {run}" + (f", {tuned}" if tuned else "")


def print_alarm(console: Console, alarm: Alarm) -> None:
    """Print one alarm."""
    said = f"{alarm.variant}: {alarm.message}" if alarm.variant else alarm.message
    console.print(f"[bold yellow]! {escape(alarm.check)}:[/] {escape(said)}")
