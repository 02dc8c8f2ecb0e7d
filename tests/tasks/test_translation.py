"""Translation: every pair once an epoch, in batches of like length; losses of all held-out tokens."""

from __future__ import annotations

import collections
import gc
import math
import sys
import tracemalloc

import numpy as np
import pytest
import torch

from attnlab.core.errors import DataError, ModuleError, SpecError
from attnlab.tasks.translation import data as translation_data
from attnlab.tasks.translation.translation import IGNORED, Translation, cuts
from attnlab.text import bpe_dropout, pair_store, token_store
from attnlab.text.tokenizers import BEGIN_TOKEN, END_TOKEN, PAD_TOKEN

WORDS = [
    "a",
    "dog",
    "runs",
    "over",
    "the",
    "green",
    "meadow",
    "and",
    "two",
    "men",
    "look",
    "at",
    "it",
    "from",
    "far",
    "away",
]


def sentences(count, seed):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(1, 12))) for _ in range(count)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def corpus(tmp_path):
    """Write a corpus whose translation is the sentence in capitals."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for part, count, seed in (("train", 200, 1), ("val", 30, 2), ("test", 20, 3)):
        lines = sentences(count, seed)
        (folder / f"{part}.en").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / f"{part}.de").write_text("\n".join(lines).upper() + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def task(corpus):
    return Translation(str(corpus), tokenizer="words", batch_tokens=64)


def uniform(task):
    size = task.data.tokenizer.size
    return lambda batch: torch.zeros(*batch.targets.shape, size)


def rows(batch):
    """Return every pair of a batch as text."""
    source, begun = batch.inputs
    for read, written, target in zip(source, begun, batch.targets, strict=True):
        assert written[0] == BEGIN_TOKEN
        real = target[target != IGNORED]
        assert real[-1] == END_TOKEN
        assert written[1 : len(real)].equal(real[:-1])
        yield read[read != PAD_TOKEN].tolist(), real[:-1].tolist()


def test_an_epoch_sees_every_pair_once(task, corpus):
    steps = task.steps_per_epoch
    for epoch in range(2):
        seen = collections.Counter()
        for step in range(epoch * steps, (epoch + 1) * steps):
            for source, target in rows(task.train_batch(step, 5)):
                text, capitals = task.data.tokenizer.decode([source, target])
                assert capitals == text.upper()
                seen[text] += 1
        assert seen == collections.Counter((corpus / "train.en").read_text().splitlines())


def test_batches_hold_at_most_so_many_tokens_and_waste_few(task):
    real = total = 0
    for step in range(task.steps_per_epoch):
        batch = task.train_batch(step, 0)
        for side in batch.inputs:
            assert side.numel() <= 64
        real += int((batch.targets != IGNORED).sum())
        total += batch.targets.numel()
    assert real > 0.9 * total
    assert task.tokens_per_step == round(real / task.steps_per_epoch)


def test_a_batch_depends_on_step_and_seed_alone(task):
    again = Translation(task.data.corpus, tokenizer="words", batch_tokens=64)
    for step in (0, 3, 100, 3):
        one, other = task.train_batch(step, 5), again.train_batch(step, 5)
        assert all(left.equal(right) for left, right in zip(one.inputs, other.inputs, strict=True))
    assert not all(
        task.train_batch(step, 5).targets.shape == task.train_batch(step, 6).targets.shape for step in range(10)
    )


@pytest.mark.parametrize("batch_tokens", [7, 12, 64, 10_000])
def test_cuts_leave_no_pair_out(batch_tokens):
    lengths = np.sort(np.random.default_rng(0).integers(1, 8, 300))
    ends = cuts(lengths, batch_tokens)
    starts = [0, *ends[:-1]]
    assert ends[-1] == 300
    assert all(end > start for start, end in zip(starts, ends, strict=True))
    assert all((end - start) * lengths[end - 1] <= batch_tokens for start, end in zip(starts, ends, strict=True))
    fuller = [(end - start + 1) * lengths[end] for start, end in zip(starts, ends[:-1], strict=False)]
    assert all(full > batch_tokens for full in fuller)


def test_loss_of_knowing_nothing_is_chance(task):
    metrics = task.evaluate(uniform(task), "validation")
    size = task.data.tokenizer.size
    (floor,) = task.floors()
    assert metrics["val_loss"] == pytest.approx(math.log(size)) == pytest.approx(floor.value)
    assert metrics["val_perplexity"] == pytest.approx(size)
    assert metrics["val_word_perplexity"] == pytest.approx(size)  # here every word is one token
    batch = task.train_batch(0, 0)
    assert task.loss(uniform(task)(batch), batch).item() == pytest.approx(math.log(size))


def test_perplexity_of_words_does_not_depend_on_the_tokens(corpus):
    """A model that gives every sentence the same probability has the same perplexity of words in any tokens."""
    found = []
    for tokenizer in ("words", "characters"):
        task = Translation(str(corpus), tokenizer=tokenizer, max_length=1000, batch_tokens=4000)
        sides = task.data.parts["validation"]
        tokens, words = sides.target_tokens(), sides.target_words
        metrics = task.evaluate(uniform(task), "validation")
        nats = tokens * metrics["val_loss"]
        assert metrics["val_word_perplexity"] == pytest.approx(math.exp(nats / words))
        found.append(words)
    assert found[0] == found[1]


def test_parts_and_metrics(corpus):
    task = Translation(str(corpus), tokenizer="words", batch_tokens=64, test="test")
    assert task.parts == ("validation", "test")
    assert {metric.name for metric in task.metrics} == {
        *task.evaluate(uniform(task), "validation"),
        *task.evaluate(uniform(task), "test"),
    }
    with pytest.raises(SpecError, match="part must be one of validation, test"):
        task.evaluate(uniform(task), "train")


def test_what_a_model_must_know(task):
    size = task.data.tokenizer.size
    assert task.model_arguments() == {
        "source_vocab_size": size,
        "target_vocab_size": size,
        "max_length": 128,
        "pad": 0,
    }


def test_a_loss_too_large_for_its_perplexity_has_the_largest(task):
    def sure_of_padding(batch):
        logits = torch.zeros(*batch.targets.shape, task.data.tokenizer.size)
        logits[..., PAD_TOKEN] = 1e6
        return logits

    metrics = task.evaluate(sure_of_padding, "validation")
    assert metrics["val_loss"] == pytest.approx(1e6)
    assert metrics["val_perplexity"] == metrics["val_word_perplexity"] == sys.float_info.max


def test_a_tokenizer_of_a_persons_own_that_changed_is_trained_anew(corpus, tmp_path):
    own = tmp_path / "mine.py"
    code = "from attnlab.text.tokenizers import {name}\n\n\nclass Mine({name}):\n    pass\n"
    sizes = set()
    for name in ("Words", "Characters"):
        own.write_text(code.format(name=name), encoding="utf-8")
        sizes.add(Translation(str(corpus), tokenizer=f"{own}:Mine", batch_tokens=64).data.tokenizer.size)
    assert len(sizes) == 2


def test_a_tokenizer_of_a_persons_own_needs_no_more_than_train(corpus, tmp_path):
    own = tmp_path / "mine.py"
    own.write_text(
        "from attnlab.text.tokenizers import Words\n\n\nclass Mine:\n    def train(self, sentences):\n"
        "        return Words().train(sentences)\n",
        encoding="utf-8",
    )
    task, words = (Translation(str(corpus), tokenizer=name, batch_tokens=64) for name in (f"{own}:Mine", "words"))
    assert (task.data.tokenizer.size, task.tokens_per_step) == (words.data.tokenizer.size, words.tokens_per_step)


def test_what_was_kept_on_disk_and_damaged_is_made_again_once_it_is_removed(task, corpus, tmp_path):
    expected = task.train_batch(0, 0).targets
    (tokens,) = tmp_path.glob("cache/tokens/*/train-00000-source/tokens.bin")
    folder = tokens.parents[1]
    tokens.write_bytes(tokens.read_bytes()[:-8])
    with pytest.raises(
        DataError,
        match=f"was changed after it was written; it is damaged; remove {folder} to tokenize the corpus again",
    ):
        Translation(str(corpus), tokenizer="words", batch_tokens=64)
    (folder / "known.json").unlink()
    again = Translation(str(corpus), tokenizer="words", batch_tokens=64)
    assert again.train_batch(0, 0).targets.equal(expected)


def test_the_tokenizer_knows_the_training_part_alone(corpus):
    for part in ("val", "test"):
        for language in ("en", "de"):
            with (corpus / f"{part}.{language}").open("a", encoding="utf-8") as file:
                file.write("zebra\n")
    tokenizer = Translation(str(corpus), tokenizer="words", test="test").data.tokenizer
    assert tokenizer.decode(tokenizer.encode(["dog zebra"])) == ["dog <unknown>"]


def test_wrong_outputs(task):
    batch = task.train_batch(0, 0)
    with pytest.raises(ModuleError, match=r"outputs must have shape .* \(batch, length, vocab_size\); got"):
        task.loss(torch.zeros(2, 3, 4), batch)


def test_examples_show_what_the_model_holds_likeliest(task):
    def right(batch):
        return torch.nn.functional.one_hot(batch.targets.clamp(min=0), task.data.tokenizer.size).float()

    shown = task.examples(right)["pairs"]
    assert len(shown) == 5
    assert all(pair["predicted"] == pair["target"] == pair["source"].upper() for pair in shown)


def test_examples_label_the_axes_of_the_first_batch(task):
    seen = []

    def listening(batch):
        seen.append(batch)
        return uniform(task)(batch)

    source, target = task.examples(listening)["labels"]
    assert [len(source), len(target)] == [tokens.shape[1] for tokens in seen[0].inputs]
    assert "".join(target[1:]).replace(" ", "") == "".join(source).replace(" ", "").upper()


def test_what_is_judged_of_translations(corpus):
    task = Translation(str(corpus), tokenizer="words", test="test")
    assert [metric.name for metric in task.judged] == ["val_bleu", "val_chrf", "test_bleu", "test_chrf"]
    right = [pair.target for pair in task.data.sentences("test")]
    assert right == (corpus / "test.de").read_text().splitlines()
    assert task.score("test", right) == {"test_bleu": pytest.approx(100.0), "test_chrf": pytest.approx(100.0)}
    assert task.score("test", [text.lower() for text in right])["test_bleu"] < 10.0
    assert {name: text.split("|")[1] for name, text in task.describe()["signature"].items()} == {
        "bleu": "case:mixed",
        "chrf": "case:mixed",
    }
    with pytest.raises(DataError, match="1 translations and 20 references"):
        task.score("test", right[:1])


def test_case_does_not_count_where_the_tokenizer_has_no_capitals(corpus):
    task = Translation(str(corpus), tokenizer={"name": "words", "lowercase": True}, test="test")
    lower = [pair.target.lower() for pair in task.data.sentences("test")]
    assert task.data.tokenizer.decode(task.data.tokenizer.encode(lower)) == lower
    assert task.score("test", lower) == {"test_bleu": pytest.approx(100.0), "test_chrf": pytest.approx(100.0)}
    assert "|case:lc|" in task.describe()["signature"]["bleu"]


def test_nothing_is_judged_without_a_beam(corpus):
    silent = Translation(str(corpus), tokenizer="words", beam=None)
    assert silent.judged == ()
    assert "signature" not in silent.describe()
    with pytest.raises(SpecError, match="beam"):
        Translation(str(corpus), tokenizer="words", beam=0)


def test_tokenized_once(corpus, monkeypatch):
    first = Translation(str(corpus), tokenizer="words")
    monkeypatch.setattr("attnlab.tasks.translation.data._prepare", None)
    again = Translation(str(corpus), tokenizer="words")
    assert again.describe() == first.describe()
    assert again.describe()["parts"] == {"train": 200, "validation": 30}


def test_a_changed_text_is_tokenized_again(corpus):
    before = Translation(str(corpus), tokenizer="words").describe()
    for language, line in (("en", "one more\n"), ("de", "ONE MORE\n")):
        with (corpus / f"train.{language}").open("a") as file:
            file.write(line)
    after = Translation(str(corpus), tokenizer="words").describe()
    assert after["parts"]["train"] == before["parts"]["train"] + 1
    assert after["sha256"] != before["sha256"]


def test_one_file_with_tabs_keeps_its_end_for_validation(tmp_path):
    lines = [f"{line}\t{line.upper()}" for line in sentences(100, 1)]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines), encoding="utf-8")
    task = Translation("pairs.tsv", tokenizer="words", batch_tokens=64)
    assert task.describe()["parts"] == {"train": 95, "validation": 5}
    decoded = task.data.tokenizer.decode([task.data.parts["validation"].source[number].tolist() for number in range(5)])
    assert decoded == [line.partition("\t")[0] for line in lines[-5:]]


def test_empty_lines_are_left_out_and_counted(corpus):
    for language in ("en", "de"):
        with (corpus / f"train.{language}").open("a") as file:
            file.write("\n" if language == "en" else "ALONE\n")
    task = Translation(str(corpus), tokenizer="words")
    assert task.describe()["parts"]["train"] == 200
    assert task.describe()["left_out"]["one side empty"] == 1
    assert "pairs of the train part left out, one side empty: 1 (line 201)" in task.alarms()


def test_long_pairs_are_left_out_of_training_and_said(corpus):
    with (corpus / "train.en").open("a") as english, (corpus / "train.de").open("a") as german:
        english.write(("dog " * 40 + "\n") * 6)
        german.write(("DOG " * 40 + "\n") * 6)
    task = Translation(str(corpus), tokenizer="words", max_length=20)
    alarm = "pairs of the train part left out, longer than max_length: 6 (lines 201, 202, 203, 204, 205, ...)"
    assert alarm in task.alarms()
    assert task.describe()["parts"]["train"] == 200


def test_a_long_held_out_pair_is_an_error(corpus):
    with (corpus / "val.en").open("a") as english, (corpus / "val.de").open("a") as german:
        english.write("dog " * 40 + "\n")
        german.write("DOG " * 40 + "\n")
    with pytest.raises(DataError, match=r"val\.de, line 31: the pair has 41 tokens and max_length is 20"):
        Translation(str(corpus), tokenizer="words", max_length=20)


def test_dropout_cuts_each_training_pair_in_several_ways(corpus):
    """The held-out parts, the tokens and what is said of the corpus stay those without dropout."""
    plain = Translation(str(corpus), tokenizer={"name": "bpe", "vocab_size": 320}, batch_tokens=256)
    tokenizer = {"name": "bpe", "vocab_size": 320, "dropout": 0.3, "segmentations": 3}
    task = Translation(str(corpus), tokenizer=tokenizer, batch_tokens=256)
    train, decode = task.data.parts["train"], plain.data.tokenizer.decode
    assert len(train) == 3 * len(plain.data.parts["train"])
    for number in range(len(train)):
        usual = plain.data.parts["train"].target[number // 3]
        assert decode([train.target[number]]) == decode([usual])
        assert len(train.target[number]) >= len(usual)
    assert len({tuple(train.target[number]) for number in range(3)}) > 1
    for number in range(len(plain.data.parts["validation"])):
        held_out = [one.data.parts["validation"].target[number].tolist() for one in (task, plain)]
        assert held_out[0] == held_out[1]
    assert task.describe()["parts"] == plain.describe()["parts"]
    assert (task.describe()["segmentations"], plain.describe()["segmentations"]) == (3, 1)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch, dropout):
    """Neither with its sentences nor with its words, each of which stands in one sentence."""
    monkeypatch.setattr(pair_store, "AT_A_TIME", 100)
    monkeypatch.setattr(token_store, "AT_A_TIME", 100)
    monkeypatch.setattr(bpe_dropout, "WORDS", 100)
    peaks = []
    for count in (100, 500, 2500):  # the first imports what is imported late
        lines = "".join(f"the {number} dog\tder {number} hund\n" for number in range(count))
        (tmp_path / f"{count}.tsv").write_text(lines, encoding="utf-8")
        gc.collect()
        tracemalloc.start()
        spec = {"name": "bpe", "vocab_size": 300, "dropout": dropout}
        translation_data.TranslationData.load(f"./{count}.tsv", "en-de", tokenizer=spec, max_length=128, test=None)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 2.0 * peaks[1], "five times the sentences"


def test_a_pair_that_dropout_makes_too_long_is_cut_as_usual(corpus):
    """With dropout near 1, every byte is a token; a pair is left out only if it is too long without that."""
    for side in ("en", "de"):
        with (corpus / f"train.{side}").open("a", encoding="utf-8") as file:
            file.write("meadow " * 40 + "\n")
    spec = {"name": "bpe", "vocab_size": 320}
    plain = Translation(str(corpus), tokenizer=spec, max_length=30)
    task = Translation(str(corpus), tokenizer={**spec, "dropout": 0.99, "segmentations": 2}, max_length=30)
    train, usual = task.data.parts["train"], plain.data.parts["train"]
    assert len(train) == 2 * len(usual)
    assert train.longest().max() <= 30
    assert len(usual) == 200
    assert "longer than max_length: 1 (line 201)" in task.alarms()[0]
    short = int(usual.longest().argmin())
    assert train.longest()[2 * short] > usual.longest()[short]
    long = int(usual.longest().argmax())
    assert train.target[2 * long].tolist() == usual.target[long].tolist()


def test_held_out_sentences_in_the_training_part_raise_an_alarm(corpus):
    for language in ("en", "de"):
        held_out = (corpus / f"val.{language}").read_text()
        with (corpus / f"train.{language}").open("a") as file:
            file.write(held_out)
    (alarm,) = Translation(str(corpus), tokenizer="words").alarms()
    assert "100.0% of the validation part's source sentences stand in the training part" in alarm


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"pair": "ende"}, SpecError, "pair must be two languages, from and to, like en-de; got 'ende'"),
        ({"pair": "en-en"}, SpecError, "pair must be two languages"),
        ({"corpus": "multi30"}, DataError, "no corpus is named 'multi30'; did you mean 'multi30k'"),
        ({"corpus": "multi30k", "pair": "en-nl"}, SpecError, "no language 'nl' in this corpus"),
        ({"corpus": "multi30k", "test": "test-2015"}, SpecError, "no part 'test-2015' of this corpus; did you mean"),
        ({"tokenizer": "bp"}, SpecError, "unknown tokenizer 'bp'; did you mean 'bpe'"),
        ({"batch_tokens": 0}, SpecError, "batch_tokens must be at least 1"),
        ({"alpha": math.nan}, SpecError, "alpha must be a number of at least 0; got nan"),
        ({"batch_tokens": 5}, DataError, "a sentence of 12 tokens does not fit into a batch of 5"),
        (
            {"batch_tokens": 5, "tokenizer": {"name": "bpe", "dropout": 0.2}},
            DataError,
            "tokens, as the tokenizer's dropout cut it, does not fit into a batch of 5",
        ),
        ({"max_length": 1}, DataError, "the train part has no pair with two sides of at most 1 tokens"),
        ({"test": "exam"}, DataError, r"no file \S*exam.en"),
    ],
)
def test_bad_input(corpus, arguments, error, text):
    with pytest.raises(error, match=text):
        Translation(**{"corpus": str(corpus), "tokenizer": "words"} | arguments)


def test_too_few_pairs(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tA\n" * 19, encoding="utf-8")
    with pytest.raises(DataError, match=r"pairs.tsv has 19 pairs; at least 20 are needed"):
        Translation("pairs.tsv")
    (tmp_path / "pairs.tsv").write_text("a\tA\n" * 40, encoding="utf-8")
    with pytest.raises(DataError, match="a test part needs a folder with train, val and exam"):
        Translation("pairs.tsv", test="exam")
