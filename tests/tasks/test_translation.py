"""Translation: every pair once an epoch, in batches of like length; losses of all held-out tokens."""

from __future__ import annotations

import collections
import gc
import gzip
import math
import re
import sys
import tracemalloc

import numpy as np
import pytest
import torch

from attnlab.core.errors import DataError, ModuleError, SpecError
from attnlab.tasks.translation import data as translation_data
from attnlab.tasks.translation.data import held_out_pairs, held_out_targets
from attnlab.tasks.translation.translation import IGNORED, Translation, cuts
from attnlab.text import bpe_dropout, token_store
from attnlab.text.pairs import pair_store, pairing
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
        "pad": PAD_TOKEN,
        "begin": BEGIN_TOKEN,
        "end": END_TOKEN,
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


def test_what_was_kept_on_disk_and_damaged_is_made_again(task, corpus, tmp_path):
    expected = task.train_batch(0, 0).targets
    (tokens,) = tmp_path.glob("cache/tokens/*/train-00000-source/tokens.bin")
    folder = tokens.parents[1]
    tokens.write_bytes(tokens.read_bytes()[:-8])
    with pytest.raises(
        DataError,
        match=f"was changed after it was written; it is damaged; remove {folder} to tokenize the corpus again",
    ):
        Translation(str(corpus), tokenizer="words", batch_tokens=64)
    for left in (None, "[1]", '{"shards": 3}'):
        (folder / "known.json").unlink() if left is None else (folder / "known.json").write_text(left)
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


def held_out_of(task):
    return [pair.source for pair in task.data.sentences("validation")]


