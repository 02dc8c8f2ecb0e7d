"""Writes are whole or absent, and the disk's errors are told in words."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from safetensors import SafetensorError

from attnlab.core.errors import RunError
from attnlab.core.files import (
    WAITS_S,
    fingerprint,
    new_name,
    old_name,
    patiently,
    read_json,
    read_sealed,
    recover_folder,
    replace_folder,
    user_path,
    write_json,
    writing,
)


def folder_with(path, text):
    path.mkdir()
    (path / "content").write_text(text)
    return path


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    write_json(path, {"step": 3})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("attnlab.core.files.synchronize", full)
    with pytest.raises(RunError, match=r"no room left to write in .*bytes are free there.*still valid"):
        write_json(path, {"step": 5})
    assert read_json(path) == {"step": 3}
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]


def test_other_errors_of_the_disk(tmp_path):
    with pytest.raises(RunError, match=r"cannot write in .*make the folder writable"), writing(tmp_path / "absent"):
        raise PermissionError(errno.EACCES, "Permission denied")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="A file is in the way; remove it, or choose another folder"):
        write_json(tmp_path / "file" / "x.json", {})


def test_a_home_is_filled_in_where_it_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/text.txt") == tmp_path / "text.txt"
    assert user_path("~nobody-known/text.txt") == Path("~nobody-known/text.txt")


def test_nan_is_not_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", float("nan"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "Expecting"),
        (b"", "Expecting value: .*; it was cut or changed: put back a copy of it, or do again in another folder"),
        (b"[{}]", "it must hold a JSON object; got a list"),
        (b"7", "it must hold a JSON object; got a int"),
        (b'{"a": {"b": NaN}}', "numbers must be finite; got NaN"),
        (b'{"a": [-1e999]}', "numbers must be finite; got -1e999"),
        (b'{"a": ' + b"[" * 100_000, "recursion"),
        (b'{"a": "\xff"}', "utf-8"),
    ],
)
def test_unreadable_json(tmp_path, content, reason):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(RunError, match=rf"x\.json cannot be read: .*{reason}"):
        read_json(tmp_path / "x.json")


def test_json_says_what_it_lacks_at_any_depth(tmp_path):
    write_json(tmp_path / "x.json", {"a": [{"b": 1.5}]})
    found = read_json(tmp_path / "x.json")
    assert found == {"a": [{"b": 1.5}]}
    assert found.get("c") is None
    with pytest.raises(RunError, match=r"x\.json is damaged: it has no 'c'"):
        found["a"][0]["c"]


def test_damage_that_halves_a_character_changes_the_fingerprint(tmp_path):
    (tmp_path / "x.json").write_text('{"seal": "0", "a": "\\ud800"}')
    with pytest.raises(RunError, match="was changed after it was written"):
        read_sealed(tmp_path / "x.json", required=False)


def test_replace(tmp_path):
    target = folder_with(tmp_path / "last", "old")
    replace_folder(folder_with(new_name(target), "new"), target)
    assert (target / "content").read_text() == "new"
    assert [one.name for one in tmp_path.iterdir()] == ["last"]


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ({"last": "a", "last.new": "b"}, "a"),  # killed while the new one was written
        ({"last.old": "a", "last.new": "b"}, "b"),  # killed between the renames
        ({"last": "b", "last.old": "a"}, "b"),  # killed before the old one was removed
        ({"last.old": "a"}, "a"),
        ({"last.new": "b"}, None),  # killed while the first one was written
    ],
)
def test_recovery_after_a_kill(tmp_path, present, expected):
    for name, text in present.items():
        folder_with(tmp_path / name, text)
    target = tmp_path / "last"
    recover_folder(target)
    assert (target.exists() and (target / "content").read_text()) == (expected or False)
    assert not old_name(target).exists()
    assert not new_name(target).exists()


def test_json_is_readable_text(tmp_path):
    write_json(tmp_path / "x.json", {"unit": "µs"})
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"unit": "µs"}


def test_the_fingerprint_knows_content_and_not_order():
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


@pytest.fixture
def waits(monkeypatch):
    """Seconds that are waited, of which none passes."""
    waited: list[float] = []
    monkeypatch.setattr("attnlab.core.files.time.sleep", waited.append)
    return waited


def failing(times, error):
    """Something that raises so many times before it works."""
    left = [error] * times

    def attempt():
        with writing(Path("/")):
            if left:
                raise left.pop()
        return "written"

    return attempt


@pytest.mark.parametrize(
    "error", [OSError(errno.ESTALE, "Stale file handle"), SafetensorError("I/O error: gone (os error 5)")]
)
def test_storage_that_fails_for_a_while_is_waited_for(waits, error):
    said = []
    assert patiently(failing(3, error), said.append) == "written"
    assert waits == list(WAITS_S[:3])
    assert "storage failed" in said[0]
    assert "trying again in 1 s" in said[0]


def test_storage_that_fails_to_the_end_is_said(waits):
    with pytest.raises(RunError, match=r"cannot write in /: .*Input/output error"):
        patiently(failing(99, OSError(errno.EIO, "Input/output error")))
    assert waits == list(WAITS_S)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), OSError(errno.ENOENT, "missing")])
def test_what_waiting_does_not_mend_is_said_at_once(waits, error):
    with pytest.raises(RunError):
        patiently(failing(1, error))
    assert not waits


def test_storage_that_worked_for_long_has_the_whole_patience_again(waits, monkeypatch):
    hours = iter(range(0, 3600 * 99, 3600))
    monkeypatch.setattr("attnlab.core.files.time.monotonic", lambda: next(hours))
    assert patiently(failing(20, OSError(errno.EIO, "Input/output error"))) == "written"
    assert set(waits) == {WAITS_S[0]}
