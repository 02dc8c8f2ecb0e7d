"""A study whose folder lies in an object store finds what it finds on a disk, whatever is lost on the way."""

from __future__ import annotations

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest
from tests.object_store import bucket, s3_server
from tests.studies.conftest import TINY

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.cli.run import report_and_show
from attnlab.core import files
from attnlab.core.errors import Interrupted, RunError, SpecError
from attnlab.core.files import new_name, read_json
from attnlab.core.storage.store import Store, address
from attnlab.explain.explaining import explain
from attnlab.explain.page import write_answer
from attnlab.explain.stages import knowing
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.judge.collect import read_results
from attnlab.studies.run import mirrored
from attnlab.studies.run.cluster import Ray
from attnlab.studies.run.executor import InProcess, Job
from attnlab.studies.run.lease import ObjectSign, lease
from attnlab.studies.run.node import check_node, place_of
from attnlab.studies.storage import copied, mirror
from attnlab.studies.storage.mirror import Mirror, followed, local, url_of
from attnlab.studies.using.trained import load_run
from attnlab.training.keeping.keeping import FolderKeeper

URL = "s3://bucket/runs/stored"
STUDY = {**TINY, "training": {"checkpoint_every": 2}}


@pytest.fixture(scope="module")
def server():
    with s3_server() as there:
        yield there


@pytest.fixture
def s3(server, monkeypatch):
    there = bucket(server, monkeypatch)
    yield there
    there.rm("bucket", recursive=True)


@pytest.fixture
def study(s3):
    return parse_study(STUDY, name="stored")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that lets what follows happen on another machine, which has a cache of its own."""

    def go_to(name):
        monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / name))
        return tmp_path / name / "stores/work/s3/bucket/runs/stored"

    return go_to


@pytest.fixture
def hurry(monkeypatch):
    """Wait for nothing."""
    monkeypatch.setattr(files.time, "sleep", lambda _: None)


@pytest.fixture
def fail(monkeypatch, hurry):
    """A function that lets the store fail for some of the writes to come."""
    write, written = Store.write, []

    def let(fails, error=OSError(errno.EBUSY, "Please reduce your request rate.")):
        def may_fail(store, contents):
            written.append(contents)
            with store._said():
                if fails(len(written)):
                    raise error
            write(store, contents)

        monkeypatch.setattr(Store, "write", may_fail)

    return let


def numbers(folder):
    """By run what it reached, and its records but for times."""
    return {
        str(path.parent.relative_to(folder)): (read_json(path)["metrics"], losses(path.with_name("metrics.jsonl")))
        for path in folder.rglob("result.json")
    }


def losses(path):
    return [(one["step"], one.get("train_loss")) for one in map(json.loads, path.read_text().splitlines())]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the study comes to in a folder of a disk."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_study(parse_study(STUDY, name="stored"), folder, executor=InProcess())
    return numbers(folder)


class UntilTold:
    """An executor that says whether it runs, and ends when something was said of the store."""

    def __init__(self, told):
        self.told, self.is_running = told, False

    def run(self, jobs, on_message):
        self.is_running = True
        InProcess().run(jobs, on_message)
        for _ in range(1000):
            if not self.told.alarmed:
                threading.Event().wait(0.02)  # twice what lies between two attempts to send
        self.is_running = False


class Refused:
    """An executor that nothing is left for."""

    def run(self, jobs, on_message):
        raise AssertionError(f"{jobs} should be done")


class Told:
    def __init__(self, on_message=lambda cell, message: None):
        self.alarmed, self._on_message = [], on_message

    def alarms(self, found):
        self.alarmed += [alarm.message for alarm in found]

    def phase(self, title, cells, done): ...

    def message(self, cell, message):
        self._on_message(cell, message)


def test_a_study_in_a_store_is_that_of_a_disk(study, s3, undisturbed, monkeypatch):
    monkeypatch.setattr(mirrored, "SEND_EVERY_S", 0.01)
    found = run_study(study, Path(URL), executor=InProcess())
    assert found.complete
    assert read_results(URL).variants == found.variants
    assert numbers(local(URL)) == undisturbed != {}
    left = {name.removeprefix("bucket/runs/stored/") for name in s3.find("bucket")}
    assert {"rules.json", "plain/seed-0/last.tar", "plain/seed-0/best-5.tar", "plain/seed-0/inside.json"} <= left
    assert not [name for name in left if ".lease" in name or ".lock" in name or ".clock" in name]
    assert len([name for name in left if name.startswith("plain/seed-0/best-")]) == 1


KILLED = f"""
import os, signal, time
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.run import mirrored
from attnlab.studies.run.executor import InProcess, Job

