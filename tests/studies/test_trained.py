"""Trained models in use: a study is run, then its model translates and writes."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.errors import DataError, RunError, SpecError
from attnlab.core.files import read_json
from attnlab.studies.define.assemble import build_task
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.judge.collect import read_results
from attnlab.studies.plan.plan import plan_study
from attnlab.studies.report import report
from attnlab.studies.run.executor import InProcess
from attnlab.studies.using.kept_task import keep_task
from attnlab.studies.using.scoring import OwnText, score
from attnlab.studies.using.trained import generate, load_run, translate
from attnlab.tasks.codecs import CharacterCodec
from attnlab.tasks.translation.data import held_out_pairs
from attnlab.text.tokenizers import Tokenizer

END = 2
WORDS = ["dog", "cat", "man", "runs", "sits", "green", "old", "two"]


def lines(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return [
        " ".join(WORDS[place] for place in torch.randint(len(WORDS), (length,), generator=generator))
        for length in torch.randint(1, 5, (count,), generator=generator).tolist()
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train to write sentences in capitals, and to continue a text."""
    folder = tmp_path_factory.mktemp("trained")
    patch = pytest.MonkeyPatch()
    patch.setenv("ATTNLAB_CACHE", str(folder / "cache"))
    for part, count, seed in (("train", 300, 1), ("val", 20, 2), ("exam", 10, 3)):
        sentences = "\n".join(lines(count, seed)) + "\n"
        (folder / f"{part}.en").write_text(sentences, encoding="utf-8")
        (folder / f"{part}.de").write_text(sentences.upper(), encoding="utf-8")
    (folder / "abc.txt").write_text("abcde\n" * 500, encoding="utf-8")
    rules = {"metric": "val_loss", "budget": {"steps": 150}, "seeds": 2, "smallest_effect": 0.1}
    common = {"question": "Does it learn?", "baseline": "it", "variants": {"it": {}}, "rules": rules}
    attention = {"name": "attention", "n_heads": 2}
    sizes = {"d_model": 32, "n_layers": 1, "dropout": 0.0, "mixer": attention}
    translation = {
        "task": {
            "name": "translation",
            "corpus": str(folder),
            "tokenizer": "words",
            "batch_tokens": 300,
            "test": "exam",
        },
        "model": {"name": "encoder-decoder", "norm": "pre", **sizes},
        "training": {"lr": 5e-3},
    }
    text = {
        "task": {"name": "char-lm", "text": str(folder / "abc.txt"), "context": 12, "batch": 16},
        "model": {"name": "decoder", **sizes},
        "training": {"lr": 5e-3},
    }
    for name, special in (("translation", translation), ("text", text)):
        study = parse_study(common | special, name=name, path=folder / f"{name}.yaml")
        run_study(study, folder / name, jobs=1, executor=InProcess())
    yield folder
    patch.undo()


@pytest.fixture(autouse=True)
def cache(runs, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(runs / "cache"))


@pytest.fixture
def translator(runs):
    return load_run(runs / "translation" / "it" / "seed-0")


@pytest.fixture
def writer(runs):
    return load_run(runs / "text" / "it" / "seed-0")


def test_it_has_learned(translator):
    sentences = [*lines(10, 3), "", "dog"]
    found = translate([translator], sentences)
    right = sum(text == sentence.upper() for text, sentence in zip(found, sentences, strict=True))
    assert right >= 9
    assert found[-2:] == ["", "DOG"]


@pytest.mark.parametrize("beam", [1, 3])
def test_batches_and_caches_change_nothing(translator, beam):
    sentences = lines(17, 4)
    expected = translate([translator], sentences, beam=beam)
    assert translate([translator], sentences, beam=beam, batch=3) == expected
    assert translate([translator], sentences, beam=beam, cached=False) == expected
    assert translate([translator], sentences[::-1], beam=beam) == expected[::-1]


def test_an_ensemble_writes_together(runs, translator):
    other = load_run(runs / "translation" / "it" / "seed-1")
    found = translate([translator, other], ["two dog"])
    assert found == ["TWO DOG"]


