"""Checkpoints of transformers at work in the lab: they write what they write there, and all instruments read them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML
from tests.models.checkpoints import HEADS, LAYERS, LENGTH, VOCAB, WORDS, bert, gpt2, llama, marian, saved, t5

import attnlab
from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.errors import DataError, RunError, SpecError
from attnlab.inspection import ablate
from attnlab.models.from_checkpoint import open_once
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.define.study import parse_study
from attnlab.studies.run.executor import InProcess
from attnlab.studies.using.measured import measured_checkpoint
from attnlab.studies.using.parts import held_out
from attnlab.studies.using.trained import generate, load_run, translate, write
from attnlab.studies.using.translating import Search
from attnlab.viewer import server
from attnlab.viewer.inside import measuring
from attnlab.viewer.inside.own import own_in_view

transformers = pytest.importorskip("transformers")

PROMPT = "a man reads on"
SENTENCES = ["a man reads the news", "trees", "old trees and the blue man sleeps under trees"]


@pytest.fixture(autouse=True)
def _forgotten():
    open_once.cache_clear()


@pytest.mark.parametrize("made", [gpt2(), llama()], ids=str)
def test_the_likeliest_text_is_the_one_that_transformers_writes(made, tmp_path):
    theirs = saved(tmp_path, made)
    trained = attnlab.load_pretrained(tmp_path)
    read = torch.tensor([trained.task.codec.encode(PROMPT)])
    written = theirs.generate(read, max_new_tokens=11, do_sample=False, pad_token_id=0)[0]
    assert generate(trained, PROMPT, length=11, temperature=0.0) == [trained.task.codec.decode(written.tolist())]
    assert len(written) > read.shape[1] + 2


@pytest.mark.filterwarnings("ignore:.*came to no end")
@pytest.mark.parametrize("made", [t5(), t5(feed_forward_proj="gated-gelu"), marian(scale_embedding=True)], ids=str)
def test_the_likeliest_translation_is_the_one_that_transformers_writes(made, tmp_path):
    theirs = saved(tmp_path, made)
    trained = attnlab.load_pretrained(tmp_path)
    codec = trained.task.codec
    found = write([trained], SENTENCES, Search(beam=1))
    for sentence, translation in zip(SENTENCES, found, strict=True):
        read = torch.tensor([codec.encode([sentence])[0]])
        longest = min(codec.max_length, 2 * read.shape[1] + 10)
        written = theirs.generate(read, max_new_tokens=longest, do_sample=False, num_beams=1, forced_eos_token_id=None)
        tokens = written[0, 1:].tolist()
        tokens = tokens[: tokens.index(codec.marks.end)] if codec.marks.end in tokens else tokens
        assert list(translation.tokens) == tokens
        assert translation.text == codec.tokenizer.decode([tokens])[0]
    assert max(len(one.tokens) for one in found) > 3


@pytest.mark.filterwarnings("ignore:.*came to no end")
def test_banned_tokens_are_never_written(tmp_path):
    saved(tmp_path, marian())
    first = translate([attnlab.load_pretrained(tmp_path)], SENTENCES[:1], beam=1)[0].split()
    known = {word: number for number, word in enumerate(["</s>", "<s>", *WORDS])}
    path = tmp_path / "generation_config.json"
    banned = [[known[word]] for word in set(first)]
    path.write_text(json.dumps({**json.loads(path.read_text()), "bad_words_ids": banned}))
    again = translate([attnlab.load_pretrained(tmp_path)], SENTENCES[:1], beam=1)[0].split()
    assert first
    assert not set(first) & set(again)
    with pytest.raises(SpecError, match="this run's know any word"):
        translate([attnlab.load_pretrained(tmp_path)], SENTENCES[:1], replace_unknown=True)


@pytest.fixture
def writer(tmp_path):
    saved(tmp_path, gpt2())
    return attnlab.load_pretrained(tmp_path)


def test_attention_is_captured_switched_off_and_measured(writer):
    tokens = torch.tensor([writer.task.codec.encode(" ".join(SENTENCES))])
    with attnlab.capture(writer.model) as seen:
        plain = writer.model(tokens)
    assert len(seen) == LAYERS
    with ablate(writer.model, "stack.blocks.1.mixer:0"):
        assert not torch.allclose(writer.model(tokens), plain)
    assert attnlab.reach(writer.model, (tokens,)).future == 0
    assert attnlab.cost(writer.model, (tokens,)).flops_per_token > 0


def test_a_notebook_shows_it(writer):
    assert "Decoder" in writer._repr_html_()


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "pretrained.md").read_text(encoding="utf-8")
    saved(tmp_path / "gpt2", gpt2(n_positions=600))
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)), {})
    assert capsys.readouterr().out.startswith("a man reads")
    (yaml,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    study = parse_study(YAML(typ="safe").load(yaml), name="page", path=tmp_path / "page.yaml")
    (tmp_path / "mine.txt").write_text("a man reads the news on a train\n" * 2000, encoding="utf-8")
    task = build_task(study.task)
    for name in study.variants:
        logits = build_model(study.model_spec(name), task)(*task.train_batch(0, 0).inputs)
        assert logits.shape[-1] == task.model_arguments()["vocab_size"]


def test_what_a_model_of_another_kind_cannot_do(tmp_path):
    saved(tmp_path, bert())
    reader = attnlab.load_pretrained(tmp_path)
    assert len(reader.task.codec.encode(PROMPT)) == 4
    with pytest.raises(RunError, match="is no language model: its task is 'pretrained'"):
        generate(reader, PROMPT, length=3)
    with pytest.raises(RunError, match="is no translation run: its task is 'pretrained'"):
        translate([reader], [PROMPT])


def test_without_a_tokenizer_the_model_is_there_and_texts_are_refused(tmp_path):
    saved(tmp_path, gpt2())
    (tmp_path / "tokenizer.json").unlink()
    trained = attnlab.load_pretrained(tmp_path)
    assert trained.model(torch.tensor([[1, 2, 3]])).shape == (1, 3, VOCAB)
    with pytest.raises(DataError, match=r"has no tokenizer\.json, so texts cannot be read"):
        generate(trained, PROMPT, length=3)


@pytest.mark.filterwarnings("ignore:.*came to no end")
def test_commands_take_checkpoints_in_place_of_runs(tmp_path, capsys):
    saved(tmp_path / "gpt2", gpt2())
    saved(tmp_path / "marian", marian())
    writer, translator = (attnlab.load_pretrained(tmp_path / name) for name in ("gpt2", "marian"))
    likeliest = generate(writer, PROMPT, length=5, temperature=0.0)
    asked = ["--prompt", PROMPT, "--length", "5", "--temperature", "0"]
    assert call(["generate", str(tmp_path / "gpt2"), *asked]) == FINE
    assert capsys.readouterr().out.splitlines() == likeliest
    assert call(["translate", str(tmp_path / "marian"), *SENTENCES[:2]]) == FINE
    assert capsys.readouterr().out.splitlines() == translate([translator], SENTENCES[:2])
    right = _lines(tmp_path / "right.txt", translate([translator], SENTENCES))
    own = ["--file", str(_lines(tmp_path / "own.txt", SENTENCES)), "--reference", str(right), "--language", "de"]
    assert call(["score", str(tmp_path / "marian"), *own]) == FINE
    assert "BLEU            100.00" in capsys.readouterr().out
    assert call(["export", str(tmp_path / "gpt2"), "--to", "torch-export", "--out", str(tmp_path / "out")]) == FINE
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# gpt2\n")
    assert "parameters, read from a checkpoint by attnlab" in card
    tokens = torch.tensor([[3, 4, 5], [6, 7, 8]])
    exported = torch.export.load(tmp_path / "out" / "model.pt2").module()
    torch.testing.assert_close(exported(tokens), writer.model(tokens))


def test_commands_take_the_name_of_a_model_in_the_cache(tmp_path, monkeypatch, capsys):
    kept = tmp_path / "models--someone--tiny"
    saved(kept / "snapshots" / "abc", gpt2())
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    asked = ["--prompt", PROMPT, "--length", "5", "--temperature", "0"]
    assert call(["generate", "someone/tiny", *asked]) == FINE
    by_name = capsys.readouterr().out
    assert call(["generate", str(kept / "snapshots" / "abc"), *asked]) == FINE
    assert capsys.readouterr().out == by_name


def _lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["generate", "CHECKPOINT", "--weights", "best"], "--weights best is of a run;"),
        (["score", "CHECKPOINT"], "has no held-out part: give a text and references"),
        (["score", "CHECKPOINT", "--file", "own.txt"], "needs both --file and --reference, and no --part"),
        (["score", "CHECKPOINT", "--language", "de"], "--language is of a text of your own: give it with --file and"),
        (
            ["score", "CHECKPOINT", "--file", "own.txt", "--reference", "own.txt"],
            "does not say into which language it translates: give it, such as de",
        ),
    ],
)
def test_what_commands_cannot_do_with_a_checkpoint(tmp_path, monkeypatch, capsys, asked, said):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "tiny", marian())
    _lines(tmp_path / "own.txt", SENTENCES)
    assert call([str(tmp_path / "tiny") if one == "CHECKPOINT" else one for one in asked]) == WRONG_USE
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_prompt_without_tokens_and_weights_of_another_kind_are_said(tmp_path, capsys):
    saved(tmp_path, gpt2())
    assert call(["generate", str(tmp_path)]) == WRONG_USE  # a line break, which the tokenizer of words passes over
    assert "gives no token for the prompt '\\n'; give another one" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert call(["generate", str(tmp_path), "--prompt", PROMPT]) == WRONG_USE
    assert "has a config.json and no weights beside it: save them as safetensors" in " ".join(
        capsys.readouterr().err.split()
    )


def _text(path, words):
    generator = torch.Generator().manual_seed(3)
    places = torch.randint(len(WORDS), (words,), generator=generator).tolist()
    path.write_text(" ".join(WORDS[place] for place in places), encoding="utf-8")
    return path


def test_heads_of_a_checkpoint_are_measured_on_a_text(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measuring, "POSITIONS", 300)
    made, text = saved(tmp_path / "tiny", gpt2()), _text(tmp_path / "text.txt", 400)
    assert call(["heads", str(tmp_path / "tiny"), "--text", str(text), "--tokens", "300", "--json"]) == FINE
    (found,) = json.loads(capsys.readouterr().out)
    worths = {row["place"]: row["worths"] for row in found["parts"] if row["kind"] == "head"}
    assert len(worths) == LAYERS * HEADS
    subject = measured_checkpoint(tmp_path / "tiny", text)
    tokens = torch.tensor(attnlab.load_pretrained(tmp_path / "tiny").task.codec.encode(text.read_text()))
    with torch.no_grad():
        log_probabilities = made(tokens[None, :LENGTH]).logits[..., : subject.task.vocab_size].log_softmax(-1)
    alone = -log_probabilities[0, range(LENGTH), tokens[1 : LENGTH + 1]].mean().item()
    batch = held_out(subject.model, subject.task, "validation", 1)[0].rows(0, 1)
    with torch.no_grad():
        assert subject.task.loss(subject.model(*batch.inputs), batch).item() == pytest.approx(alone, rel=1e-4)
    untrained = build_model(subject.untrained, subject.task)
    assert not torch.equal(untrained.logits.weight, subject.model.logits.weight)

    target = str(tmp_path / "tiny")
    shown = []
    monkeypatch.setattr(server, "serve", lambda own, **_: shown.append(own))
    assert call(["view", target, "--text", str(text), "--no-open"]) == FINE
    view, begin = own_in_view(shown[0])
    assert begin["measures"]
    assert (view.heads()["heads"], view.heads()["data"]) == (list(worths), "text.txt")
    place = next(iter(worths))
    assert view.worth(place, "zero")["worth"] == pytest.approx(worths[place][0], abs=1e-5)


def test_what_checkpoints_are_not_measured_on_a_text(tmp_path, capsys):
    text = str(_text(tmp_path / "text.txt", 400))
    for name, one in (("writer", t5()), ("reader", gpt2())):
        saved(tmp_path / name, one)
    (tmp_path / "reader" / "tokenizer.json").unlink()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "spec.json").write_text("{}")
    for words, said in (
        (["heads", str(tmp_path / "writer"), "--text", text], "does not continue texts as a GPT-2 or a Llama does"),
        (["view", str(tmp_path / "writer"), "--text", str(tmp_path / "nope.txt")], "--text: no file "),
        (["heads", str(tmp_path / "run"), "--text", text], "run is a run or study of attnlab: leave it out"),
        (["view", str(tmp_path / "writer"), "--text", text], "does not continue texts as a GPT-2 or a Llama does"),
        (["heads", str(tmp_path / "reader"), "--text", text], "has no tokenizer.json, so that it reads no text"),
        (["heads", str(tmp_path / "writer")], "is a checkpoint, no run; --text FILE says what its heads are measured"),
        (["heads", str(tmp_path), "--text", text], "has no config.json"),
    ):
        assert call(words) == WRONG_USE
        assert said in " ".join(capsys.readouterr().err.split())


def test_no_such_device(tmp_path):
    saved(tmp_path, gpt2())
    with pytest.raises(SpecError, match="device"):
        attnlab.load_pretrained(tmp_path, device="nowhere")


def test_a_study_trains_variants_of_a_pretrained_model(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    saved(tmp_path / "tiny", gpt2())
    _text(tmp_path / "text.txt", 900)
    study = parse_study(
        {
            "question": "What is pretrained attention worth?",
            "task": {
                "name": "lm",
                "text": str(tmp_path / "text.txt"),
                "tokenizer": str(tmp_path / "tiny"),
                "context": LENGTH - 2,
                "batch": 4,
            },
            "model": {"name": "pretrained", "folder": str(tmp_path / "tiny")},
            "baseline": "kept",
            "variants": {
                "kept": {},
                "anew": {"mixers": "fresh"},
                "sigmoid": {"mixer": {"normalizers": "sigmoid"}},
                "lstm": {"mixer": "lstm"},
            },
            "rules": {"metric": "val_loss", "budget": {"steps": 2}, "seeds": 1, "smallest_effect": 0.1},
            "training": {"lr": 1e-3},
        },
        name="tuned",
        path=tmp_path / "tuned.yaml",
    )
    attnlab.run_study(study, tmp_path / "runs", jobs=1, executor=InProcess())
    models = {name: load_run(tmp_path / "runs" / name / "seed-0").model for name in ("kept", "anew", "sigmoid", "lstm")}
    start = attnlab.load_pretrained(tmp_path / "tiny").model.state_dict()
    name = "stack.blocks.0.mixer.combiner.to_residual.weight"
    near = {
        one: (models[one].state_dict()[name] - start[name]).abs().max() < 0.02 for one in ("kept", "anew", "sigmoid")
    }
    assert near == {"kept": True, "anew": False, "sigmoid": True}
    assert not torch.equal(models["kept"].state_dict()[name], start[name])
    assert type(models["lstm"].stack.blocks[0].mixer).__name__ == "LstmMixer"
