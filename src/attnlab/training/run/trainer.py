"""One run: its model, optimizer, place in the budget and keeper, and what is due before and after its steps.

``loop.py`` takes one run or several through their steps. The pieces of a step are in ``step.py``, what a run leaves
behind in ``keeping.py``.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from attnlab.core.build import parse
from attnlab.core.contracts import Attempt, Batch, Judge, Task
from attnlab.core.errors import Interrupted, SpecError
from attnlab.core.files import finite
from attnlab.core.generators import Generators, generator_for, seed_generators
from attnlab.core.machine import environment
from attnlab.training.devices.division import Division, divide
from attnlab.training.devices.ranks import AbstractRanks, Alone
from attnlab.training.devices.spread import Undivided
from attnlab.training.keeping.averaging import WeightAverage
from attnlab.training.keeping.diagnosis import NonFiniteError, non_finite_step
from attnlab.training.keeping.keeping import AbstractKeeper
from attnlab.training.keeping.result import Result, RunState
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.recipe.target import SECONDS_TO_TARGET, check_measured, check_target, is_reached
from attnlab.training.run.course import Course, Marks
from attnlab.training.run.evaluation import evaluate, is_better, judged, training_accuracy
from attnlab.training.run.events import OnEvent, Pace
from attnlab.training.run.looks import Looks
from attnlab.training.run.step import Caller, LossWatch, sequence_log_probabilities, task_loss
from attnlab.training.speed.settings import Choice, Setting, wait_for

T = TypeVar("T")
CHECKPOINT_INTERVAL_S = 10.0  # where the recipe does not say: saving takes 0.1 s, which may be 1 % of a run
MILLISECONDS = 3  # digits of the seconds in a record
LAST_BATCHES = 10  # of training, in which a trained model's answers are counted
CHECK_EVERY = {"cpu": 1}  # steps between looks at the loss: a look costs nothing on a CPU
CHECK_EVERY_ELSEWHERE = 10  # a look makes an accelerator wait


@final
class Trainer:
    """Hold what one run consists of.

    Parameters
    ----------
    model, task, recipe, seed, flops_per_token, judge, attempt, on_event
        As in `train`.
    keeper : AbstractKeeper
        Where records and checkpoints go.
    device : torch.device
        Where to train.
    generators : Generators
        Torch's random number generators, shared with the other runs of this process.
    ranks : AbstractRanks, optional
        The processes that train the model together; by default this one alone.

    Attributes
    ----------
    outcome : Result or Exception or None
        What the run ended with; None while it goes on.
    batch : Batch
        The batch of the step that is under way.
    loss : Tensor
        Its loss, without a graph.
    """

    batch: Batch
    loss: Tensor

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        *,
        keeper: AbstractKeeper,
        seed: int,
        flops_per_token: float | None,
        judge: Judge | None,
        attempt: Attempt | None = None,
        on_event: OnEvent,
        device: torch.device,
        generators: Generators,
        ranks: AbstractRanks | None = None,
    ) -> None:
        if device.type == "cuda" and not torch.cuda.is_available():
            raise SpecError(f"device '{device}' is not there: torch finds no CUDA device; use 'cpu'")
        if recipe.stop_at:
            check_target(recipe.stop_at, task)
        self.model, self.task, self.recipe, self.seed, self.tell = model.to(device), task, recipe, seed, on_event
        self.keeper, self.generators, self.judge = keeper, generators, judge
        self.objective, self.attempt = recipe.build_objective(), attempt
        self.rewards: Tensor | None = None
        if self.objective.samples:
            self.check_attempts()
        self.caller = Caller(model, model, device)
        self.course = Course(recipe, recipe.total_steps(task, flops_per_token))
        self.ranks = ranks or Alone()
        self.division = Division(Undivided(model), self.ranks)
        self.own(model)
        self.watch = LossWatch(CHECK_EVERY.get(device.type, CHECK_EVERY_ELSEWHERE))
        self.looks = Looks(model, recipe.watch, self.course.total_steps)
        self.state, self.average = RunState(), WeightAverage()
        self.pace = Pace(0.0)
        self.saved_at = time.perf_counter()
        self.marks = Marks(0, 0, 0)
        self.outcome: Result | Exception | None = None

    @contextlib.contextmanager
    def own_failure(self) -> Iterator[None]:
        """Make an exception of the body the run's outcome, and keep it where the run is kept."""
        try:
            yield
        except Interrupted:
            raise
        except NonFiniteError as error:
            self.outcome = error
            self.keeper.fail(error, step=error.step, layer=error.layer)
        except Exception as error:
            self.outcome = error
            self.keeper.fail(error, step=self.state.step + 1)

    # ---- before the first step ----

    def check_attempts(self) -> None:
        """Raise unless the model's own attempts can be learned from."""
        name, _ = parse(self.recipe.objective, axis="objective")
        if self.attempt is None:
            raise SpecError(f"objective '{name}' needs a task whose models write sentences, such as translation")
        if self.recipe.devices * self.recipe.accumulate > 1:
            raise SpecError(f"objective '{name}' takes whole batches; give it devices: 1 and accumulate: 1")

    def own(self, model: nn.Module) -> None:
        """Update the parameters of a model."""
        self.optimizer = self.recipe.build_optimizer().over(model, self.recipe.lr, self.recipe.weight_decay)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def divide(self) -> None:
        """Lay the model on the devices of its ranks, if there are several or the batch is cut in pieces."""
        if self.ranks.count * self.recipe.accumulate == 1:
            return
        device = self.caller.device
        self.division = divide(
            self.model,
            self.task,
            self.recipe,
            self.ranks,
            loss=self.loss_tried,
            first=self.task.train_batch(0, self.seed).to(device),
            device=device,
        )
        self.own(self.division.spread.owner)

    def restore(self) -> None:
        """Seed the generators, and take over what an earlier run left."""
        self.generators.give_to(self)
        seed_generators(self.seed)
        self.model.train()
        self.divide()
        found = self.keeper.resume(self.division.spread.owner, self.optimizer, self.average)
        if found is not None:
            self.state = found
            found.resumed_at.append(found.step)
        if self.state.stopped:  # it was killed between its last step and its result
            self.division.spread.give_back()
            self.say_start()
            self.finish()

    def wanted_setting(self) -> tuple[str, bool | str]:
        """Precision and compiling as the run began in them, or as the recipe says; pieces are not compiled."""
        if self.state.resumed_at:
            return self.state.precision, self.state.compiled
        return self.recipe.precision, self.recipe.compile if self.division.is_plain else False

    def start(self, choice: Choice) -> None:
        """Begin or go on in a chosen setting."""
        self.state.adopt(choice)
        self.pace = Pace(self.course.progress(self.state))
        self.say_start()

    # ---- in a step ----

    def begin(self) -> None:
        """Take the step's batch and set its learning rate."""
        self.marks = self.course.marks(self.state)
        batch = self.task.train_batch(self.state.step, self.seed).to(self.caller.device)
        self.batch, self.rewards = self.attempted(batch)
        self.optimizer.set_rate(self.course.learning_rate(self.state))

    def attempted(self, batch: Batch) -> tuple[Batch, Tensor | None]:
        """A batch with what the model writes for it and how good that is, once the objective learns from it."""
        samples = self.objective.samples
        if self.attempt is None or not samples or self.course.progress(self.state) < self.objective.after:
            return batch, None
        self.model.eval()
        found = self.attempt(self.model, batch, samples, generator_for(self.seed, self.state.step))
        self.model.train()
        if found is None:
            return batch, None
        return found.batch.to(self.caller.device), found.rewards.to(self.caller.device)

    def loss_from(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The loss of a model's outputs; shapes that only broadcast are an error in a process's first step."""
        if self.rewards is not None:
            return self.objective.loss(sequence_log_probabilities(outputs, batch, self.rewards.shape[1]), self.rewards)
        return task_loss(self.task, outputs, batch, self.recipe.label_smoothing, strict=self.pace.tokens == 0)

    def loss_tried(self, batch: Batch, called: nn.Module | None = None, weight: float = 1.0) -> Tensor:
        """The loss of a batch before the first step, by the model or what is called in its place, and a weight."""
        outputs = Caller(self.model, called or self.model, self.caller.device).outputs(batch, Setting(), step=1)
        return self.weighted_loss(outputs, batch, weight)

    def weighted_loss(self, outputs: Tensor, batch: Batch, weight: float) -> Tensor:
        """The loss of a model's outputs by the weight of their targets; none have no mean."""
        return (self.loss_from(outputs, batch) if weight else outputs.sum()) * weight

    def before_update(self) -> None:
        """Note what a look inside compares the update with."""
        if self.looks.is_due(self.state.step):
            self.looks.before_update()

    def inspect(self, norm: Tensor) -> None:
        """Look at the step's loss and gradient norm, now or with those of later steps; stop at one not finite."""
        if self.watch.add(self.loss, norm):
            self.look_at_losses(self.batch)

    def count_step(self) -> None:
        """Count the step as made."""
        self.optimizer.zero_grad()
        self.state.step += 1

    def look_at_losses(self, batch: Batch | None = None) -> None:
        """Add up the losses since the last look; stop at one that is not finite."""
        losses, bad = self.watch.look()
        self.state.loss_sum += math.fsum(losses)
        self.state.loss_count += len(losses)
        if bad is not None:
            self.generators.give_to(self)
            now = self.state.step if batch is None else self.state.step + 1
            is_whole = self.division.spread.owner is self.model
            seen_in_time = batch if bad.behind == 0 and is_whole else None
            raise non_finite_step(self.model, seen_in_time, step=now - bad.behind, loss=bad.loss, norm=bad.norm)

    # ---- after a step ----

    def end(self, seconds: float) -> None:
        """Count a step's time; evaluate, record, save and tell what is due after it; finish after the last."""
        self.state.seconds += seconds
        self.pace.add(self.task.tokens_per_step, seconds)
        self.look_inside()
        before, now = self.marks, self.course.marks(self.state)
        if self.course.progress(self.state) >= 1.0:
            self.state.stopped = "budget"
        evaluating = now.evaluations > before.evaluations or bool(self.state.stopped)
        recording = evaluating or now.records > before.records
        saving = self.checkpoint_is_due(evaluating=evaluating)
        if recording or saving:
            self.catch_up()
        if now.averages > before.averages:
            self.state.averaged += 1
            self.average.add(self.division.spread.owner, self.state.averaged)
            if self.state.stopped:
                self.average.put_into(self.division.spread.owner)
        if evaluating and self.evaluate():
            self.keeper.remember_best(self.model, self.state)
        if recording:
            self.keeper.record(self.next_record(with_metrics=evaluating))
        if saving or self.state.stopped:
            self.save()
        if self.pace.is_due() or self.state.stopped:
            self.say_step()
        if self.state.stopped:
            self.finish()

    def checkpoint_is_due(self, *, evaluating: bool) -> bool:
        """Whether the recipe wants a checkpoint now."""
        every = self.recipe.checkpoint_every
        if every is not None:
            return self.state.step % every == 0
        return evaluating and self.ranks.most(time.perf_counter() - self.saved_at) >= CHECKPOINT_INTERVAL_S

    def save(self) -> None:
        """Save where the run stands."""
        self.generators.give_to(self)
        kept = self.model if self.state.stopped else self.division.spread.owner
        self.keeper.save(kept, self.optimizer, self.average, self.state)
        self.saved_at = time.perf_counter()

    def look_inside(self) -> None:
        """Look at attention and gradients of the step that was made if that is due; record and tell it."""
        if not self.looks.is_due(self.state.step - 1) or not self.ranks.is_first:
            return
        with self.training_time():
            wait_for(self.caller.device)
        with self.evaluation_time():
            bookmark = self.generators.bookmark()
            seen = finite(self.looks.after_update(self.call_another, self.batch))
            self.generators.go_back(bookmark)
        self.keeper.record({**self.place(), "watch": seen})
        self.say("watch", {"seen": seen})

    def call_another(self, model: nn.Module, batch: Batch) -> Tensor:
        """Call a copy of the model in the setting of the steps, not compiled."""
        caller = Caller(model, model, self.caller.device)
        return caller.outputs(batch, self.state.setting.eager(), step=self.state.step)

    def catch_up(self) -> None:
        """Look at losses an accelerator still works on; the wait is training time."""
        with self.training_time():
            wait_for(self.caller.device)
            self.look_at_losses()

    def evaluate(self) -> bool:
        """Evaluate on the first held-out part, and return whether it is the best so far."""
        state, part, came_to_its_end = self.state, self.task.parts[0], bool(self.state.stopped)
        with self.evaluation_time():
            self.division.spread.give_back()
            metrics = self.on_first(lambda: evaluate(self.caller, self.task, part, state.setting, step=state.step))
        if self.recipe.stop_at:
            check_measured(self.recipe.stop_at, self.task, metrics)
            if is_reached(self.recipe.stop_at, self.task.metrics, metrics):
                state.stopped = "target"
                metrics[SECONDS_TO_TARGET] = state.seconds + state.evaluation_seconds
        better = is_better(self.task, metrics, state.best.get("metrics", {}))
        state.metrics = metrics
        state.since_best = 0 if better else state.since_best + 1
        if better:
            state.best = {"step": state.step, "metrics": metrics}
        patience = self.recipe.early_stop.patience if self.recipe.early_stop else math.inf
        if state.since_best >= patience and not state.stopped:
            state.stopped = "early stop"
        if state.stopped and not came_to_its_end:
            state.averaged = 0  # the last weights stay
        progress = self.course.progress(state)
        self.say("evaluation", {"part": part, "metrics": metrics, "best": better, "progress": progress})
        return better

    @contextlib.contextmanager
    def training_time(self) -> Iterator[None]:
        """Count the body's time as that of training steps."""
        began = time.perf_counter()
        yield
        self.state.seconds += time.perf_counter() - began

    @contextlib.contextmanager
    def evaluation_time(self) -> Iterator[None]:
        """Count the body's time as evaluation."""
        began = time.perf_counter()
        self.generators.give_to(self)
        yield
        self.state.evaluation_seconds += time.perf_counter() - began

    def next_record(self, *, with_metrics: bool) -> dict[str, Any]:
        """One record of the training curve."""
        record = self.place() | {"train_loss": self.state.take_mean_loss()}
        return record | self.state.metrics if with_metrics else record

    def place(self) -> dict[str, Any]:
        """Where the run stands, as a record begins."""
        return {
            "step": self.state.step,
            "tokens": self.state.step * self.task.tokens_per_step,
            "seconds": round(self.state.seconds, MILLISECONDS),
            "lr": self.optimizer.rate(),
        }

    def stop_early(self) -> str:
        """Save where the run stands, since a person wants it to end; return where that is, in words."""
        self.say("stopping")
        self.catch_up()
        self.save()
        of = f" of {self.course.total_steps}" if self.course.total_steps is not None else ""
        return f"step {self.state.step}{of}"

    def finish(self) -> None:
        """Evaluate what has not been evaluated, and sum up."""
        state = self.state
        metrics, written_per_second = dict(state.metrics), 0.0
        with self.evaluation_time():
            for part in self.task.parts[1:]:
                metrics |= self.on_first(
                    lambda part=part: evaluate(self.caller, self.task, part, state.setting, step=state.step)
                )
            metrics |= self.on_first(self._training_accuracy)
            if self.judge is not None:
                judge = self.judge
                found, written_per_second = self.on_first(lambda: judged(self.caller, judge, step=state.step))
                metrics |= found
        result = Result(
            **state.shared() | {"metrics": metrics},
            steps=state.step,
            tokens=state.step * self.task.tokens_per_step,
            seed=self.seed,
            environment=environment(self.caller.device) | self.division.recorded(),
            written_per_second=written_per_second,
            curve=self.keeper.curve(),
        )
        self.say("done", {"metrics": metrics, "best": state.best, "seconds": state.seconds})
        self.keeper.finish(result)
        self.outcome = result

    def _training_accuracy(self) -> dict[str, float]:
        """How much of the last batches the trained model answers rightly."""
        end = self.state.step
        last = (self.task.train_batch(number, self.seed) for number in range(max(0, end - LAST_BATCHES), end))
        return training_accuracy(self.caller, self.task, last, self.state.setting, step=end)

    def on_first(self, measure: Callable[[], T]) -> T:
        """What the first rank measures of the whole model, on every rank."""
        if self.ranks.is_first:
            self.model.to(self.caller.device)  # where it is, unless it is sharded
        return self.ranks.from_first(measure)

    # ---- telling ----

    def say(self, kind: str, details: Mapping[str, Any] | None = None) -> None:
        """Tell the caller about an event, on the first rank."""
        if self.ranks.is_first:
            self.tell({"kind": kind, "step": self.state.step, "steps": self.course.total_steps, **(details or {})})

    def say_start(self) -> None:
        """Tell the caller that the run begins or goes on."""
        self.say(
            "start",
            {
                "setting": str(self.state.setting),
                "reason": self.state.setting_reason,
                "resumed": bool(self.state.resumed_at),
                "division": self.division.note,
            },
        )

    def say_step(self) -> None:
        """Tell the caller how far and how fast the run goes."""
        progress, lr, rate = self.course.progress(self.state), self.optimizer.rate(), self.pace.rate()
        left = self.pace.seconds_left(progress)
        self.say("step", {"progress": progress, "loss": self.watch.last, "lr": lr, "rate": rate, "seconds_left": left})
