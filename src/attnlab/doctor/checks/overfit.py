"""Whether it can learn twenty items by heart, which needs nothing but gradients that arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.checks.initial_loss import gives_logits
from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding, FindingText
from attnlab.doctor.influence.differences import deviation

CHECK = "overfit"
ITEMS = 20  # few enough to learn by heart in seconds
LEARNING_RATES = (1e-2, 1e-3)  # of Adam: brisk for small layers, then careful for deep stacks
STEPS = 60  # of each; a linear layer needs about twenty
LEARNED = 0.1  # of the first loss: learned by heart
UNMOVED = 0.99  # of the first loss: nothing was learned
HARDLY = 0.8  # of the loss of always giving the same answer
LIMIT_S = 2.0  # of computing, for all steps; what was reached by then counts
FLAT = 1e-7  # of the output's size: the items look the same to it
_STARTS = 6  # what closes by chance in two of three is closed at the five others, too, in one of eight
_SHARE_OF_WEIGHTS = 0.03  # of the smallest weights: what one step of Adam may change
_SOURCE = "Karpathy, A Recipe for Training Neural Networks, 2019: overfit one batch"

TEXTS: Mapping[str, FindingText] = {
    "not finite": FindingText(
        "warning",
        "Its loss becomes NaN or infinite within a few steps of training.",
        "clip gradients, lower the learning rate, and look for exp, log, sqrt or a division without protection",
        _SOURCE,
        "set-up",
    ),
    "unmoved": FindingText(
        "error",
        f"It cannot learn {ITEMS} items by heart: the loss does not move.",
        "look for what cuts the graph (detach, .data, no_grad, item, numpy) and for outputs that ignore the input",
        _SOURCE,
    ),
    "at this start": FindingText(
        "warning",
        f"At some starts it cannot learn {ITEMS} items by heart: whatever it is given, it returns the same.",
        "let nothing that can close for every input, such as a last rectifier, stand before the output",
        _SOURCE,
        "set-up",
    ),
    "hardly": FindingText(
        "warning",
        f"It hardly learns {ITEMS} items by heart.",
        "look at what gradients reach (dead-parts, gradient) and how large signals are (signal)",
        _SOURCE,
    ),
    "learns": FindingText("info", f"It learns: {ITEMS} items were trained on."),
}
"""What -> its text."""


def check_overfit(exam: Examination) -> Iterator[Finding]:
    """Yield whether a copy learns twenty fixed items.

    Notes
    -----
    A model from tokens to logits learns to name the next token (a causal one) or another name of each token. Of
    everything else a fixed random readout of the output is fitted to random signs, one per item: twenty numbers
    that even one linear layer fits where the input has twenty features.
    """
    module = exam.fresh(dtype=torch.float32)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return
    x = exam.inputs(batch=ITEMS, dtype=torch.float32)
    x.requires_grad_(x.is_floating_point())  # as behind other layers: what is made to save memory may rely on it
    first = exam.run(x, module=module, grad=True)
    if not bool(first.isfinite().all()):
        return  # what makes it so is named by other checks
    if deviation(first.detach(), exam.run(x, module=module).detach()):
        return  # what is kept from call to call moves the loss too; `determinism` names it
    if not first.requires_grad:
        raise ModuleError("its output has no gradient: see what `dead-parts` says")
    task = _naming(exam, x) if gives_logits(exam) else _signs(first.detach())
    if task is None:
        same = f"the output is the same for {ITEMS} different items, so there is nothing to learn from"
        found = "at this start" if _differs_at_another_start(exam, x) else "unmoved"
        yield TEXTS[found].finding(CHECK, same + ("; not so at another start" if found != "unmoved" else ""))
        return
    course = _train(exam, x, task)
    found = _judged(exam, task, course)
    if found:
        compared = f"; {task.same_answer:.3f} is what the same answer to every item gives" if found == "hardly" else ""
        yield TEXTS[found].finding(CHECK, f"{course}{compared}")


def _differs_at_another_start(exam: Examination, x: Tensor) -> bool:
    """Whether another start gives other outputs for other items."""
    others = (exam.another(start=start) for start in range(1, _STARTS))
    starts = (exam.run(x, module=other.to(torch.float32)) for other in others if other is not None)
    return any(_signs(output.detach()) is not None for output in starts)


# What is to be learned


@final
@dataclass(frozen=True)
class _Task:
    """What is to be learned by heart: a loss of outputs, and the lowest loss of one answer for all items."""

    loss: Callable[[Tensor], Tensor]
    same_answer: float


def _naming(exam: Examination, x: Tensor) -> _Task:
    """The task of naming the next token, or for a model that sees it, another name of each token."""
    size = x.max().item() + 1 if exam.convention.vocab_size is None else exam.convention.vocab_size
    names = torch.randperm(int(size), generator=torch.Generator().manual_seed(2))
    targets = x.roll(-1, dims=1) if exam.convention.causal else names[x]  # (batch, length)
    targets = targets[:, -1] if exam.convention.pooled else targets
    shares = torch.bincount(targets.flatten()) / targets.numel()
    entropy = -torch.xlogy(shares, shares).sum().item()
    return _Task(lambda output: nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten()), entropy)


def _signs(first: Float[Tensor, "batch *length d_out"]) -> _Task | None:
    """The task of giving each item a random sign by a fixed readout; None where all items look the same.

    The readout is scaled so that it begins with variance 1 over the items, and always has mean 0: what moves all
    items alike, as the first steps from a tiny start do, is no answer.
    """
    generator = torch.Generator().manual_seed(3)
    readout = torch.randn(first[0].numel(), generator=generator)
    spread = (first.flatten(1) @ readout).std()
    if spread <= FLAT * (first.square().mean().sqrt() * readout.norm()):
        return None
    signs = torch.randperm(ITEMS, generator=generator).remainder(2) * 2.0 - 1  # as many of each

    def loss(output: Tensor) -> Tensor:
        numbers = output.flatten(1) @ readout
        return ((numbers - numbers.mean()) / spread - signs).square().mean()

    return _Task(loss, 1.0)


# Training


@final
@dataclass
class _Course:
    """How training at one learning rate went: its losses, and whether time ran out."""

    rate: float
    losses: list[float]
    hurried: bool = False
    broken: bool = False  # a loss was NaN or infinite

    @property
    def best(self) -> float:
        return min(self.losses, default=float("nan"))

    def is_down_to(self, share: float) -> bool:
        """Whether the loss came down to a part of the first one."""
        return bool(self.losses) and self.best <= share * self.losses[0]

    def __str__(self) -> str:
        ended = f", stopped after {LIMIT_S:g} s" if self.hurried else ""
        first, steps = (self.losses[0], self.losses.index(self.best)) if self.losses else (self.best, 0)
        return (
            f"loss on {ITEMS} fixed items: {first:.3f} before, {self.best:.3f} after {steps} steps of Adam"
            f" (learning rate {self.rate:g}{ended})"
        )


def _train(exam: Examination, x: Tensor, task: _Task) -> _Course:
    """Train copies at each learning rate, until one has learned the items or time is up."""
    end = time.thread_time() + LIMIT_S  # of this thread alone: other programs do not count
    matrices = [one for one in exam.fresh().parameters() if one.requires_grad and one.dim() > 1 and one.any()]
    sizes = [one.detach().square().mean().sqrt().item() for one in matrices]
    careful = _SHARE_OF_WEIGHTS * min(sizes, default=1.0)  # weights that start tiny are thrown about by usual rates
    best = _run(exam, x, task, LEARNING_RATES[0], end)
    for rate in (*LEARNING_RATES[1:], careful):
        if best.is_down_to(LEARNED) or time.thread_time() > end:
            break
        course = _run(exam, x, task, rate, end)
        best = course if best.broken or course.best < best.best else best
    return best


def _run(exam: Examination, x: Tensor, task: _Task, rate: float, end: float) -> _Course:
    """Train one fresh copy, dropout off."""
    module = exam.fresh(dtype=torch.float32)
    optimizer = torch.optim.Adam([each for each in module.parameters() if each.requires_grad], lr=rate)
    course = _Course(rate, [])
    while len(course.losses) <= STEPS:
        value = task.loss(exam.run(x, module=module, grad=True))
        if not bool(value.isfinite()):
            course.broken = True
            break
        course.losses.append(value.item())
        if course.is_down_to(LEARNED):
            break
        course.hurried = len(course.losses) <= STEPS and time.thread_time() > end
        if course.hurried:
            break
        optimizer.zero_grad()
        try:
            value.backward()
        except RuntimeError as error:  # an in-place change of what the gradient needs, for example
            raise ModuleError(f"the backward pass raises: {error}") from error
        optimizer.step()
    return course


def _judged(exam: Examination, task: _Task, course: _Course) -> str:
    """What the course of training says, a key of `TEXTS`; nothing where it says nothing."""
    roomy = exam.convention.takes == "tokens" or exam.convention.d_in >= ITEMS  # even a linear layer fits all items
    if course.broken:
        return "not finite"
    if not course.is_down_to(UNMOVED):
        return "" if course.hurried else "unmoved"
    if course.best > HARDLY * task.same_answer and not course.hurried and roomy:
        return "hardly"
    return "learns" if exam.convention.kind != "layer" else ""  # of a bare layer nobody doubts it
