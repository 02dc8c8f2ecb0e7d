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
    console = Console(file=io.StringIO(), width=100)
    cell = CellPlan("it", 0, {}, {})
    with TerminalWatcher(console, metric) as watcher:
        watcher.phase("judged runs", [cell], 0)
        watcher.message(cell, {"kind": "finished", "metrics": MEASURED})
    (line,) = [line for line in console.file.getvalue().splitlines() if line.startswith("1/1")]
    assert line.rstrip().endswith(f"it, seed 0  {shown}")
