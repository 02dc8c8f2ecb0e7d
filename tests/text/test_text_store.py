"""A text on disk is the text; it is read once, whoever asks; damage to it is noticed."""

from __future__ import annotations

import os
import shutil
import threading

import numpy as np
import pytest

from attnlab.core.errors import DataError
from attnlab.core.files import read_sealed, sealed, write_json
from attnlab.core.storage.shared_cache import send_shared
from attnlab.text import overlap, text_store
from attnlab.text.characters import Vocabulary
from attnlab.text.sources import FIELD, find_sources
from attnlab.text.text_store import TextStore, open_text

TEXT = "".join(chr(97 + number * number % 23) + "é\n"[: number % 3] for number in range(997)) + "".join(
    map(chr, range(300, 600))
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Cut files into many stretches, and read them in this process: another one is started by one test."""
    monkeypatch.setattr(text_store, "STRETCH", 101)
    monkeypatch.setattr(text_store, "SHARD", 67)
    monkeypatch.setattr(overlap, "SAMPLED", 2)
    monkeypatch.setattr(text_store, "call_apart", lambda function, folder, *rest: function(folder, *rest))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8", newline="")
    return path


def opened(*paths):
    return open_text(find_sources([str(path) for path in paths]), FIELD)


def folders(private_cache):
    return sorted(path for path in (private_cache / "tokens").iterdir() if path.is_dir())


@pytest.mark.parametrize("part", [[(0, len(TEXT))], [(0, 0), (5, 700)], [(0, 331), (502, len(TEXT))]])
def test_a_part_is_that_of_the_text(path, part):
    store = opened(path)
    text = "".join(TEXT[start:stop] for start, stop in part)
    assert len(store) == len(TEXT)
    assert store.characters(part) == "".join(sorted(set(text)))
    vocabulary = Vocabulary([text])
    stored = store.part(part, vocabulary.table)
    assert len(stored) == len(text)
    starts = np.arange(0, len(text) - 150, 7)
    expected = vocabulary.tokens(text)[starts[:, None] + np.arange(151)]
    assert np.array_equal(stored.windows(starts, 151), expected)
    assert stored.windows(np.array([0]), len(text))[0].tolist() == vocabulary.tokens(text).tolist()
    assert np.array_equal(stored.spread(3, 11)[[0, -1]], [expected[0][:11], vocabulary.tokens(text)[-11:]])


def test_several_processes_write_what_one_does(path, monkeypatch, private_cache, capfd):
    alone = opened(path)
    monkeypatch.undo()
    monkeypatch.setenv("ATTNLAB_CACHE", str(private_cache / "other"))
    monkeypatch.setattr(text_store, "STRETCH", 701)
    monkeypatch.setattr(text_store, "CALLS", 1)
    together = opened(path)
    table = Vocabulary([TEXT]).table
    texts = [store.part([(0, len(TEXT))], table).windows(np.array([0]), len(TEXT)) for store in (alone, together)]
    assert np.array_equal(*texts)
    assert f"reading {len(TEXT.encode()):,} bytes of text" in capfd.readouterr().err


def test_a_text_is_read_once_and_again_when_it_changed(path, private_cache, monkeypatch):
    first = opened(path)
    (folder,) = folders(private_cache)
    monkeypatch.setattr(text_store, "call_apart", None)
    assert opened(path).sha256 == first.sha256
    monkeypatch.undo()
    monkeypatch.setenv("ATTNLAB_CACHE", str(private_cache))
    monkeypatch.setattr(text_store, "call_apart", lambda function, *rest: function(*rest))
    path.write_text(TEXT[:-1] + "z", encoding="utf-8", newline="")
    assert opened(path).sha256 != first.sha256
    assert folder in folders(private_cache)
    assert len(folders(private_cache)) == 2


def test_the_same_content_elsewhere_is_kept_once(path, private_cache):
    before = opened(path)
    path.rename(path.with_name("other.txt"))
    assert opened(path.with_name("other.txt")).sha256 == before.sha256
    assert len(folders(private_cache)) == 1


def test_who_asks_meanwhile_waits(path, monkeypatch):
    calls, meet = [], threading.Event()

    def slowly(function, *arguments):
        calls.append(arguments)
        meet.wait(0.3)
        return function(*arguments)

    monkeypatch.setattr(text_store, "call_apart", slowly)
    monkeypatch.setattr(text_store, "CALLS", 1)
    monkeypatch.setattr("attnlab.core.machine.usable_cores", lambda: 1)
    found = []
    threads = [threading.Thread(target=lambda: found.append(opened(path).sha256)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(found) == 3
    assert len(set(found)) == 1


def test_a_failure_leaves_nothing_and_what_a_killed_process_left_is_removed(path, private_cache):
    path.write_bytes(TEXT.encode() + b"\xff")
    with pytest.raises(DataError, match="must be UTF-8; got byte 0xff"):
        opened(path)
    assert folders(private_cache) == []
    (lock,) = (private_cache / "tokens").glob("*.lock")
    lock.with_suffix(".part").mkdir()
    with pytest.raises(DataError, match="must be UTF-8"):
        opened(path)
    assert folders(private_cache) == []


@pytest.mark.parametrize("ending", [".npy", ".passages.npy"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_damage_is_noticed(path, private_cache, damage, ending):
    store = opened(path)
    (folder,) = folders(private_cache)
    file = folder / f"000003-0{ending}"
    content = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
        os.utime(file, ns=(1, 1))
    with pytest.raises(
        DataError,
        match=f"{file} (cannot be read: .*|was changed .*written); remove {folder} to have the text read again",
    ):
        opened(path).shared([(0, 100)], [(100, len(store))])


def test_files_that_were_copied_are_not_damaged(path, private_cache):
    before = opened(path)
    (folder,) = folders(private_cache)
    for file in folder.iterdir():
        os.utime(file, ns=(1, 1))
    assert opened(path).sha256 == before.sha256


@pytest.mark.parametrize("left", [None, "", "[]", '{"shards": "none"}', "\0"])
def test_without_its_index_the_text_is_read_again(path, private_cache, left):
    opened(path)
    (folder,) = folders(private_cache)
    if left is None:
        (folder / "index.json").unlink()
    else:
        (folder / "index.json").write_text(left)
        with pytest.raises(
            DataError, match=r"holds no text that can be read: its index.json is missing or was changed"
        ):
            TextStore(folder)
    assert len(opened(path)) == len(TEXT)
    assert folders(private_cache) == [folder]


def test_where_nothing_can_be_kept_of_where_it_lies_it_is_read_all_the_same(path, private_cache):
    opened(path)
    (kept,) = (private_cache / "results").glob("text-*.json")
    kept.unlink()
    kept.mkdir()
    assert len(opened(path)) == len(TEXT)


def test_a_text_that_another_machine_read_is_copied(path, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "shared"))
    first = opened(path)
    monkeypatch.setattr(text_store, "call_apart", None)  # nothing is read a second time
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "another machine"))
    shutil.copy2(path, copy := path.with_name("copy"))
    os.replace(copy, path)  # by size and time the same file
    second = opened(path)
    assert (second.sha256, len(second)) == (first.sha256, len(first))
    part, vocabulary = [(3, 800)], Vocabulary([TEXT])
    windows = [store.part(part, vocabulary.table).windows(np.arange(9), 700) for store in (first, second)]
    assert np.array_equal(*windows)
    assert second.shared([(0, 500)], [(400, 900)]) == first.shared([(0, 500)], [(400, 900)])


@pytest.mark.parametrize(
    "changes",
    [
        {"shards": [{"x": 1}]},
        {"sha256": "../../out"},
        {"sha256": 3},
        {"shards": None},
        *({"shards": [{"name": name}]} for name in ("../../out", 3)),
        *({"shards": [{"name": "000000-0", "seals": seals}]} for seals in (3, {".npy": [1]}, {".npy": 3})),
    ],
    ids=str,
)
def test_an_index_of_another_machine_that_is_none_is_not_used(
    path, tmp_path, monkeypatch, private_cache, capsys, changes
):
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "shared"))
    first = opened(path)
    (folder,) = folders(private_cache)
    index = read_sealed(folder / "index.json", required=True)
    shards = changes.get("shards")
    if shards and "name" in shards[0]:
        changes = {"shards": [{**index["shards"][0], **shards[0]}]}
    (name,) = [one.stem for one in (tmp_path / "shared").glob("*.json")]
    write_json(folder / "index.json", sealed(index | changes))
    send_shared(name.rpartition(".")[0], folder)
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "another machine"))
    assert opened(path).sha256 == first.sha256
    assert "is not used" in capsys.readouterr().err
