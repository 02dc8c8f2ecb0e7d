"""``attnlab bench`` as a person meets it: names, sizes, files, errors in words."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest
import torch

from attnlab.benchmarks import catalog, start
from attnlab.benchmarks.catalog import BENCHMARKS, Benchmark, BenchOptions, chosen
from attnlab.benchmarks.measuring.turns import measure_in_turn
from attnlab.cli import FAILED, FINE, WRONG_USE, call

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def quick(size, options):
    rounds = options.rounds or 2
    for title in ("first", "second"):
        things = {"one": lambda: 2.0, "other": lambda: 1.0}
        yield measure_in_turn(f"{title} {size}", things, reference="one", unit="ms", rounds=rounds)


@pytest.fixture
def table(monkeypatch):
    entries = {"quick": Benchmark("nothing", quick), "sized": Benchmark("nothing", quick, ("a", "b"))}
    monkeypatch.setattr(catalog, "BENCHMARKS", entries)


@pytest.mark.usefixtures("table")
def test_results_are_printed_and_saved_under_device_name_and_size(tmp_path, capfd):
    assert call(["bench", "sized", "--sizes", "b", "--rounds", "3", "--out", str(tmp_path / "new")]) == FINE
    printed = capfd.readouterr().out
    assert "first b" in printed
    assert "2.00x (2.00 to 2.00)" in printed
    (file,) = (tmp_path / "new").iterdir()
    assert file.name == "cpu-sized-b.json"
    content = json.loads(file.read_text())
    assert (content["benchmark"], content["size"]) == ("sized", "b")
    assert [result["title"] for result in content["results"]] == ["first b", "second b"]
    assert len(content["results"][0]["rows"][0]["values"]) == 3


@pytest.mark.usefixtures("table")
def test_all_measures_every_size_of_every_benchmark(tmp_path, capfd):
    assert call(["bench", "all", "--out", str(tmp_path), "--json"]) == FINE
    found = json.loads(capfd.readouterr().out)
    assert list(found) == ["quick", "sized-a", "sized-b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"cpu-{label}.json" for label in found]
    assert json.loads((tmp_path / "cpu-quick.json").read_text()) == found["quick"]


@pytest.mark.usefixtures("table")
def test_what_is_finished_is_kept_when_the_next_fails(tmp_path, monkeypatch):
    def fail(size, options):
        yield next(quick(size, options))
        raise MemoryError

    monkeypatch.setitem(catalog.BENCHMARKS, "sized", Benchmark("fails", fail))
    assert call(["bench", "all", "--out", str(tmp_path)]) == FAILED
    kept = {path.name: len(json.loads(path.read_text())["results"]) for path in tmp_path.iterdir()}
    assert kept == {"cpu-quick.json": 2, "cpu-sized.json": 1}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "WHAT"),
        (["trian"], "did you mean 'train'"),
        (["al"], "did you mean 'all'"),
        (["train", "--sizes", "d"], "bench train has no sizes 'd'; known: a, b, c"),
        (["loop", "--sizes", "a"], "'loop' has no sizes to choose from"),
        (["all", "--sizes", "a"], "--sizes goes with one benchmark"),
        (["loop", "--rounds", "0"], "--rounds must be at least 1; got 0"),
        (["loop", "--device", "tpu"], "--device must be cpu, cuda or cuda:N; got 'tpu'"),
        (["loop", "--rounds", "few"], "few"),
        pytest.param(["all", "--device", "cuda"], "torch finds 0 CUDA devices on this machine", marks=NO_CUDA),
        pytest.param(["all", "--device", "cuda:1"], "torch finds 0 CUDA devices on this machine", marks=NO_CUDA),
    ],
)
def test_wrong_use_is_a_sentence(arguments, expected, capfd):
    assert call(["bench", *arguments]) == WRONG_USE
    printed = capfd.readouterr()
    assert expected in " ".join(printed.err.split())
    assert "Traceback" not in printed.err + printed.out


def test_sizes_of_the_catalog_are_those_that_can_be_measured():
    from attnlab.benchmarks.contenders.peers import SIZES

    assert BENCHMARKS["train"].sizes == tuple(SIZES)
    assert chosen("train", ("c", "a")) == [("train", "c"), ("train", "a")]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_it_is_and_can_be_imported(name, capfd):
    assert BENCHMARKS[name].summary
    measure = BENCHMARKS[name].measure
    modules = [word for word in measure.__code__.co_names if word.startswith("attnlab.benchmarks")]
    assert all(importlib.import_module(module) for module in modules)
    assert call(["bench", "--help"]) == FINE
    assert f"{name}:" in capfd.readouterr().out


def test_all_of_another_device_are_those_that_run_there(monkeypatch, capfd):
    entries = {"here": Benchmark("imports", quick, cpu_only=True), "anywhere": Benchmark("steps", quick)}
    monkeypatch.setattr(catalog, "BENCHMARKS", entries)
    assert [name for name, _ in chosen("all")] == ["here", "anywhere"]
    assert [name for name, _ in chosen("all", device="cuda:1")] == ["anywhere"]
    assert chosen("anywhere", device="cuda") == [("anywhere", "")]
    monkeypatch.setattr(catalog, "_require", lambda device: None)
    assert call(["bench", "here", "--device", "cuda"]) == WRONG_USE
    assert "'here' computes on the CPU alone; leave out --device" in capfd.readouterr().err
    assert {name for name, one in BENCHMARKS.items() if one.cpu_only} == {"start", "corpus"}


def test_options_are_handed_on():
    assert BenchOptions(rounds=3).given_rounds() == {"rounds": 3}
    assert BenchOptions().given() == {"device": "cpu"}
    assert BenchOptions(rounds=3).given() == {"device": "cpu", "rounds": 3}


def test_start_times_new_interpreters(monkeypatch):
    monkeypatch.setattr(start, "CODE", {start.REFERENCE: "import json", "other": "import sys"})
    result = start.bench_start(rounds=1)
    assert list(result.rows) == [start.REFERENCE, "other"]
    assert all(times[0] > 0.0 for times in result.rows.values())


@pytest.mark.parametrize("name", [name for name in start.CODE if "attnlab" in name])
def test_start_runs_what_exists(name):
    subprocess.run([sys.executable, "-c", start.CODE[name]], check=True, capture_output=True)
