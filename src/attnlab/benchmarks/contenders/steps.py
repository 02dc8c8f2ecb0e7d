"""Things that make training steps when they are told to: a loop by hand, and the lab's own run."""

from __future__ import annotations

import math
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab.benchmarks.contenders.peers import OURS, Peer, PeerSizes, parameter_count
from attnlab.benchmarks.contenders.tokens import RandomTokens
from attnlab.core.contracts import Batch, Metric, Predict
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.loop import train
from attnlab.training.speed.compilation import compile_model
from attnlab.training.speed.settings import Setting, wait_for

LEARNING_RATE = 1e-3
LONGEST_GRADIENT = 1.0
SETTLING_MS = 1000.0
MOST_SETTLING = 5  # steps, of which the median counts


class AbstractStepper(ABC):
    """Make training steps of one model."""

    parameters: int
    """Numbers that training changes."""
    setting: Setting
    """How the model is computed; known once steps were made."""
    reason: str = ""
    """Why so, in words, where it was chosen."""
    ms: float = math.nan
    """What a step takes, as `settle` found."""

    def known(self) -> dict[str, Any]:
        """What is known of it, by the names of its attributes."""
        return {"parameters": self.parameters, "setting": self.setting, "reason": self.reason, "ms": self.ms}

    def settle(self) -> None:
        """Warm up, then time steps for about a second, at least one; a long first step that is not compiled will do."""
        times = [self.step_ms(1)]
        if self.setting.compile or times[0] < SETTLING_MS:
            times = [self.step_ms(1)]
        while len(times) < MOST_SETTLING and sum(times) < SETTLING_MS:
            times.append(self.step_ms(1))
        self.ms = statistics.median(times)

    @abstractmethod
    def step_ms(self, steps: int) -> float:
        """Make some steps and return the milliseconds of one."""

    @abstractmethod
    def close(self) -> None:
        """End it; no step can be made after."""


@final
class BareLoop(AbstractStepper):
    """Make training steps as a loop by hand does: forward, backward, clip, fused AdamW.

    Parameters
    ----------
    model : nn.Module
        What is trained, tokens to logits.
    task : RandomTokens
        On what.
    setting : Setting
        How it is computed.
    device : torch.device
        Where.

    Raises
    ------
    SpecError
        If it is to be compiled and there is no compiler.
    """

    def __init__(self, model: nn.Module, task: RandomTokens, setting: Setting, device: torch.device) -> None:
        self.model, self.parameters = model.to(device).train(), parameter_count(model)
        self.setting, self.device = setting, device
        self._forward = compile_model(self.model, device) if setting.compile else self.model
        self._batch = task.train_batch(0, 0).to(device)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, fused=True)

    def step_ms(self, steps: int) -> float:
        """Make some steps and return the milliseconds of one."""
        wait_for(self.device)
        start = time.perf_counter()
        for _ in range(steps):
            self._make_step()
        wait_for(self.device)
        return (time.perf_counter() - start) / steps * 1e3

    def _make_step(self) -> None:
        with self.setting.autocast(self.device):
            logits = self._forward(*self._batch.inputs)
        F.cross_entropy(logits.float().flatten(0, 1), self._batch.targets.flatten()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), LONGEST_GRADIENT)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def close(self) -> None:
        """Do nothing."""


