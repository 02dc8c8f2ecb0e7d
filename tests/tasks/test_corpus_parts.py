"""Where the parts of a person's own parallel corpus are, as Hugging Face's hub and datasets lay them out."""

from __future__ import annotations

import pytest

from attnlab.core.errors import DataError
from attnlab.tasks.translation.corpus_parts import parts_of

LANGUAGES = ("en", "de")
PAIRS = [(f"dog {number}", f"Hund {number}") for number in range(30)]
TABLE = {"translation": [dict(zip(LANGUAGES, pair, strict=True)) for pair in PAIRS]}


@pytest.fixture
def arrow():
    return pytest.importorskip("pyarrow")


def test_shards_of_the_hub(arrow, tmp_path):
    from pyarrow import parquet

    tmp_path /= "a [b]"
    tmp_path.mkdir()
    table = arrow.table(TABLE)
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001", "exam-00000-of-00001"):
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    parts = parts_of(str(tmp_path), LANGUAGES, test="exam")
    assert {name: part.sentences for name, part in parts.items()} == {
        "train": 2 * PAIRS,
        "validation": PAIRS,
        "test": PAIRS,
    }


def test_a_shard_that_is_missing_is_an_error(arrow, tmp_path):
    from pyarrow import parquet

    parquet.write_table(arrow.table(TABLE), tmp_path / "train-00000-of-00002.parquet")
    with pytest.raises(DataError, match=r"train should have 2 files, and has 1: .*train-00000-of-00002.parquet"):
        parts_of(str(tmp_path), LANGUAGES, test=None)


def test_what_datasets_saves(arrow, tmp_path):
    table = arrow.table(TABLE)
    for part in ("train", "validation"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "state.json").write_text("{}")
        for name in ("data-00000-of-00001", "cache-1234"):  # the latter is of no part
            with arrow.ipc.new_stream(tmp_path / part / f"{name}.arrow", table.schema) as file:
                file.write_table(table)
    (tmp_path / "dataset_dict.json").write_text("{}")
    parts = parts_of(str(tmp_path), LANGUAGES, test=None)
    assert [part.sentences for part in parts.values()] == [PAIRS, PAIRS]
    one = parts_of(str(tmp_path / "train"), LANGUAGES, test=None)
    assert sorted(one["train"].sentences + one["validation"].sentences) == sorted(PAIRS)
    assert len(one["validation"].sentences) == 1