mirrored.SEND_EVERY_S = 0.02

class Kills:
    def alarms(self, found): ...
    def phase(self, title, cells, done): ...
    def message(self, cell, message):
        if message["kind"] == "evaluation" and cell.seed == 1 and message["step"] == 3:
            time.sleep(2)  # what it has saved is sent
            os.kill(os.getpid(), signal.SIGKILL)

run_study(parse_study({STUDY!r}, name="stored"), {URL!r}, executor=InProcess(), watcher=Kills())
"""


def test_a_study_whose_machine_is_lost_goes_on_on_another_one(study, machine, undisturbed, monkeypatch):
    machine("lost")
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED)], check=False)
    assert ended.returncode == -signal.SIGKILL
    monkeypatch.setattr(Store, "seconds_since", lambda *_: 61.0)  # a minute later
    copy = machine("other")
    run_study(study, URL, executor=InProcess())
    assert numbers(copy) == undisturbed
    resumed = {path: read_json(copy / path / "result.json")["resumed_at"] for path in undisturbed}
    assert [2] in resumed.values()
    assert [] in resumed.values()


def test_what_another_machine_has_computed_since_takes_the_place_of_what_lies_here(study, machine, undisturbed):
    def stop(cell, message):
        if message["kind"] == "evaluation" and cell.seed == 1:
            raise KeyboardInterrupt

    here = machine("here")
    with pytest.raises((RunError, KeyboardInterrupt)):
        run_study(study, URL, executor=InProcess(), watcher=Told(stop))
    there = machine("there")
    run_study(study, URL, executor=InProcess())
    machine("here")
    assert run_study(study, URL, executor=Refused()).complete
    assert numbers(here) == numbers(there) == undisturbed


def test_what_was_deleted_in_the_store_is_begun_anew(study, machine, s3, ran):
    copy = machine("here")
    run_study(study, URL, executor=Refused())
    assert numbers(copy) != {}
    s3.rm("bucket/runs/stored/plain/seed-1", recursive=True)
    with pytest.raises(AssertionError, match=r"plain/seed-1.* should be done"):
        run_study(study, URL, executor=Refused())
    assert not (copy / "plain/seed-1/result.json").exists()
    s3.rm("bucket/runs", recursive=True)
    with pytest.raises(
        RunError, match=f"{URL} is empty, and was not; see that it is the right store, or remove {copy}"
    ):
        run_study(study, URL, executor=Refused())
    assert (copy / "plain/seed-0/result.json").exists()


def test_a_study_on_a_cluster_lies_in_a_store(study, machine, undisturbed):
    pytest.importorskip("ray")
    copy = machine("driver")
    with Ray() as cluster:
        run_study(study, URL, executor=cluster)
    assert numbers(copy) == undisturbed
    assert not (copy / "plain/seed-0/last").exists()  # nodes have sent it; who judges does not need it
    assert (copy.parents[4] / "nodes/s3/bucket/runs/stored/plain/seed-0/last").exists()


def test_a_node_must_see_the_store(s3, monkeypatch):
    job = Job((), (), threads=1, device="cpu", study="not/here", store=URL)
    with lease(ObjectSign(Store(URL), "of the driver")):
        place = place_of(job)
        check_node(job, place)
        with pytest.raises(RunError, match=f" does not see {URL}: it must lie where all nodes can read and write"):
            check_node(job, place | {"mark": "of another command"})
        with monkeypatch.context() as patch:
            patch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
            with pytest.raises(RunError, match=f"^{platform.node()}: {URL} refuses these credentials"):
                check_node(job, place)


def test_a_second_command_is_refused(study):
    held = lease(ObjectSign(Store(URL), "of another machine"))
    with held, pytest.raises(RunError, match=f"{URL} is held by process {os.getpid()} on .*; wait for it, or stop it"):
        run_study(study, URL, executor=Refused())


def test_a_store_that_fails_now_and_then_costs_no_number(study, machine, undisturbed, fail, monkeypatch):
    monkeypatch.setattr(mirrored, "SEND_EVERY_S", 0.01)
    copy = machine("here")
    told = Told()
    at_work = UntilTold(told)
    fail(lambda nth: at_work.is_running and nth % 7 < 4)
    run_study(study, URL, executor=at_work, watcher=told)
    assert numbers(local(URL)) == numbers(copy) == undisturbed
    assert any("cannot be reached" in text and "is sent later" in text for text in told.alarmed), told.alarmed


def test_a_store_that_fails_for_good_ends_a_study_and_the_same_command_sends_it(study, machine, undisturbed, fail):
    copy = machine("here")
    fail(lambda nth: nth > 4)
    sentence = f"{URL} cannot be reached: .*reduce your request rate.* What was computed lies in {copy}; the same"
    with pytest.raises(RunError, match=sentence):
        run_study(study, URL, executor=InProcess())
    fail(lambda _: False)
    assert run_study(study, URL, executor=Refused()).complete
    assert numbers(local(URL)) == undisturbed


def test_a_store_without_room_ends_a_study(study, fail):
    fail(lambda nth: nth > 2, OSError(errno.EIO, "Storage backend has reached its quota"))
    with pytest.raises(RunError, match=f"no room left in {URL}: .*quota; make room there"):
        run_study(study, URL, executor=InProcess())


# What a person has to put right


def test_a_bucket_that_is_not_there_is_said(study):
    with pytest.raises(RunError, match=r"s3://nowhere/study is not there: .*create the bucket first, or correct"):
        run_study(study, "s3://nowhere/study", executor=Refused())


def test_missing_credentials_are_said(study, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(RunError, match=f"no credentials for {URL}: .*AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        run_study(study, URL, executor=Refused())


def test_refused_credentials_are_said(study, monkeypatch):
    sentence = f"{URL} refuses these credentials: .*they must allow to list, read, write"
    with monkeypatch.context() as patch:
        patch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
        with pytest.raises(RunError, match=sentence):
            run_study(study, URL, executor=Refused())


def test_a_store_that_nobody_answers_for_may_answer_later(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(RunError, match=f"{URL} cannot be reached: Could not connect") as caught:
        local(URL)
    assert files.passing_cause(caught.value)


def test_a_missing_library_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(SpecError, match="gs://bucket/study needs gcsfs: pip install gcsfs"):
        local("gs://bucket/study")


def test_where_nothing_lies_is_said(s3):
    with pytest.raises(RunError, match=f"there is nothing at {URL}; see its name"):
        local(URL)


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("runs/study", Path("runs/study")),
        ("file:///mnt/study", Path("/mnt/study")),
        (Path("s3://bucket/study/"), "s3://bucket/study"),
        ("s3://bucket", "s3://bucket"),
    ],
)
def test_folders_are_paths_or_urls(folder, found):
    assert address(folder) == found


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [
        ("sftp://host/study", "lies in an object store .s3://, .*; got sftp://host/study; mount it, name the path"),
        (Path("http://host/study"), "lies in an object store .s3://, .*; got http://host/study; mount it"),
        ("file://", "lies in an object store .s3://, .*; got file://; mount it"),
        ("s3://", "is s3://BUCKET/FOLDER; got s3://"),
        (Path("s3://"), "is s3://BUCKET/FOLDER; got s3://"),
        ("s3://bucket/../other", "is s3://BUCKET/FOLDER; got s3://bucket/../other"),
    ],
)
def test_what_is_no_folder_is_refused(folder, sentence):
    with pytest.raises(SpecError, match=sentence):
        address(folder)


def test_a_single_run_is_kept_on_this_machine():
    with pytest.raises(RunError, match="a single run is kept in a folder of this machine"):
        FolderKeeper(Path("s3://bucket/run"), {}).open(None)


# Whoever reads


@pytest.fixture(scope="module")
def objects(server, undisturbed):
    """The objects of a finished study in the store, by their names."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as cache:
        patch.setenv("ATTNLAB_CACHE", cache)
        there = bucket(server, patch)
        run_study(parse_study(STUDY, name="stored"), URL, executor=InProcess())
        found = there.cat(there.find("bucket"))
        there.rm("bucket", recursive=True)
    return found


