"""The one training loop, for every model and every task.

`train` opens a run or finds where it stopped; `Trainer.run` is the loop. What varies (recipe, model, task) is data
to it. The pieces of a step are in ``step.py``, what a run leaves behind in ``keeping.py`` and ``runs.py``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.contracts import Batch, Task
from attnlab.errors import Interrupted, SpecError
from attnlab.training.checkpoints import load_model_weights
from attnlab.training.compilation import compile_model
from attnlab.training.course import Course
from attnlab.training.diagnosis import NonFiniteError, non_finite_step
from attnlab.training.environment import environment
from attnlab.training.evaluation import evaluate, is_better
from attnlab.training.events import OnEvent, Pace, ignore_event
from attnlab.training.keeping import AbstractKeeper, FolderKeeper, MemoryKeeper
from attnlab.training.precision import Precision, choose_precision, wait_for
from attnlab.training.recipe import Recipe
from attnlab.training.result import Result, read_result, write_result
from attnlab.training.runs import FAILED, lock, open_run, read_metrics, write_failure
from attnlab.training.state import RunState
from attnlab.training.step import Caller, LossWatch, clip_gradients, task_loss
from attnlab.training.stopping import StopRequest

CHECKPOINT_INTERVAL_S = 10.0  # where the recipe does not say: saving takes 0.1 s, which may be 1 % of a run
MILLISECONDS = 3  # digits of the seconds in a record
CHECK_EVERY = {"cpu": 1}  # steps between looks at the loss: a look costs nothing on a CPU
CHECK_EVERY_ELSEWHERE = 10  # a look makes an accelerator wait


def train(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: Path | str | None = None,
    spec: Mapping[str, Any] | None = None,
    flops_per_token: float | None = None,
    on_event: OnEvent = ignore_event,
    device: str = "cpu",
) -> Result:
    """Train a model on a task; go on where a run in the same folder stopped.

    Parameters
    ----------
    model : nn.Module
        Any module called as ``model(*batch.inputs)``, initialized by the caller. Afterwards it is on `device` and
        holds the weights at the end of training.
    task : Task
        Data, loss and metrics.
    recipe : Recipe
        How to train.
    seed : int
        Seeds the data order and, through torch's global generator, dropout. The generator stays where the run
        leaves it.
    folder : Path or str, optional
        Run folder. None keeps nothing on disk, and leaves Ctrl-C alone.
    spec : mapping, optional
        What identifies the run, in JSON types; saved before the first step and compared when the run goes on.
        By default recipe, seed, class and number of parameters of the model.
    flops_per_token : float, optional
        FLOPs of forward and backward per position; needed for a budget in FLOPs.
    on_event : callable
        Told what happens; see ``events.py``.
    device : str
        ``cpu``, ``cuda`` or ``cuda:1``.

    Returns
    -------
    Result
        The final numbers; read from the folder if the run was done before.

    Raises
    ------
    SpecError
        If the budget buys no step, or the device or a compiler is not there.
    TrainingError
        If a loss, gradient or metric is not finite, or memory runs out.
    ModuleError
        If the model raises, or returns what the task's loss cannot take.
    RunError
        If the folder is another run's, written by another process, damaged, or the disk is full.
    Interrupted
        If a person stopped the run; it goes on when it is started again.

    Notes
    -----
    A run that was killed and started again ends in the same numbers, to the bit, on the same CPU with the same
    number of threads and any budget but seconds.
    """
    trainer = Trainer(
        model, task, recipe, seed=seed, flops_per_token=flops_per_token, on_event=on_event, device=torch.device(device)
    )
    if folder is None:
        return trainer.run(MemoryKeeper(), StopRequest())
    folder = Path(folder)
    with lock(folder):
        open_run(folder, trainer.default_spec() if spec is None else spec)
        done = read_result(folder, read_metrics(folder))
        if done is not None:
            load_model_weights(model, folder)
            return done
        (folder / FAILED).unlink(missing_ok=True)
        return _train_in(folder, trainer)


def _train_in(folder: Path, trainer: Trainer) -> Result:
    """Run in a folder, and record there why the run had to stop if it had to."""
    keeper = FolderKeeper(folder)
    try:
        with StopRequest() as stop:
            result = trainer.run(keeper, stop)
        write_result(folder, result)
        return result
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted(f"stopped at once, after the last checkpoint; {keeper.how_to_go_on()}") from None
    except NonFiniteError as error:
        write_failure(folder, error, step=error.step, layer=error.layer)
        raise
    except Exception as error:
        write_failure(folder, error, step=trainer.state.step + 1)
        raise
    finally:
        keeper.close()


class Trainer:
    """Hold what one run consists of, and run it.

    Parameters
    ----------
    model, task, recipe, seed, flops_per_token, on_event
        As in `train`.
    device : torch.device
        Where to train.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        *,
        seed: int,
        flops_per_token: float | None,
        on_event: OnEvent,
        device: torch.device,
    ) -> None:
        if device.type == "cuda" and not torch.cuda.is_available():
            raise SpecError(f"device '{device}' is not there: torch finds no CUDA device; use 'cpu'")
        self.model, self.task, self.recipe, self.seed, self.tell = model.to(device), task, recipe, seed, on_event
        self.caller = Caller(model, compile_model(model, device) if recipe.compile else model, device)
        self.course = Course(recipe, recipe.total_steps(task.tokens_per_step, flops_per_token))
        self.optimizer = recipe.build_optimizer().over(model, recipe.lr, recipe.weight_decay)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.watch = LossWatch(CHECK_EVERY.get(device.type, CHECK_EVERY_ELSEWHERE))
        self.state = RunState()
        self.precision = Precision("float32", "")
        self.pace = Pace(0.0)
        self.last_loss = math.nan
        self.saved_at = time.perf_counter()

    def run(self, keeper: AbstractKeeper, stop: StopRequest) -> Result:
        """Train to the end of the budget.

        Parameters
        ----------
        keeper : AbstractKeeper
            Where records and checkpoints go.
        stop : StopRequest
            Looked at after every step.

        Returns
        -------
        Result
            The final numbers.
        """
        self.start_or_resume(keeper)
        state, task, optimizer = self.state, self.task, self.optimizer
        while not state.stopped:
            began, before = time.perf_counter(), self.course.marks(state)
            batch = task.train_batch(state.step, self.seed).to(self.caller.device)
            optimizer.set_rate(self.course.learning_rate(state))
            loss = self.loss(batch, self.precision)
            self.caller.backward(loss, batch, step=state.step + 1)
            norm = clip_gradients(self.parameters, self.recipe.clip)
            if self.watch.add(loss, norm):
                self.look_at_losses(batch)
            optimizer.step()
            optimizer.zero_grad()
            state.step += 1
            self.count_time(time.perf_counter() - began)
            self.after_step(before, keeper)
            if stop.asked and not state.stopped:
                self.stop_early(keeper)
        return self.finish(keeper)

    # ---- before the first step ----

    def start_or_resume(self, keeper: AbstractKeeper) -> None:
        """Seed the generators and choose a precision, or restore both from an earlier run."""
        torch.manual_seed(self.seed)
        self.model.train()
        found = keeper.resume(self.model, self.optimizer)
        if found is None:
            self.precision = self.choose_precision()
            self.state = RunState(precision=self.precision.name, precision_reason=self.precision.reason)
        else:
            self.state = found
            self.state.resumed_at.append(found.step)
            self.precision = Precision(found.precision, found.precision_reason)
        self.pace = Pace(self.course.progress(self.state))
        self.say("start", precision=self.precision.name, reason=self.precision.reason, resumed=found is not None)

    def choose_precision(self) -> Precision:
        """Settle the recipe's precision on the first batch."""
        device = self.caller.device
        batch = self.task.train_batch(0, self.seed).to(device)
        return choose_precision(
            self.recipe.precision, self.model, lambda precision: self.loss(batch, precision), device=device
        )

    def default_spec(self) -> dict[str, Any]:
        """Return what identifies the run where the caller does not say."""
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "seed": self.seed,
            "model": type(self.model).__name__,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
        }

    # ---- in a step ----

    def loss(self, batch: Batch, precision: Precision) -> Tensor:
        """Return the training loss of a batch; shapes that only broadcast are an error in a process's first step."""
        outputs = self.caller.outputs(batch, precision, step=self.state.step + 1)
        return task_loss(self.task, outputs, batch, self.recipe.label_smoothing, strict=self.pace.tokens == 0)

    def look_at_losses(self, batch: Batch | None = None) -> None:
        """Add up the losses since the last look; stop at one that is not finite.

        Parameters
        ----------
        batch : Batch, optional
            The batch of the step before its update; None after it, when the bad layer can no longer be found.
        """
        losses, bad = self.watch.look()
        self.last_loss = losses[-1] if losses else self.last_loss
        self.state.loss_sum += math.fsum(losses)
        self.state.loss_count += len(losses)
        if bad is not None:
            now = self.state.step if batch is None else self.state.step + 1
            seen_in_time = batch if bad.behind == 0 else None
            raise non_finite_step(self.model, seen_in_time, step=now - bad.behind, loss=bad.loss, norm=bad.norm)

    def count_time(self, seconds: float) -> None:
        """Add one step's time."""
        self.state.seconds += seconds
        self.pace.add(self.task.tokens_per_step, seconds)

    # ---- after a step ----

    def after_step(self, before: tuple[int, int], keeper: AbstractKeeper) -> None:
        """Evaluate, record, save and tell what is due after a step."""
        evaluations, records = self.course.marks(self.state)
        if self.course.progress(self.state) >= 1.0:
            self.state.stopped = "budget"
        evaluating = evaluations > before[0] or bool(self.state.stopped)
        saving = self.checkpoint_is_due(evaluating=evaluating)
        if evaluating or saving or records > before[1]:
            self.catch_up()
        if evaluating and self.evaluate():
            keeper.remember_best(self.model, self.state)
        if evaluating or records > before[1]:
            keeper.record(self.next_record(with_metrics=evaluating))
        if saving or self.state.stopped:
            self.save(keeper)
        if self.pace.is_due() or self.state.stopped:
            self.say_step()

    def checkpoint_is_due(self, *, evaluating: bool) -> bool:
        """Return whether the recipe wants a checkpoint now."""
        every = self.recipe.checkpoint_every
        if every is not None:
            return self.state.step % every == 0
        return evaluating and time.perf_counter() - self.saved_at >= CHECKPOINT_INTERVAL_S

    def save(self, keeper: AbstractKeeper) -> None:
        """Save where the run stands."""
        keeper.save(self.model, self.optimizer, self.state)
        self.saved_at = time.perf_counter()

    def catch_up(self) -> None:
        """Look at losses an accelerator still works on; the wait is training time."""
        began = time.perf_counter()
        wait_for(self.caller.device)
        self.look_at_losses()
        self.state.seconds += time.perf_counter() - began

    def evaluate(self) -> bool:
        """Evaluate on the first held-out part, and return whether it is the best so far."""
        state, part = self.state, self.task.parts[0]
        metrics = self.evaluate_part(part)
        better = is_better(self.task, metrics, state.best.get("metrics", {}))
        state.metrics = metrics
        state.since_best = 0 if better else state.since_best + 1
        if better:
            state.best = {"step": state.step, "metrics": metrics}
        patience = self.recipe.early_stop.patience if self.recipe.early_stop else math.inf
        if state.since_best >= patience and not state.stopped:
            state.stopped = "early stop"
        self.say("evaluation", part=part, metrics=metrics, best=better, progress=self.course.progress(self.state))
        return better

    def evaluate_part(self, part: str) -> dict[str, float]:
        """Return the metrics of a held-out part, and count the time."""
        began = time.perf_counter()
        metrics = evaluate(self.caller, self.task, part, self.precision, step=self.state.step)
        self.state.evaluation_seconds += time.perf_counter() - began
        return metrics

    def next_record(self, *, with_metrics: bool) -> dict[str, Any]:
        """Return one record of the training curve."""
        state = self.state
        record: dict[str, Any] = {
            "step": state.step,
            "tokens": state.step * self.task.tokens_per_step,
            "seconds": round(state.seconds, MILLISECONDS),
            "lr": self.optimizer.rate(),
            "train_loss": state.take_mean_loss(),
        }
        return record | state.metrics if with_metrics else record

    def stop_early(self, keeper: AbstractKeeper) -> None:
        """Save where the run stands and end it, since a person asked for it."""
        self.say("stopping")
        self.catch_up()
        self.save(keeper)
        of = f" of {self.course.total_steps}" if self.course.total_steps is not None else ""
        raise Interrupted(f"stopped after step {self.state.step}{of}; {keeper.how_to_go_on()}")

    def finish(self, keeper: AbstractKeeper) -> Result:
        """Evaluate what has not been evaluated, and sum up."""
        state = self.state
        metrics = dict(state.metrics)
        for part in self.task.parts[1:]:
            metrics |= self.evaluate_part(part)
        result = Result(
            metrics=metrics,
            best=state.best,
            steps=state.step,
            tokens=state.step * self.task.tokens_per_step,
            seconds=state.seconds,
            evaluation_seconds=state.evaluation_seconds,
            train_loss=state.train_loss,
            stopped=state.stopped,
            precision=state.precision,
            precision_reason=state.precision_reason,
            compiled=self.recipe.compile,
            seed=self.seed,
            resumed_at=state.resumed_at,
            environment=environment(self.caller.device),
            curve=keeper.curve(),
        )
        self.say("done", metrics=metrics, best=state.best, seconds=state.seconds)
        return result

    # ---- telling ----

    def say(self, kind: str, **details: Any) -> None:
        """Tell the caller about an event."""
        self.tell({"kind": kind, "step": self.state.step, "steps": self.course.total_steps, **details})

    def say_step(self) -> None:
        """Tell the caller how far and how fast the run goes."""
        progress = self.course.progress(self.state)
        self.say(
            "step",
            progress=progress,
            loss=self.last_loss,
            lr=self.optimizer.rate(),
            rate=self.pace.rate(),
            seconds_left=self.pace.seconds_left(progress),
        )
