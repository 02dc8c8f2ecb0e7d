from __future__ import annotations

from pathlib import Path

import pooch
import pytest

from attnlab.core.errors import RunError
from attnlab.core.storage.cache import cache_folder, keep_result, read_result


def test_a_kept_result_is_read_again():
    assert read_result("x") is None
    keep_result("x", {"a": [1, 2.5]})
    keep_result("x", {"a": [3]})
    assert read_result("x") == {"a": [3]}


def test_nothing_but_the_result_is_left_behind(private_cache):
    keep_result("x", 1)
    assert [path.name for path in private_cache.rglob("*") if path.is_file()] == ["x.json"]


def test_an_unreadable_result_counts_as_absent(private_cache):
    keep_result("x", 1)
    path = private_cache / "results" / "x.json"
    for content in (b'{"half', b"\xff\xfe", b""):
        path.write_bytes(content)
        assert read_result("x") is None


def test_a_cache_in_the_home_of_nobody_is_refused_and_not_made_here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNLAB_CACHE", "~nobody-known/cache")
    with pytest.raises(RunError, match="ATTNLAB_CACHE is ~nobody-known/cache, and nobody of that name is known here"):
        keep_result("x", 1)
    assert not [*tmp_path.iterdir()]


def test_a_cache_that_cannot_be_written_is_no_error(private_cache):
    private_cache.write_text("a file where the folder should be")
    keep_result("x", 1)
    assert read_result("x") is None


def test_the_variable_names_the_folder_and_the_system_s_cache_stands_in(private_cache, monkeypatch):
    assert cache_folder() == private_cache
    monkeypatch.delenv("ATTNLAB_CACHE")
    assert cache_folder() == Path(pooch.os_cache("attnlab"))