@pytest.fixture
def ran(objects, s3):
    """A finished study in the store, of which nothing lies on this machine."""
    s3.pipe(objects)


def test_the_report_of_a_run_is_written_where_its_store_is(study, machine, s3, capsys):
    machine("here")
    report_and_show(run_study(study, URL, executor=InProcess()), Path(URL), json=False)
    assert f"report.html (also in {URL})" in capsys.readouterr().out.replace("\n", "")
    assert s3.exists("bucket/runs/stored/report.html")


def test_commands_read_from_a_store(ran, s3, capsys):
    assert call(["report", URL]) == FINE
    assert f"report.html (also in {URL})" in capsys.readouterr().out.replace("\n", "")
    assert s3.exists("bucket/runs/stored/report.html")
    assert not (local(URL) / "plain/seed-0/last").exists()
    assert call(["heads", URL, "--tokens", "500"]) == FINE
    assert s3.exists("bucket/runs/stored/heads.json")
    assert call(["generate", f"{URL}/plain/seed-0"]) == WRONG_USE
    assert f"{URL}/plain/seed-0 is a run of the task 'shapes'; models write in" in capsys.readouterr().err
    assert call(["predict", URL, "x.npy", "--out", "y.npy"]) == WRONG_USE
    said = capsys.readouterr().err
    assert f"{URL} is no run" in said
    assert f"{URL}/plain/seed-0" in said


