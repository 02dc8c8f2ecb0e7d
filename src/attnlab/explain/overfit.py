"""Learn a few items by heart: a model that can be trained does it within a minute, whatever it does on new ones.

What cannot has a bug, a rate that is far off, or outputs that do not depend on its inputs. It says nothing about
held-out data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor

from attnlab.core.contracts import Batch, Metric, Predict, StudyTask
from attnlab.core.draws import drawn_by_name
from attnlab.core.errors import SpecError
from attnlab.core.processes.apart import call_apart, names_own_code
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.define.study import Study, restore_study
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.loop import train

ITEMS, SECONDS = 20, 60.0
"""Few enough to learn by heart, and how long it may take."""
BY_HEART = 0.1
"""Part of the loss of one answer for all, at which items count as learned."""
ENOUGH = 0.02
"""The same, at which training ends."""
RATES = (1.0, 3.0, 1 / 3)
"""Rates that are tried one after another, as multiples of the study's own."""
EVERY = 10
"""Steps between two points of the curve."""
FITTING_STEPS = 100
"""Of L-BFGS on one bias a feature: a convex problem for the losses of all tasks here."""


@final
@dataclass(frozen=True)
class Memory:
    """Hold how well a variant learned a few items by heart.

    Parameters
    ----------
    variant : str
        Name in the study.
    items : int
        How many there were.
    same_answer : float
        Lowest loss of one answer for all positions of all items.
    start : float
        Loss on the items before training, in evaluation mode like all that follows.
    end : float
        Loss at the end, with the learning rate that came lowest.
    lr : float
        That rate.
    steps : int
        Updates made with it.
    seconds : float
        Time spent on them.
    curve : tuple of tuple
        Step and loss, from the start to the end.
    """

    variant: str
    items: int
    same_answer: float
    start: float
    end: float
    lr: float
    steps: int
    seconds: float
    curve: tuple[tuple[int, float], ...]

    @property
    def by_heart(self) -> bool:
        """Whether the items count as learned."""
        return self.end <= BY_HEART * self.same_answer

    @property
    def verdict(self) -> str:
        """What came of it, in words."""
        if self.by_heart:
            return "learned by heart"
        if not math.isfinite(self.end):
            return "its loss is not a number"
        if self.end >= self.same_answer:
            return "learned nothing that the same answer for all does not give"
        return f"not learned: {self.end / self.same_answer:.0%} of the loss of one answer for all is left"


def overfit(
    study: Study,
    *,
    variants: Sequence[str] | None = None,
    items: int = ITEMS,
    seconds: float = SECONDS,
    on_memory: Callable[[Memory], None] | None = None,
) -> tuple[Memory, ...]:
    """Let variants of a study learn a few items of its own data by heart.

    Parameters
    ----------
    study : Study
        Task, models and training settings; its rules are not used, but for the learning rates that they tune.
    variants : sequence of str, optional
        Names of the variants; all by default.
    items : int
        How many items of the first training batch are learned; fewer if the batch has fewer.
    seconds : float
        Training time of each variant, over all rates that are tried.
    on_memory : callable, optional
        Told of each variant as soon as it is done.

    Returns
    -------
    tuple of Memory
        In the order of the study.

    Raises
    ------
    SpecError
        If a variant is unknown or cannot be built, or a number is out of range.

    Notes
    -----
    Trained with the study's optimizer in float32, with a constant rate, no decay and no label smoothing, at the study's
    rate (the middle one where it tunes rates), then at three times and a third of it, until the loss on the items, in
    evaluation mode, is a fiftieth of what the best constant answer gives. A tenth counts as learned. Dropout stays on
    in training. How far a variant comes depends on how fast the machine is.

    References
    ----------
    .. [1] Karpathy, 2019, A Recipe for Training Neural Networks: overfit one batch.
    """
    chosen = study.named(variants)
    if items < 1 or not (seconds > 0 and math.isfinite(seconds)):
        raise SpecError(f"items must be 1 or more and seconds more than 0; got {items} and {seconds}")
    found = []
    for name in chosen:
        found.append(_here_or_apart(study, name, items, seconds))
        if on_memory:
            on_memory(found[-1])
    return tuple(found)


