"""Pairs of sentences are read one by one; whatever does not fit together is said with its line."""

from __future__ import annotations

import gzip
import itertools

import pytest

from attnlab.core.errors import DataError
from attnlab.text.pairs import tmx
from attnlab.text.pairs.parallel import MemoryFile, ObjectFile, Pair, Part, TabFile, TableFiles, TwoFiles, place_of


@pytest.fixture
def files(tmp_path):
    def write(source: bytes, target: bytes) -> TwoFiles:
        paths = tmp_path / "text.en", tmp_path / "text.de"
        for path, content in zip(paths, (source, target), strict=True):
            path.write_bytes(content)
        return TwoFiles(*map(str, paths))

    return write


def test_two_files(files):
    found = files(b"A dog.\n\nTwo men \r\n", "Ein Hund.\n\nZwei Männer".encode())
    assert list(found.pairs()) == [Pair("A dog.", "Ein Hund."), Pair("", ""), Pair("Two men", "Zwei Männer")]
    assert list(found.pairs()) == list(found.pairs())


def test_a_byte_order_mark_is_no_part_of_the_first_sentence(files):
    found = files(b"\xef\xbb\xbfA dog.\n", "Ein \ufeffHund.\n".encode())
    assert list(found.pairs()) == [("A dog.", "Ein \ufeffHund.")]


def test_compressed(tmp_path):
    for name, content in (("a.en.gz", b"one\ntwo\n"), ("a.de.gz", b"eins\nzwei\n")):
        (tmp_path / name).write_bytes(gzip.compress(content))
    assert list(TwoFiles(str(tmp_path / "a.en.gz"), str(tmp_path / "a.de.gz")).pairs()) == [
        ("one", "eins"),
        ("two", "zwei"),
    ]


@pytest.mark.parametrize("longer", ["source", "target"])
def test_one_file_has_more_lines(files, longer):
    texts = {"source": b"one\ntwo\nthree\n", "target": b"eins\nzwei\n"}
    if longer == "target":
        texts = {"source": b"one\ntwo\n", "target": b"eins\nzwei\ndrei\n"}
    names = ("text.en", "text.de") if longer == "source" else ("text.de", "text.en")
    with pytest.raises(
        DataError, match=rf"{names[0]} has 3 lines and \S*{names[1]} 2: .*line 2 reads 'two' and 'zwei'"
    ):
        list(files(**texts).pairs())


def test_one_file_is_empty(files):
    with pytest.raises(DataError, match=r"text.en has 1 lines and \S*text.de 0: "):
        list(files(b"one\n", b"").pairs())


def test_what_is_not_utf8_is_named_with_its_line(files):
    with pytest.raises(DataError, match=r"text.de, line 2: must be UTF-8; got byte 0xe4 at its character 6"):
        list(files(b"one\ntwo\n", "eins\nzwei \xe4\n".encode("latin-1")).pairs())


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"none.en cannot be read: .*No such file"):
        list(TwoFiles(str(tmp_path / "none.en"), str(tmp_path / "none.de")).pairs())


def test_a_damaged_archive(tmp_path):
    whole = gzip.compress(b"one\n" * 1000)
    (tmp_path / "a.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a.gz cannot be read"):
        list(TwoFiles(str(tmp_path / "a.gz"), str(tmp_path / "a.gz")).pairs())


def test_a_file_with_tabs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("A dog.\tEin Hund.\tCC-BY 12\n\nTwo\tZwei\n", encoding="utf-8")
    assert list(TabFile(str(path)).pairs()) == [("A dog.", "Ein Hund."), ("", ""), ("Two", "Zwei")]
    path.write_text("A dog.\tEin Hund.\nTwo men\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"pairs.tsv, line 2: a sentence, a tab and its translation are needed; got 'Two men'"
    ):
        list(TabFile(str(path)).pairs())


