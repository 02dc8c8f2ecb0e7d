"""Every registered part trains the same batched over runs as alone, and the few that cannot be batched say so."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnlab.core.build import build
from attnlab.core.contracts import Batch, Metric
from attnlab.models import MODELS
from attnlab.models.parsers.parser import AbstractParser
from attnlab.nn.axes.combiners import COMBINERS
from attnlab.nn.axes.heads import HEADS
from attnlab.nn.axes.masks import MASKS
from attnlab.nn.axes.normalizers import NORMALIZERS
from attnlab.nn.axes.positions import POSITIONS
from attnlab.nn.axes.scores import SCORES
from attnlab.nn.block import BLOCKS
from attnlab.nn.feedforward import FEEDFORWARDS
from attnlab.nn.init import INITS
from attnlab.nn.mixers import MIXERS
from attnlab.nn.norms import NORMS
from attnlab.training import train
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.together.together import train_together

BATCH, LENGTH, VOCAB, D_IN, D_OUT, WIDTH = 3, 7, 11, 2, 5, 24
STEPS, DROPOUT = 3, 0.1
RUNS = (
    {"lr": 1e-2, "clip": 0.5},
    {"lr": 3e-3, "clip": None, "weight_decay": 0.0},
    {"lr": 3e-2, "clip": 0.1, "schedule": "linear", "warmup": 1},
)
"""Recipes of three runs; their seeds are their places."""

NEEDED: dict[str, dict[str, Any]] = {
    "window": {"width": 3},
    "dilated": {"width": 2, "dilation": 2},
    "linear-attention": {"chunk_size": 3},
}
"""Arguments that an entry cannot be built without, or that make a test reach all of it."""

OF_TOKENS = {"decoder", "token-encoder", "mended"}
TRANSFORMERS = {"encoder-decoder", "transformer-base", "transformer-big"}
TRANSLATING = {*TRANSFORMERS, "rnn-additive", "rnn-multiplicative", "deep-att", "gnmt", "convs2s", "bytenet", "rnng"}
OTHERS = {"pretrained"} | {
    name for name, kind in MODELS.items() if isinstance(kind, type) and issubclass(kind, AbstractParser)
}
"""Models of another model, and of trees."""
NOT_BATCHED = {
    "mixer lstm": "Batching rule not implemented for aten::lstm",
    "model lstm": "Batching rule not implemented for aten::lstm",
    "feedforward mixture-of-experts": "one by one",
    "feedforward noisy-mixture-of-experts": "one by one",
    "model rnn-additive": "one by one",
    "model rnn-multiplicative": "one by one",
    "model deep-att": "Batching rule not implemented for aten::lstm",
    "model gnmt": "Batching rule not implemented for aten::lstm",
    "model rnng": "one by one",
    "model lstm-batch-as-time": "Batching rule not implemented for aten::lstm",
}
"""Parts that torch cannot batch, and what their run says; they are trained one by one."""


class Sequences:
    """Random numbers in, others expected: tokens for a decoder, two of them for a translator, features for the rest."""

    name = "sequences"
    metrics = (Metric("val_loss", "nats", "lower"),)
    parts = ("validation",)
    tokens_per_step = BATCH * LENGTH

    def __init__(self, model: str) -> None:
        self.sequences = 2 if model in TRANSLATING else int(model in OF_TOKENS)  # of tokens; else features
        self.width = VOCAB if self.sequences else {"lstm-batch-as-time": D_IN}.get(model, D_OUT)

    def train_batch(self, step: int, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(1009 * seed + step)
        targets = torch.randint(self.width, (BATCH, LENGTH), generator=generator)
        if self.sequences:
            shape = (self.sequences, BATCH, LENGTH)
            return Batch(tuple(torch.randint(VOCAB, shape, generator=generator)), targets)
        return Batch((torch.randn(BATCH, LENGTH, D_IN, generator=generator, dtype=torch.float64),), targets)

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        return nn.functional.cross_entropy(outputs.flatten(0, 1), batch.targets.flatten())

    def evaluate(self, predict, part: str) -> dict[str, float]:
        batch = self.train_batch(STEPS, 101)
        return {"val_loss": float(self.loss(predict(batch), batch))}


@dataclass(frozen=True)
class Case:
    """One model under test."""

    title: str
    spec: dict[str, Any] = field(default_factory=dict)
    model: str = "decoder"

    def make(self, seed: int) -> nn.Module:
        sizes = {"decoder": {"d_model": WIDTH, "n_layers": 1, "dropout": DROPOUT}}
        sizes |= dict.fromkeys(("encoder", "token-encoder"), sizes["decoder"])
        sizes["cnn"] = {"channels": 6, "kernel_size": 3, "n_layers": 2}
        sizes["mended"] = {"part": {"name": "decoder", **sizes["decoder"]}}
        sizes |= {"lstm": {"hidden": 5}, "lstm-batch-as-time": {"hidden": 5}}
        sizes |= {
            **{name: sizes["decoder"] | {"mixer": {"name": "attention", "n_heads": 2}} for name in TRANSFORMERS},
            "rnn-additive": {"d_model": 6},
            "rnn-multiplicative": {"d_model": 6},
            "deep-att": {"d_model": 6, "n_layers": 2},
            "gnmt": {"d_model": 6, "n_layers": 2},
            "convs2s": {"d_model": 6, "n_layers": 2},
            "bytenet": {"d_model": 6, "n_sets": 1, "dilations": [1, 2]},
            "rnng": {"d_model": 6, "word_starts": [3, 4], "brackets": {"close": 3, "labels": 3, "tags": 4}},
        }
        offered = {"vocab_size": VOCAB, "max_length": LENGTH, "d_in": D_IN, "d_out": D_OUT, "length": LENGTH}
        offered |= {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB}
        torch.manual_seed(seed)
        model = build({"name": self.model, **sizes[self.model], **self.spec}, MODELS, axis="model", offered=offered)
        return model.double()


def part(name: str) -> dict[str, Any]:
    return {"name": name, **NEEDED.get(name, {})}


def attention(**parts: Any) -> dict[str, Any]:
    return {"mixer": {"name": "attention", "dropout": DROPOUT, **parts}}


LAYER = {"heads": HEADS, "scores": SCORES, "masks": MASKS, "normalizers": NORMALIZERS, "combiners": COMBINERS}
DECODER = {"positions": POSITIONS, "feedforward": FEEDFORWARDS, "block": BLOCKS}
CASES = [
    *(Case(f"{axis} {name}", attention(**{axis: part(name)})) for axis, table in LAYER.items() for name in table),
    *(Case(f"{axis} {name}", {axis: part(name)}) for axis, table in DECODER.items() for name in table),
    *(Case(f"norm {name}", {"norm": "pre", "norm_kind": name}) for name in NORMS),
    *(Case(f"init {name}", {"init": name}) for name in INITS),
    *(Case(f"mixer {name}", {"mixer": part(name)}) for name in MIXERS),
    *(Case(f"model {name}", model=name) for name in MODELS if name not in OTHERS),
    Case("untied", {"tied": False}),
    Case("fused attention", attention(path="fused", positions="relative-bias")),
]


def recipes() -> list[Recipe]:
    return [Recipe.parse({"budget": {"steps": STEPS}, **fields}) for fields in RUNS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_together_is_one_by_one(case: Case) -> None:
    task, count = Sequences(case.model), len(RUNS)
    singles, members = ([case.make(seed) for seed in range(count)] for _ in range(2))
    expected = [
        train(*one, seed=seed) for seed, *one in zip(range(count), singles, [task] * count, recipes(), strict=True)
    ]
    found = train_together(members, task, recipes(), seeds=range(count))
    for single, member, want, got in zip(singles, members, expected, found, strict=True):
        assert math.isclose(got.train_loss, want.train_loss, rel_tol=1e-9)
        assert math.isclose(got.metrics["val_loss"], want.metrics["val_loss"], rel_tol=1e-9)
        for (name, wanted), gotten in zip(single.named_parameters(), member.parameters(), strict=True):
            torch.testing.assert_close(gotten, wanted, rtol=1e-7, atol=1e-9, msg=name)
    notes = {got.together_note for got in found}
    if case.title in NOT_BATCHED:
        assert all(NOT_BATCHED[case.title] in note for note in notes)
        assert {got.together for got in found} == {1}
    else:
        assert notes == {""}
        assert {got.together for got in found} == {count}
