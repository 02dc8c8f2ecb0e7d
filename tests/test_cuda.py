"""What runs on a CPU runs on a CUDA device, to the same numbers; `make test-gpu` runs this where there is one."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from attnlab.cli import FINE, call
from attnlab.core.errors import Interrupted
from attnlab.doctor import doctor
from attnlab.inspection import ablate, capture, reach
from attnlab.models import Decoder
from attnlab.studies import load_run
from attnlab.training import on_devices, read_result, train
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.together.together import train_together
from tests.models.parsers.test_parsers import SMALL as SMALL_PARSERS
from tests.models.test_contract import SMALL, TRANSLATING
from tests.studies.test_parsers import grown
from tests.training.on_ranks import trained
from tests.training.test_together_parts import CASES, RUNS, STEPS, Case, Sequences
from tests.training.tiny import TinyTask, recipe, tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

DRAWS_NOISE = {"feedforward noisy-mixture-of-experts"}
"""Parts that draw in training what no setting turns off; a device has its own random numbers."""
DROPS_BY_ITSELF = {"model rnn-multiplicative", "model rnng"}
"""LSTMs with dropout between layers, for which cuDNN has a generator of its own."""
FLOAT32, BF16 = {"precision": "float32", "compile": False}, {"precision": "bf16", "compile": False}
SENTENCES = ["a dog runs", "two green men sit on an old dog", "the cat sits", "a man", "green dogs and an old cat run"]


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        for name in ("dropout", "p"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def recipes() -> list[Recipe]:
    return [Recipe.parse({"budget": {"steps": STEPS}, **fields, **FLOAT32}) for fields in RUNS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_every_part_gives_the_numbers_of_the_cpu(case: Case):
    losses = []
    for device in ("cpu", "cuda"):
        model = without_dropout(case.make(0))
        result = train(model, Sequences(case.model), recipes()[0], device=device)
        assert all(parameter.device.type == device for parameter in model.parameters())
        losses.append((result.train_loss, result.metrics["val_loss"]))
    near = 0.2 if case.title in DRAWS_NOISE else 1e-6
    assert losses[1] == pytest.approx(losses[0], rel=near)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_runs_together_are_those_one_by_one(case: Case):
    task, count = Sequences(case.model), len(RUNS)
    expected = [train(case.make(seed), task, recipe, seed=seed, device="cuda") for seed, recipe in enumerate(recipes())]
    members = [case.make(seed) for seed in range(count)]
    found = train_together(members, task, recipes(), seeds=range(count), device="cuda")
    near = 0.05 if case.title in DROPS_BY_ITSELF else 1e-7
    for want, got in zip(expected, found, strict=True):
        assert got.train_loss == pytest.approx(want.train_loss, rel=near), got.together_note
        assert got.metrics["val_loss"] == pytest.approx(want.metrics["val_loss"], rel=near), got.together_note


@pytest.mark.parametrize("how", [BF16, {"precision": "float32", "compile": True}, {}], ids=["bf16", "compiled", "auto"])
def test_other_precision_and_compiled_steps_learn_the_same(how):
    losses = []
    for setting in (FLOAT32, how):
        model = without_dropout(Case("", model="decoder").make(0)).float()
        asked = Recipe.parse({"budget": {"steps": 30}, "lr": 1e-2, **setting})
        losses.append(train(model, Sequences("decoder"), asked, device="cuda").train_loss)
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


class CutOff(TinyTask):
    """A task that a person interrupts."""

    def train_batch(self, step, seed):
        if step == 11:
            raise KeyboardInterrupt
        return super().train_batch(step, seed)


def test_a_run_that_was_cut_off_goes_on_to_the_same_numbers(tmp_path):
    fields = {"checkpoint_every": 4, "average": {"last": 0.7, "points": 6}}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(tiny_model(), TinyTask(), recipe(**fields), seed=3, folder=whole, device="cuda")
    with pytest.raises(Interrupted):
        train(tiny_model(), CutOff(), recipe(**fields), seed=3, folder=cut, device="cuda")
    result = train(tiny_model(seed=5), TinyTask(), recipe(**fields), seed=3, folder=cut, device="cuda")
    assert result.resumed_at
    assert result.metrics == pytest.approx(read_result(whole).metrics, rel=1e-6)


def test_reach_is_measured_where_a_model_lies():
    model = Decoder(vocab_size=11, max_length=24, d_model=8, n_layers=1, dropout=0.1)
    tokens = torch.randint(11, (4, 24))
    expected = reach(model, [tokens])
    assert (expected.past, expected.future) == (24, 0)
    assert reach(model.cuda(), [tokens.cuda()]) == expected


@pytest.mark.parametrize("sharding", ["none", "full"])
def test_ranks_that_talk_through_nccl_train_the_model_of_one_process(sharding):
    fields = {"steps": 13, "clip": 0.5}
    count = min(2, torch.cuda.device_count())
    divided = {**fields, "sharding": sharding, "devices": count}
    found = on_devices(count, trained, "decoder", divided, None, -1, "cuda", device="cuda")
    assert found["losses"] == pytest.approx(trained("decoder", fields, device="cuda")["losses"], rel=1e-6)


USES_STUDIES = pytest.mark.xdist_group("studies")
"""Run by one process of the suite, which runs the studies once."""


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Texts, translations and trees, a file of a study for each."""
    made = tmp_path_factory.mktemp("cuda")
    (made / "abc.txt").write_text("".join(f"{word} runs and sits.\n" for word in ["dog", "cat", "man"] * 300))
    for part, count in (("train", 40), ("val", 4)):
        (made / f"{part}.en").write_text("\n".join(SENTENCES * count) + "\n")
        (made / f"{part}.de").write_text("\n".join(SENTENCES * count).upper() + "\n")
    (made / "train.mrg").write_text("\n".join(f"( {tree} )" for tree in grown(120, 1)))
    (made / "held-out.mrg").write_text("\n".join(map(str, grown(20, 2))))
    translators = {name: {"name": name, **SMALL[name]} for name in sorted(TRANSLATING - {"rnng"})}
    parsers = {
        "transformer": {**translators["encoder-decoder"], "embeddings": "separate"},
        "rnng": {"name": "rnng", "d_model": 6, "dropout": 0.0},
        **{name: {"name": name, **sizes} for name, sizes in SMALL_PARSERS.items()},
    }
    text = {"name": "char-lm", "text": str(made / "abc.txt"), "context": 16, "batch": 16}
    translation = {"name": "translation", "corpus": str(made), "tokenizer": "words", "batch_tokens": 300}
    trees = {"train": str(made / "train.mrg"), "validation": str(made / "held-out.mrg")}
    parsing = {"name": "parsing", **trees, "tokenizer": "words", "batch_tokens": 300, "max_length": 80}
    kinds = {
        "text": (text, {"pre": {"norm": "pre"}, "post": {"norm": "post"}}),
        "translation": (translation, translators),
        "parsing": (parsing, parsers),
    }
    for kind, (task, variants) in kinds.items():
        model = {"name": "decoder", "d_model": 24, "n_layers": 1, "mixer": {"name": "attention", "n_heads": 2}}
        study = {
            "question": "Does it run?",
            "task": task,
            "model": model if kind == "text" else {"name": "encoder-decoder"},
            "baseline": next(iter(variants)),
            "variants": variants,
            "rules": {"metric": "val_loss", "budget": {"steps": 12}, "seeds": 2, "smallest_effect": 0.1},
        }
        (made / f"{kind}.yaml").write_text(json.dumps(study))
    return made


