"""Say what a model costs before a second is spent: parameters, FLOPs per token, kept memory, time."""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnlab.core.errors import AttnlabError, ModuleError, SpecError
from attnlab.core.machine import within_memory
from attnlab.inspection.drawing.pieces import drawn, facts
from attnlab.inspection.memory import FusedRecurrence, kept_bytes

T = TypeVar("T")
Loss = Callable[[Tensor], Tensor]
NOT_ON_META = "counted on the CPU, as the model does not run on the meta device, which is no fault ({})"
WARM_UP_STEPS = 2  # the first steps also allocate memory and choose kernels


@final
@dataclass(frozen=True)
class Cost:
    """State what one training step of a model takes.

    Parameters
    ----------
    parameters : int
        Numbers the model holds; shared (tied) ones count once.
    flops_per_token : float
        Forward and backward, divided by the number of tokens; a multiply-add counts 2.
    activation_bytes : int
        Memory kept between forward and backward for the whole batch, parameters left out.
    notes : tuple of str
        What was done otherwise than usual, in words.
    """

    parameters: int
    flops_per_token: float
    activation_bytes: int
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """The numbers with their units."""
        found = facts(
            {
                "parameters": f"{self.parameters:,}",
                "FLOPs per token": f"{self.flops_per_token:,.0f}",
                "memory kept for the backward pass": f"{self.activation_bytes:,} bytes",
            }
        )
        return drawn("Cost of one training step", found, *self.notes).html


def cost(
    model: nn.Module | Callable[[], nn.Module],
    inputs: Tensor | Sequence[Tensor],
    *,
    tokens: int | None = None,
    loss: Loss = torch.sum,
) -> Cost:
    """Measure the cost of one training step without computing a number.

    Parameters
    ----------
    model : nn.Module or callable
        A module, which is copied, or a function without arguments that builds one. It is run in
        training mode on the ``meta`` device, where tensors have shapes but no values.
    inputs : Tensor or sequence of Tensor
        One batch as the model gets it. Only shapes and types count.
    tokens : int, optional
        Positions with a loss in the batch; by default batch times length of the first input.
    loss : callable, default torch.sum
        From outputs to a scalar; what it keeps for the backward pass counts as memory too.

    Returns
    -------
    Cost
        Parameters, training FLOPs per token, bytes kept for the backward pass, and notes.

    Raises
    ------
    ModuleError
        If the model runs neither on the meta device nor on the CPU.
    SpecError
        If it asks for more memory than there is.

    Notes
    -----
    Matrix products and convolutions are counted, in forward and backward as they are called; the gradient
    of a float input is not among them. Causal attention counts in full, as if masked scores were
    computed: fused kernels that skip them do up to half of that. Recurrent layers count by formula.
    Fused attention without a trained bias counts q, k, v, its output and one number per query as kept
    memory, as fused kernels do.
    A model that cannot run on the meta device (it makes tensors on the CPU by itself, or asks for a value)
    is run on the CPU instead, with the fused kernels the counter is blind to turned off; a note says so.

    Examples
    --------
    >>> cost(nn.Linear(3, 5, bias=False), torch.zeros(2, 7, 3)).flops_per_token
    60.0
    """
    factory = partial(copy.deepcopy, model) if isinstance(model, nn.Module) else model
    inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
    count = partial(_count, factory, inputs, tokens or _positions(inputs), loss)
    return _on_meta_or_cpu(
        lambda device, why: count(device=device, not_on_meta=why), "the model cannot be run on this batch"
    )


def count_parameters(model: nn.Module) -> int:
    """How many numbers a model holds as parameters; tied ones count once.

    Parameters
    ----------
    model : nn.Module
        Any module, on any device.

    Returns
    -------
    int
        Their number, frozen ones included.
    """
    return sum(parameter.numel() for parameter in model.parameters())


def parameters_of(factory: Callable[[], nn.Module]) -> int:
    """How many parameters a model has that a function builds; no number is drawn where it can be built without."""

    def built_on(device: str, _: str) -> int:
        with _kept_apart(device):
            return count_parameters(factory())

    return _on_meta_or_cpu(built_on, "the model cannot be built")