def test_a_text_is_continued_beyond_the_context(writer):
    (found,) = generate(writer, "abc", length=30, temperature=0.0)
    assert found[:12] == "abcde\nabcde\n"
    assert len(found) == 33
    one, other = generate(writer, "ab", length=20, samples=2, temperature=3.0)
    assert one != other
    assert generate(writer, "ab", length=20, samples=2, temperature=3.0) == [one, other]
    assert generate(writer, "ab", length=20, samples=2, temperature=3.0, seed=1) != [one, other]


def test_a_text_without_line_breaks_is_begun_with_what_there_is(writer):
    known = writer.task.codec.to_json()
    other = CharacterCodec.from_json({**known, "characters": known["characters"].replace("\n", "Z")})
    assert generate(writer, None, length=3)[0].startswith("\n")
    assert generate(dataclasses.replace(writer, task=SimpleNamespace(codec=other)), None, length=3)[0].startswith("Z")


def test_what_is_kept_is_what_is_computed_again(writer, monkeypatch):
    expected = generate(writer, "abcd", length=20, temperature=1.0)
    monkeypatch.setattr("attnlab.models.decoding.writers.Decoder", type(None))
    assert generate(writer, "abcd", length=20, temperature=1.0) == expected


def test_a_run_needs_neither_its_corpus_nor_what_was_kept_of_it(runs, tmp_path, monkeypatch, capsys):
    """The corpus grows by sentences of other words, so that a tokenizer trained anew would number words otherwise."""
    folder, run = tmp_path / "copy", tmp_path / "copy" / "translation" / "it" / "seed-0"
    shutil.copytree(runs, folder)
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "empty"))
    for language in ("en", "de"):
        with (runs / f"train.{language}").open("a", encoding="utf-8") as file:
            file.write("zebra apple\n" * 500)
    try:
        assert translate([load_run(run)], ["two dog"]) == ["TWO DOG"]
        (runs / "val.en").rename(runs / "away.en")
        assert score([load_run(run)]).scores[0].value > 50.0
        (runs / "away.en").rename(runs / "val.en")
        (runs / "exam.de").write_text("SOMETHING ELSE\n" * 10, encoding="utf-8")
        with pytest.raises(DataError, match=r"the test part of .* has changed since the run was made"):
            score([load_run(run)])
    finally:
        for part in ("train", "exam"):
            for language in ("en", "de"):
                shutil.copy(folder / f"{part}.{language}", runs / f"{part}.{language}")
    kept = read_json(run / "task.json")
    kept["codec"]["max_length"] = 7
    (run / "task.json").write_text(json.dumps(kept), encoding="utf-8")
    with pytest.raises(RunError, match="was begun with another tokenizer or other units than there are now"):
        keep_task(run, build_task({"name": "translation", "corpus": str(runs), "tokenizer": "words", "test": "exam"}))
    (run / "task.json").unlink()
    assert call(["translate", str(run), "dog"]) == WRONG_USE
    assert "does not say what its tokens mean (no task.json in it)" in " ".join(capsys.readouterr().err.split())


def test_a_text_is_continued_without_the_text_that_was_learned(runs, writer, monkeypatch):
    expected = generate(writer, "abc", length=9, temperature=0.0)
    (runs / "abc.txt").rename(runs / "away.txt")
    try:
        assert generate(load_run(runs / "text" / "it" / "seed-0"), "abc", length=9, temperature=0.0) == expected
    finally:
        (runs / "away.txt").rename(runs / "abc.txt")


def test_models_of_two_directions_do_not_write_together(translator):
    codec = translator.task.codec
    turned = dataclasses.replace(codec, languages=codec.languages[::-1])
    other = dataclasses.replace(translator, task=dataclasses.replace(translator.task, kept=turned))
    with pytest.raises(RunError, match=r"another tokenizer or pair of languages than .*: they cannot write together"):
        translate([translator, other], ["dog"])


