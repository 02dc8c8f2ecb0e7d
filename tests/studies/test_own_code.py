"""A person's own code comes to a machine that does not see it, with all that it imports, and to no other one."""

from __future__ import annotations

import os
import shutil

import pytest

from attnlab.core.build import load_object, path_of
from attnlab.core.errors import RunError
from attnlab.core.own_files import COPIES
from attnlab.studies.run import own_code as module_under_test
from attnlab.studies.run.executor import Job
from attnlab.studies.run.own_code import lay_out, own_code

MINE = """
import torch
from models.layers import WIDTH
from .near import HEIGHT
class Mine:
    size = WIDTH * HEIGHT
"""
FILES = {
    "models/blocks/mine.py": MINE,
    "models/blocks/near.py": "HEIGHT = 5",
    "models/blocks/late.py": "",
    "models/blocks/__init__.py": "",
    "models/__init__.py": "",
    "models/layers.py": "WIDTH = 7",
    "elsewhere/other.py": "",
}


@pytest.fixture
def project(tmp_path):
    """A folder with code of a person's own."""
    for name, text in FILES.items():
        file = tmp_path / "project" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "project"


@pytest.fixture(autouse=True)
def no_copies(monkeypatch):
    """Leave no copies to other tests."""
    monkeypatch.setenv(COPIES, "")
    monkeypatch.delenv(COPIES)


def job(name):
    return Job(("out/mine/seed-0",), ({"model": {"name": "cnn", "mixer": name}},), threads=1, device="cpu")


def test_what_travels_is_what_is_named_with_what_it_imports_and_its_neighbors(project):
    files = own_code([job(f"{project}/models/blocks/mine.py:Mine")])
    assert {os.path.relpath(file, project) for file in files} == {name for name in FILES if "elsewhere" not in name}


def test_what_has_travelled_runs_where_it_is_not_seen(project):
    name = f"{project}/models/blocks/mine.py:Mine"
    files = own_code([job(name)])
    shutil.rmtree(project)
    lay_out(files)
    assert load_object(name).size == 35
    assert not path_of(name).is_relative_to(project)


def test_what_has_changed_on_the_way_is_not_taken_for_what_was_sent(project):
    name = f"{project}/models/blocks/mine.py:Mine"
    files = own_code([job(name)])
    (project / "models" / "layers.py").write_text("WIDTH = 11")
    lay_out(files)
    assert load_object(name).size == 35


def test_where_the_same_code_is_seen_it_is_run_in_its_place(project):
    name = f"{project}/models/blocks/mine.py:Mine"
    lay_out(own_code([job(name)]))
    assert path_of(name).is_relative_to(project)


def test_code_of_the_lab_alone_does_not_travel():
    assert own_code([job("attention")]) == {}


def test_a_folder_full_of_other_files_is_refused(project, monkeypatch):
    monkeypatch.setattr(module_under_test, "MOST_BYTES", 3)
    with pytest.raises(
        RunError, match=r"bytes of Python files lie beside .*mine.py and .* put it into a folder of its own"
    ):
        own_code([job(f"{project}/models/blocks/mine.py:Mine")])