def _on_meta_or_cpu(attempt: Callable[[str, str], T], fails: str) -> T:
    """What an attempt gives on the meta device, else on the CPU, where it is told why."""
    try:
        return attempt("meta", "")
    except SpecError:  # it cannot be built anywhere
        raise
    except Exception as error:  # a person's module may raise anything
        why = _first_line(error)
    try:
        return attempt("cpu", why)
    except AttnlabError:
        raise
    except Exception as error:
        raise ModuleError(f"{fails}: {_first_line(error)}") from error


@contextlib.contextmanager
def _kept_apart(device: str) -> Iterator[None]:
    """Build on a device, within the memory that there is, and leave the caller's random numbers as they are."""
    with within_memory(), torch.random.fork_rng(devices=[]), torch.device(device):
        yield


def seconds_per_step(
    model: nn.Module,
    inputs: Sequence[Tensor],
    *,
    loss: Loss = torch.sum,
    device: str = "cpu",
    repeats: int = 5,
    products: torch.dtype = torch.float32,
) -> float:
    """Measure the time of forward and backward on a real device.

    Parameters
    ----------
    model : nn.Module
        It is copied to the device and run in training mode; the original is not touched.
    inputs : sequence of Tensor
        One batch as the model gets it.
    loss : callable, default torch.sum
        From outputs to a scalar.
    device : str, default "cpu"
        Where to measure.
    repeats : int, default 5
        Steps timed, after two that are not.
    products : torch.dtype, default torch.float32
        Type that matrix products are computed in; the shorter ones by autocast.

    Returns
    -------
    float
        Median over the steps, in seconds; the optimizer's part is not in it.
    """
    probe = copy.deepcopy(model).to(device).train()
    batch = tuple(tensor.to(device) for tensor in inputs)
    with torch.random.fork_rng(devices=[]):
        times = [_timed_step(probe, batch, loss, device, products) for _ in range(WARM_UP_STEPS + repeats)]
    return statistics.median(times[WARM_UP_STEPS:])


def _timed_step(model: nn.Module, batch: Sequence[Tensor], loss: Loss, device: str, products: torch.dtype) -> float:
    model.zero_grad(set_to_none=True)
    _wait(device)
    start = time.perf_counter()
    with torch.autocast(torch.device(device).type, products, enabled=products != torch.float32):
        outputs = model(*batch)
    loss(outputs.float() if outputs.dtype == torch.bfloat16 else outputs).backward()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    """Let a device that works on its own finish."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize()


def _count(
    factory: Callable[[], nn.Module],
    inputs: Sequence[Tensor],
    tokens: int,
    loss: Loss,
    *,
    device: str,
    not_on_meta: str,
) -> Cost:
    """Build the model on a device and run it twice: for its FLOPs, then for its memory."""
    with _kept_apart(device):
        built = factory()
        parameters = count_parameters(built)  # before the move to meta, which gives every place a tensor of its own
        model = built.to(device).train()
        batch = tuple(tensor.to(device) for tensor in inputs)
        counter, recurrence = FlopCounterMode(display=False), FusedRecurrence()
        with _countable_kernels(), counter, recurrence:
            found = loss(model(*batch))
            if not found.requires_grad:
                raise ModuleError("it cannot be trained: its loss depends on no weight that has a gradient")
            found.backward()
        with kept_bytes(model) as total:
            loss(model(*batch))
    return Cost(
        parameters=parameters,
        flops_per_token=(counter.get_total_flops() + recurrence.flops) / tokens,
        activation_bytes=total(),
        notes=(NOT_ON_META.format(not_on_meta),) if not_on_meta else (),
    )


@contextlib.contextmanager
def _countable_kernels() -> Iterator[Any]:
    """Turn off the fused CPU kernels (attention, LSTM) whose FLOPs the counter takes for 0."""
    before, *_ = torch.backends.mkldnn.set_flags(_enabled=False, _fp32_precision=None)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before, _fp32_precision=None)


def _positions(inputs: Sequence[Tensor]) -> int:
    """Batch times length."""
    return inputs[0].shape[:2].numel()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