def test_a_case_is_explained_in_a_store(s3, machine, monkeypatch):
    monkeypatch.setattr(knowing, "HEART_S", 0.3)
    case = {
        "question": "Why?", "task": TINY["task"], "model": TINY["model"], "variants": {"mine": {}},
        "training": {"lr": 1e-2, "budget": {"steps": 20}}, "saw": {"mine": {"test_mse": 0.5}},
        "expected": {"mine": {"test_mse": 0.4}},
    }  # fmt: skip
    found = []
    for name in ("one", "other"):
        machine(name)
        answer = explain(case, Path("s3://bucket/case"), seeds=2, executor=InProcess())
        page = write_answer(answer, Path("s3://bucket/case"))
        assert s3.exists(f"bucket/case/{page.name}")
        found.append((answer.start, [name for name in sorted(s3.find("bucket/case")) if "/." not in name]))
    assert found[0] == found[1]


def test_a_trained_model_is_read_from_a_store(ran, tmp_path):
    trained = load_run(f"{URL}/plain/seed-1", which="best")
    assert url_of(trained.folder) == f"{URL}/plain/seed-1"
    with pytest.raises(RunError, match=r"is no run .no spec.json in it.; runs in it: "):
        load_run(URL)


def test_who_watches_sees_what_is_sent(ran, s3, monkeypatch):
    monkeypatch.setattr(mirror, "FOLLOW_EVERY_S", 0.01)
    with followed("s3://bucket/runs") as copy:
        assert read_results(copy / "stored").complete
        s3.pipe("bucket/runs/stored/plain/seed-0/new.json", b"{}")
        while not (copy / "stored/plain/seed-0/new.json").exists():
            time.sleep(0.01)


