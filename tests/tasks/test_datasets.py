from __future__ import annotations

import dataclasses
import gzip
import hashlib
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from attnlab.core.errors import DataError
from attnlab.tasks import datasets
from attnlab.tasks.datasets import TEXTS, NamedText, find_text, locate_named

CONTENT = "Zwölf Boxkämpfer\r\n".encode() * 31
SHA256 = hashlib.sha256(CONTENT).hexdigest()
POEM = NamedText(
    file="poem/input.txt",
    repository="someone/poems",
    commit="0" * 40,
    path="poem.txt",
    sha256=SHA256,
    size_bytes=len(CONTENT),
    license="public domain",
)


def content_of(named: NamedText) -> bytes:
    path = locate_named(named)
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        """Keep the test's output clean."""


@pytest.fixture(autouse=True)
def named(monkeypatch):
    monkeypatch.setitem(TEXTS, "poem", POEM)
    monkeypatch.delenv("ATTNLAB_DATA", raising=False)
    monkeypatch.setattr(datasets, "RETRIES", 0)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serve the poem at its pinned address on this machine."""
    folder = tmp_path / "served"
    file = folder / POEM.repository / POEM.commit / POEM.path
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setattr(datasets, "HOST", f"http://127.0.0.1:{http.server_port}")
    yield file
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def nobody(monkeypatch):
    """Point the address at a port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setattr(datasets, "HOST", f"http://127.0.0.1:{port}")


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    (folder / "poem").mkdir(parents=True)
    monkeypatch.setenv("ATTNLAB_DATA", str(folder))
    return folder


def test_every_entry_is_pinned():
    for text in TEXTS.values():
        assert len(text.sha256) == 64
        assert len(text.commit) == 40
        assert text.license
        assert text.address == f"{datasets.HOST}/{text.repository}/{text.commit}/{text.path}"


def test_a_text_is_fetched_once_and_its_license_shown(server, private_cache, capfd):
    text = find_text("poem")
    (file,) = text.files
    assert Path(file.path).read_bytes() == CONTENT
    assert (file.size, text.source, text.license) == (len(CONTENT), POEM.address, "public domain")
    shown = capfd.readouterr().err
    assert "license: public domain" in shown
    assert POEM.address in shown
    server.unlink()
    assert content_of(POEM) == CONTENT
    assert "license" not in capfd.readouterr().err


def test_a_damaged_copy_in_the_cache_is_fetched_again(server, private_cache):
    content_of(POEM)
    (private_cache / "texts" / POEM.file).write_bytes(CONTENT[:-1])
    assert content_of(POEM) == CONTENT


def test_other_content_at_the_address_is_refused_and_not_kept(server, private_cache):
    server.write_bytes(b"something else")
    with pytest.raises(DataError) as caught:
        content_of(POEM)
    assert SHA256 in str(caught.value)
    assert hashlib.sha256(b"something else").hexdigest() in str(caught.value)
    assert not (private_cache / "texts" / POEM.file).exists()


def test_a_missing_file_at_the_address_is_reported(server):
    server.unlink()
    with pytest.raises(DataError, match="404"):
        content_of(POEM)


def test_offline_and_absent_names_address_hash_and_place(nobody, private_cache):
    with pytest.raises(DataError) as caught:
        content_of(POEM)
    message = str(caught.value)
    for part in (POEM.address, SHA256, str(private_cache / "texts" / POEM.file), "ATTNLAB_DATA", "refused"):
        assert part in message


def test_a_cache_that_cannot_be_written_is_reported(server, private_cache):
    private_cache.write_text("a file where the folder should be")
    with pytest.raises(DataError, match="cannot fetch"):
        content_of(POEM)


@pytest.mark.parametrize("compressed", [False, True])
def test_the_data_folder_is_looked_in_first(nobody, data_folder, compressed):
    ending, content = (".gz", gzip.compress(CONTENT)) if compressed else ("", CONTENT)
    (data_folder / (POEM.file + ending)).write_bytes(content)
    assert content_of(POEM) == CONTENT


def test_other_content_in_the_data_folder_names_both_hashes(nobody, data_folder):
    (data_folder / POEM.file).write_bytes(b"something else")
    with pytest.raises(DataError) as caught:
        content_of(POEM)
    assert f"must have sha256 {SHA256}; got {hashlib.sha256(b'something else').hexdigest()}" in str(caught.value)


def test_a_broken_archive_in_the_data_folder_is_reported(nobody, data_folder):
    (data_folder / (POEM.file + ".gz")).write_bytes(gzip.compress(CONTENT)[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        content_of(POEM)


def test_a_data_folder_without_the_text_is_passed_over(server, data_folder):
    assert content_of(POEM) == CONTENT


def test_a_person_s_own_files_are_found_from_the_current_folder(tmp_path, monkeypatch):
    for name in ("mine.txt", "more.txt.gz"):
        (tmp_path / name).write_bytes(CONTENT)
    monkeypatch.chdir(tmp_path)
    text = find_text(["mine.txt", "more.*"])
    assert [file.path for file in text.files] == [str(tmp_path / "mine.txt"), str(tmp_path / "more.txt.gz")]
    assert (text.source, text.license) == (["mine.txt", "more.*"], "not stated")


def test_a_missing_file_gets_its_full_path_and_the_nearest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        find_text("tinyshakespear")
    assert str(caught.value) == (
        f"no file {tmp_path / 'tinyshakespear'}, and no text is named 'tinyshakespear'; did you mean 'tinyshakespeare'?"
    )


def test_a_pin_is_not_changed_by_accident():
    with pytest.raises(dataclasses.FrozenInstanceError):
        POEM.sha256 = ""  # type: ignore[misc]
