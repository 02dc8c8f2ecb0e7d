"""A text is the same whatever the form of its files; what is wrong with one is said with its place."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import sys
import unicodedata
import zipfile

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from attnlab.core.errors import DataError
from attnlab.text import sources
from attnlab.text.sources import FIELD, clean, find_sources, read_pieces, read_whole

TEXT = "Zwölf Boxkämpfer\njagen Eva\n\nüber den Sylter Deich\n" * 7


def read(*paths, field=FIELD, size=None) -> str:
    """Read a text, in one go or in stretches of about a size."""
    found = find_sources([str(path) for path in paths])
    stretches = [one for source in found for one in (source.stretches(size) if size else [source])]
    return "".join(piece for one in stretches for piece in read_pieces(one, field))


def objects(texts, field=FIELD) -> bytes:
    return "\n".join(json.dumps({"id": 7, field: text}) for text in texts).encode()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Cut files everywhere."""
    monkeypatch.setattr(sources, "AT_A_TIME", 13)
    monkeypatch.setattr(sources, "LOOKED_AT", 9)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", TEXT.encode()),
        ("a.txt", b"\xef\xbb\xbf" + TEXT.encode()),
        ("a.txt", TEXT.replace("\n", "\r\n").encode()),
        ("a.txt", TEXT.replace("\n", "\r").encode()),
        ("a.txt", unicodedata.normalize("NFD", TEXT).encode()),
        ("a.txt.gz", gzip.compress(TEXT.encode(), mtime=0)),
        ("a.bz2", bz2.compress(TEXT.encode())),
        ("a.jsonl", objects(TEXT.splitlines(keepends=True))),
        ("a.jsonl", objects(TEXT.splitlines(keepends=True)).replace(b"\n", b"\r")),
        ("a.jsonl", objects(TEXT.splitlines(keepends=True)).replace(b"\n", b"\r\n")),
        ("a.jsonl.gz", gzip.compress(b"\n" + objects([TEXT[:99], "", TEXT[99:]]).replace(b"\n", b"\r\n"), mtime=0)),
    ],
)
@pytest.mark.parametrize("size", [None, 1, 7, 50])
def test_a_text_is_the_same_in_every_form(tmp_path, name, content, size):
    (tmp_path / name).write_bytes(content)
    expected = TEXT[:99] + "\n" + TEXT[99:] if name == "a.jsonl.gz" else TEXT
    assert read(tmp_path / name, size=size) == expected


@given(
    st.text(st.sampled_from("ae\u0301\u0308\r\n \u1100\u1161\u11a8가\U0001f600"), max_size=60)
    | st.text(st.sampled_from("ä\u0301\u0345\n\n日か\u3099\u1100\u1161\u11a8\u0bc6\u0bbe\U00016d67"), max_size=60),
    st.integers(1, 20),
)
def test_stretches_are_the_whole_text(tmp_path_factory, text, size):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    assert read(path, size=size) == read(path) == clean(text)


@pytest.mark.parametrize("line", ["吾輩は猫である。\n", "名前はまだ無い。", "ä", "แมว", "\n", "\U0001f63a\r\n\n"])
def test_a_text_without_ascii_is_cut_too(tmp_path, line):
    path = tmp_path / "a.txt"
    path.write_bytes((line * 200).encode())
    (source,) = find_sources(str(path))
    assert max(map(len, read_pieces(source))) <= 26
    assert max(one.stop - one.start for one in source.stretches(20)) <= 40
    assert read(path, size=20) == read(path) == clean(line * 200)


def test_no_text_is_cut_before_what_is_composed_with_the_character_before_it():
    pairs = [unicodedata.decomposition(chr(one)).split() for one in range(sys.maxunicode)]
    seconds = {chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and not pair[0].startswith("<")}
    moved = set(filter(unicodedata.combining, map(chr, range(sys.maxunicode))))
    for character in seconds | moved | set(map(chr, [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)])):
        assert sources._new_place(character.encode(), [0]) is None


