"""A parallel corpus of many shards is what one of a single shard is, written by several processes, mixed by turns."""

from __future__ import annotations

import collections
import gzip
import json
import threading

import fsspec
import numpy as np
import pytest

from attnlab.core.errors import DataError
from attnlab.tasks.translation import data, translation
from attnlab.tasks.translation.translation import IGNORED, Translation
from attnlab.text import sources

PAIRS = [(f"a dog number {number} runs" + " far" * (number % 7), f"hund {number}") for number in range(230)]
TOKENIZER = "words"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")


def task_of(corpus="pairs.tsv", tokenizer=TOKENIZER, **arguments) -> Translation:
    return Translation(corpus, tokenizer=tokenizer, batch_tokens=48, beam=None, **arguments)


def tokens_of(task: Translation, part="train"):
    sides = task.data.parts[part]
    return [(sides.source[number].tolist(), sides.target[number].tolist()) for number in range(len(sides))]


@pytest.fixture
def sharded(monkeypatch):
    monkeypatch.setattr(data, "SHARD", 31)
    monkeypatch.setattr(translation, "OPEN", 3)


def test_shards_hold_the_pairs_in_their_order(monkeypatch, private_cache, capfd):
    usual = task_of()
    monkeypatch.setenv("ATTNLAB_CACHE", str(private_cache / "other"))
    monkeypatch.setattr(data, "SHARD", 31)
    monkeypatch.setattr(data, "ALONE", 0)
    monkeypatch.setattr(data, "usable_cores", lambda: 2)
    calls = []
    called = data.call_apart
    monkeypatch.setattr(data, "call_apart", lambda *call: (calls.append(call), called(*call))[1])
    shared = task_of()
    assert len(calls) == 4
    assert shared.data.parts["train"].source.begins == [*range(0, 219, 31), 219]
    for part in ("train", "validation"):
        assert tokens_of(shared, part) == tokens_of(usual, part)
    assert shared.describe() == usual.describe()
    assert shared.alarms() == usual.alarms()


def test_what_is_left_out_is_said_of_all_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "SHARD", 31)
    monkeypatch.setattr(data, "ALONE", 0)
    monkeypatch.setattr(data, "usable_cores", lambda: 3)
    monkeypatch.setattr(data, "call_apart", lambda function, *rest: json.loads(json.dumps(function(*rest))))
    lines = [f"{source}\t{target}\n" for source, target in PAIRS]
    for number in (3, 40, 80, 81, 120, 121):
        lines[number] = "dog " * 40 + "\thund\n"
    lines[50] = "\n"
    for part, some in (("train", lines), ("val", lines[-11:])):
        (tmp_path / f"{part}.tsv").write_text("".join(some), encoding="utf-8")
    alarms = task_of(".", max_length=20).alarms()
    assert "pairs of the train part left out, longer than max_length: 6 (lines 4, 41, 81, 82, 121, ...)" in alarms
    assert "pairs of the train part left out, one side empty: 1 (line 51)" in alarms
    (tmp_path / "val.tsv").write_text("".join([*lines[-11:-1], "dog " * 40 + "\thund\n"]), encoding="utf-8")
    with pytest.raises(DataError, match=r"val.tsv, line 11: the pair has 40 tokens and max_length is 20"):
        task_of(".", max_length=20)


