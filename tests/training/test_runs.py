"""Run folders: one writer, one run, records that survive a cut."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from attnlab.core.errors import RunError
from attnlab.training.keeping.result import read_result
from attnlab.training.keeping.runs import METRICS, MetricsLog, lock, open_run, read_failure, read_metrics, write_failure

HOLD = """
import sys
from attnlab.training.keeping.runs import lock
with lock(sys.argv[1]):
    print('held', flush=True)
    input()
"""


def test_lock_names_its_holder(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "held\n"
    with pytest.raises(RunError, match=f"is being written by process {other.pid} on "), lock(tmp_path):
        pass
    other.kill()
    other.communicate()
    with lock(tmp_path):  # a killed process holds nothing
        assert str(os.getpid()) in (tmp_path / ".lock.json").read_text()


def test_lock_within_one_process(tmp_path):
    with lock(tmp_path), pytest.raises(RunError, match="is being written"), lock(tmp_path):
        pass
    with lock(tmp_path):
        pass


def test_another_run_says_what_differs(tmp_path):
    open_run(tmp_path, {"seed": 1, "model": {"name": "decoder", "d_model": 8}})
    open_run(tmp_path, {"seed": 1, "model": {"name": "decoder", "d_model": 8}})
    with pytest.raises(RunError, match=r"another run \(model.d_model is 8 there and 16 here; seed is 1 there and 2"):
        open_run(tmp_path, {"seed": 2, "model": {"name": "decoder", "d_model": 16}})


def test_later_and_cut_off_records_are_dropped(tmp_path):
    log = MetricsLog(tmp_path, after_step=-1)
    for step in (3, 5, 7):
        log.append({"step": step, "train_loss": 0.1 * step})
    log.close()
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 9, "tra')
    assert [record["step"] for record in read_metrics(tmp_path)] == [3, 5, 7]
    MetricsLog(tmp_path, after_step=5).close()
    assert [record["step"] for record in read_metrics(tmp_path)] == [3, 5]


def test_damaged_records(tmp_path):
    (tmp_path / METRICS).write_text('{"step": 3\n{"step": 5}\n')
    with pytest.raises(
        RunError, match=r"metrics\.jsonl cannot be read: .*; put it back, or remove .* and run it again"
    ):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    ("name", "read"), [("result.json", read_result), ("spec.json", lambda folder: open_run(folder, {}))]
)
def test_of_what_was_cut_off_it_is_said_how_to_go_on(name, read, tmp_path):
    (tmp_path / name).write_text('{"a": ')
    said = rf"{name} cannot be read: Expecting value[^;]*; put it back, or remove {re.escape(str(tmp_path))} and run it"
    with pytest.raises(RunError, match=said):
        read(tmp_path)


def test_failure_record(tmp_path):
    assert read_failure(tmp_path) is None
    write_failure(tmp_path, ValueError("why"), step=3, layer="block.0")
    assert read_failure(tmp_path) == {"error": "why", "kind": "ValueError", "step": 3, "layer": "block.0"}
