"""A task and models small enough to train in milliseconds."""

from __future__ import annotations

import torch
from torch import nn

from attnlab.core.contracts import Batch, Metric
from attnlab.training.recipe.recipe import Recipe

N_IN, N_OUT, N_BATCH = 5, 3, 7


class TinyTask:
    """Regress a fixed linear map; batches are a pure function of step and seed."""

    name = "tiny"
    metrics = (Metric("val_mse", "squared", "lower"), Metric("test_mse", "squared", "lower"))
    parts = ("validation", "test")
    tokens_per_step = N_BATCH

    def __init__(self) -> None:
        self.weight = torch.linspace(-1.0, 1.0, N_IN * N_OUT).reshape(N_IN, N_OUT)
        self.evaluated: list[str] = []

    def batch(self, number: int, size: int = N_BATCH) -> Batch:
        generator = torch.Generator().manual_seed(number)
        inputs = torch.randn(size, N_IN, generator=generator)
        return Batch((inputs,), inputs @ self.weight)

    def train_batch(self, step: int, seed: int) -> Batch:
        return self.batch(1_000_003 * seed + step)

    def loss(self, outputs, batch, label_smoothing=0.0):
        return nn.functional.mse_loss(outputs, batch.targets)

    def evaluate(self, predict, part):
        self.evaluated.append(part)
        batch = self.batch(-1 if part == "validation" else -2, size=11)
        error = nn.functional.mse_loss(predict(batch), batch.targets)
        return {f"{'val' if part == 'validation' else 'test'}_mse": float(error)}


def tiny_model(dropout: float = 0.3, seed: int = 2) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(N_IN, 13), nn.LayerNorm(13), nn.Dropout(dropout), nn.GELU(), nn.Linear(13, N_OUT))


def recipe(steps: int = 23, **fields) -> Recipe:
    return Recipe.parse({"budget": {"steps": steps}, "lr": 0.01, **fields})
