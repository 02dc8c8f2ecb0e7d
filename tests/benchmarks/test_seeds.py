"""The benchmark of many seeds measures every way that there is, on the same seeds."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future

import pytest
import torch

from attnlab.benchmarks import seeds
from attnlab.core.errors import SpecError
from attnlab.training.speed.settings import Setting

REFERENCE = "one after another"


@pytest.fixture
def short(monkeypatch):
    """Make steps few, and count cores as two."""
    monkeypatch.setattr(seeds, "STEPS", dict.fromkeys(seeds.MODELS, 1))
    monkeypatch.setattr(seeds, "usable_cores", lambda: 2)


class Here:
    """Stand for a process: do at once, in this one, what it is given."""

    def submit(self, work, *arguments, **named):
        done = Future()
        done.set_result(work(*arguments, **named))
        return done


@pytest.fixture
def here(monkeypatch):
    """Start no processes, where it is not they that are tested."""
    monkeypatch.setattr(seeds, "_process", lambda: contextlib.nullcontext(Here()))


@pytest.mark.usefixtures("short")
def test_processes_take_one_thread_each():
    with seeds._process() as process:
        assert process.submit(torch.get_num_threads).result() == 1
        assert seeds._side_by_side("shapes-cnn", [range(1)], [process], False, Setting()) > 0.0


@pytest.mark.usefixtures("short", "here")
def test_every_way_is_measured():
    (three,) = seeds.bench_seeds("shapes-cnn", rounds=1, counts=(3,))
    assert list(three.rows) == [
        REFERENCE,
        "together",
        "2 processes of 1 thread",
        "2 processes of 1 thread, together in each",
    ]
    assert {row["seeds"] for row in three.to_json()["rows"]} == {3}
    assert all(value > 0.0 for values in three.rows.values() for value in values)
    assert three.title == "3 seeds of shapes-cnn, float32"


@pytest.mark.usefixtures("short", "here")
@pytest.mark.parametrize("compiler", [pytest.param(True, marks=pytest.mark.slow), False])
def test_every_way_is_measured_in_every_setting(monkeypatch, compiler):
    monkeypatch.setattr(seeds, "COUNT_AT_BEST", 3)
    monkeypatch.setattr(seeds, "missing_compiler", lambda device: "" if compiler else "a compiler")
    if compiler:  # compiling takes long: that settings are handed on shows without
        monkeypatch.setattr(seeds, "ALL_SETTINGS", seeds.ALL_SETTINGS[:2])
    one, *_, found = seeds.bench_seeds("shapes-cnn", rounds=1, counts=(1, 3))
    assert list(one.rows) == [REFERENCE, "1 process of 1 thread"]
    assert found.title == "3 seeds of shapes-cnn, in every setting"
    assert found.reference == f"{REFERENCE}, float32"
    ways = (REFERENCE, "together", "2 processes of 1 thread")
    assert list(found.rows) == [f"{way}, {precision}" for precision in ("float32", "bf16") for way in ways]
    assert found.notes == (() if compiler else ("compiling not measured: it needs a compiler",))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("model", ["shapes-attention", "a"])
def test_models_train(model, together):
    assert seeds.step_milliseconds(model, range(2), Setting(), device="cpu", together=together) > 0.0


@pytest.mark.usefixtures("short", "here")
def test_seeds_together_that_memory_cannot_hold_are_left_out_and_named(monkeypatch):
    need = seeds.seed_bytes("shapes-cnn")
    monkeypatch.setattr(seeds, "memory_of", lambda device: 2.5 * need / seeds.SHARE_OF_MEMORY)
    monkeypatch.setattr(seeds, "COUNT_AT_BEST", 3)
    monkeypatch.setattr(seeds, "ALL_SETTINGS", seeds.ALL_SETTINGS[:1])
    two, three, settings = seeds.bench_seeds("shapes-cnn", rounds=1, counts=(2, 3))
    assert "together" in two.rows
    assert two.notes == ()
    assert list(three.rows) == [REFERENCE, "2 processes of 1 thread"]
    assert list(settings.rows) == [f"{REFERENCE}, float32", "2 processes of 1 thread, float32"]
    wanted = f"together, not run: would take about {3 * need / seeds.GIB:.2g} GiB, judged by one seed's need"
    assert three.notes == settings.notes == (wanted,)


def test_the_need_of_a_seed_grows_with_its_model():
    assert seeds.seed_bytes("a") > seeds.seed_bytes("shapes-cnn") > 0


def test_seeds_are_shared_out():
    assert [list(share) for share in seeds._shares(5, 2)] == [[0, 2, 4], [1, 3]]
    assert [list(share) for share in seeds._shares(1, 2)] == [[0]]
    assert seeds._shares(4, 0) == []


def test_an_unknown_model():
    with pytest.raises(SpecError, match="did you mean 'shapes-cnn'"):
        next(seeds.bench_seeds("shape-cnn"))