def test_a_translation_without_end_is_cut_and_said_whatever_stands_beside_it(translator, capsys, runs, monkeypatch):
    sentences = ["dog", "dog cat man runs sits"]
    forever = dataclasses.replace(translator, model=_Endless(translator.model))
    with pytest.warns(UserWarning, match="2 of 2 translations came to no end and were cut: sentence 1, 2"):
        together = translate([forever], sentences, beam=2)
    with pytest.warns(UserWarning, match="1 of 1 translations came to no end and were cut: sentence 7"):
        alone = translate([forever], sentences[:1], beam=2, first=7)
    assert together[0] == alone[0]
    assert [len(text.split()) for text in together] == [2 * 1 + 10, 2 * 5 + 10]
    monkeypatch.setattr("attnlab.studies.using.pretrained.load_run", lambda *_, **__: forever)
    assert call(["translate", "some-run", "dog"]) == FINE
    printed = capsys.readouterr()
    assert len(printed.out.split()) == 12
    assert printed.err == "attnlab: 1 of 1 translations came to no end and were cut: sentence 1\n"


class _Endless(torch.nn.Module):
    """Give the end mark no chance."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, source, target):
        logits = self.model(source, target)
        logits[..., END] = -torch.inf
        return logits


def test_runs_of_another_kind(runs, translator, writer):
    with pytest.raises(RunError, match="is no translation run: its task is 'char-lm'; attnlab generate uses it"):
        translate([writer], ["dog"])
    with pytest.raises(RunError, match="is no language model: its task is 'translation'; attnlab translate uses it"):
        generate(translator, "dog", length=3)
    with pytest.raises(RunError, match=r"translation is no run \(no spec.json in it\); runs in it: .*it/seed-0"):
        load_run(runs / "translation")
    with pytest.raises(RunError, match=r"no run \(no spec.json in it\); did you mean '.*translation/it/seed-0'"):
        load_run(runs / "translation" / "It" / "seed-0")
    for folder in ("/no-run-of-attnlab", "no-run-of-attnlab", "/"):
        with pytest.raises(RunError, match=r"is no run \(no spec.json in it\)"):
            load_run(folder)


@pytest.mark.parametrize(("tune_by", "translates"), [("val_loss", False), ("val_bleu", True)])
def test_tuning_translates_only_where_it_looks_at_translations(runs, tmp_path, tune_by, translates):
    study = read_json(runs / "translation" / "study.json")["content"]
    tuned = {
        "tune": {"lr": [1e-3, 1e-2, 1e-1]},
        "tune_by": tune_by,
        "metric": "val_bleu",
        "budget": {"steps": 2},
        "seeds": 1,
    }
    study["rules"] |= tuned
    del study["training"]["lr"]
    run_study(parse_study(study, name="tuned", path=runs / "tuned.yaml"), tmp_path, jobs=1, executor=InProcess())
    results = {path.parent.parent.name: read_json(path) for path in tmp_path.glob("it/**/result.json")}
    found = {name: "val_bleu" in result["metrics"] for name, result in results.items()}
    assert found == {f"tune-lr-{rate}": translates for rate in ("0.001", "0.01", "0.1")} | {"it": True}


def test_variants_may_write_their_translations_otherwise(runs):
    study = read_json(runs / "translation" / "study.json")["content"]
    study["rules"] |= {"metric": "val_bleu", "budget": {"steps": 2}, "seeds": 1}
    study["variants"]["harsh"] = {"task": {"beam": 1, "alpha": 0.0}}
    planned = plan_study(parse_study(study, name="written", path=runs / "written.yaml"), calibrate=False)
    assert planned.variants[-1].notes[0] == "its own beam 1, alpha 0.0"
    study["variants"]["harsh"] = {"task": {"beam": None}}
    with pytest.raises(SpecError, match="task 'translation' has no metric 'val_bleu'"):
        plan_study(parse_study(study, name="written", path=runs / "written.yaml"), calibrate=False)


@pytest.mark.parametrize(("part", "prefix", "count"), [("", "test", 10), ("validation", "val", 20)])
def test_translations_of_a_part_are_scored(runs, translator, part, prefix, count):
    found = score([translator], part)
    assert len(found.translations) == count
    assert found.seconds > 0.0
    bleu, chrf, *cut = found.scores
    assert bleu.value > 50.0
    assert [one.name for one in found.scores] == ["BLEU", "chrF", "tokenised BLEU", "tokenised BLEU"]
    assert cut[0].value <= cut[1].value == pytest.approx(bleu.value, abs=1.0)
    judged = read_json(runs / "translation" / "it" / "seed-0" / "result.json")["metrics"]
    assert (judged[f"{prefix}_bleu"], judged[f"{prefix}_chrf"]) == pytest.approx((bleu.value, chrf.value))


def test_case_does_not_count_where_the_tokenizer_has_no_capitals(translator):
    codec = translator.task.codec
    small = Tokenizer.from_json(codec.tokenizer.to_json() | {"normalizer": {"type": "Lowercase"}})
    task = dataclasses.replace(translator.task, kept=dataclasses.replace(codec, tokenizer=small))
    found = score([dataclasses.replace(translator, task=task)], "test")
    assert [one.name for one in found.scores] == ["BLEU", "chrF", "tokenised BLEU"]
    assert all("case:lc" in one.signature for one in found.scores)
    assert found.scores[2] == score([translator], "test").scores[3]


def test_a_run_is_held_against_another_on_the_same_sentences(translator):
    found = score([translator], "test", against=[translator])
    assert list(found.above) == [str(translator.folder)]
    assert [(one.name, one.low, one.high) for one in found.above[str(translator.folder)]] == [
        ("BLEU", 0.0, 0.0),
        ("chrF", 0.0, 0.0),
    ]


def test_a_run_is_not_held_against_one_with_other_sentences(translator, monkeypatch):
    task = dataclasses.replace(translator.task, data={**translator.task.data, "pair": "other"})
    other = dataclasses.replace(translator, task=task, folder=Path("runs/other"))
    pairs = held_out_pairs(translator.task.data, "test")
    monkeypatch.setattr(
        "attnlab.studies.using.scoring.held_out_pairs",
        lambda data, part: pairs[1:] if data.get("pair") == "other" else pairs,
    )
    with pytest.raises(RunError, match=r"runs/other translates other sentences than .*, or in another case"):
        score([translator], "test", against=[other])


def test_an_unknown_part(translator):
    with pytest.raises(SpecError, match="part must be one of validation, test; got 'tset'; did you mean 'test'"):
        score([translator], "tset")


def test_the_report_shows_what_is_written(runs):
    assert call(["report", str(runs / "translation")]) == FINE
    report = (runs / "translation" / "report.html").read_text(encoding="utf-8")
    first = lines(20, 2)[0]
    assert "What do they write?" in report
    assert f"<td>{first.upper()}</td>" in report
    inside = read_json(runs / "translation" / "it" / "seed-0" / "inside.json")
    first = inside["predictions"]["pairs"][0]
    assert set(first) == {"source", "target", "predicted", "translation"}
    source, target = inside["predictions"]["labels"]
    assert "".join(source).strip() == first["source"]
    shapes = {tuple(layer["shape"][1:]) for layer in inside["attention"]["layers"]}
    assert shapes == {(len(q), len(k)) for q, k in ((source, source), (target, target), (target, source))}


def test_the_command_scores(runs, capsys, tmp_path):
    run = str(runs / "translation" / "it" / "seed-0")
    assert call(["score", run, "--out", str(tmp_path / "out.txt")]) == FINE
    printed = capsys.readouterr().out
    assert printed.startswith("10 sentences in ")
    assert "BLEU" in printed
    assert "tok:13a" in printed
    assert "tok:moses-de-sacremoses" in printed
    written = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    assert sum(text == wanted.upper() for text, wanted in zip(written, lines(10, 3), strict=True)) >= 8
    alone = ["--batch", "1", "--no-cached", "--out", str(tmp_path / "alone.txt")]
    assert call(["score", run, *alone]) == FINE
    assert (tmp_path / "alone.txt").read_text(encoding="utf-8").splitlines() == written
    assert call(["score", run, "--against", run]) == FINE
    printed = capsys.readouterr().out
    assert f"against {run}:\nBLEU            +0.00  +0.00 to +0.00\n" in printed
    assert call(["score", run, "--batch", "0"]) == WRONG_USE
    assert "batch must be at least 1; got 0" in capsys.readouterr().err
    assert call(["score", run, "--out", str(tmp_path)]) == WRONG_USE
    assert "Is a directory" in capsys.readouterr().err
    assert call(["score", str(runs / "text" / "it" / "seed-0")]) == WRONG_USE
    assert "is no translation run" in capsys.readouterr().err


def test_sentences_that_are_too_long(translator):
    with pytest.raises(DataError, match="sentence 2 has 200 tokens and this model reads at most 128: 'dog dog"):
        translate([translator], ["dog", "dog " * 200])


def test_an_ensemble_reads_no_more_than_its_shortest_member(translator):
    shorter = dataclasses.replace(translator.task.codec, max_length=2)
    other = dataclasses.replace(translator, task=dataclasses.replace(translator.task, kept=shorter))
    with pytest.raises(DataError, match="sentence 1 has 5 tokens and this model reads at most 2"):
        translate([translator, other], ["a dog sees a man"])


def test_unseen_words_are_read(translator):
    assert len(translate([translator], ["zebra 漢字"])) == 1


@pytest.mark.parametrize(("prompt", "text"), [("", "a prompt of at least one character"), ("z", "no character 'z'")])
def test_prompts_that_cannot_be_continued(writer, prompt, text):
    with pytest.raises(DataError, match=text):
        generate(writer, prompt, length=3)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--beam", "0", "beam must be at least 1; got 0"),
        ("--beam", "3.5", "must be a whole number; got 3.5"),
        ("--alpha", "nan", "alpha must be a number of at least 0; got nan"),
        ("--alpha", "-1", "alpha must be a number of at least 0; got -1.0"),
        ("--weights", "frist", 'Choose from: "last", "best"'),
        ("--maps", "nowhere/maps.html", "No such file or directory"),
    ],
)
def test_what_a_sentence_cannot_be_translated_with(runs, capsys, option, value, text):
    assert call(["translate", str(runs / "translation" / "it" / "seed-0"), "dog", option, value]) == WRONG_USE
    printed = capsys.readouterr()
    assert text in " ".join(printed.err.split())
    assert not printed.out


def test_a_folder_of_runs_names_them(runs, capsys):
    assert call(["translate", str(runs / "translation" / "it"), "dog"]) == WRONG_USE
    assert "runs in it: " in " ".join(capsys.readouterr().err.split())


def test_a_damaged_checkpoint(runs, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(runs / "translation" / "it" / "seed-0", copy)
    weights = copy / "last" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(RunError, match=f"sha256.*; remove {re.escape(str(copy))} and run its study again"):
        load_run(copy)
    (copy / "last" / "state.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match=rf"state\.json cannot be read.*; remove {re.escape(str(copy))} and run its"):
        load_run(copy)


def test_what_is_said_of_a_damaged_checkpoint_helps(runs, tmp_path):
    """A run that is complete is trained again once its folder is gone."""
    study = tmp_path / "translation"
    shutil.copytree(runs / "translation", study)
    whole, run = load_run(study / "it" / "seed-0"), study / "it" / "seed-0"
    shutil.rmtree(run)
    saved = read_json(study / "study.json")
    run_study(
        parse_study(saved["content"], name="translation", path=runs / "translation.yaml"),
        study,
        jobs=1,
        executor=InProcess(),
    )
    again = load_run(run)
    assert all(torch.equal(*pair) for pair in zip(whole.model.parameters(), again.model.parameters(), strict=True))


def test_a_run_that_does_not_write_is_loaded_and_says_so_where_text_is_asked_for(tiny, tmp_path, capsys):
    study = parse_study({**tiny, "variants": {"plain": {}}, "rules": {**tiny["rules"], "seeds": 1}})
    run_study(study, tmp_path, jobs=1, executor=InProcess())
    run = tmp_path / "plain" / "seed-0"
    trained = load_run(run)
    assert (trained.model.training, trained.task.name) == (False, "shapes")
    assert trained.task.data == build_task(tiny["task"]).describe()
    with torch.no_grad():
        measured = build_task(tiny["task"]).evaluate(lambda batch: trained.model(*batch.inputs), "test")
    assert measured["test_mse"] == pytest.approx(read_json(run / "result.json")["metrics"]["test_mse"])
    expected = "is a run of the task 'shapes'; models write in tasks with a codec: translation, char-lm, lm and parsing"
    with pytest.raises(RunError, match=expected):
        translate([trained], ["two dog"])
    assert call(["generate", str(run), "--prompt", "a"]) == WRONG_USE
    assert expected in " ".join(capsys.readouterr().err.split())


def test_a_run_of_an_older_version_that_does_not_say_what_its_tokens_mean(tmp_path):
    (tmp_path / "spec.json").write_text('{"task": {"name": "translation"}}', encoding="utf-8")
    with pytest.raises(RunError, match=r"no task.json in it\); an older attnlab made it: remove it and run its study"):
        load_run(tmp_path)


def test_the_command_translates(runs, capsys, monkeypatch, tmp_path):
    run = str(runs / "translation" / "it" / "seed-0")
    assert call(["translate", run, "two dog", "old cat"]) == FINE
    assert capsys.readouterr().out == "TWO DOG\nOLD CAT\n"
    (tmp_path / "text.en").write_text("two dog\n\nold cat\n", encoding="utf-8")
    assert call(["translate", run, "--file", str(tmp_path / "text.en"), "--beam", "1"]) == FINE
    assert capsys.readouterr().out == "TWO DOG\n\nOLD CAT\n"
    typed = io.TextIOWrapper(io.BytesIO(b"dog\n"))
    monkeypatch.setattr(sys, "stdin", typed)
    assert call(["translate", run]) == FINE
    assert capsys.readouterr() == ("DOG\n", "")
    typed = io.TextIOWrapper(io.BytesIO(b"cat\n"))
    typed.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", typed)
    assert call(["translate", run]) == FINE
    assert capsys.readouterr() == (
        "CAT\n",
        "attnlab: one sentence a line; what was read is translated at the end (Ctrl-D)\n",
    )
    (tmp_path / "text.en").write_text("two\u2028dog\n old cat", encoding="utf-8")
    assert call(["translate", run, "--file", str(tmp_path / "text.en")]) == FINE
    assert capsys.readouterr().out.count("\n") == 2, "only a line feed ends a line, as in a corpus"
    monkeypatch.setattr("attnlab.cli.trained.translate.AT_A_TIME", 2)
    (tmp_path / "text.en").write_text("dog\ncat\nman\n" + "dog " * 200, encoding="utf-8")
    assert call(["translate", run, "--file", str(tmp_path / "text.en")]) == WRONG_USE
    printed = capsys.readouterr()
    assert printed.out == "DOG\nCAT\nMAN\n", "what was done is printed"
    assert "sentence 4 has 200 tokens" in " ".join(printed.err.split())
    assert call(["translate", run, "dog", "--file", str(tmp_path / "text.en")]) == WRONG_USE
    assert "give sentences or --file, not both" in capsys.readouterr().err
    other = str(runs / "translation" / "it" / "seed-1")
    assert call(["translate", run, "dog", "--also", other, other]) == WRONG_USE
    assert "is a run and no sentence; write --also before every run" in " ".join(capsys.readouterr().err.split())
    assert call(["translate", run, str(tmp_path / "text.en")]) == WRONG_USE
    assert "is a file and no sentence; write --file before it" in " ".join(capsys.readouterr().err.split())
    assert call(["translate", run, "dog " * 200]) == WRONG_USE
    assert "sentence 1 has 200 tokens" in " ".join(capsys.readouterr().err.split()), "too long for a path as well"
    (tmp_path / "marked.en.gz").write_bytes(gzip.compress("\ufefftwo dog\n".encode()))
    assert call(["translate", run, "--file", str(tmp_path / "marked.en.gz")]) == FINE
    assert capsys.readouterr().out == "TWO DOG\n"
    (tmp_path / "text.en").write_bytes(b"two\n\xff\n")
    assert call(["translate", run, "--file", str(tmp_path / "text.en")]) == WRONG_USE
    assert "line 2: must be UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("too_long", ["refuse", "skip", "cut"])
def test_lines_that_are_too_long_cost_no_other_line(runs, capsys, monkeypatch, tmp_path, too_long):
    monkeypatch.setattr("attnlab.cli.trained.translate.AT_A_TIME", 3)
    path = tmp_path / "text.en"
    path.write_text("\n".join(["dog", "", "cat", "man", "dog " * 200, "cat", "dog"]), encoding="utf-8")
    run = str(runs / "translation" / "it" / "seed-0")
    status = call(["translate", run, "--file", str(path), "--too-long", too_long])
    out, err = capsys.readouterr()
    written = out.split("\n")[:-1]
    if too_long == "refuse":
        assert status == WRONG_USE
        assert written == ["DOG", "", "CAT", "MAN"]
        assert "sentence 5 has 200 tokens and this model reads at most 128" in " ".join(err.split())
        return
    assert status == FINE
    assert written[:4] + written[5:] == ["DOG", "", "CAT", "MAN", "CAT", "DOG"]
    assert (written[4] == "") == (too_long == "skip")
    what = {"skip": "left out: an empty line stands in its place", "cut": "read up to there"}[too_long]
    assert f"longer than the 128 tokens that this model reads, and {what}: sentence 5" in err


def test_the_command_shows_where_a_sentence_is_looked_at(runs, capsys, tmp_path):
    run, page = str(runs / "translation" / "it" / "seed-0"), tmp_path / "maps.html"
    other = str(runs / "translation" / "it" / "seed-1")
    assert call(["translate", run, "two dog", "", "cat", "--also", other, "--maps", str(page)]) == FINE
    assert capsys.readouterr().out == "TWO DOG\n\nCAT\n"
    written = page.read_text(encoding="utf-8")
    assert written.count('<article class="map">') == 4
    maps = [json.loads(one) for one in re.findall(r'<script type="application/json">(.*?)</script>', written)]
    assert maps[0]["labels"] == [[" two", " dog"], ["<begin>", " TWO", " DOG"]]
    sides = {"encoder.blocks.0.mixer": [0, 0], "decoder.blocks.0.mixer": [1, 1], "decoder.blocks.0.cross": [1, 0]}
    assert {layer["name"]: layer["axes"] for layer in maps[0]["layers"]} == sides
    for layer in maps[0]["layers"]:
        assert layer["shape"][1:] == [len(maps[0]["labels"][side]) for side in layer["axes"]]
    (tmp_path / "many.en").write_text("dog\n" * 21, encoding="utf-8")
    assert call(["translate", run, "--file", str(tmp_path / "many.en"), "--maps", str(page)]) == WRONG_USE
    assert "--maps takes at most 20 sentences; got more" in " ".join(capsys.readouterr().err.split())


def test_the_command_writes(runs, capsys):
    run = str(runs / "text" / "it" / "seed-0")
    assert call(["generate", run, "--prompt", "abc", "--length", "6", "--temperature", "0"]) == FINE
    assert capsys.readouterr().out == "abcde\nabc\n"
    assert call(["generate", run, "--temperature", "-1"]) == WRONG_USE
    assert "temperature must be a number of at least 0; got -1.0" in capsys.readouterr().err
    assert call(["generate", run, "--temperature", "nan"]) == WRONG_USE
    assert "temperature must be a number of at least 0; got nan" in capsys.readouterr().err
    assert call(["generate", run, "--seed", str(2**64)]) == WRONG_USE
    assert f"seed must lie in [0, {2**63 - 1}]; got {2**64}" in " ".join(capsys.readouterr().err.split())
    assert call(["generate", run, "--length", "2.7"]) == WRONG_USE
    assert "must be a whole number; got 2.7" in " ".join(capsys.readouterr().err.split())
    assert call(["generate", run, "--samples", "-1"]) == WRONG_USE
    assert "samples must be at least 1; got -1" in capsys.readouterr().err
    assert call(["generate", run, "--samples", "100000000000"]) == WRONG_USE
    assert "samples must be at most 10,000; got 100,000,000,000" in capsys.readouterr().err
    assert call(["generate", run, "--length", "99999999999999999999"]) == WRONG_USE
    assert "length must be at most 1,000,000; got 99,999,999,999,999,999,999" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
@pytest.mark.parametrize("command", ["translate", "score", "generate"])
def test_no_such_device(runs, command, capsys):
    run = str(runs / ("text" if command == "generate" else "translation") / "it" / "seed-0")
    assert call([command, run, "--device", "cuda"]) == WRONG_USE
    assert "torch finds no CUDA device here" in capsys.readouterr().err
    assert call([command, run, "--device", "gpu"]) == WRONG_USE
    assert 'Choose from: "cpu", "cuda"' in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("in_process")
def test_a_decoder_that_sees_the_token_it_predicts_raises_an_alarm(runs, tmp_path):
    forward = {"name": "convolution", "causal": False}
    study = {
        "question": "Does it cheat?",
        "task": {"name": "translation", "corpus": str(runs), "tokenizer": "words", "batch_tokens": 300},
        "model": {
            "name": "encoder-decoder",
            "d_model": 32,
            "n_layers": 1,
            "mixer": {"name": "attention", "n_heads": 2, "combiners": "convolution"},
        },
        "baseline": "honest",
        "variants": {
            "honest": {},
            "leaks": {"cross": {"name": "attention", "n_heads": 2, "combiners": forward}},
        },
        "rules": {"metric": "val_loss", "budget": {"steps": 2}, "seeds": 1, "smallest_effect": 0.1},
    }
    study = parse_study(study, name="cheats", path=tmp_path / "study.yaml")
    results = run_study(study, tmp_path / "out", jobs=1, executor=InProcess())
    alarms = {(alarm.check, alarm.variant): alarm.message for alarm in results.alarms}
    assert "up to 1 position ahead: it sees what it should predict" in alarms["causality", "leaks"]
    assert ("causality", "honest") not in alarms
    assert report(read_results(tmp_path / "out")) == report(results), "the folder alone says everything"


def test_a_notebook_shows_what_a_run_reached_and_how(runs):
    run = runs / "text" / "it" / "seed-0"
    html = load_run(run)._repr_html_()
    assert all(told in html for told in ("char-lm", "val_loss", "training loss over step"))
    away = (run / "metrics.jsonl").rename(run / "metrics.away")
    assert "metrics.jsonl is missing, and the curve of the run with it" in load_run(run)._repr_html_()
    away.rename(run / "metrics.jsonl")


def test_a_text_of_ones_own_is_scored_as_the_part_that_it_is(translator):
    part = score([translator], "test")
    pairs = held_out_pairs(translator.task.data, "test")
    own = OwnText([pair.source for pair in pairs], [[pair.target for pair in pairs]])
    found = score([translator], own=own, against=[translator])
    assert (found.translations, found.scores) == (part.translations, part.scores)
    assert [one.value for one in found.above[str(translator.folder)]] == [0.0, 0.0]
    chinese = score([translator], own=dataclasses.replace(own, language="zh"))
    assert "tok:zh" in chinese.scores[0].signature


@pytest.mark.parametrize(
    ("sources", "references", "said"),
    [
        ([], [[]], "there is no sentence to translate"),
        (["one", "two"], [], "a text is scored by references, of which there are none"),
        (["one", "two"], [["eins"]], "there are 2 sentences and 1 references: one for each"),
    ],
)
def test_a_text_without_what_it_is_scored_by_is_an_error(translator, sources, references, said):
    with pytest.raises(DataError, match=said):
        score([translator], own=OwnText(sources, references))


@pytest.mark.parametrize("language", ["", "German", "de!"])
def test_a_language_is_given_by_its_code(translator, language):
    with pytest.raises(SpecError, match=r"a language is given by its code, such as de or zh-TW; got '"):
        score([translator], own=OwnText(["one"], [["eins"]], language))


def test_a_text_of_ones_own_is_judged_in_one_case(translator):
    codec = translator.task.codec
    lower = SimpleNamespace(lowercase=True, encode=codec.tokenizer.encode, decode=codec.tokenizer.decode)
    other = dataclasses.replace(
        translator, task=dataclasses.replace(translator.task, kept=dataclasses.replace(codec, tokenizer=lower))
    )
    with pytest.raises(RunError, match=r"translates other sentences than .*, or in another case"):
        score([translator], own=OwnText(["dog"], [["hund"]]), against=[other])