@pytest.mark.parametrize(
    ("heading", "row", "begins"),
    [
        ("id\tDE\tnotes\ten\n", "7\tEin Hund.\t\tA dog.\n", 2),
        ("source\ttarget\n", "A dog.\tEin Hund.\n", 2),
        ("", "7\tA dog.\t12\tEin Hund.\n", 1),  # numbers of the sentences, as Tatoeba exports them
        ("", "-0.98\tA dog.\t1,5\tEin Hund.\n", 1),  # scores
    ],
)
def test_columns_of_sentences_are_found(tmp_path, heading, row, begins):
    path = tmp_path / "pairs.tsv"
    path.write_text(heading + 20 * row + "8\t9\t10\t11\n", encoding="utf-8")
    part = Part(TabFile(str(path), ("en", "de")))
    found = list(Part.from_json(part.to_json()).pairs())
    assert found[:20] == [(begins + number, ("A dog.", "Ein Hund.")) for number in range(20)]
    assert len(found) == 21


def test_a_heading_in_other_words_hides_no_columns_and_cells_may_be_empty(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("id\tEnglish\tGerman\n1\tA dog.\tEin Hund.\n2\tTwo\t\n3\tThree\tDrei\n", encoding="utf-8")
    found = list(TabFile(str(path), ("en", "de")).pairs())
    assert found == [("English", "German"), ("A dog.", "Ein Hund."), ("Two", ""), ("Three", "Drei")]
    path.write_text("id\tde\ten\n1\tEin Hund.\tA dog.\n2\tZwei\t\n", encoding="utf-8")
    assert list(TabFile(str(path), ("en", "de")).pairs()) == [("A dog.", "Ein Hund."), ("", "Zwei")]


def test_numbers_that_translate_numbers_are_sentences(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("12\t21\n34\t43\n", encoding="utf-8")
    assert list(TabFile(str(path), ("en", "de")).pairs()) == [("12", "21"), ("34", "43")]


CSV = 'de,id,en\n"Ein Hund, nass",1," A dog,\nwet"\n\n,2,Two\n'
PAIRS = [("A dog, wet", "Ein Hund, nass"), ("Two", "")]


@pytest.mark.parametrize(
    "content", [CSV, CSV.replace("en", "source").replace("de,", "target,"), "\ufeff" + CSV, "\n" + CSV]
)
def test_a_table_of_commas(tmp_path, content):
    path = tmp_path / "pairs.csv"
    path.write_text(content, encoding="utf-8")
    text = TableFiles((str(path),), ("en", "de"))
    assert list(text.pairs()) == PAIRS
    path.write_text(content.replace("Ein Hund, nass", "Ein Hund").replace(",", ";"), encoding="utf-8")
    assert next(text.pairs()) == ("A dog; wet", "Ein Hund")


def test_tables_of_columns_and_of_translations(tmp_path):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    sides = {"en": ["A dog,\nwet", "Two"], "de": ["Ein Hund, nass", None]}
    both = [dict(zip(sides, pair, strict=True)) for pair in zip(*sides.values(), strict=True)]
    for name, table in (("flat", sides), ("nested", {"id": [1, 2], "translation": both})):
        parquet.write_table(pyarrow.table(table), tmp_path / f"{name}.PARQUET")
    paths = tuple(str(tmp_path / f"{name}.PARQUET") for name in ("flat", "nested"))
    part = Part.from_json(Part(TableFiles(paths, ("en", "de"))).to_json())
    assert list(part.text.pairs()) == 2 * PAIRS
    assert part.text.files == paths


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("hello,hallo\n", r"has no columns 'en' and 'de' \(nor source and target, .*\); it has hello, hallo"),
        ("", "it has none"),
        ("en,de\none,eins\ntwo\n", "pairs.csv, line 3: 2 columns are needed; got 1"),
        ("\n\nen,de\none,eins\ntwo\n", "pairs.csv, line 5: 2 columns are needed; got 1"),
        (b"en,de\none,f\xfcnf\n", "pairs.csv cannot be read: .*; save it as UTF-8"),
        ('en,de\none,"eins\n', "pairs.csv, line 2: the row that begins here is no CSV: unexpected end of data"),
    ],
)
def test_a_table_without_pairs_is_an_error(tmp_path, content, said):
    path = tmp_path / "pairs.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=said):
        list(TableFiles((str(path),), ("en", "de")).pairs())


def test_a_translation_that_is_no_text_is_an_error(tmp_path):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    path = tmp_path / "pairs.parquet"
    parquet.write_table(pyarrow.table({"en": ["one"], "de": [1]}), path)
    with pytest.raises(DataError, match="row 1: two texts are needed; got"):
        list(TableFiles((str(path),), ("en", "de")).pairs())
    parquet.write_table(pyarrow.table({"translation": [{"en": "one"}]}), path)
    with pytest.raises(DataError, match=r"has no columns 'en' and 'de' .* it has translation\.en"):
        list(TableFiles((str(path),), ("en", "de")).pairs())


