"""The share of right answers in batches of the training part, of every task whose answers are right or wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnlab.core.contracts import accuracy_of
from attnlab.studies.define.assemble import build_task
from attnlab.tasks.next_tokens import IGNORED

TEXT = "the cat sat on the mat and the dog lay by the door. " * 60


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with a text, sentence pairs, items and their classes, as the one that is worked in."""
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    for part, count in (("train", 50), ("val", 10)):
        for side, word in (("en", "word"), ("de", "wort")):
            (tmp_path / f"{part}.{side}").write_text("".join(f"{word}{n % 7} {word}{n % 5}\n" for n in range(count)))
    np.save("x.npy", np.random.default_rng(0).normal(size=(40, 6, 3)).astype("float32"))
    np.save("classes.npy", np.arange(40) % 4)
    np.save("each.npy", np.arange(240).reshape(40, 6) % 4)
    np.save("numbers.npy", np.random.default_rng(1).normal(size=(40, 6)).astype("float32"))


TASKS = {
    "char-lm": {"text": "text.txt", "context": 12, "batch": 4},
    "char-lm, the last alone": {"text": "text.txt", "context": 12, "batch": 4, "predict": "last"},
    "lm": {"text": "text.txt", "context": 12, "batch": 4, "tokenizer": "characters"},
    "translation": {"corpus": ".", "pair": "en-de", "tokenizer": "words", "batch_tokens": 64},
    "classify": {"inputs": "x.npy", "labels": "classes.npy", "batch": 8},
    "sequences": {"inputs": "x.npy", "targets": "each.npy", "batch": 8},
}


def guesses(size, at_each):
    """A predictor of logits that are drawn, and the same for the same batch."""

    def predict(batch):
        draw = torch.Generator().manual_seed(int(batch.inputs[-1].float().abs().sum()))
        shape = batch.inputs[-1].shape[:2] if at_each else batch.targets.shape[:1]
        return torch.randn(*shape, size, generator=draw)

    return predict


@pytest.mark.parametrize("title", TASKS)
def test_it_is_the_share_of_targets_that_are_held_likeliest(files, title):
    task = build_task({"name": title.partition(",")[0], **TASKS[title]})
    known = task.model_arguments()
    predict = guesses(known.get("target_vocab_size", known.get("vocab_size", known.get("d_out"))), title != "classify")
    batches, right, count = [task.train_batch(step, 0) for step in range(30)], 0, 0
    for batch in batches:
        answers = predict(batch).argmax(dim=-1)
        answers = answers[:, -1:] if "last" in title else answers
        asked = batch.targets != IGNORED
        right += int((answers == batch.targets)[asked].sum())
        count += int(asked.sum())
    assert 0 < right < count
    assert accuracy_of(task, predict, batches) == pytest.approx(right / count)


def test_numbers_are_neither_right_nor_wrong(files):
    task = build_task({"name": "sequences", "inputs": "x.npy", "targets": "numbers.npy", "batch": 8})
    assert accuracy_of(task, guesses(1, True), [task.train_batch(0, 0)]) is None
    shapes = build_task({"name": "shapes", "n_train": 40})
    assert accuracy_of(shapes, guesses(1, True), [shapes.train_batch(0, 0)]) is None
