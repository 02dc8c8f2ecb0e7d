"""What one machine made, others copy: whole and as it was, or not at all."""

from __future__ import annotations

import json

import pytest
from tests.object_store import bucket, s3_server

from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import sealed
from attnlab.core.storage.cache import made_once
from attnlab.core.storage.shared_cache import fetch_shared, send_shared


@pytest.fixture(params=["a path", "s3"])
def shared(request, tmp_path, monkeypatch):
    """A cache that is shared, as a function that gives it away object by object and another that replaces one."""
    if request.param == "a path":
        folder = tmp_path / "shared"
        monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(folder))
        yield folder.joinpath
    else:
        with s3_server() as server:
            there = bucket(server, monkeypatch)
            monkeypatch.setenv("ATTNLAB_SHARED_CACHE", "s3://bucket/shared")
            yield lambda name: S3Object(there, f"bucket/shared/{name}")
            there.rm("bucket", recursive=True)


class S3Object:
    """Read and write an object as a path would."""

    def __init__(self, there, path):
        self.there, self.path = there, path

    def read_text(self):
        return self.there.cat(self.path).decode()

    def write_text(self, text):
        self.there.pipe(self.path, text.encode())

    def exists(self):
        return self.there.exists(self.path)


@pytest.fixture
def made():
    """A function that makes a folder on a machine of a name, and the names of those that made it themselves."""
    made = []

    def on(machine):
        def make(folder):
            made.append(machine.name)
            (folder / "parts").mkdir()
            (folder / "parts/one.npy").write_bytes(b"1234")
            return {"parts": 1}

        return made_once(machine / "tokens/abc", "known.json", make)

    on.by = made
    return on


def test_the_first_machine_makes_a_folder_and_others_copy_it(shared, made, tmp_path, capsys):
    assert made(tmp_path / "first") == made(tmp_path / "second") == {"parts": 1}
    assert made.by == ["first"]
    files = [tmp_path / machine / "tokens/abc/parts/one.npy" for machine in ("first", "second")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].stat().st_mtime_ns == files[1].stat().st_mtime_ns
    assert sorted(path.name for path in files[1].parents[1].iterdir()) == ["known.json", "parts"]
    assert "bytes from the shared cache" in capsys.readouterr().err


def test_what_was_changed_there_is_not_taken(shared, made, tmp_path, capsys):
    made(tmp_path / "first")
    shared("abc/parts/one.npy").write_text("1235")
    assert made(tmp_path / "second") == {"parts": 1}
    assert made.by == ["first", "second"]
    assert (tmp_path / "second/tokens/abc/parts/one.npy").read_bytes() == b"1234"
    assert "abc/parts/one.npy there was cut off or changed; remove abc.json" in capsys.readouterr().err
    made(tmp_path / "third")  # from what the second one sent
    assert made.by == ["first", "second"]


def test_half_of_what_was_sent_is_no_folder(shared, made, tmp_path):
    made(tmp_path / "first")
    assert shared("abc.json").exists()
    shared("abc.json").write_text(shared("abc.json").read_text()[:-20])
    made(tmp_path / "second")
    assert made.by == ["first", "second"]


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "a\\b", "c:out", "a//b", ""])
def test_no_name_leads_out_of_the_folder(name, made, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "shared"))
    made(tmp_path / "first")
    path = tmp_path / "shared/abc.json"
    record = {key: value for key, value in json.loads(path.read_text()).items() if key != "seal"}
    for changed in ({"files": {name: [1, "", 0]}}, {"folder": name}):
        path.write_text(json.dumps(sealed(record | changed)))
        empty = tmp_path / "empty"
        empty.mkdir(exist_ok=True)
        assert fetch_shared("abc", empty) is None
        assert not list(empty.iterdir())
        assert "another version, or none of attnlab's" in capsys.readouterr().err


def test_a_cache_that_cannot_be_reached_is_said_and_done_without(tmp_path, monkeypatch, made, capsys):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "file/shared"))
    assert made(tmp_path / "first") == {"parts": 1}
    assert "the shared cache" in (said := capsys.readouterr().err)
    assert "is not used" in said


def test_a_disk_that_is_full_is_no_matter_of_the_shared_cache(tmp_path, monkeypatch, made):
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "shared"))
    made(tmp_path / "first")

    def full(self, *_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attnlab.core.storage.store.Store.fetch", full)
    monkeypatch.setattr("attnlab.core.storage.cache.write_json", full)
    with pytest.raises(RunError, match="no room left"):
        made(tmp_path / "second")


def test_a_place_that_is_none_is_refused(tmp_path, monkeypatch, made):
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", "http://somewhere/else")
    with pytest.raises(SpecError, match="ATTNLAB_SHARED_CACHE: a folder is a path, or lies in an object store"):
        made(tmp_path / "first")


def test_nothing_is_shared_unless_it_is_asked_for(tmp_path):
    (tmp_path / "one").write_text("1")
    send_shared("abc", tmp_path, "abc")
    assert fetch_shared("abc", tmp_path) is None
