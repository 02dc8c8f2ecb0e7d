"""The benchmark of large corpora: what is written, and that each phase has a process of its own."""

from __future__ import annotations

import os

import pytest

from attnlab.benchmarks import corpus

LINES = 200


@pytest.mark.skipif(not corpus.STATUS.exists(), reason="no peak to read")
def test_each_phase_is_measured_in_its_own_process():
    before = os.environ.get("ATTNLAB_CACHE")
    report = corpus.bench_corpus(lines=(LINES,))
    seconds, peaks = report.tables
    assert (
        [row.name for row in seconds.rows] == [row.name for row in peaks.rows] == [corpus.TOKENIZING, corpus.STARTING]
    )
    assert all(row.median(LINES) > 0.1 for row in seconds.rows)
    assert all(row.median(LINES) > 50.0 for row in peaks.rows)  # a process that imported torch
    assert os.environ.get("ATTNLAB_CACHE") == before


def test_tokens_are_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", "put back afterwards")
    corpus._write_corpus(tmp_path, LINES)
    assert len(corpus._task(tmp_path).data.parts["train"]) == LINES * 19 // 20
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "tokens").rglob("*")}
    corpus._task(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "tokens").rglob("*")} == made


def test_the_corpus_has_as_many_lines_as_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "AT_A_TIME", 30)
    corpus._write_corpus(tmp_path, LINES)
    texts = [(tmp_path / f"pairs.{language}").read_text().splitlines() for language in corpus.PAIR]
    assert texts[0] != texts[1]
    for lines in texts:
        assert len(lines) == len(set(lines)) == LINES
        lengths = {len(line.split()) for line in lines}
        assert min(lengths) >= corpus.SHORTEST_SENTENCE
        assert max(lengths) <= corpus.LONGEST_SENTENCE
        assert len(lengths) > 10


def test_where_the_peak_is_unknown_the_table_says_why(monkeypatch):
    monkeypatch.setattr(corpus, "_alone", lambda phase, folder: None)
    report = corpus.bench_corpus(lines=(1, 2))
    assert f"not run: {corpus.TOKENIZING} from n = 1 on: {corpus.NO_PEAK}" in str(report)
    assert all(set(row.values) == {1, 2} for row in report.tables[0].rows)


def test_without_a_status_file_there_is_no_peak(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "STATUS", tmp_path / "none")
    assert corpus._peak_mebibytes() is None