def test_a_long_line_is_shortened_in_an_error(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("x" * 1000, encoding="utf-8")
    with pytest.raises(DataError, match=r"got 'x{57}\.\.\.'"):
        list(TabFile(str(path)).pairs())


def test_only_what_is_asked_for_is_read(tmp_path):
    """A corpus of any size starts at once: an error far behind is not met before."""
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"one\teins\n" * 10_000 + b"\xff\n")
    assert len(list(itertools.islice(TabFile(str(path)).pairs(), 3))) == 3


def test_a_file_of_objects(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        '{"en": " A dog. ", "de": "Ein\\nHund.", "id": 7}\n\n{"translation": {"de": "Zwei", "en": "Two"}}\n',
        encoding="utf-8",
    )
    text = ObjectFile(str(path), ("en", "de"))
    assert list(text.pairs()) == [("A dog.", "Ein Hund."), ("", ""), ("Two", "Zwei")]
    cut = place_of("Two")
    assert list(Part.from_json(Part(text, cut + 1, held_out=True).to_json()).pairs())[-1] == (3, ("Two", "Zwei"))
    assert (3, ("Two", "Zwei")) in list(Part(text, cut).pairs())
    for line in ('{"en": "one"}', "7", '{"en": 1, "de": "eins"}', "{", "[" * 10**5):
        path.write_text(line, encoding="utf-8")
        with pytest.raises(DataError, match="line 1: a JSON object with texts in 'en' and 'de' is needed; got"):
            list(text.pairs())


def test_characters_are_composed(files):
    assert list(files("Ma\u0308nner".encode(), "Ma\u0308nner".encode()).pairs()) == [("M\u00e4nner", "M\u00e4nner")]


MEMORY = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"><note>Not a unit</note></header><body>
<tu><prop>x</prop><tuv xml:lang="en-GB"><seg>A <bpt i="1">&lt;b&gt;</bpt>dog<ept i="1">&lt;/b&gt;</ept>
 &amp; <hi>cat</hi>.</seg></tuv><tuv xml:lang="de"><seg>Ein Hund &amp; Ma\u0308use.</seg></tuv></tu>
<tu><tuv lang="DE_at"><seg>Zwei</seg></tuv>
<tuv lang="EN"><seg>Two</seg></tuv><tuv lang="EN"><seg>A pair</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Alone</seg></tuv></tu>
</body></tmx>
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("at_a_time", [7, 2**20])
def test_a_translation_memory(tmp_path, monkeypatch, encoding, at_a_time):
    monkeypatch.setattr(tmx, "AT_A_TIME", at_a_time)
    path = tmp_path / "pairs.tmx.gz"
    path.write_bytes(gzip.compress(MEMORY.format(encoding=encoding).encode(encoding)))
    pairs = [("A dog & cat.", "Ein Hund & M\u00e4use."), ("Two", "Zwei"), ("Alone", "")]
    assert list(MemoryFile(str(path), ("en", "de")).pairs()) == pairs
    with pytest.raises(DataError, match=r"pairs.tmx.gz has no text in fr; it has de, de-at, en, en-gb"):
        list(MemoryFile(str(path), ("en", "fr")).pairs())


def test_a_translation_memory_expands_nothing(tmp_path):
    path = tmp_path / "pairs.tmx"
    declared = MEMORY.replace('"tmx14.dtd"', '"tmx14.dtd" [<!ENTITY many "haha">]').format(encoding="utf-8")
    for text, name in ((declared, "many"), (MEMORY.format(encoding="utf-8").replace("&amp;", "&nbsp;"), "nbsp")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(
            DataError, match=f"pairs.tmx declares or uses the entity '{name}'; write what it stands for"
        ):
            list(MemoryFile(str(path), ("en", "de")).pairs())
    path.write_text("<tmx><tu>", encoding="utf-8")
    with pytest.raises(DataError, match=r"pairs.tmx is no translation memory in XML: no element found: line 1"):
        list(MemoryFile(str(path), ("en", "de")).pairs())