# One run, file by file


@pytest.fixture
def run(ran, machine):
    """One of its runs in a copy on this machine."""
    copy = machine("here")
    Mirror(URL, "work").pull(checkpoints=lambda _: True)
    return copy / "plain/seed-0"


def test_what_says_that_all_is_there_is_written_last(run, s3, monkeypatch):
    written = []
    write, send = Store.write, Store.send
    monkeypatch.setattr(Store, "write", lambda store, named: (written.extend(named), write(store, named)))
    monkeypatch.setattr(Store, "send", lambda store, file, name: (written.append(name), send(store, file, name)))
    s3.rm("bucket/runs", recursive=True)
    (run / copied.INDEX).unlink()
    Mirror(URL, "work").push("plain/seed-0")
    own = [name.removeprefix("plain/seed-0/") for name in written]
    assert own[0].startswith(copied.WRITER)
    assert own[-4:] == ["best-5.tar", "last.tar", "result.json", "inside.json"]
    assert {"metrics.jsonl", "spec.json"} <= set(own[1:-4])


def test_a_checkpoint_that_is_replaced_while_it_is_packed_is_sent_later(run, s3, monkeypatch):
    before = s3.info("bucket/runs/stored/plain/seed-0/last.tar")["ETag"]
    state, packing = run / "last/state.json", copied.tarfile.open

    def replace(*given):
        os.utime(state, ns=(1, time.monotonic_ns()))
        return packing(*given)

    os.utime(state, ns=(1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(copied.tarfile, "open", replace)
        Mirror(URL, "work").push("plain/seed-0")
    assert s3.info("bucket/runs/stored/plain/seed-0/last.tar")["ETag"] == before
    Mirror(URL, "work").push("plain/seed-0")
    assert s3.info("bucket/runs/stored/plain/seed-0/last.tar")["ETag"] != before


def test_a_folder_that_goes_while_files_are_listed_stops_nothing(run, s3, monkeypatch):
    going, listing = new_name(run / "last"), os.scandir
    going.mkdir()
    (run / "metrics.jsonl").write_text("more")

    def without(folder="."):
        if str(folder) == str(going) and going.exists():
            going.rmdir()
        return listing(folder)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", without)
        Mirror(URL, "work").push("plain/seed-0")
    assert not going.exists()
    assert s3.cat("bucket/runs/stored/plain/seed-0/metrics.jsonl") == b"more"


def test_who_was_taken_over_sends_nothing(run, machine, s3):
    machine("other")
    other = Mirror(URL, "work")
    other.pull("plain/seed-0")
    (other.folder / "plain/seed-0/metrics.jsonl").write_text("theirs")
    other.push("plain/seed-0")
    (run / "metrics.jsonl").write_text("ours")
    machine("here")
    with pytest.raises(RunError, match=f"{URL}/plain/seed-0/ was taken over by another process; what was computed"):
        Mirror(URL, "work").push("plain/seed-0")
    Mirror(URL, "work").pull("plain/seed-0")
    assert (
        (run / "metrics.jsonl").read_text()
        == "theirs"
        == s3.cat("bucket/runs/stored/plain/seed-0/metrics.jsonl").decode()
    )


def test_a_damaged_checkpoint_is_said(ran, s3):
    s3.pipe("bucket/runs/stored/plain/seed-0/last.tar", b"no archive" * 99)
    with pytest.raises(
        RunError, match=f"{URL}/plain/seed-0/last.tar is damaged: .*; remove {URL}/plain/seed-0/ and run"
    ):
        Mirror(URL, "work").pull(checkpoints=lambda _: True)


def test_why_a_run_failed_is_there_until_it_is_tried_again(run, s3):
    (run / "failed.json").write_text("{}")
    Mirror(URL, "work").push()
    assert s3.exists("bucket/runs/stored/plain/seed-0/failed.json")
    (run / "failed.json").unlink()
    Mirror(URL, "work").push()
    assert not s3.exists("bucket/runs/stored/plain/seed-0/failed.json")


# Who holds it


ELSEWHERE = {"pid": 71, "host": "elsewhere", "copy": "theirs", "mark": "a"}


def held_elsewhere(s3, number=1):
    s3.pipe(f"bucket/runs/stored/.lease-{number:08}", json.dumps(ELSEWHERE).encode())


def leases(s3):
    return [name.rpartition("-")[2] for name in s3.find("bucket/runs/stored") if ".lease-" in name]


@pytest.fixture
def sign(s3, monkeypatch):
    for name in ("SIGN_EVERY_S", "SETTLED_S"):
        monkeypatch.setattr(f"attnlab.studies.run.lease.{name}", 0.01)
    return ObjectSign(Store(URL), "ours")


def test_who_gives_no_sign_holds_nothing(sign, s3, monkeypatch):
    held_elsewhere(s3)
    monkeypatch.setattr(Store, "seconds_since", lambda *_: 61.0)
    with lease(sign):
        assert leases(s3) == ["00000002"]
    assert leases(s3) == []


def test_the_clock_is_that_of_the_store(sign, s3):
    held_elsewhere(s3)
    assert 0 <= sign.silence_s() < 60


def test_what_a_process_of_the_same_copy_left_is_no_obstacle(sign, s3):
    s3.pipe("bucket/runs/stored/.lease-00000007", json.dumps(dict(sign.own) | {"mark": "of the one before"}).encode())
    with lease(sign):
        assert leases(s3) == ["00000008"]


def taken_over(sign, s3):
    """Hold a folder until another machine has taken it."""
    taken = threading.Event()
    with lease(sign, lost=taken.set):
        held_elsewhere(s3, 2)
        assert taken.wait(30)
        raise Interrupted("stopped")


def test_who_was_taken_over_is_interrupted(sign, s3):
    with pytest.raises(RunError, match="was taken over by process 71 on elsewhere, as this process gave no sign"):
        taken_over(sign, s3)
    assert "00000002" in leases(s3)


def created_meanwhile(monkeypatch, s3, before):
    """Let something happen just before a lease is created."""
    create = Store.create
    monkeypatch.setattr(Store, "create", lambda *given: (before(), create(*given))[1])


def test_of_two_that_create_one_lease_one_goes(sign, s3, monkeypatch):
    created_meanwhile(monkeypatch, s3, lambda: held_elsewhere(s3))
    with pytest.raises(RunError, match="was taken by process 71 on elsewhere in the same moment"):
        lease(sign).__enter__()
    assert leases(s3) == ["00000001"]


def test_who_comes_late_to_take_over_goes(sign, s3, monkeypatch):
    held_elsewhere(s3, 4)
    monkeypatch.setattr(Store, "seconds_since", lambda *_: 61.0)

    def another_takes_over_and_ends():
        if s3.exists("bucket/runs/stored/.lease-00000004"):
            s3.rm_file("bucket/runs/stored/.lease-00000004")

    created_meanwhile(monkeypatch, s3, another_takes_over_and_ends)
    with pytest.raises(RunError, match="was taken by another process in the same moment"):
        lease(sign).__enter__()
    assert leases(s3) == []


def test_in_a_store_that_ignores_the_condition_the_last_writer_holds(sign, s3, monkeypatch):
    monkeypatch.setattr(Store, "create", lambda store, name, content: (store.write({name: content}), True)[1])
    with lease(sign):
        assert leases(s3) == ["00000001"]
    monkeypatch.setattr("attnlab.studies.run.lease.time.sleep", lambda _: held_elsewhere(s3))
    with pytest.raises(RunError, match="was taken by process 71 on elsewhere in the same moment"):
        lease(sign).__enter__()
    assert json.loads(s3.cat("bucket/runs/stored/.lease-00000001")) == ELSEWHERE
