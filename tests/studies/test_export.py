"""Trained models leave the lab: what is read from the files computes and writes what the model does."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.models.checkpoints import gpt2, llama, saved

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import read_json, write_json
from attnlab.models.from_checkpoint import pretrained
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.exporting.export import TARGETS, export
from attnlab.studies.judge.collect import read_results
from attnlab.studies.run.executor import InProcess
from attnlab.studies.using.kept_task import keep_task
from attnlab.studies.using.trained import generate, load_run, translate
from attnlab.training.keeping.checkpoints import save_checkpoint, weights_of

WORDS = ["dog", "cat", "man", "runs", "sits", "green", "old", "two"]
ATTENTION = {"name": "attention", "n_heads": 4}
SMALL = {"d_model": 24, "n_layers": 2, "dropout": 0.0, "mixer": ATTENTION}
WINDOW = {"name": "window", "width": 3}
ODD = {"name": "attention", "n_heads": 2, "scores": "additive", "combiners": "talking-heads"}
GROUPED = {**ATTENTION, "heads": {"name": "grouped", "n_kv_heads": 2}}
LLAMA = {"norm_kind": "rms", "feedforward": "gated", "positions": "rotary"}
PLAIN = {"heads": {"name": "split", "bias": False}, "combiners": {"name": "project", "bias": False}}
DECODERS = {
    "gpt2": {"feedforward": "gelu"},
    "gpt2 untied": {"feedforward": "gelu-tanh", "tied": False, "logits_bias": False, "mixer": {**ATTENTION, **PLAIN}},
    "llama": {**LLAMA, "mixer": GROUPED},
    "llama untied": {**LLAMA, "tied": False, "logits_bias": False, "mixer": {**ATTENTION, **PLAIN}},
}
OWN = """
import torch
from torch import nn


class Own(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, 2, batch_first=True)

    def forward(self, x, mask=None):
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
"""
TRANSLATORS = {"marian": {}, "marian apart": {"embeddings": "separate", "tied": False}, "marian relu": {"n_layers": 1}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with texts, for tasks and runs."""
    folder = tmp_path_factory.mktemp("exports")
    patch = pytest.MonkeyPatch()
    patch.setenv("ATTNLAB_CACHE", str(folder / "cache"))
    sentences = [f"{one} {two} {three}" for one in WORDS for two in WORDS for three in WORDS[::3]]
    for part, some in (("train", sentences), ("val", sentences[::7]), ("exam", sentences[::9])):
        (folder / f"{part}.en").write_text("\n".join(some) + "\n", encoding="utf-8")
        (folder / f"{part}.de").write_text("\n".join(some).upper() + "\n", encoding="utf-8")
    (folder / "own.py").write_text(OWN)
    (folder / "abc.txt").write_text("abc *de*\r\nf" * 500, encoding="utf-8")
    yield folder
    patch.undo()


@pytest.fixture
def run_of(folder):
    """Return a function that makes a run with random weights, as training leaves it."""

    def make(name: str, model: dict, task: dict) -> Path:
        run = folder / "runs" / name / "seed-0"
        if not run.exists():
            built = build_task(task)
            keep_task(run, built)
            run.mkdir(parents=True, exist_ok=True)
            write_json(run / "spec.json", {"task": task, "model": model, "recipe": {"lr": 1e-3}})
            torch.manual_seed(3)
            new = build_model(model, built)
            with torch.no_grad():
                for parameter in new.parameters():
                    parameter.add_(0.2 * torch.randn_like(parameter))
            save_checkpoint(run / "last", weights_of(new), {"step": 7})
        return run

    return make


@pytest.fixture
def text_run(folder, run_of):
    task = {"name": "char-lm", "text": str(folder / "abc.txt"), "context": 24, "batch": 4}
    plain = {"name": "decoder", **SMALL}
    return lambda name, changes, own=True: run_of(name, {**(plain if own else {}), **changes}, task)


@pytest.fixture
def translation_run(folder, run_of):
    task = {"name": "translation", "corpus": str(folder), "tokenizer": "words", "test": "exam", "max_length": 30}
    model = {"name": "encoder-decoder", **SMALL}
    return lambda name, changes: run_of(name, {**model, **changes}, task)


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_is_the_same_in_transformers(name, text_run, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = load_run(text_run(name, DECODERS[name]))
    out = export(run, to="huggingface", out=tmp_path / "out").folder
    theirs, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert type(theirs).__name__.lower().startswith(name.split()[0])
    inputs = tokenizer("abc *d", return_tensors="pt")
    assert inputs["input_ids"][0].tolist() == run.task.codec.encode("abc *d")
    tokens = torch.randint(run.task.model_arguments["vocab_size"], (3, 11))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, run.model(tokens), rtol=0, atol=1e-5)
        torch.testing.assert_close(pretrained(str(out)).eval()(tokens), run.model(tokens), rtol=0, atol=1e-5)
    written = tokenizer.decode(theirs.generate(**inputs, max_new_tokens=13)[0])
    assert written == generate(run, "abc *d", length=13, temperature=0.0)[0]


