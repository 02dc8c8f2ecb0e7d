"""Whether it can learn twenty items by heart, which needs nothing but gradients that arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.build import describe_exception
from attnlab.doctor.checks.initial_loss import gives_logits
from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.influence.differences import deviation

CHECK = "overfit"
ITEMS = 20  # few enough to learn by heart in seconds
LEARNING_RATES = (1e-2, 1e-3)  # of Adam: brisk for small layers, then careful for deep stacks
STEPS = 60  # of each; a linear layer needs about twenty
LEARNED = 0.1  # of the first loss: learned by heart
UNMOVED = 0.99  # of the first loss: nothing was learned
LIMIT_S = 2.0  # for all steps; what was reached by then counts
FLAT = 1e-7  # of the output's size: the items look the same to it
SOURCE = "Karpathy, A Recipe for Training Neural Networks, 2019: overfit one batch"

_SHARE_OF_WEIGHTS = 0.03  # of the smallest weights: what one step of Adam may change
HARDLY = 0.8  # of the loss of always giving the same answer


@final
@dataclass(frozen=True)
class OverfitTask:
    """Say what is to be learned by heart.

    Parameters
    ----------
    loss : callable
        From outputs, batch first, to a scalar.
    same_answer : float
        The lowest loss of an answer that is the same for every item.
    """

    loss: Callable[[Tensor], Tensor]
    same_answer: float


def check_overfit(exam: Examination) -> Iterator[Finding]:
    """Yield whether a copy learns twenty fixed items.

    Notes
    -----
    A model from tokens to logits learns to name the next token (a causal one) or another name of each token. Of
    everything else a fixed random readout of the mean output is fitted to random signs, one per item: twenty numbers
    that even one linear layer fits where the input has twenty features.
    """
    module = exam.fresh(dtype=torch.float32)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return
    x = exam.inputs(batch=ITEMS, dtype=torch.float32)
    first = exam.run(x, module=module, grad=True)
    if not bool(first.isfinite().all()):
        return  # what makes it so is named by other checks
    if deviation(first.detach(), exam.run(x, module=module).detach()):
        return  # what is kept from call to call moves the loss too; `determinism` names it
    if not first.requires_grad:
        yield _unmoved("its output has no gradient: it is cut from every parameter (detach, .data, no_grad, item)")
        return
    task = _naming(exam, x) if gives_logits(exam) else _signs(first.detach())
    if task is None:
        yield _unmoved(f"the mean output is the same for {ITEMS} different items, so there is nothing to learn from")
        return
    yield from _judge(exam, task, _train(exam, x, task))


@final
@dataclass(frozen=True)
class OverfitRun:
    """Hold how training went.

    Parameters
    ----------
    first, best : float
        Loss before training, and the lowest one.
    steps : int
        Steps until the best loss, of the run that reached it.
    rate : float
        Learning rate of that run.
    broken : bool
        Whether a loss was NaN or infinite.
    hurried : bool
        Whether time ran out.
    raised : str
        What the backward pass raised.
    """

    first: float
    best: float
    steps: int
    rate: float
    broken: bool = False
    hurried: bool = False
    raised: str = ""

    def __str__(self) -> str:
        ended = f", stopped after {LIMIT_S:g} s" if self.hurried else ""
        return (
            f"loss on {ITEMS} fixed items: {self.first:.3f} before, {self.best:.3f} after {self.steps} steps of Adam"
            f" (learning rate {self.rate:g}{ended})"
        )


def _naming(exam: Examination, x: Tensor) -> OverfitTask:
    """The task of naming the next token, or for a model that sees it, another name of each token."""
    size = x.max().item() + 1 if exam.convention.vocab_size is None else exam.convention.vocab_size
    names = torch.randperm(int(size), generator=torch.Generator().manual_seed(2))
    targets = x.roll(-1, dims=1) if exam.convention.causal else names[x]  # (batch, length)
    targets = targets[:, -1] if exam.convention.pooled else targets
    shares = torch.bincount(targets.flatten()) / targets.numel()
    entropy = -torch.xlogy(shares, shares).sum().item()
    return OverfitTask(lambda output: nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten()), entropy)


def _signs(first: Float[Tensor, "batch *length d_out"]) -> OverfitTask | None:
    """The task of giving each item a random sign by a fixed readout; None where all items look the same.

    The readout is scaled so that it begins with variance 1 over the items, and always has mean 0: what moves all
    items alike, as the first steps from a tiny start do, is no answer.
    """
    generator = torch.Generator().manual_seed(3)
    readout = torch.randn(first.size(-1), generator=generator)
    begin = _read(first, readout)
    spread = begin.std()
    if spread <= FLAT * (first.square().mean().sqrt() * readout.norm()):
        return None
    signs = torch.randperm(ITEMS, generator=generator).remainder(2) * 2.0 - 1  # as many of each
    return OverfitTask(lambda output: (_centered(_read(output, readout)) / spread - signs).square().mean(), 1.0)


def _centered(numbers: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    return numbers - numbers.mean()


def _read(output: Tensor, readout: Tensor) -> Float[Tensor, " batch"]:
    """One number per item."""
    return output.flatten(1, -2).mean(1) @ readout if output.dim() > 2 else output @ readout


def _train(exam: Examination, x: Tensor, task: OverfitTask) -> OverfitRun:
    """Train copies at each learning rate, until one has learned the items or time is up."""
    end = time.perf_counter() + LIMIT_S
    best: OverfitRun | None = None
    for rate in (*LEARNING_RATES, _SHARE_OF_WEIGHTS * _smallest_weights(exam)):
        course = _run(exam, x, task, rate, end)
        best = course if best is None or best.broken or course.best < best.best else best
        if best.raised or best.best <= LEARNED * best.first or time.perf_counter() > end:
            return best
    return best or OverfitRun(0.0, 0.0, 0, 0.0)


def _smallest_weights(exam: Examination) -> float:
    """The root mean square of the smallest matrix: weights that start tiny are thrown about by usual rates."""
    matrices = [one for one in exam.fresh().parameters() if one.requires_grad and one.dim() > 1 and one.any()]
    return min((one.detach().square().mean().sqrt().item() for one in matrices), default=1.0)


def _run(exam: Examination, x: Tensor, task: OverfitTask, rate: float, end: float) -> OverfitRun:
    """Train one fresh copy, dropout off."""
    module = exam.fresh(dtype=torch.float32)
    optimizer = torch.optim.Adam([each for each in module.parameters() if each.requires_grad], lr=rate)
    losses: list[float] = []
    while len(losses) <= STEPS:
        value = task.loss(exam.run(x, module=module, grad=True))
        if not bool(value.isfinite()):
            break
        losses.append(value.item())
        if losses[-1] <= LEARNED * losses[0] or time.perf_counter() > end:
            break
        optimizer.zero_grad()
        try:
            value.backward()
        except RuntimeError as error:  # an in-place change of what the gradient needs, for example
            return OverfitRun(losses[0], losses[0], 0, rate, raised=describe_exception(error, exam.patient.file))
        optimizer.step()
    best = min(losses, default=float("nan"))
    first = losses[0] if losses else best
    finished = len(losses) > STEPS or best <= LEARNED * first
    hurried = not finished and time.perf_counter() > end
    steps = losses.index(best) if losses else 0
    return OverfitRun(first, best, steps, rate, broken=not finished and not hurried, hurried=hurried)


def _judge(exam: Examination, task: OverfitTask, course: OverfitRun) -> Iterator[Finding]:
    """What the course of training says."""
    if course.raised:
        yield _untrainable(course)
    elif course.broken:
        yield Finding(
            CHECK,
            "warning",
            "Its loss becomes NaN or infinite within a few steps of training.",
            str(course),
            "clip gradients, lower the learning rate, and look for exp, log, sqrt or a division without protection",
            SOURCE,
            nature="set-up",
        )
    elif course.best > UNMOVED * course.first and not course.hurried:
        yield _unmoved(str(course))
    elif course.best > HARDLY * task.same_answer and not course.hurried and _roomy(exam):
        yield Finding(
            CHECK,
            "warning",
            f"It hardly learns {ITEMS} items by heart.",
            f"{course}; {task.same_answer:.3f} is what the same answer to every item gives",
            "look at what gradients reach (dead-parts, gradient) and how large signals are (signal)",
            SOURCE,
        )
    elif course.best <= UNMOVED * course.first and exam.convention.kind != "layer":  # of a bare layer nobody doubts it
        yield Finding(CHECK, "info", f"It learns: {ITEMS} items were trained on.", str(course))


def _roomy(exam: Examination) -> bool:
    """Whether inputs are wide enough that even a linear layer fits all items."""
    return exam.convention.takes == "tokens" or exam.convention.d_in >= ITEMS


def _untrainable(course: OverfitRun) -> Finding:
    return Finding(
        CHECK,
        "error",
        "It cannot be trained: the backward pass raises.",
        course.raised,
        "do not change in place what a gradient needs: x = x + y for x += y, masked_fill for masked_fill_",
        "PyTorch documentation, Autograd mechanics, In-place correctness checks",
    )


def _unmoved(evidence: str) -> Finding:
    return Finding(
        CHECK,
        "error",
        f"It cannot learn {ITEMS} items by heart: the loss does not move.",
        evidence,
        "look for what cuts the graph (detach, .data, no_grad, item, numpy) and for outputs that ignore the input",
        SOURCE,
    )
