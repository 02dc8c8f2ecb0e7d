"""A study that is watched: everything first, then what changes, to any number of viewers."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import platform
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.viewer.conftest import PATIENCE_S, asked, record, serving, watching, write

from attnlab.core.files import write_json
from attnlab.viewer import streams
from attnlab.viewer.following import FollowedStudy

VIEWERS = 100
RUN = "with-attention/seed-1"


def test_a_viewer_gets_everything_first(port):
    with watching(port) as following:
        told = following()
    assert told["study"]["state"] == "finished"
    assert told["study"]["metric"]["name"] == "val_mse"
    assert [run["state"] for run in told["runs"].values()] == ["finished"] * 4
    points = told["runs"]["plain/seed-0"]["points"]
    assert [step for step, _ in points["loss"]] == [1, 2, 3, 4, 5]
    assert points["metric"]


def test_what_is_appended_is_told_once_with_state_and_pace(port, unfinished):
    with watching(port) as following:
        before = following()["runs"][RUN]
        assert (before["state"], before["progress"]) == ("stopped", 0.4)
        write(unfinished, record(3))
        change = following()
        assert list(change["runs"]) == [RUN]
        assert change["runs"][RUN]["points"]["loss"] == [[3, 0.33333]]
        write(unfinished, record(4, val_mse=0.25))
        told = following()["runs"][RUN]
    assert told["points"] == {"loss": [[4, 0.25]], "metric": [[4, 0.25]]}
    assert told["progress"] == 0.8
    assert told["rate"] == 4000


def test_a_half_written_line_waits_for_its_end(port, unfinished):
    with watching(port) as following:
        following()
        line = json.dumps(record(3))
        with unfinished.open("a") as file:
            file.write(line[:20])
            file.flush()
            write(unfinished.parent.parent / "seed-0" / "metrics.jsonl", record(6))  # so that there is an event
            assert RUN not in following()["runs"]
            file.write(line[20:] + "\n")
        assert following()["runs"][RUN]["points"]["loss"] == [[3, 0.33333]]


def test_a_run_that_goes_on_from_a_checkpoint_is_told_anew(port, unfinished):
    with watching(port) as following:
        following()
        shorter = unfinished.with_suffix(".new")
        shorter.write_text(json.dumps(record(1)) + "\n" + json.dumps(record(2)) + "\n" + json.dumps(record(3)) + "\n")
        shorter.replace(unfinished)
        told = following()["runs"][RUN]
    assert told["anew"]
    assert told["points"]["loss"] == [[1, 1.0], [2, 0.5], [3, 0.33333]]


def test_lost_records_of_a_finished_run_are_told(port, unfinished):
    other = unfinished.parents[1] / "seed-0" / "metrics.jsonl"
    with watching(port) as following:
        runs = following()["runs"]
        other.rename(other.with_suffix(".away"))
        told = following()["runs"]["with-attention/seed-0"]
        other.with_suffix(".away").rename(other)
    assert {run["lost"] for run in runs.values()} == {""}
    assert told["lost"] == "metrics.jsonl is missing, and the curve of the run with it"


def test_damaged_records_are_left_out_and_counted(port, unfinished):
    with unfinished.open("a") as file:
        file.write('{"step":\n[1]\n\n{"step": "3"}\n' + "[" * 9999 + "\n")
    write(unfinished, record(4, val_mse="none"), {"step": 5, "train_loss": float("nan")})
    with watching(port) as following:
        told = following()["runs"][RUN]
    assert told["damaged"] == 5
    assert [step for step, _ in told["points"]["loss"]][2:] == [4]


@pytest.mark.parametrize(
    ("file", "content", "state"),
    [
        (".lock.json", None, "running"),
        (".lock.json", {"pid": 2**22 + 1, "host": None}, "stopped"),
        (".lock.json", {"pid": "nobody"}, "stopped"),
        ("failed.json", {"error": "<b>loss is NaN</b>"}, "failed"),
    ],
)
def test_states_are_read_from_files_alone(port, unfinished, file, content, state):
    here = {"pid": os.getpid(), "host": platform.node()}
    write_json(unfinished.parent / file, here if content is None else content | ({"host": platform.node()}))
    with watching(port) as following:
        told = following()
    assert told["runs"][RUN]["state"] == state
    assert ("&lt;b&gt;loss is NaN" in told["study"]["parts"]["known"]) == (state == "failed")


def test_a_verdict_is_told_when_the_last_run_ends(ran, port, unfinished):
    with watching(port) as following:
        before = following()["study"]
        assert "3 of 4 runs" in before["parts"]["progress"]
        for name in ("metrics.jsonl", "result.json"):
            shutil.copy(ran / RUN / name, unfinished.parent / name)
        changes = [following()]
        while changes[-1].get("study", before)["state"] != "finished":
            changes.append(following())
    assert "4 of 4 runs" in changes[-1]["study"]["parts"]["progress"]
    assert len(changes[-1]["study"]["effects"]) == 1


def test_a_study_that_is_deleted_meanwhile_is_told_in_a_sentence(runs, port):
    with watching(port) as following:
        following()
        shutil.rmtree(runs / "tiny")
        words, states = "", {}
        while "holds no study" not in words or set(states.values()) != {"waiting"}:  # one look may see the half of it
            change = following()
            words = change.get("study", {"parts": {"progress": words}})["parts"]["progress"]
            states |= {name: run["state"] for name, run in change.get("runs", {}).items()}


def test_a_hundred_viewers_share_one_look(port, unfinished, monkeypatch):
    looks = []
    look = FollowedStudy.look
    monkeypatch.setattr(FollowedStudy, "look", lambda study: looks.append(study) or look(study))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(VIEWERS) as threads:
        viewers = [stack.enter_context(watching(port)) for _ in range(VIEWERS)]
        everything = list(threads.map(lambda following: following(), viewers))
        write(unfinished, record(3))
        changes = list(threads.map(lambda following: following(), viewers))
        assert asked(port, "/")[0] == 200
    assert all(told["runs"].keys() == everything[0]["runs"].keys() for told in everything)
    assert [change["runs"][RUN]["step"] for change in changes] == [3] * VIEWERS
    assert len(set(map(id, looks))) == 1


def test_too_many_viewers_are_refused_and_one_that_goes_makes_room(runs, monkeypatch):
    monkeypatch.setattr(streams, "MOST_STREAMS", 2)
    with serving(runs) as port:
        with watching(port) as first:
            first()
            with watching(port) as second:
                second()
                status, _, text = asked(port, "/events/tiny")
                assert (status, json.loads(text)["error"]) == (503, "2 pages watch already; close one of them")
        while asked_events(port) == 503:
            pass


def asked_events(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/events/tiny")
    answer = connection.getresponse()
    answer.close()
    connection.close()
    return answer.status


def test_a_viewer_that_does_not_read_is_let_go(runs, unfinished, monkeypatch):
    monkeypatch.setattr(streams, "MOST_WAITING", 1)

    async def viewers_after_a_change():
        study = streams.SharedLooks(FollowedStudy, runs / "tiny")
        viewer = await study.join()
        write(unfinished, record(3))
        async with asyncio.timeout(PATIENCE_S):
            while study.viewers:
                await asyncio.sleep(0.01)
        return viewer.get_nowait()

    assert asyncio.run(viewers_after_a_change()) == streams.END


def test_a_viewer_to_whom_nothing_is_told_is_written_to(port, monkeypatch):
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.05)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/events/tiny")
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    assert [answer.readline(), answer.readline()] == [b"\n", b":\n"]
    answer.close()
    connection.close()


@pytest.mark.parametrize(("took", "pause"), [(0.0001, 0.02), (0.003, 0.3), (60.0, 5.0)])
def test_looks_are_rarer_where_they_take_more(took, pause, tmp_path, monkeypatch):
    pauses = []

    class Idle:
        def look(self):
            return None

        def everything(self):
            return {}

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            raise RuntimeError

    async def watched():
        study = streams.SharedLooks(lambda _: Idle(), tmp_path)
        viewer = await study.join()
        viewer.get_nowait()
        return await viewer.get()

    monkeypatch.setattr(streams, "_event_of", lambda _: (streams.END, took))
    monkeypatch.setattr(streams.time, "thread_time", lambda: 0.0)
    monkeypatch.setattr(streams.asyncio, "sleep", sleep)
    assert asyncio.run(watched()) == streams.END
    assert pauses == pytest.approx([0.02, pause, pause])


def test_viewers_are_let_go_where_a_look_fails(runs, monkeypatch):
    async def told_after_a_failure():
        study = streams.SharedLooks(FollowedStudy, runs / "tiny")
        viewer = await study.join()
        viewer.get_nowait()
        monkeypatch.setattr(FollowedStudy, "look", lambda _: 1 / 0)
        return await asyncio.wait_for(viewer.get(), PATIENCE_S)

    assert asyncio.run(told_after_a_failure()) == streams.END


def test_a_long_run_is_thinned_to_a_page_below_300_kb(runs, unfinished):
    write(unfinished, *(record(step, val_mse=1 + step % 7) for step in range(3, 100_003)))
    with serving(runs) as port, watching(port) as following:
        told = [following()]
        while told[-1]["runs"][RUN]["step"] < 100_002:
            told.append(following())
    points = [point for event in told for point in event["runs"][RUN]["points"]["metric"][:-1]]  # without the newest
    assert len(json.dumps(told)) < 300_000
    assert len(points) > 1000
    assert points == sorted(points)
    assert {value for _, value in points[2:]} == {1.0, 7.0}
