"""What the training loop costs beside the bare forward, backward and step of the same model."""

from __future__ import annotations

import copy
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab.benchmarks.pairs import Comparison, measure_in_turn
from attnlab.contracts import Batch, Metric, Predict
from attnlab.models.stacks import Decoder
from attnlab.training.loop import train
from attnlab.training.recipe import Recipe

STEPS = 40
"""Steps per round: about two seconds of each."""
ROUNDS = 7
LEARNING_RATE = 1e-3


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
        """Return always the same batch."""
        del step, seed
        return self._batch

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Return the mean cross-entropy."""
        return F.cross_entropy(outputs.flatten(0, 1), batch.targets.flatten(), label_smoothing=label_smoothing)

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """Return the loss of the one batch."""
        del part
        return {"val_loss": float(self.loss(predict(self._batch), self._batch))}


def bench_loop(*, steps: int = STEPS, rounds: int = ROUNDS) -> Comparison:
    """Compare `train` with a bare loop: 4 layers, width 128, context 64, batch 12, 0.8 M parameters.

    Parameters
    ----------
    steps : int
        Training steps per round.
    rounds : int
        Rounds of both.

    Returns
    -------
    Comparison
        Milliseconds a step of both.
    """
    task = RandomTokens(batch=12, length=64, vocab_size=65)
    torch.manual_seed(0)
    model = Decoder(65, 64, d_model=128, n_layers=4)
    recipe = Recipe.parse({"budget": {"steps": steps}, "lr": LEARNING_RATE, "evaluate_every": steps})
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return measure_in_turn(
        f"training loop, {parameters / 1e6:.2f} M parameters, batch 12 x 64, {steps} steps a round",
        ("attnlab train", lambda: _loop_ms(model, task, recipe, steps)),
        ("bare forward, backward, clip, step", lambda: _bare_ms(model, task, steps)),
        unit="ms/step",
        rounds=rounds,
    )


def _loop_ms(model: nn.Module, task: RandomTokens, recipe: Recipe, steps: int) -> float:
    """Return the milliseconds of one step of the lab's loop, all its work but the evaluation at the end."""
    fresh = copy.deepcopy(model)
    start = time.perf_counter()
    result = train(fresh, task, recipe)
    return (time.perf_counter() - start - result.evaluation_seconds) / steps * 1e3


def _bare_ms(model: nn.Module, task: RandomTokens, steps: int) -> float:
    """Return the milliseconds of one step of a loop that does nothing else."""
    fresh = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(fresh.parameters(), lr=LEARNING_RATE, fused=True)
    start = time.perf_counter()
    for step in range(steps):
        batch = task.train_batch(step, 0)
        loss = task.loss(fresh(*batch.inputs), batch)
        loss.backward()
        nn.utils.clip_grad_norm_(fresh.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return (time.perf_counter() - start) / steps * 1e3
