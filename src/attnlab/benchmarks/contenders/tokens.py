"""Random tokens to predict: a task that costs nothing, so that only what surrounds it is measured."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from attnlab.core.contracts import Batch, Metric, Predict


@final
class RandomTokens:
    """Give random tokens to predict: a task that costs nothing, so that only the loop is measured.

    Parameters
    ----------
    batch : int
        Sequences in a batch.
    length : int
        Tokens in a sequence.
    vocab_size : int
        Number of distinct tokens.
    """

    metrics: tuple[Metric, ...] = (Metric("val_loss", "nats", "lower"),)
    parts: tuple[str, ...] = ("validation",)

    def __init__(self, batch: int, length: int, vocab_size: int) -> None:
        self.tokens_per_step = batch * length
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(vocab_size, (batch, length + 1), generator=generator)
        self._batch = Batch((tokens[:, :-1],), tokens[:, 1:])

    def train_batch(self, step: int, seed: int) -> Batch:
        """Always the same batch."""
        del step, seed
        return self._batch

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The mean cross-entropy."""
        return F.cross_entropy(outputs.flatten(0, 1), batch.targets.flatten(), label_smoothing=label_smoothing)

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """The loss of the one batch."""
        del part
        return {"val_loss": float(self.loss(predict(self._batch), self._batch))}