@pytest.mark.parametrize(
    ("made", "field"), [(gpt2(n_positions=40), "n_positions"), (llama(), "max_position_embeddings")], ids=str
)
def test_a_checkpoint_tuned_on_shorter_texts_keeps_its_length(made, field, text_run, tmp_path):
    from transformers import AutoModelForCausalLM

    saved(tmp_path / "begun", made)
    changes = {"name": "pretrained", "folder": str(tmp_path / "begun"), "embeddings": "fresh"}
    run = load_run(text_run(f"tuned {field}", changes, own=False))
    out = export(run, to="huggingface", out=tmp_path / "out").folder
    assert read_json(out / "config.json")[field] == made[1][field] > run.task.model_arguments["max_length"]
    tokens = torch.randint(run.task.model_arguments["vocab_size"], (2, made[1][field]))
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(out)(tokens).logits
        torch.testing.assert_close(theirs, run.model(tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_translator_is_the_same_in_transformers(name, translation_run, tmp_path):
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    run = load_run(translation_run(name, TRANSLATORS[name]))
    out = export(run, to="huggingface", out=tmp_path / "out").folder
    theirs, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    sentences = ["two dog runs", "cat", "old man sits green cat two"]
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    target = torch.randint(3, run.task.model_arguments["target_vocab_size"], (3, 7))
    with torch.no_grad():
        expected = run.model(inputs["input_ids"], target)
        torch.testing.assert_close(theirs(**inputs, decoder_input_ids=target).logits, expected, rtol=0, atol=1e-5)
        again = pretrained(str(out)).eval()(inputs["input_ids"], target)
        torch.testing.assert_close(again, expected, rtol=0, atol=1e-5)
    for beam in (1, 3):
        for number, sentence in enumerate(sentences):
            longest = 2 * int(inputs["attention_mask"][number].sum()) + 10  # as the lab ends what does not end
            alone = tokenizer(sentence, return_tensors="pt")
            found = theirs.generate(**alone, num_beams=beam, length_penalty=0.0, max_new_tokens=longest)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what came to no end
                ours = translate([run], [sentence], beam=beam, alpha=0.0)
            assert tokenizer.decode(found[0], skip_special_tokens=True) == ours[0]


@pytest.mark.parametrize("name", ["gpt2", "llama", "odd", "own"])
def test_a_program_takes_any_length(name, folder, text_run, tmp_path):
    known = {"odd": {"mixer": ODD}, "own": {"mixer": f"{folder}/own.py:Own"}, **DECODERS}
    run = load_run(text_run(f"one {name}", known[name] | {"n_layers": 1}))
    exported = export(run, to="torch-export", out=tmp_path / "out")
    assert len(exported.differences) == 2
    program = torch.export.load(exported.folder / "model.pt2").module()
    for batch, length in ((1, 1), (2, 24), (5, 6)):
        tokens = torch.randint(run.task.model_arguments["vocab_size"], (batch, length))
        with torch.no_grad():
            torch.testing.assert_close(program(tokens), run.model(tokens), rtol=1e-5, atol=1e-5)


def test_onnx_takes_any_length_and_an_empty_source(translation_run, tmp_path, capsys):
    import onnxruntime

    folder = translation_run("marian relu", {"n_layers": 1})
    assert call(["export", str(folder), "--to", "onnx", "--out", str(tmp_path / "out")]) == FINE
    said = capsys.readouterr().out
    assert "batch 3, length 13 and 4: largest difference from the model" in said
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    run = load_run(folder)
    source, target = torch.randint(3, 9, (2, 6)), torch.randint(3, 9, (2, 8))
    source[1] = run.model.pad  # may attend to nothing
    with torch.no_grad():
        expected = run.model(source, target)
    got = session.run(None, {"source": source.numpy(), "target": target.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("to", TARGETS)
def test_the_code_of_the_card_runs(to, text_run, tmp_path, monkeypatch):
    out = export(load_run(text_run("small", {"n_layers": 1})), to=to, out=tmp_path / "out").folder
    text = (out / "README.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    monkeypatch.chdir(out)
    exec(compile(code, str(out / "README.md"), "exec"), {})
    assert "abc.txt" in text
    assert str(tmp_path.parent) not in text


def test_parts_without_a_home_are_named(text_run, translation_run, tmp_path):
    out = tmp_path / "out"
    cases = [
        (
            text_run("sparse", {"mixer": {**ATTENTION, "normalizers": "sparsemax"}}),
            "normalizer is Sparsemax, there Softmax",
        ),
        (
            text_run("window", {"mixer": {**ATTENTION, "masks": {"name": "window", "width": 3}}}),
            "has mask .*Window.*there",
        ),
        (text_run("bias", {"tied": False}), r"logits\.bias is learned"),
        (text_run("mixed", {**LLAMA, "positions": "learned"}), "positions is LearnedPositions, there Unmarked"),
        (text_run("linear", {"mixer": "linear-attention"}), "LinearAttention in the first block has no home"),
        (text_run("literal", {"block": "literal"}), "LiteralBlock in the first block has no home"),
        (translation_run("pre", {"norm": "pre"}), "around_mixer.before is LayerNorm, there Identity"),
    ]
    for run, words in cases:
        with pytest.raises(SpecError, match=words):
            export(load_run(run), to="huggingface", out=out)
        assert not out.exists()


@pytest.mark.parametrize(
    ("mixer", "words"), [("lstm", "LSTM .* torch records as many steps"), ("fastformer", "Fastformer .*doubles a span")]
)
def test_parts_without_a_program_are_named(mixer, words, text_run, tmp_path):
    with pytest.raises(SpecError, match=words):
        export(load_run(text_run(mixer, {"mixer": mixer})), to="torch-export", out=tmp_path / "out")


def test_wrong_use_is_one_sentence(text_run, run_of, tmp_path, monkeypatch, capsys):
    folder = text_run("gpt2", {})
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine", encoding="utf-8")
    run = load_run(folder)
    with pytest.raises(SpecError, match=r"target.*'onx'.*did you mean 'onnx'"):
        export(run, to="onx", out=tmp_path / "out")
    with pytest.raises(RunError, match="full is there already and not an empty folder; choose another with --out"):
        export(run, to="onnx", out=full)
    assert [one.name for one in full.iterdir()] == ["mine.txt"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        SpecError, match=r"onnx, onnxscript, onnxruntime must be installed: pip install 'attnlab\[export\]'"
    ):
        export(run, to="onnx", out=tmp_path / "out")
    monkeypatch.undo()
    assert call(["export", str(tmp_path), "--to", "onnx", "--out", str(tmp_path / "out")]) == WRONG_USE
    assert "is no run" in capsys.readouterr().err
    shapes = run_of(
        "shapes", {"name": "cnn", "channels": 6}, {"name": "shapes", "n_train": 20, "n_test": 11, "batch": 5}
    )
    with pytest.raises(SpecError, match="task 'shapes', whose models transformers has no class for"):
        export(load_run(shapes), to="huggingface", out=tmp_path / "out")
    assert export(load_run(shapes), to="torch-export", out=tmp_path / "out").differences


def test_weights_of_a_run_load_by_hand(text_run, translation_run):
    for folder in (text_run("gpt2", {}), translation_run("marian", {})):
        run = load_run(folder)
        model = load_run(folder).model
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        model.load_state_dict(load_file(folder / "last" / "model.safetensors"))
        for name, tensor in run.model.state_dict().items():
            assert torch.equal(model.state_dict()[name], tensor)


def test_the_card_tells_the_verdicts_and_the_rules(tiny, tmp_path):
    tiny["question"] = "Is *it* better?"
    study = parse_study(tiny, name="tiny", path=tmp_path / "tiny.yaml")
    run_study(study, tmp_path / "tiny", jobs=1, executor=InProcess())
    run = load_run(tmp_path / "tiny" / "with-attention" / "seed-1")
    text = (export(run, to="torch-export", out=tmp_path / "out").folder / "README.md").read_text(encoding="utf-8")
    verdict = read_results(tmp_path / "tiny").verdicts[0].verdict
    assert re.search(rf"\| with attention \| {verdict} \| \S+ \| \S+ to \S+ \|", text), text
    assert r"**Is \*it\* better?**" in text
    assert read_json(tmp_path / "tiny" / "rules.json")["hash"] in text
    assert "# tiny: with-attention, seed-1" in text
    assert f"| torch | {torch.__version__} |" in text
