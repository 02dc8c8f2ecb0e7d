"""Storage that fails while a study runs costs time and no number; one that fails for good ends it with a sentence."""

from __future__ import annotations

import errno
import os

import pytest

from attnlab.core import files
from attnlab.core.errors import RunError
from attnlab.core.files import WAITS_S, read_json
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.run.executor import InProcess


@pytest.fixture
def study(tiny):
    """A tiny study whose runs write checkpoints on their way."""
    return parse_study({**tiny, "training": {"checkpoint_every": 2}}, name="storage")


@pytest.fixture
def fail(monkeypatch):
    """A function that lets storage fail for some of the writes to come; waiting takes no time."""
    monkeypatch.setattr(files.time, "sleep", lambda _: None)
    synchronize, written = files.synchronize, []

    def let(fails):
        def may_fail(path):
            written.append(path)
            if fails(len(written)):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            synchronize(path)

        for place in ("core.files", "training.keeping.checkpoints", "training.keeping.runs"):
            monkeypatch.setattr(f"attnlab.{place}.synchronize", may_fail)

    return let


def numbers(folder):
    return {str(path.relative_to(folder)): read_json(path)["metrics"] for path in folder.rglob("result.json")}


def test_what_storage_that_fails_now_and_then_leaves_are_the_same_numbers(study, tmp_path, fail):
    run_study(study, tmp_path / "undisturbed", executor=InProcess())
    fail(lambda nth: nth > 30 and nth % 31 < 3)
    found = run_study(study, tmp_path / "disturbed", executor=InProcess())
    assert not [alarm for alarm in found.alarms if alarm.check == "failed"]
    assert numbers(tmp_path / "disturbed") == numbers(tmp_path / "undisturbed") != {}


def test_storage_that_fails_for_good_ends_a_study_from_which_the_same_command_goes_on(study, tmp_path, fail):
    fail(lambda nth: nth > 20)
    with pytest.raises(
        RunError, match=r"cannot write in .*What was saved before is still valid; .* and give the same command again"
    ):
        run_study(study, tmp_path / "disturbed", executor=InProcess())
    fail(lambda _: False)
    run_study(study, tmp_path / "disturbed", executor=InProcess())
    run_study(study, tmp_path / "undisturbed", executor=InProcess())
    assert numbers(tmp_path / "disturbed") == numbers(tmp_path / "undisturbed")


def test_a_person_is_told_that_storage_fails(study, tmp_path, fail):
    told = []
    fail(lambda nth: nth == 12)
    run_study(study, tmp_path, executor=InProcess(), watcher=Told(told))
    assert [text for text in told if text.startswith("storage failed ([Errno 5]")] == [
        f"storage failed ([Errno 5] Input/output error); trying again in {WAITS_S[0]} s"
    ]


class Told:
    def __init__(self, told):
        self.told = told

    def alarms(self, found): ...

    def phase(self, title, cells, done): ...

    def message(self, cell, message):
        self.told.append(message.get("text", ""))