def test_of_one_text_a_twentieth_is_held_out_wherever_it_stands(tmp_path):
    """A text that is sorted by length has long and short sentences in both parts."""
    lines = sorted(dict.fromkeys(sentences(3000, 1)), key=len)
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\t{line.upper()}\n" for line in lines), encoding="utf-8")
    task = Translation("pairs.tsv", tokenizer="words", batch_tokens=64)
    held_out = held_out_of(task)
    assert task.describe()["parts"] == {"train": len(lines) - len(held_out), "validation": len(lines) // 20}
    assert np.mean([len(line) for line in held_out]) == pytest.approx(np.mean([len(line) for line in lines]), rel=0.1)
    assert held_out == held_out_of(Translation("pairs.tsv", tokenizer="words", batch_tokens=64))
    assert not Translation("pairs.tsv", "en-xx", tokenizer="words").alarms()
    backwards = "".join(f"{line}\t{line.upper()}\n" for line in reversed(lines))
    (tmp_path / "pairs.tsv").write_text(backwards, encoding="utf-8")
    assert held_out_of(Translation("pairs.tsv", tokenizer="words", batch_tokens=64)) == held_out[::-1]


def test_pairs_of_one_source_are_not_parted(tmp_path):
    lines = [f"{line}\t{line.upper()} {number}\n" for number in range(3) for line in sentences(200, 1)]
    (tmp_path / "pairs.tsv").write_text("".join([*lines, lines[0].capitalize()]), encoding="utf-8")
    task = Translation("pairs.tsv", tokenizer="words", batch_tokens=64)
    train = {pair.source.casefold() for _, pair in task.data.texts["train"].pairs()}
    assert train.isdisjoint(line.casefold() for line in held_out_of(task))
    assert 0 < len(held_out_of(task)) <= 30
    (tmp_path / "pairs.tsv").write_text("the dog\tDER HUND\n" * 100, encoding="utf-8")
    with pytest.raises(DataError, match=r"pairs.tsv has more than 5 pairs of one source, .* name a folder with train"):
        Translation("pairs.tsv", tokenizer="words", batch_tokens=64)


@pytest.mark.parametrize("form", ["tsv", "jsonl", "tmx"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_all_forms_of_one_text_are_one_corpus(tmp_path, form, ending):
    begin, line, end = {
        "tsv": ("", "{0}\t{1}\n", ""),
        "jsonl": ("", '{{"translation": {{"en": "{0}", "de": "{1}"}}}}\n', ""),
        "tmx": (
            '<tmx version="1.4"><body>',
            '<tu><tuv xml:lang="de-DE"><seg>{1}</seg></tuv><tuv xml:lang="en"><seg>{0}</seg></tuv></tu>',
            "</body></tmx>",
        ),
    }[form]
    some = sentences(100, 1)
    content = (begin + "".join(line.format(one, one.upper()) for one in some) + end).encode()
    path = tmp_path / f"pairs.{form}{ending}"
    path.write_bytes(gzip.compress(content) if ending else content)
    for name in (path.name, "pairs"):
        task = Translation(f"./{name}", tokenizer="words", batch_tokens=64)
        assert task.describe()["parts"] == {"train": 95, "validation": 5}
        assert all(pair.target == pair.source.upper() for pair in task.data.sentences("validation"))


def test_more_references_are_scored_together(corpus, tmp_path):
    lines = (corpus / "test.de").read_text(encoding="utf-8").splitlines()
    other = ["ganz anders gesagt"] * len(lines)
    (tmp_path / "more.de").write_text("\n".join(other), encoding="utf-8")
    task = Translation(str(corpus), tokenizer="words", test="test", references=["more.de"])
    assert task.score("test", other[:3] + lines[3:]) == {
        "test_bleu": pytest.approx(100),
        "test_chrf": pytest.approx(100),
    }
    alone = Translation(str(corpus), tokenizer="words", test="test")
    assert alone.score("test", other[:3] + lines[3:])["test_bleu"] < 100
    assert task.describe()["signature"]["bleu"].startswith("nrefs:2|")
    assert held_out_targets(task.describe(), "test") == [lines, other]
    assert len(held_out_targets(task.describe(), "validation")) == 1
    described = task.describe()
    (tmp_path / "more.de").write_text("one", encoding="utf-8")
    with pytest.raises(DataError, match=r"the references more.de have changed since the run was made"):
        held_out_targets(described, "test")
    with pytest.raises(DataError, match=r"more.de has 1 lines and .*test.en 20: one for each is needed"):
        Translation(str(corpus), tokenizer="words", test="test", references=["more.de"])


def test_a_run_that_held_out_the_last_pairs_is_not_scored_on_others(tmp_path):
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"{one}\t{one.upper()}\n" for one in sentences(100, 1)), encoding="utf-8"
    )
    described = Translation("./pairs.tsv", tokenizer="words").describe()
    assert len(held_out_pairs(described, "validation")) == 5
    with pytest.raises(DataError, match=r"the run held out other pairs of ./pairs.tsv"):
        held_out_pairs({name: value for name, value in described.items() if name != "cut"}, "validation")


def test_what_is_suspicious_about_lines_sides_and_parts_raises_alarms(corpus):
    """Sources and targets of the fixture share no word, as they are written in capitals."""
    lines = sentences(400, 5)
    for language, some in (("en", ["source", *lines]), ("de", ["target", *(line.upper() for line in lines[1:])])):
        (corpus / f"train.{language}").write_text("\n".join([*some, "the dog"][: len(lines)]), encoding="utf-8")
    (corpus / "val.en").write_text(
        "a dog runs over the quick brown fox far away and back again\n" * 30, encoding="utf-8"
    )
    (corpus / "val.de").write_text("EIN HUND\n" * 30, encoding="utf-8")
    shifted, heading, language, length, words, *_ = Translation(str(corpus), tokenizer="words").alarms()
    assert re.search(r"train.en and \S*train.de, lines \d to 400: line n of the source goes with line n-1 of", shifted)
    assert re.search(
        r"train.de, line 1 is read as a pair and looks like a heading: 'source / target'; remove it", heading
    )
    assert language.endswith("train.de: what should be de reads like en")  # in capitals
    assert "sentences of the validation part have 13.0 words, those of the training part" in length
    assert "38% of the words of the validation part stand nowhere in the training part" in words


def test_swapped_and_copied_sides_raise_alarms(corpus):
    english, german = "the man is in the house and it was for him", "der mann ist in dem haus und das war für ihn"
    for part, count in (("train", 100), ("val", 30)):
        (corpus / f"{part}.en").write_text("".join(f"{german} {one}\n" for one in range(count)), encoding="utf-8")
        (corpus / f"{part}.de").write_text("".join(f"{english} {one}\n" for one in range(count)), encoding="utf-8")
    alarms = Translation(str(corpus), tokenizer="words").alarms()
    assert sum("the sides seem swapped: what should be en reads like de; check pair" in one for one in alarms) == 2
    for part in ("train", "val"):
        (corpus / f"{part}.en").write_text((corpus / f"{part}.de").read_text(encoding="utf-8"), encoding="utf-8")
    alarms = Translation(str(corpus), tokenizer="words").alarms()
    assert "train.de, lines 1 to 100: both sides are the same in 100% of the lines; a model learns to copy" in alarms[0]
    assert "what should be de reads like en" in alarms[1]


def test_a_part_whose_sides_are_swapped_raises_an_alarm(corpus):
    names = corpus / "val.en", corpus / "val.de"
    english, german = (name.read_text(encoding="utf-8") for name in names)
    names[0].write_text(german.lower().replace("A", "a").replace(" ", "x "), encoding="utf-8")
    names[1].write_text(english, encoding="utf-8")
    train = corpus / "train.de"
    train.write_text(train.read_text(encoding="utf-8").lower().replace(" ", "x "), encoding="utf-8")
    (alarm,) = (one for one in Translation(str(corpus), tokenizer="words").alarms() if "swapped" in one)
    assert alarm == "the sides of the validation part are swapped beside those of the training part"


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


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch, dropout):
    """Neither with its sentences nor with its words, each of which stands in one sentence."""
    monkeypatch.setattr(pair_store, "AT_A_TIME", 100)
    monkeypatch.setattr(token_store, "AT_A_TIME", 100)
    monkeypatch.setattr(bpe_dropout, "WORDS", 100)
    monkeypatch.setattr(pairing, "LINES", 50)
    monkeypatch.setattr(pairing, "RUNS", 2)
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
    assert any("longer than max_length: 1 (line 201)" in alarm for alarm in task.alarms())
    short = int(usual.longest().argmin())
    assert train.longest()[2 * short] > usual.longest()[short]
    long = int(usual.longest().argmax())
    assert train.target[2 * long].tolist() == usual.target[long].tolist()


