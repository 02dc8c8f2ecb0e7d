"""What is shown while a study runs: of a finished run the metric that the study judges."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from attnlab.cli.progress import TerminalWatcher
from attnlab.studies.plan.plan import CellPlan

MEASURED = {"val_loss": 1.25, "val_loss_long": 2.5}


@pytest.mark.parametrize(
    ("metric", "shown"),
    [("val_loss_long", "val_loss_long 2.5"), (None, "val_loss 1.25"), ("bleu", "val_loss 1.25")],
)
def test_a_finished_run_is_told_by_the_metric_of_the_study_where_it_has_it(metric, shown):
    console = Console(file=io.StringIO(), width=40)
    cell = CellPlan("it, by a name that is longer than a line", 0, {}, {})
    with TerminalWatcher(console, metric) as watcher:
        watcher.phase("judged runs", [cell], 0)
        watcher.message(cell, {"kind": "finished", "metrics": MEASURED})
    (line,) = [line for line in console.file.getvalue().splitlines() if line.startswith("1/1")]
    assert line.rstrip().endswith(f"than a line, seed 0  {shown}")


def test_a_terminal_says_what_is_done_while_no_step_is_made():
    def seen(*messages, phase=True):
        console = Console(file=io.StringIO(), width=120, force_terminal=True)
        cell = CellPlan("it", 0, {}, {})
        with TerminalWatcher(console) as watcher:
            if phase:
                watcher.phase("judged runs", [cell], 2)
            for message in messages:
                watcher.message(cell, message)
        return "\n".join(console.file.getvalue().splitlines()[-3:-1])  # as it was drawn last; then it is wiped out

    doing = {"kind": "preparing", "step": 0, "steps": None, "doing": "tries steps in bf16, compiled"}
    step = {"kind": "step", "step": 3, "steps": 7, "loss": 2.0, "rate": 10.0}
    assert "reading the data, building every variant" in seen(phase=False)
    assert "starting" in seen()
    tried = seen(doing)
    assert "it, seed 0" in tried
    assert doing["doing"] in tried
    assert "starting" not in tried
    trained = seen(doing, step)
    assert "3/7" in trained
    assert doing["doing"] not in trained
    looked = seen(step, {**doing, "doing": "looks into the trained model"})
    assert "3/7" in looked
    assert "looks into" in looked
