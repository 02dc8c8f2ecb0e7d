"""The pieces of one training step, with their errors in words: forward, loss, backward, clipping, looking at losses."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.contracts import Batch, Task, reads_bfloat16
from attnlab.core.errors import AttnlabError, ModuleError, TrainingError
from attnlab.core.sharded import whole
from attnlab.training.keeping.diagnosis import module_error
from attnlab.training.speed.compilation import compile_model
from attnlab.training.speed.settings import Setting


@final
@dataclass(frozen=True)
class Caller:
    """Call a model in a setting on its device, and name it in errors."""

    model: nn.Module  # the model, for names and shapes
    forward: Callable[..., Tensor]
    """What is called, or compiled and called: the model itself, or a function that runs it."""
    device: torch.device  # where it runs

    @functools.cached_property
    def compiled(self) -> Callable[..., Tensor]:
        """The compiled form of what is called; compiled at its first call."""
        return compile_model(self.forward, self.device)

    def outputs(self, batch: Batch, setting: Setting, *, step: int) -> Tensor:
        """What the model answers to a batch on its device."""
        try:
            with setting.autocast(self.device):
                outputs = (self.compiled if setting.compile else self.forward)(*batch.inputs)
        except (AttnlabError, MemoryError):
            raise
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(error, step) from error
        except Exception as error:
            raise module_error(self.model, batch, error, step=step) from error
        if not isinstance(outputs, Tensor):
            raise ModuleError(f"{type(self.model).__name__} must return one tensor; got {type(outputs).__name__}")
        return outputs

    def backward(self, loss: Float[Tensor, ""], batch: Batch, *, step: int) -> None:
        """Compute the gradients of a loss."""
        if not loss.requires_grad:
            raise ModuleError(f"what {type(self.model).__name__} returns does not depend on any of its parameters")
        try:
            loss.backward()
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(error, step) from error
        except RuntimeError as error:
            raise module_error(self.model, batch, error, step=step) from error


def _out_of_memory(error: Exception, step: int) -> TrainingError:
    return TrainingError(f"step {step}: out of memory; a smaller batch or model may fit ({error})")


def without_bfloat16(outputs: Tensor) -> Tensor:
    """Outputs in float32 where they are bfloat16, as they are otherwise."""
    return outputs.float() if outputs.dtype == torch.bfloat16 else outputs


def task_loss(task: Task, outputs: Tensor, batch: Batch, label_smoothing: float, *, strict: bool) -> Float[Tensor, ""]:
    """The task's loss of a model's outputs."""
    if not reads_bfloat16(task):
        outputs = without_bfloat16(outputs)
    try:
        with _broadcast_is_error() if strict else contextlib.nullcontext():
            return task.loss(outputs, batch, label_smoothing)
    except (RuntimeError, ValueError, IndexError, TypeError, UserWarning) as error:
        raise ModuleError(
            f"the task's loss cannot take what the model returned: shape {tuple(outputs.shape)} for targets of "
            f"shape {tuple(batch.targets.shape)} ({type(error).__name__}: {str(error).strip()})"
        ) from error


def sequence_log_probabilities(outputs: Tensor, batch: Batch, sequences: int) -> Float[Tensor, "batch sequences"]:
    """The log probability, in nats, of each of several sequences that a batch holds for each of its samples."""
    losses = nn.functional.cross_entropy(outputs.float().transpose(1, 2), batch.targets, reduction="none")
    return -losses.sum(dim=1).view(sequences, -1).T


@contextlib.contextmanager
def _broadcast_is_error() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using a target size")
        yield


def clip_gradients(parameters: Sequence[nn.Parameter], limit: float | None) -> Float[Tensor, ""]:
    """Scale gradients down to a longest length.

    References
    ----------
    .. [1] Pascanu, Mikolov, Bengio, 2013, arXiv:1211.5063, algorithm 1.
    """
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if limit is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return whole(norm)


@final
@dataclass(frozen=True)
class BadStep:
    """Name a step whose loss or gradient is not finite."""

    behind: int  # steps made since; 0 is the step being computed
    loss: float
    norm: float
    """Its loss and the norm of its gradient."""


@final
class LossWatch:
    """Look at losses and gradient norms now and then, since a look makes an accelerator wait.

    Parameters
    ----------
    every : int
        Steps between looks; 1 sees a bad step before its update.

    Attributes
    ----------
    last : float
        The last loss that was looked at; not a number before.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.last = math.nan
        self._unseen: list[tuple[Tensor, Tensor]] = []

    def add(self, loss: Float[Tensor, ""], norm: Float[Tensor, ""]) -> bool:
        """Keep one step's numbers; return whether it is time to look."""
        self._unseen.append((loss.detach(), norm))
        return len(self._unseen) >= self.every

    def look(self) -> tuple[list[float], BadStep | None]:
        """The losses not seen before, up to the first bad step, and that step if there is one."""
        pairs = [(float(loss), float(norm)) for loss, norm in self._unseen]
        self._unseen = []
        losses: list[float] = []
        for index, (loss, norm) in enumerate(pairs):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                return losses, BadStep(len(pairs) - 1 - index, loss, norm)
            losses.append(loss)
            self.last = loss
        return losses, None
