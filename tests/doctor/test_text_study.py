"""A module and a text give a study that `attnlab run` takes: each kind of module in its place."""

from __future__ import annotations

import json
import textwrap

import pytest
from torch import nn

from attnlab import doctor
from attnlab.cli import call
from attnlab.core.errors import DataError, SpecError
from attnlab.studies.define.study import load_study
from attnlab.studies.plan.plan import plan_study

MINE = textwrap.dedent(
    """
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, emb_size, hidden=8):
            super().__init__()
            self.qkv, self.out = nn.Linear(emb_size, 3 * hidden), nn.Linear(hidden, emb_size)

        def forward(self, x, mask=None):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = q @ k.transpose(1, 2) * k.size(-1) ** -0.5
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            return self.out(scores.softmax(-1) @ v)

    class Block(nn.Module):
        def __init__(self, d_model):
            super().__init__()
            self.norm, self.layer = nn.LayerNorm(d_model), Layer(d_model)
            self.wide, self.narrow = nn.Linear(d_model, 2 * d_model), nn.Linear(2 * d_model, d_model)

        def forward(self, x):
            mask = torch.ones(x.size(1), x.size(1), device=x.device).tril().bool()
            x = x + self.layer(self.norm(x), mask)
            return x + self.narrow(self.wide(x).relu())

    class Model(nn.Module):
        def __init__(self, vocab_size, d_model=16):
            super().__init__()
            self.embed, self.block = nn.Embedding(vocab_size, d_model), Block(d_model)
            self.head = nn.Linear(d_model, vocab_size)

        def forward(self, tokens):
            return self.head(self.block(self.embed(tokens)))

    class Pooled(nn.Module):
        def __init__(self, d_model):
            super().__init__()
            self.layer = Layer(d_model)

        def forward(self, x):
            return self.layer(x).mean(1)
    """
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "some.txt").write_text("to be, or not to be, that is the question. " * 100)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["Layer", "Block", "Model"])
def test_command_writes_a_study_that_can_be_planned(folder, name, capfd):
    assert call(["doctor", f"mine.py:{name}", "--causal", "--text", "some.txt"]) in (0, 1)
    assert f"attnlab run {name}-on-some.yaml" in " ".join(capfd.readouterr().err.split())
    study = load_study(folder / f"{name}-on-some.yaml")
    assert list(study.content["variants"]) == ["no attention", "the lab's attention", name]
    plan_study(study)


def test_block_stands_for_itself_and_a_model_is_no_mixer(folder):
    studies = {name: _study(name) for name in ("Layer", "Block", "Model")}
    variants = {name: study["variants"][name] for name, study in studies.items()}
    assert variants["Layer"]["mixer"]["emb_size"] == studies["Layer"]["model"]["d_model"]
    assert "norm" not in variants["Layer"]
    assert (variants["Block"]["norm"], variants["Block"]["residual"]) == ("none", False)
    assert variants["Model"]["name"].endswith("mine.py:Model")
    assert "vocab_size" not in variants["Model"]


def _study(name):
    return doctor(f"mine.py:{name}", causal=True, text="some.txt").study


def test_study_of_another_text_is_not_written_over(folder, capfd):
    (folder / "Layer-on-some.yaml").write_text("mine\n")
    assert call(["doctor", "mine.py:Layer", "--causal", "--text", "some.txt"]) == 2
    assert "holds another study" in capfd.readouterr().err
    assert (folder / "Layer-on-some.yaml").read_text() == "mine\n"


def test_diagnosis_as_json_holds_the_study(folder, capfd):
    call(["doctor", "mine.py:Layer", "--causal", "--text", "some.txt", "--json"])
    assert json.loads(capfd.readouterr().out)["study"]["task"]["name"] == "char-lm"


def test_what_no_study_can_train_is_refused(folder):
    with pytest.raises(SpecError, match=r"FILE.py:Name; got MultiheadAttention"):
        doctor(nn.MultiheadAttention(16, 2, batch_first=True), text="some.txt")
    with pytest.raises(SpecError, match="one output for all positions"):
        doctor("mine.py:Pooled", text="some.txt")
    with pytest.raises(DataError, match="no file"):
        doctor("mine.py:Layer", text="nowhere.txt")