@final
class LabRun(AbstractStepper):
    """Let the lab's own `train` make its steps a few at a time.

    The run goes on in a thread of its own. It chooses its setting as any run does, and waits for more steps where it
    asks for a batch. What is measured is all that `train` does between steps, but no evaluation.

    Parameters
    ----------
    model : nn.Module
        What is trained.
    task : RandomTokens
        On what.
    device : torch.device
        Where.
    steps : int
        Steps of the whole run, which "auto" plans with; more cannot be made.
    precision : {"float32", "bf16", "auto"}
        What the recipe says.
    compiled : bool or "auto"
        What the recipe says.

    Raises
    ------
    SpecError
        If the recipe asks for what is not known.
    """

    def __init__(
        self,
        model: nn.Module,
        task: RandomTokens,
        device: torch.device,
        *,
        steps: int,
        precision: str = "float32",
        compiled: bool | str = False,
    ) -> None:
        self.model, self.parameters, self.setting = model, parameter_count(model), Setting()
        self._gate = _Gate(task, device)
        self._recipe = Recipe.parse(
            {
                "budget": {"steps": steps},
                "lr": LEARNING_RATE,
                "clip": LONGEST_GRADIENT,
                "evaluate_every": steps,
                "precision": precision,
                "compile": compiled,
            }
        )
        self._device = device
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def step_ms(self, steps: int) -> float:
        """Make some steps and return the milliseconds of one; the first call also chooses how."""
        if self._thread.ident is None:
            self._thread.start()
            self._gate.arrived.acquire()
            self._raise_error()
        start = time.perf_counter()
        self._gate.let_through(steps)
        self._gate.arrived.acquire()
        seconds = time.perf_counter() - start
        self._raise_error()
        return seconds / steps * 1e3

    def close(self) -> None:
        """End the run where it stands."""
        if self._thread.is_alive():
            self._gate.shut()
            self._thread.join()

    def _run(self) -> None:
        try:
            train(self.model, self._gate, self._recipe, device=str(self._device), on_event=self._hear)
        except _ShutError:
            return
        except BaseException as error:  # told to who waits for the steps
            self._error = error
        self._gate.arrived.release()

    def _hear(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "start":
            self.setting, self.reason = Setting.parse(event["setting"]), event["reason"]
            self._gate.is_watched = True

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


@final
class _ShutError(Exception):
    """End a run from within."""


@final
class _Gate:
    """Hand a task's batches out as before, once watched only as many as are let through.

    Parameters
    ----------
    task : RandomTokens
        Whose batches.
    device : torch.device
        Waited for before the gate reports that steps are done.
    """

    metrics: tuple[Metric, ...] = RandomTokens.metrics
    parts: tuple[str, ...] = RandomTokens.parts

    def __init__(self, task: RandomTokens, device: torch.device) -> None:
        self.tokens_per_step = task.tokens_per_step
        self.is_watched = False
        self.arrived = threading.Semaphore(0)
        self._task, self._device = task, device
        self._open = threading.Semaphore(0)
        self._allowed, self._is_shut = 0, False

    def let_through(self, steps: int) -> None:
        """Allow some steps."""
        self._allowed += steps
        self._open.release()

    def shut(self) -> None:
        """End the run that waits."""
        self._is_shut = True
        self._open.release()

    def train_batch(self, step: int, seed: int) -> Batch:
        """A batch, once it is let through."""
        if self.is_watched and step >= self._allowed:
            wait_for(self._device)
            self.arrived.release()
            self._open.acquire()
            if self._is_shut:
                raise _ShutError
        return self._task.train_batch(step, seed)

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The task's loss."""
        return self._task.loss(outputs, batch, label_smoothing)

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """The task's metrics."""
        return self._task.evaluate(predict, part)


def tokens(sizes: PeerSizes) -> RandomTokens:
    """What models of some sizes are trained on."""
    return RandomTokens(sizes.batch, sizes.length, sizes.vocab_size)


def bare_loop(peer: Peer, sizes: PeerSizes, setting: Setting, device: torch.device) -> AbstractStepper:
    """A loop by hand around a peer's model."""
    torch.manual_seed(0)
    return BareLoop(peer.build(sizes), tokens(sizes), setting, device)


def lab_run(
    sizes: PeerSizes, device: torch.device, steps: int, precision: str = "float32", compiled: bool | str = False
) -> AbstractStepper:
    """The lab's own run of its own model."""
    torch.manual_seed(0)
    return LabRun(OURS.build(sizes), tokens(sizes), device, steps=steps, precision=precision, compiled=compiled)
