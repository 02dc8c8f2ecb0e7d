"""What ranks do in the tests: small models of the library in float64, trained on rows that count unequally."""

from __future__ import annotations

import os

import torch
from tests.training.tiny import recipe
from torch import nn

from attnlab.core.contracts import Batch, Metric
from attnlab.core.sharded import local
from attnlab.models.encoder_decoder import EncoderDecoder
from attnlab.models.stacks import Decoder, Encoder
from attnlab.models.token_encoder import TokenEncoder
from attnlab.training import train
from attnlab.training.devices import spread
from attnlab.training.devices.ranks import ranks_here
from attnlab.training.devices.tensor import TensorParallel

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


class Answers(Words):
    """Ask for one token of each row."""

    def batch(self, number: int) -> Batch:
        tokens = super().batch(number).inputs[0]
        return Batch((tokens,), tokens[:, :1])


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


class Padded(Words):
    """Rows of zeros at their ends; only the last ones."""

    def batch(self, number: int) -> Batch:
        (tokens,), targets = (found := super().batch(number)).inputs, found.targets
        tokens[2:, LENGTH // 2 :], targets[2:, LENGTH // 2 :] = 0, IGNORED
        return Batch((tokens,), targets)


class CutsPadding(nn.Module):
    """Compute as many positions as the longest row has, so that dropout draws as many numbers."""

    def __init__(self):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(WORDS, WIDTH), nn.Dropout(0.5)
        self.logits = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        longest = int((tokens != 0).any(0).sum())
        found = self.dropout(self.embedding(tokens[:, :longest]))
        return self.logits(nn.functional.pad(found, (0, 0, 0, tokens.shape[1] - longest)))


class Faint(nn.Module):
    """Draw numbers inside of an LSTM, which hardly change the loss as weights begin."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 3, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x):
        return 1e-4 * self.lstm(x)[0]


WIDE = {**SMALL, "mixer": {**SMALL["mixer"], "heads": "full-width"}}
GATED = {"name": "gated", "d_ff": 10, "dropout": 0.2}


def _decoder_with(**parts):
    return lambda: Decoder(WORDS, LENGTH, d_model=WIDTH, n_layers=1, mixer={"name": "attention", "n_heads": 2, **parts})


class Columns(nn.Module):
    """Layers in lists of a list."""

    def __init__(self):
        super().__init__()
        self.columns = nn.ModuleList(nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]) for _ in range(2))

    def forward(self, x):
        return sum(second(first(x).tanh()) for first, second in self.columns)


KINDS = {
    "columns": (Columns, Numbers),
    "decoder": (lambda: Decoder(WORDS, LENGTH, **SMALL), Words),
    "encoder": (lambda: Encoder(3, 3, LENGTH, **SMALL), Numbers),
    "gated decoder": (lambda: Decoder(WORDS, LENGTH, **WIDE, feedforward=GATED, positions="rotary"), Words),
    "uneven decoder": (lambda: Decoder(WORDS, LENGTH, **SMALL, feedforward={"name": "relu", "d_ff": 7}), Words),
    "three heads": (
        lambda: Decoder(WORDS, LENGTH, **{**SMALL, "d_model": 9, "mixer": {"name": "attention", "n_heads": 3}}),
        Words,
    ),
    "grouped heads": (_decoder_with(heads={"name": "grouped", "n_kv_heads": 1}), Words),
    "biased heads": (_decoder_with(positions="linear-bias"), Words),
    "learned scores": (_decoder_with(scores="cosine"), Words),
    "talking heads": (_decoder_with(combiners="talking-heads"), Words),
    "experts": (lambda: Decoder(WORDS, LENGTH, **SMALL, feedforward="mixture-of-experts"), Words),
    "convolved heads": (_decoder_with(combiners="convolution"), Words),
    "window": (lambda: Decoder(WORDS, LENGTH, d_model=WIDTH, n_layers=1, tied=False, readout="window"), Answers),
    "reader": (lambda: TokenEncoder(WORDS, LENGTH, d_model=WIDTH, n_layers=1), Words),
    "convolution": (lambda: Encoder(3, 3, LENGTH, d_model=WIDTH, n_layers=1, mixer="convolution"), Numbers),
    "encoder-decoder": (lambda: EncoderDecoder(WORDS, WORDS, LENGTH, **SMALL), Pairs),
    "cuts padding": (CutsPadding, Padded),
    "faint": (Faint, Numbers),
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


def held(kind: str) -> list[float]:
    """What part of each parameter this rank holds of a model whose layers are divided."""
    model, _ = made(kind)
    parameters = TensorParallel(model, ranks_here(), torch.device("cpu")).owner.parameters()
    return [local(one).numel() / one.numel() for one in parameters]


def failing_each(kinds: list[str], fields: dict) -> list[str]:
    """As `failing`, of one after the other."""
    return [failing(kind, fields) for kind in kinds]


def trained_in_little_memory(kind: str, fields: dict) -> dict:
    """As `trained`, where a device has no room for the model."""
    spread.memory_of = lambda device: 10_000.0
    return trained(kind, fields)
