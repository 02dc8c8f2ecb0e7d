"""The index of a study's runs: believed while files are as they were, never missed, and never another number."""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil

import pytest
from tests.studies.conftest import TINY

from attnlab.core.errors import RunError
from attnlab.studies import parse_study, read_results, run_study
from attnlab.studies.judge import results as results_module
from attnlab.studies.report import report, words
from attnlab.studies.run import index
from attnlab.studies.run.executor import InProcess
from attnlab.viewer import following
from attnlab.viewer.following import FollowedStudy
from attnlab.viewer.known import known

SEEDS = 25


def many():
    study = copy.deepcopy(TINY)
    study["model"] |= {"channels": 2, "n_layers": 1}
    study["variants"] = {"plain": {}, "wide": {"channels": 3}}
    study["rules"] |= {"budget": {"steps": 1}, "seeds": SEEDS}
    return parse_study(study)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a study of 50 runs."""
    out = tmp_path_factory.mktemp("many") / "out"
    run_study(many(), out, jobs=1, executor=InProcess())
    return out


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    """Return a copy of it without an index; the runs are old enough to be in one."""
    monkeypatch.setattr(index, "SETTLED_S", 0.0)
    copied = shutil.copytree(trained, tmp_path / "out", ignore=shutil.ignore_patterns(index.INDEX))
    forget()
    return copied


@pytest.fixture
def read(monkeypatch):
    """Return the list of runs whose folders have been read."""
    found, read_cell = [], index.read_cell
    monkeypatch.setattr(
        index, "read_cell", lambda out, cell, **how: (found.append(cell.folder), read_cell(out, cell, **how))[1]
    )
    return found


def forget():
    """Forget what this process has read, as another process would know nothing of it."""
    index._index_of.cache_clear()


def curves(results):
    return [[list(cell.curve) for cell in variant.cells] for variant in results.variants]


def test_results_are_the_same_with_an_index(folder, read):
    anew = read_results(folder)
    assert len(read) == 2 * SEEDS
    forget()
    read.clear()
    again = read_results(folder)
    assert read == []
    assert report(again) == report(anew)
    assert curves(again) == curves(anew)
    assert all(len(curve) > 0 for of_variant in curves(again) for curve in of_variant)
    assert [c.steps for v in again.variants for c in v.cells] == [1] * 2 * SEEDS


DAMAGE = {
    "gone": lambda whole: None,
    "cut": lambda whole: whole[:-100],
    "empty": lambda whole: b"",
    "no text": lambda whole: bytes(range(256)) * 9,
    "another version": lambda whole: b"0" + whole[1:],
    "another number": lambda whole: whole.replace(b'"steps": 1', b'"steps": 2', 1),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_an_index_that_is_not_whole_is_made_anew(folder, read, what):
    anew, file = report(read_results(folder)), folder / index.INDEX
    whole = file.read_bytes()
    file.unlink()
    if (content := DAMAGE[what](whole)) is not None:
        assert content != whole
        file.write_bytes(content)
    forget()
    read.clear()
    assert report(read_results(folder)) == anew
    assert len(read) == 2 * SEEDS
    assert file.read_bytes() == whole


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "spec.json"])
@pytest.mark.parametrize("process", ["this one", "another"])
def test_what_was_changed_is_found_though_size_and_time_are_as_before(folder, name, process):
    read_results(folder)
    file = folder / "plain/seed-3" / name
    before, status = file.read_bytes(), file.stat()
    digit = next(place for place in range(len(before) - 1, 0, -1) if before[place : place + 1].isdigit())
    file.write_bytes(before[:digit] + (b"1" if before[digit : digit + 1] != b"1" else b"2") + before[digit + 1 :])
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    if process == "another":
        forget()
    with pytest.raises(RunError, match=r"plain/seed-3: result\.json, metrics\.jsonl or spec\.json was changed"):
        read_results(folder)
    file.write_bytes(before)
    assert read_results(folder).complete


def test_runs_that_are_gone_or_others_are_not_believed(folder):
    read_results(folder)
    shutil.rmtree(folder / "plain/seed-3")
    assert read_results(folder).variant("plain").cells[3].status == "missing"
    shutil.copytree(folder / "plain/seed-4", folder / "plain/seed-3")
    with pytest.raises(RunError, match=r"plain/seed-3 holds another run"):
        read_results(folder)


def test_a_study_goes_on_by_its_index(folder, read):
    before = report(read_results(folder))
    shutil.rmtree(folder / "wide/seed-7")
    forget()
    read.clear()
    after = report(run_study(many(), folder, jobs=1, executor=InProcess()))
    assert set(read) == {"wide/seed-7"}
    assert [one["metrics"] for one in after["variants"]] == [one["metrics"] for one in before["variants"]]


def test_a_folder_that_cannot_be_written_is_read(folder, monkeypatch):
    def refused(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(index, "replace_file", refused)
    assert read_results(folder).complete
    assert not (folder / index.INDEX).exists()


def test_what_was_just_written_is_not_in_an_index(folder, monkeypatch):
    monkeypatch.setattr(index, "SETTLED_S", 1e6)
    assert read_results(folder).complete
    assert not (folder / index.INDEX).exists()


def test_the_viewer_reads_the_index_and_writes_none(folder, read):
    assert len(known(folder).runs) == 2 * SEEDS
    assert not (folder / index.INDEX).exists()
    read_results(folder)
    forget()
    read.clear()
    os.utime(folder / "rules.json")
    assert len(known(folder).runs) == 2 * SEEDS
    assert read == []


def test_the_viewer_lists_the_first_of_very_many_runs(folder, monkeypatch):
    monkeypatch.setattr(following, "MOST_FOLLOWED", 6)
    (folder / "wide/seed-9/result.json").unlink()
    everything = FollowedStudy(folder).everything()
    assert set(everything["runs"]) == {
        "wide/seed-9",
        *(f"{name}/seed-{seed}" for name in ("plain", "wide") for seed in (0, 1)),
        "plain/seed-2",
    }
    assert f"{2 * SEEDS - 1} of {2 * SEEDS} runs; 6 are listed" in everything["study"]["parts"]["progress"]


def test_charts_show_the_first_of_very_many_seeds(folder, monkeypatch):
    results = read_results(folder)
    assert words.drawn_seeds(results) == "seeds"
    for module in (results_module, words):
        monkeypatch.setattr(module, "MOST_SEEDS", 4)
    assert words.drawn_seeds(results) == "the first 4 seeds"
    (plain, _) = results.variants
    cells = tuple(dataclasses.replace(cell, status="missing") if cell.seed == 1 else cell for cell in plain.cells)
    assert [cell.seed for cell in dataclasses.replace(plain, cells=cells).drawn] == [0, 2, 3]
