"""Real sentences: the named corpus, and a small model that is trained on a few of its pairs and translates."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.using.trained import load_run, translate
from attnlab.tasks.datasets import locate_named
from attnlab.tasks.translation.corpora import CORPORA
from attnlab.tasks.translation.translation import Translation
from attnlab.text.pairs.parallel import numbered

DATA = os.environ.get("ATTNLAB_DATA", "")
pytestmark = pytest.mark.skipif(not (Path(DATA) / "multi30k").is_dir(), reason="ATTNLAB_DATA has no multi30k")
PAIRS = 80


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))


def lines(part, language):
    return list(numbered(str(locate_named(CORPORA["multi30k"].part(part, language)))))


@pytest.mark.parametrize("part", CORPORA["multi30k"].parts)
def test_every_part_is_there_in_every_language(part):
    counts = {language: len(lines(part, language)) for language in CORPORA["multi30k"].languages}
    assert set(counts.values()) == {
        {
            "train": 29_000,
            "validation": 1_014,
            "test-2016": 1_000,
            "test-2017": 1_000,
            "test-2017-coco": 461,
            "test-2018": 1_071,
        }[part]
    }


@pytest.mark.slow
def test_any_direction():
    task = Translation("multi30k", "fr-en", tokenizer={"name": "bpe", "vocab_size": 1000}, test="test-2017")
    assert task.describe()["parts"] == {"train": 29_000, "validation": 1_014, "test": 1_000}
    sides = task.data.parts["test"]
    decode = task.data.tokenizer.decode
    for number in (0, 999):
        pair = decode([sides.source[number].tolist(), sides.target[number].tolist()])
        assert pair == [lines("test-2017", "fr")[number], lines("test-2017", "en")[number]]
    assert not task.alarms()


@pytest.mark.usefixtures("in_process")
def test_a_small_model_learns_to_translate(tmp_path):
    """Sentences of the training part: what a few dozen pairs can teach is to repeat them."""
    for part, count in (("train", PAIRS), ("validation", 30)):
        for language in ("en", "de"):
            name = "val" if part == "validation" else part
            (tmp_path / f"{name}.{language}").write_text("\n".join(lines(part, language)[:count]), encoding="utf-8")
    attention = {"name": "attention", "n_heads": 4}
    study = {
        "question": "Does it learn?",
        "task": {
            "name": "translation",
            "corpus": str(tmp_path),
            "tokenizer": {"name": "bpe", "vocab_size": 1000},
            "batch_tokens": 800,
        },
        "model": {
            "name": "encoder-decoder",
            "d_model": 64,
            "n_layers": 2,
            "mixer": attention,
            "norm": "pre",
            "dropout": 0.0,
        },
        "baseline": "it",
        "variants": {"it": {}},
        "rules": {"metric": "val_loss", "budget": {"steps": 200}, "seeds": 1, "smallest_effect": 0.1},
        "training": {"lr": 5e-3, "warmup": 20, "evaluate_every": 200},
    }
    run_study(parse_study(study, name="it", path=tmp_path / "study.yaml"), tmp_path / "runs", jobs=1)
    trained = load_run(tmp_path / "runs" / "it" / "seed-0", which="last")
    found = translate([trained], lines("train", "en")[:20])
    wanted = lines("train", "de")[:20]
    shared = [
        len(set(text.split()) & set(right.split())) / len(set(right.split()))
        for text, right in zip(found, wanted, strict=True)
    ]
    assert sum(shared) / len(shared) > 0.5