def test_held_out_sentences_in_the_training_part_raise_an_alarm(corpus):
    for language in ("en", "de"):
        held_out = (corpus / f"val.{language}").read_text()
        with (corpus / f"train.{language}").open("a") as file:
            file.write(held_out)
    alarm = Translation(str(corpus), tokenizer="words").alarms()[-1]
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


def test_copies_of_what_is_held_out_are_left_out_of_training_where_that_is_asked(corpus):
    source, target = corpus / "train.en", corpus / "train.de"
    held_out = (corpus / "val.en").read_text().splitlines()
    source.write_text(source.read_text() + f"{held_out[0]}\n{held_out[1]}\n")
    target.write_text(target.read_text() + "ANOTHER\nTRANSLATION\n")
    copied, clean = (Translation(str(corpus), tokenizer="words", drop_copies=drop) for drop in (False, True))
    lost = sum(line in held_out for line in source.read_text().splitlines())
    assert len(copied.data.parts["train"]) - len(clean.data.parts["train"]) == lost >= 2
    assert copied.overlaps["validation"] > 0 == clean.overlaps["validation"]
    assert clean.describe()["drop_copies"]
    assert "drop_copies" not in copied.describe()
    assert held_out_pairs(clean.describe(), "validation") == held_out_pairs(copied.describe(), "validation")
    for file in (source, target):
        file.write_text((corpus / file.name.replace("train", "val")).read_text())
    with pytest.raises(DataError, match="with drop_copies nothing is left to train on: every training source is held"):
        Translation(str(corpus), tokenizer="words", drop_copies=True)