@pytest.mark.usefixtures("sharded")
def test_an_epoch_sees_every_pair_once_and_few_shards_at_a_time():
    task = task_of()
    expected = collections.Counter(map(str, tokens_of(task)))
    shard_of = {str(pair): number // 31 for number, pair in enumerate(tokens_of(task))}
    orders = []
    for epoch in range(2):
        seen, shards = collections.Counter(), []
        for step in range(epoch * task.steps_per_epoch, (epoch + 1) * task.steps_per_epoch):
            batch = task.train_batch(step, 5)
            pairs = [
                str((read[read != 0].tolist(), wanted[wanted != IGNORED].tolist()[:-1]))
                for read, wanted in zip(batch.inputs[0], batch.targets, strict=True)
            ]
            seen.update(pairs)
            shards.append(shard_of[pairs[0]])
        assert seen == expected
        assert 1 < len(set(shards[: len(shards) // 4])) <= 3
        orders.append(list(dict.fromkeys(shards)))
    assert orders[0] != orders[1]


@pytest.mark.usefixtures("sharded")
def test_a_batch_of_shards_depends_on_step_and_seed_alone():
    task, again = task_of(), task_of()
    steps = [0, 1, task.steps_per_epoch - 1, task.steps_per_epoch, 5 * task.steps_per_epoch + 3, 0]
    for step in steps:
        assert task.train_batch(step, 3).targets.equal(again.train_batch(step, 3).targets)
    assert any(not task.train_batch(step, 3).targets.equal(again.train_batch(step, 4).targets) for step in steps)


@pytest.mark.usefixtures("sharded")
def test_every_shard_is_cut_in_its_own_ways():
    tokenizer = {"name": "bpe", "vocab_size": 300, "dropout": 0.5, "segmentations": 2}
    train = task_of(tokenizer=tokenizer, max_length=48).data.parts["train"]
    assert train.source.begins[:3] == [0, 62, 124]
    assert task_of(tokenizer=tokenizer, max_length=48).describe()["parts"]["train"] == 219


def test_of_a_very_large_text_the_tokenizer_sees_pairs_evenly_spread(monkeypatch, tmp_path):
    size = (tmp_path / "pairs.tsv").stat().st_size
    monkeypatch.setattr(data, "TRAINED_ON", size // 3)
    task = task_of()
    assert task.describe()["tokenizer_trained_on_one_pair_in"] == 3
    known = task.data.tokenizer
    sources = [pair.source.split()[3] for _, pair in task.data.texts["train"].pairs()]
    seen, unseen = (known.encode([f"number {number}"])[0] for number in (sources[153], sources[154]))
    assert known.decode([seen, unseen]) == [f"number {sources[153]}", "number <unknown>"]


def test_objects_are_pairs_and_an_address_is_read(tmp_path):
    for part, some in (("train", PAIRS[:200]), ("val", PAIRS[200:])):
        lines = "\n".join(json.dumps({"translation": {"en": source, "de": target}}) for source, target in some)
        with fsspec.open(f"memory://corpus/{part}.jsonl.gz", "wb") as file:
            file.write(gzip.compress(lines.encode()))
    task, back = (task_of("memory://corpus", pair=pair) for pair in ("en-de", "de-en"))
    decoded = task.data.tokenizer.decode([side for pair in tokens_of(task)[:2] for side in pair])
    assert decoded == [*PAIRS[0], *PAIRS[1]]
    assert [pair[::-1] for pair in task.data.sentences("validation")] == back.data.sentences("validation")
    assert task.describe()["parts"] == {"train": 200, "validation": 30}
    with pytest.raises(
        DataError, match=r"no file memory://corpus/exam.en \(nor exam.tsv, .jsonl, .tmx, .csv, .parquet or .arrow\)"
    ):
        task_of("memory://corpus", test="exam")


def test_the_hash_of_a_large_file_is_remembered_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "REMEMBERED", 10)
    first = sources.sha256_of("pairs.tsv")
    monkeypatch.setattr(sources.hashlib, "file_digest", None)
    assert sources.sha256_of("pairs.tsv") == first
    (tmp_path / "pairs.tsv").write_text("another\tother\n" * 40, encoding="utf-8")
    with pytest.raises(TypeError):
        sources.sha256_of("pairs.tsv")


def test_who_asks_meanwhile_waits(monkeypatch):
    calls, prepare = [], data._prepare
    monkeypatch.setattr(data, "_prepare", lambda *some, **how: calls.append(some) or prepare(*some, **how))
    found = []
    threads = [threading.Thread(target=lambda: found.append(task_of().tokens_per_step)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(found) == 3


@pytest.mark.parametrize("batch_tokens", [1, 7, 50, 1000])
def test_cuts_are_those_of_looking_at_every_pair(batch_tokens):
    for seed in range(20):
        lengths = np.sort(np.random.default_rng(seed).integers(1, 30, 83))
        ends, start = [], 0
        for end, length in enumerate(lengths.tolist()):
            if end > start and (end + 1 - start) * length > batch_tokens:
                ends.append(end)
                start = end
        assert translation.cuts(lengths, batch_tokens) == [*ends, 83]


def test_another_machine_copies_the_corpus_and_its_dictionary(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNLAB_SHARED_CACHE", str(tmp_path / "shared"))
    first = task_of()
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "another machine"))
    monkeypatch.setattr(data, "_prepare", None)  # nothing is tokenized there
    monkeypatch.setattr(data, "word_translations", None)  # and no dictionary learned
    second = task_of()
    assert tokens_of(second) == tokens_of(first)
    assert second.data.known == first.data.known
    assert second.data.dictionary == first.data.dictionary
    assert first.data.dictionary