@pytest.fixture(scope="module")
def runs(studies, tmp_path_factory):
    """The studies, run in processes of their own as a person would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        for kind in ("text", "translation", "parsing"):
            assert call(["run", str(studies / f"{kind}.yaml"), "--out", str(studies / kind)]) == FINE
        yield studies


@USES_STUDIES
def test_studies_ran_on_the_gpu(runs):
    for kind in ("text", "translation", "parsing"):
        results = [json.loads(path.read_text()) for path in (runs / kind).glob("*/seed-*/result.json")]
        assert results
        assert {result["environment"]["device"] for result in results} == {torch.cuda.get_device_name()}


@USES_STUDIES
def test_a_finished_study_is_judged_again_without_running(runs, capsys):
    assert call(["run", str(runs / "text.yaml"), "--out", str(runs / "text")]) == FINE
    assert "post" in capsys.readouterr().out
    assert call(["report", str(runs / "text")]) == FINE


@USES_STUDIES
@pytest.mark.parametrize("kind", ["text", "translation", "parsing"])
def test_trained_models_are_used_on_the_gpu_as_on_the_cpu(kind, runs, capsys):
    said = {}
    for device in ("cpu", "cuda"):
        for folder in sorted((runs / kind).glob("*/seed-0")):
            asked = {
                "text": ["generate", str(folder), "--length", "20", "--temperature", "0"],
                "translation": ["translate", str(folder), *SENTENCES[:2]],
                "parsing": ["parse", str(folder), "the dog sees the cat ."],
            }
            assert call([*asked[kind], "--device", device]) == FINE, folder
            said[device, folder.parent.name] = capsys.readouterr().out
    agree = [said["cpu", name] == said["cuda", name] for where, name in said if where == "cpu"]
    assert sum(agree) >= 0.75 * len(agree), "rounding may turn a near tie, not more"


@USES_STUDIES
def test_heads_are_worth_what_they_are_worth_on_the_cpu(runs):
    folder = next((runs / "text").glob("*/seed-0"))
    tokens = torch.randint(5, (2, 9), generator=torch.Generator().manual_seed(0))
    outputs = []
    for device in ("cpu", "cuda"):
        model = load_run(folder, device=device).model
        with torch.no_grad(), capture(model) as trace, ablate(model, "stack.blocks.0.mixer:1"):
            outputs.append(model(tokens.to(device)).cpu())
        assert trace
    assert torch.allclose(*outputs, atol=1e-4)


OWN = '''
import torch
from torch import nn


class Own(nn.Module):
    """Causal self-attention; input and output are (batch, length, d_model)."""

    def __init__(self, d_model):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.mask = torch.ones(99, 99, dtype=torch.bool, device="cuda").tril()

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        scores = query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5
        here = self.mask[: x.shape[1], : x.shape[1]].to(x.device)
        return self.out(scores.masked_fill(~here, float("-inf")).softmax(-1) @ value)
'''


def test_the_doctor_examines_a_module_that_asks_for_cuda(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    assert call(["doctor", f"{path}:Own"]) == FINE


def test_a_module_on_the_gpu_is_examined_where_it_lies():
    layer = nn.MultiheadAttention(8, 2, batch_first=True).cuda()
    assert not doctor(layer).errors
    assert layer.in_proj_weight.is_cuda
