"""Who gets which process, and what becomes of a process that ends: told without one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attnlab.core.errors import Interrupted
from attnlab.studies.run import executor, pool, worker
from attnlab.studies.run.pool import BROKEN, Pool


@pytest.fixture
def processes(monkeypatch):
    """Processes that answer at once; each holds what it was asked."""
    started = []

    class Process:
        def __init__(self, _module, *, imports, log, environment, on_message):
            self.asked, self.on_message, self.process = [], on_message, SimpleNamespace(poll=lambda: None)
            started.append(self)

        def tell(self, request):
            self.asked.append(request["number"])
            self.on_message({"kind": request["answer"]})

        def end(self):
            pass

    monkeypatch.setattr(pool, "ProcessApart", Process)
    return started


def run(log, aparts, answer="served"):
    told = []
    with Pool(1, 1, log) as workers:
        requests = [{"number": number, "apart": apart, "answer": answer} for number, apart in enumerate(aparts)]
        workers.run(requests, lambda number, message: told.append((number, message)))
    return told


def test_a_process_that_ran_own_code_serves_no_other_run(processes, tmp_path):
    run(tmp_path / "log", ["", "mine", "mine", "", "yours"])
    assert [one.asked for one in processes] == [[0, 3], [1], [2], [4]]


def test_an_interruption_that_nobody_asked_for_is_a_failure(processes, tmp_path):
    ((_, message),) = run(tmp_path / "log", ["mine"], "interrupted")
    assert message == {"kind": BROKEN, "error": "its process was interrupted, or its code raised KeyboardInterrupt"}


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (SystemExit(3), BROKEN, "SystemExit: 3"),
        (GeneratorExit(), BROKEN, "GeneratorExit"),
        (KeyboardInterrupt(), "interrupted", "interrupted"),
        (Interrupted("stopped after step 5"), "interrupted", "stopped after step 5"),
    ],
)
def test_whatever_a_run_raises_is_its_last_message(monkeypatch, error, kind, said):
    def compute(*_):
        raise error

    monkeypatch.setattr(executor, "compute", compute)
    job = {"folders": [], "specs": [], "threads": 1, "device": "cpu"}
    answer = worker._serve(job, lambda _: None)
    assert answer["kind"] == kind
    assert answer["error"].startswith(said)
