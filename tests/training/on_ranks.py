"""What ranks do in the tests: small models of the library in float64, trained on rows that count unequally."""

from __future__ import annotations

import os

import torch
from tests.training.tiny import recipe
from torch import nn

from attnlab.core.contracts import Batch, Metric
from attnlab.models.encoder_decoder import EncoderDecoder
from attnlab.models.stacks import Decoder, Encoder
from attnlab.training import train
from attnlab.training.devices import spread

ROWS, LENGTH, WORDS, WIDTH, IGNORED = 8, 6, 11, 8, -100
SMALL = {"d_model": WIDTH, "n_layers": 2, "dropout": 0.1, "mixer": {"name": "attention", "n_heads": 2, "dropout": 0.2}}


class Words:
    """Name the token before each one; every row has some that nobody asks for."""

    metrics = (Metric("val_loss", "nats", "lower"),)
    parts = ("validation",)
    tokens_per_step = ROWS * LENGTH

    inputs = 1

    def __init__(self, *, dies_at: int = -1) -> None:
        self.dies_at = dies_at

    def batch(self, number: int) -> Batch:
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(1, WORDS, (ROWS, LENGTH), generator=generator)
        targets = tokens.roll(1, 1)
        targets[torch.rand(ROWS, LENGTH, generator=generator) < 0.4] = IGNORED
        return Batch((tokens,) * self.inputs, targets)

    def train_batch(self, step: int, seed: int) -> Batch:
        if step == self.dies_at:
            os._exit(1)
        return self.batch(1000 * seed + step)

    def targets_of(self, batch: Batch) -> int:
        return int((batch.targets != IGNORED).sum())

    def loss(self, outputs, batch, label_smoothing=0.0):
        return nn.functional.cross_entropy(outputs.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)

    def evaluate(self, predict, part):
        batch = self.batch(-1)
        return {"val_loss": float(self.loss(predict(batch), batch))}


class Pairs(Words):
    """The same of two sequences."""

    inputs = 2


class Numbers(Words):
    """Give back numbers; every row counts alike, and nothing says so."""

    targets_of = None

    def batch(self, number: int) -> Batch:
        numbers = torch.randn(ROWS, LENGTH, 3, generator=torch.Generator().manual_seed(number)).double()
        return Batch((numbers,), numbers.flip(1))

    def loss(self, outputs, batch, label_smoothing=0.0):
        return nn.functional.mse_loss(outputs, batch.targets)


KINDS = {
    "decoder": (lambda: Decoder(WORDS, LENGTH, **SMALL), Words),
    "encoder": (lambda: Encoder(3, 3, LENGTH, **SMALL), Numbers),
    "encoder-decoder": (lambda: EncoderDecoder(WORDS, WORDS, LENGTH, **SMALL), Pairs),
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm1d(LENGTH), nn.Linear(3, 3)), Numbers),
}


def made(kind: str, dies_at: int = -1):
    """A model in float64, in which nothing but a mistake is seen, and its task."""
    build, task = KINDS[kind]
    torch.manual_seed(2)
    return build().double(), task(dies_at=dies_at)


def trained(kind: str, fields: dict, folder: str | None = None, dies_at: int = -1, device: str = "cpu") -> dict:
    """The curve of a run, and whatever else a test looks at."""
    model, task = made(kind, dies_at)
    result = train(model, task, recipe(**fields), seed=3, folder=folder, device=device)
    return {
        "losses": [record["train_loss"] for record in result.curve],
        "metrics": result.metrics,
        "resumed": result.resumed_at,
        "division": result.environment.get("division", ""),
        "weights": float(sum(parameter.detach().abs().sum() for parameter in model.parameters())),
    }


def failing(kind: str, fields: dict) -> str:
    """The error of a run that cannot be."""
    try:
        trained(kind, fields)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def trained_in_little_memory(kind: str, fields: dict) -> dict:
    """As `trained`, where a device has no room for the model."""
    spread.memory_of = lambda device: 10_000.0
    return trained(kind, fields)