def test_a_file_begins_on_a_line_of_its_own(tmp_path):
    for name, text in (("b.txt", "one"), ("a.txt", "two\n"), ("sub/c.txt", ""), ("sub/d.txt.gz", "three")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    (tmp_path / "notes.md").write_text("no text")
    assert read(tmp_path) == "two\none\nthree\n"
    assert read(tmp_path / "*.txt", tmp_path / "sub/d.txt.gz") == "two\none\nthree\n"
    assert read(tmp_path / "b.txt") == "one"


def test_a_file_named_like_a_pattern_is_itself(tmp_path):
    (tmp_path / "a[1].txt").write_text("one")
    assert read(tmp_path / "a[1].txt") == "one"


def test_an_address_is_read_like_a_file():
    with fsspec.open("memory://texts/a.txt.gz", "wb") as file:
        file.write(gzip.compress(TEXT.encode()))
    assert read("memory://texts/a.txt.gz") == read("memory://texts") == TEXT


def test_hash_and_size_are_those_of_the_uncompressed_bytes(tmp_path):
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    (tmp_path / "b.gz").write_bytes(gzip.compress(TEXT.encode()))
    plain, compressed = (read_whole(find_sources(str(tmp_path / name)), FIELD, 10**6) for name in ("a.txt", "b.gz"))
    assert plain == compressed == (TEXT, hashlib.sha256(TEXT.encode()).hexdigest(), len(TEXT.encode()))


@pytest.mark.parametrize("name", ["a.txt", "b.gz"])
def test_of_a_larger_text_no_more_is_read(tmp_path, name):
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    (tmp_path / "b.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert read_whole(find_sources(str(tmp_path / name)), FIELD, len(TEXT.encode()) - 1) is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.txt",
            "one\ntwo ä".encode("latin-1") + b"\n",
            r"got byte 0xe4 at offset 8 \(line 2\): .*; save it as UTF-8",
        ),
        ("a.txt", b"\xef\xbb\xbfone\n" * 4 + b"\xff", r"got byte 0xff at offset 28 \(line 5\)"),
        (
            "a.jsonl",
            objects(["one", "two"]) + b"\n{",
            r"line 3: a JSON object with a text in 'text' is needed; got '{'",
        ),
        ("a.jsonl", objects(["one", "two"]).replace(b"\n", b"\r") + b"\r{", "line 3: a JSON object"),
        ("a.jsonl", objects(["one", "two"]).replace(b"\n", b"\r\n") + b"\r\n{", "line 3: a JSON object"),
        ("a.jsonl", objects(["one"], "body"), "line 1: a JSON object with a text in 'text' .*; field: names another"),
        ("a.jsonl", b'{"text": 7}', "line 1: a JSON object with a text in 'text'"),
        ("a.jsonl", b'{"text": "\\ud83d"}', "line 1: a JSON object with a text in 'text'"),
        ("a.jsonl", objects(["one"]) + b"\n" + b"[" * 10**5, "line 2: a JSON object with a text in 'text' is needed"),
        (
            "a.json",
            b'[{"text": "one"}]',
            r"a.json would be read as raw JSON; write one object a line into a .jsonl file",
        ),
        (
            "a.csv",
            b"text\none\n",
            r"a.csv would be read as the raw lines of a table; write its texts into a .jsonl or Parq",
        ),
        ("a.gz", gzip.compress(TEXT.encode(), mtime=0)[:-9], "a.gz cannot be read: "),
        ("a.gz", TEXT.encode(), "a.gz cannot be read: "),
        ("a.xz", lzma.compress(TEXT.encode())[:-40] + b"?" * 40, "a.xz cannot be read: "),
        ("a.txt.zip", b"PK", "a.txt.zip is compressed in a way that is not read; unpack it and .* as .gz, .bz2, .xz"),
        ("a.TAR.gz", gzip.compress(b"a.txt", mtime=0), "a.TAR.gz is compressed in a way that is not read"),
        ("a.txt.zst", b"", "a.txt.zst is compressed in a way that is not read"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_what_is_not_read_is_not_left_out_of_a_folder(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    with zipfile.ZipFile(tmp_path / "b.txt.zip", "w") as archive:
        archive.writestr("b.txt", "two")
    with pytest.raises(DataError, match=r"b.txt.zip is compressed in a way"):
        read(tmp_path)


def test_another_field_can_be_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(objects(["one", "two\n"], "body"))
    assert read(tmp_path / "a.jsonl", field="body") == "one\ntwo\n"


def test_what_is_not_there(tmp_path):
    for path in (tmp_path / "none.txt", tmp_path / "*.txt", "memory://nothing", "a\0b"):
        with pytest.raises(DataError, match=r"^no file "):
            find_sources(str(path))
    with pytest.raises(
        DataError,
        match=r"no file below .* ends in .txt or .jsonl or .parquet or .arrow \(or these and .gz\); name the files",
    ):
        find_sources(str(tmp_path))
    with pytest.raises(DataError, match="cannot be read: Protocol not known: nowhere"):
        find_sources("nowhere://a")
    with pytest.raises(DataError, match="at least one file; got an empty list"):
        find_sources([])
    with pytest.raises(DataError, match="needs the name of a file or folder; got ''"):
        find_sources("")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            type("NoCredentialsError", (Exception,), {})("none"),
            "no credentials for .*//a: none; set them as its .* AWS_",
        ),
        (type("EndpointError", (Exception,), {})("far away"), "memory://a cannot be read: far away"),
    ],
)
def test_what_a_store_says_is_said_with_its_address(monkeypatch, error, text):
    def fail(*_):
        raise error

    monkeypatch.setattr(MemoryFileSystem, "isfile", fail)
    with pytest.raises(DataError, match=text):
        find_sources("memory://a")