def _here_or_apart(study: Study, name: str, items: int, seconds: float) -> Memory:
    """Let one variant learn; in a process of its own where it has code of a person's own."""
    if names_own_code([study.model_spec(name), study.training_settings(name), study.task]):
        fields = call_apart(_apart, study.to_json(), name, items, seconds, takes_s=seconds)
        return Memory(**fields | {"curve": tuple((step, loss) for step, loss in fields["curve"])})
    return _one(study, name, items, seconds)


def _apart(study: Mapping[str, Any], name: str, items: int, seconds: float) -> dict[str, Any]:
    """Let one variant of a study that was kept learn."""
    return asdict(_one(restore_study(study), name, items, seconds))


def _one(study: Study, name: str, items: int, seconds: float) -> Memory:
    """Try rates in turn until one learns the items, and keep the best."""
    task = build_task(study.task_spec(name))
    few = _FewItems(task, items)
    tried: list[Memory] = []
    for lr in _rates(study, name):
        model = drawn_by_name(lambda: build_model(study.model_spec(name), task), 0)
        same_answer = few.same_answer(model)
        recipe = _recipe(study.training_settings(name), lr, seconds / len(RATES), same_answer)
        start = few.evaluate(_predict(model), few.parts[0])["loss"]
        result = train(model, few, recipe, seed=0)
        points = ((int(line["step"]), float(line["loss"])) for line in result.curve if "loss" in line)
        end = result.metrics["loss"]
        one = Memory(name, few.items, same_answer, start, end, lr, result.steps, result.seconds, ((0, start), *points))
        tried.append(one)
        if one.by_heart:
            break
    return min(tried, key=lambda memory: memory.end if math.isfinite(memory.end) else math.inf)


def _rates(study: Study, name: str) -> Iterator[float]:
    """Yield the rates to try: around the study's own, or around the middle one of those that it tunes."""
    tuned = sorted(study.rules.tune.get("lr", ()))
    said = study.training_settings(name).get("lr", Recipe.model_fields["lr"].default)
    own = tuned[len(tuned) // 2] if tuned else said
    yield from (own * factor for factor in RATES)


def _recipe(training: Mapping[str, Any], lr: float, seconds: float, same_answer: float) -> Recipe:
    """The study's recipe, made for learning by heart."""
    kept = {key: value for key, value in training.items() if key in ("optimizer", "clip")}
    return Recipe.parse(
        {
            **kept,
            "lr": lr,
            "budget": {"seconds": seconds},
            "schedule": "constant",
            "warmup": 0.0,
            "weight_decay": 0.0,
            "evaluate_every": EVERY,
            "stop_at": {"loss": ENOUGH * same_answer},
        },
        "training",
    )


def _predict(model: torch.nn.Module) -> Predict:
    """A model in evaluation mode, without gradients."""

    def predict(batch: Batch) -> Tensor:
        model.eval()
        with torch.no_grad():
            return model(*batch.inputs).float()

    return predict


@final
class _FewItems:
    """A task of a few items of another: trained on, and evaluated on, again and again."""

    metrics: tuple[Metric, ...] = (Metric("loss", "", "lower"),)
    parts: tuple[str, ...] = ("items",)

    def __init__(self, task: StudyTask, items: int) -> None:
        batch = task.train_batch(0, 0)
        self.items = min(items, len(batch.targets))
        self._batch = batch.rows(0, items)
        self._task = task
        self.tokens_per_step = max(1, task.tokens_per_step * self.items // len(batch.targets))

    def train_batch(self, step: int, seed: int) -> Batch:
        """The items, at every step."""
        del step, seed
        return self._batch

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        return self._task.loss(outputs, batch, label_smoothing)

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """The loss on the items."""
        del part
        return {"loss": float(self.loss(predict(self._batch).float(), self._batch))}

    def same_answer(self, model: torch.nn.Module) -> float:
        """The lowest loss of one answer for all positions, of the form that a model gives."""
        shape = _predict(model)(self._batch).shape
        answer = torch.zeros(shape[-1], requires_grad=True)
        optimizer = torch.optim.LBFGS([answer], max_iter=FITTING_STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss(answer.expand(shape), self._batch)
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            return float(self.loss(answer.expand(shape), self._batch))
