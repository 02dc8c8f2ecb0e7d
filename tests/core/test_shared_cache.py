"""What one machine made, others copy: whole and as it was, or not at all."""

from __future__ import annotations

import json
import os

import pytest
from tests.object_store import bucket, s3_server

from attnlab.core.errors import SpecError
from attnlab.core.files import sealed
from attnlab.core.storage.cache import made_once
from attnlab.core.storage.shared_cache import fetch_shared, send_shared
from attnlab.core.storage.store import Store


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
    shared("tokens-abc.1/parts/one.npy").write_text("1235")
    assert made(tmp_path / "second") == {"parts": 1}
    assert made.by == ["first", "second"]
    assert (tmp_path / "second/tokens/abc/parts/one.npy").read_bytes() == b"1234"
    assert (
        "tokens-abc.1/parts/one.npy there was removed, cut off or changed; remove tokens-abc.1.json"
        in capsys.readouterr().err
    )
    made(tmp_path / "third")  # from what the second one sent
    assert made.by == ["first", "second"]


def test_half_of_what_was_sent_is_no_folder(shared, made, tmp_path):
    made(tmp_path / "first")
    assert shared("tokens-abc.1.json").exists()
    shared("tokens-abc.1.json").write_text(shared("tokens-abc.1.json").read_text()[:-20])
    made(tmp_path / "second")
    assert made.by == ["first", "second"]


FACT = [4, "0" * 64, 0]


@pytest.mark.parametrize(
    "files",
    [
        *({name: FACT} for name in ("../out", "/out", "a/../../out", "a\\b", "c:out", "a//b", "", "a\x1b]0;b")),
        *({"a": fact} for fact in (4, [4], ["4", "0", 0], [4, 0, 0], [4, "0", "0"], [4, "0", 1.5], [4, "0", 10**40])),
        *({"a": fact} for fact in ([-1, "0", 0], [4, "0", -1], [None, "0", 0], {})),
        *([], [FACT], "files", None, 3, {}),
    ],
    ids=str,
)
def test_a_record_that_is_none_is_not_followed(files, made, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "shared"))
    made(tmp_path / "first")
    (tmp_path / "shared/tokens-abc.1.json").write_text(json.dumps(sealed({"files": files})))
    (empty := tmp_path / "empty").mkdir()
    assert not fetch_shared("tokens-abc", empty, lambda _: True)
    assert not list(empty.iterdir())
    assert "cut off or changed, or is none of attnlab's; remove it" in capsys.readouterr().err


def test_more_than_was_sent_is_not_copied(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "shared"))
    made(tmp_path / "first")
    (tmp_path / "shared/tokens-abc.1/parts/one.npy").write_bytes(bytes(5))
    fetch, fetched = Store.fetch, []
    monkeypatch.setattr(Store, "fetch", lambda store, name, path: (fetched.append(name), fetch(store, name, path)))
    (empty := tmp_path / "empty").mkdir()
    assert not fetch_shared("tokens-abc", empty, lambda _: True)
    assert fetched == ["tokens-abc.1.json", "tokens-abc.1/known.json"]
    assert "removed, cut off or changed" in capsys.readouterr().err


def test_what_is_no_file_there_is_not_opened(made, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    os.mkfifo(tmp_path / "shared/tokens-abc.1.json")  # who reads it waits for ever
    (empty := tmp_path / "empty").mkdir()
    assert not fetch_shared("tokens-abc", empty, lambda _: True)


def test_a_folder_that_is_not_what_was_wanted_is_made_anew(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "shared"))
    (other := tmp_path / "other").mkdir()
    (other / "something").write_text("else")
    send_shared("tokens-abc", other)
    assert made(tmp_path / "first") == {"parts": 1}
    assert not (tmp_path / "first/tokens/abc/something").exists()
    assert "tokens-abc.1 there is not what it should be; remove it" in capsys.readouterr().err


def test_what_was_made_is_in_its_place_before_it_is_sent(made, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "shared"))
    monkeypatch.setattr("attnlab.core.storage.store.Store.send", stopped)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "first")
    assert made(tmp_path / "first") == {"parts": 1}
    assert made.by == ["first"]


def test_a_cache_that_cannot_be_reached_is_said_and_done_without(tmp_path, monkeypatch, made, capsys):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "file/shared"))
    assert made(tmp_path / "first") == {"parts": 1}
    assert "the shared cache" in (said := capsys.readouterr().err)
    assert "is not used" in said


def test_a_disk_that_is_full_while_it_is_copied_is_said(tmp_path, monkeypatch, made, capsys):
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "shared"))
    made(tmp_path / "first")

    def full(self, *_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attnlab.core.storage.store.Store.fetch", full)
    assert made(tmp_path / "second") == {"parts": 1}
    assert "no room left to write in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("http://somewhere/else", "a folder is a path, or lies in an object store"),
        ("tokens", "is a URL or an absolute path; got tokens"),
        ("~/tokens", "is a URL or an absolute path; got ~/tokens"),
    ],
)
def test_a_place_that_is_none_is_refused(tmp_path, monkeypatch, made, place, said):
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", place)
    with pytest.raises(SpecError, match=f"ATTNLAB_SHARED_CACHE: .*{said}"):
        made(tmp_path / "first")


def test_nothing_is_shared_unless_it_is_asked_for(tmp_path):
    (tmp_path / "one").write_text("1")
    send_shared("abc", tmp_path)
    assert not fetch_shared("abc", tmp_path, lambda _: True)
