"""Dependencies of CoNLL-U: words, where they stand, and what hangs on what."""

from __future__ import annotations

import gzip

import pytest

from attnlab.core.errors import DataError
from attnlab.tasks.parsing.dependencies import Dependency, read_dependencies

SENTENCE = """# text = Don't go, Ann!
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\t_\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\t_\t_\t3\tadvmod:neg\t_\t_
3\tgo\tgo\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No
4\t,\t,\tPUNCT\t_\t_\t5\tpunct\t_\t_
4.1\tyou\tyou\tPRON\t_\t_\t_\t_\t3:nsubj\t_
5\tAnn\tAnn\tPROPN\t_\t_\t3\tvocative\t_\tGloss=x|SpaceAfter=No
6\t!\t!\tPUNCT\t_\t_\t3\tpunct\t_\t_
"""


def row(*cells):
    return "\t".join([*cells[:2], *"____", *cells[2:], "_", "_"]) + "\n"


def test_words_that_are_written_together_stand_together(tmp_path):
    (tmp_path / "one.conllu").write_text(SENTENCE, encoding="utf-8")
    (found,) = read_dependencies(tmp_path / "one.conllu")
    assert found.text == "Don't go, Ann!"
    assert [found.text[start:end] for start, end in found.spans] == ["Don't", "Don't", "go", ",", "Ann", "!"]
    assert found.dependencies == (
        Dependency("aux", 0, 2),
        Dependency("advmod", 1, 2),
        Dependency("vocative", 4, 2),
    )


def test_files_may_be_compressed_and_come_from_other_systems(tmp_path):
    text = "\ufeff" + (SENTENCE + "\n" + SENTENCE).replace("\n", "\r\n")
    (tmp_path / "two.conllu.gz").write_bytes(gzip.compress(text.encode()))
    first, second = read_dependencies(tmp_path / "two.conllu.gz")
    assert first == second
    assert len(first.spans) == 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1\tgo\n", "line 1: 2 columns, where CoNLL-U has 10"),
        (row("1", "go", "0", "root") + row("3", "on", "1", "prt"), "line 2: word '3' where word 2 must stand"),
        (row("one", "go", "0", "root"), "line 1: word 'one' where word 1 must stand"),
        (row("1", "go", "2", "obj"), "line 1: hangs on '2', which is no other of the 1 words"),
        (row("1", "go", "1", "obj"), "line 1: hangs on '1'"),
        (row("1", "go", "no", "obj"), "line 1: hangs on 'no'"),
        ("", "no sentence with dependencies"),
        (row("1", "go", "0", "root"), "no sentence with dependencies"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text, said, tmp_path):
    (tmp_path / "bad.conllu").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=said):
        read_dependencies(tmp_path / "bad.conllu")


def test_what_is_no_text_or_not_there_is_said(tmp_path):
    (tmp_path / "bytes.conllu").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"bytes.conllu cannot be read: .*save it as UTF-8"):
        read_dependencies(tmp_path / "bytes.conllu")
    with pytest.raises(DataError, match=r"none.conllu cannot be read"):
        read_dependencies(tmp_path / "none.conllu")
