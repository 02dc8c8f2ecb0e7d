"""Train a small language model for a moment, and measure on held-out text what it knows and what it looks at."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.doctor.measures.text_corpus import Corpus

BATCH = 16  # windows: many small steps teach more in half a minute than few large ones
MOST_STEPS = 2000  # on a fast machine more teach nothing new of a small model
TRAIN_S = 30.0  # wall time for training
PROBE_STEPS = 6  # after which the time of a step is known
LATEST = 1.5  # times the wall time, after which training stops in any case
RATE = 2e-3  # of AdamW, after a warm-up and then along a cosine
WARM_UP = 0.1  # of all steps; post-norm needs one
CLIP = 1.0  # norm of the gradient
PLACES = 4  # positions of each held-out window at which context and future are exchanged

Windows = Int[Tensor, "windows length"]


@final
@dataclass(frozen=True)
class Course:
    """Say how long a model was trained.

    Parameters
    ----------
    steps : int
        Steps of the optimizer.
    characters : int
        Characters predicted in them.
    seconds : float
        Wall time.
    """

    steps: int
    characters: int
    seconds: float


@final
@dataclass(frozen=True)
class Measured:
    """Hold what a trained model reaches on held-out text, in nats per character.

    Parameters
    ----------
    loss, uncertainty : float
        Mean, and its standard error over windows.
    before, long_before : float
        How much worse it is where everything before the current character comes from another window, and where
        everything before the last two does.
    after : float
        How much worse it is where everything after the current character comes from another window.
    """

    loss: float
    uncertainty: float
    before: float
    long_before: float
    after: float


def train(model: nn.Module, corpus: Corpus, *, seconds: float = TRAIN_S) -> Course:
    """Train a model to predict the next character, in place.

    Parameters
    ----------
    model : nn.Module
        From (batch, length) characters to (batch, length, vocab_size) logits, in training mode.
    corpus : Corpus
        What it learns from.
    seconds : float
        Wall time it may take; how long the first steps take decides how many there are, `MOST_STEPS` at most.

    Returns
    -------
    Course
        How long it was trained.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(0)
    started = probed = time.perf_counter()
    steps, step = MOST_STEPS, 0
    while step < steps:
        _set_rate(optimizer, step, steps)
        _step(model, optimizer, corpus, generator)
        step += 1
        now = time.perf_counter()
        if step == 1:  # it does more than a step, such as choosing kernels
            probed = now
        if step == PROBE_STEPS:
            steps = max(PROBE_STEPS, min(MOST_STEPS, int(seconds * (PROBE_STEPS - 1) / (now - probed))))
        if step > PROBE_STEPS and now - started > LATEST * seconds:  # another program takes the processor
            break
    return Course(step, step * BATCH * corpus.context, time.perf_counter() - started)


def _set_rate(optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    """Set the learning rate: a linear warm-up, then half a cosine."""
    rising = min(1.0, (step + 1) / (WARM_UP * steps))
    for group in optimizer.param_groups:
        group["lr"] = RATE * rising * 0.5 * (1 + math.cos(math.pi * step / steps))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, corpus: Corpus, generator: torch.Generator) -> None:
    """Do one step on random windows of the training part."""
    starts = torch.randint(len(corpus.train) - corpus.context, (BATCH, 1), generator=generator)
    windows = corpus.train[starts + torch.arange(corpus.context + 1)]  # (batch, context + 1)
    logits = model(windows[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()


@torch.no_grad()
def measure(model: nn.Module, corpus: Corpus) -> Measured:
    """Judge a model on the held-out windows, and on windows of which a part is exchanged for another window's.

    Notes
    -----
    The exchanged text is real text of the same book, so the model sees nothing it could not see, only nothing that
    belongs there. Differences are taken position by position, so they are known far better than the loss.
    """
    windows = corpus.held_out
    losses = _losses(model, windows, windows[:, :-1])  # (windows, context)
    worth = {
        "before": lambda inputs, other, place: torch.cat((other[:, :place], inputs[:, place:]), 1),
        "long_before": lambda inputs, other, place: torch.cat((other[:, : place - 1], inputs[:, place - 1 :]), 1),
        "after": lambda inputs, other, place: torch.cat((inputs[:, : place + 1], other[:, place + 1 :]), 1),
    }
    return Measured(
        losses.mean().item(),
        losses.mean(1).std().item() / math.sqrt(len(losses)),
        **{name: _worth(model, windows, losses, exchange) for name, exchange in worth.items()},
    )


def _worth(
    model: nn.Module, windows: Windows, losses: Float[Tensor, "windows context"], exchange: Callable[..., Tensor]
) -> float:
    """How much worse the prediction after a place becomes by an exchange, over some places."""
    inputs, other = windows[:, :-1], windows.roll(1, dims=0)[:, :-1]
    context = inputs.size(1)
    places = {context // 2 + round(part * (context - 2 - context // 2) / (PLACES - 1)) for part in range(PLACES)}
    changes = [
        (_losses(model, windows, exchange(inputs, other, place))[:, place] - losses[:, place]).mean()
        for place in sorted(places)
        if place >= 1
    ]
    return torch.stack(changes).mean().item() if changes else 0.0


def _losses(
    model: nn.Module, windows: Windows, inputs: Int[Tensor, "windows context"]
) -> Float[Tensor, "windows context"]:
    """The loss of every prediction."""
    logits = torch.cat([model(batch) for batch in inputs.split(BATCH)]).double()
    return nn.functional.cross_entropy(logits.transpose(1, 2), windows[:, 1:], reduction="none")
