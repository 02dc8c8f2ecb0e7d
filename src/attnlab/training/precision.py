"""What matrix products are computed in: float32 or bfloat16, and which of them is faster for a model here.

In bf16 the parameters, their gradients, the optimizer and the loss stay in float32; torch's autocast computes
the matrix products in bfloat16.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

TIMED_ROUNDS = 5
"""Forward-backward pairs timed per precision; the median of five shrugs off two disturbed ones."""

WORTH_IT = 0.95
"""bf16 is chosen if it takes at most this fraction of float32's time: its rounding must buy something."""


@dataclass(frozen=True)
class Precision:
    """Record a chosen precision and why it was chosen.

    Parameters
    ----------
    name : str
        ``float32`` or ``bf16``.
    reason : str
        Why, in words.
    """

    name: str
    reason: str

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """Return the context in which forward passes are computed."""
        if self.name == "float32":
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)


def choose_precision(
    wanted: str, model: nn.Module, forward_loss: Callable[[Precision], Tensor], device: torch.device
) -> Precision:
    """Settle "auto" by measuring; pass a named precision through.

    Parameters
    ----------
    wanted : str
        ``float32``, ``bf16`` or ``auto``.
    model : nn.Module
        The model in training mode. Its parameters, buffers and gradients, and the random number generators, are
        afterwards what they were.
    forward_loss : callable
        From a precision to the loss of one batch.
    device : torch.device
        Where the model is.

    Returns
    -------
    Precision
        The precision to use, with the measured times as its reason.

    Notes
    -----
    Alternates the two, so that a disturbance of the machine meets both. Costs about twelve forward-backwards.
    """
    if wanted != "auto":
        return Precision(wanted, "asked for by the recipe")
    candidates = (Precision("float32", "measured"), Precision("bf16", "measured"))
    with _untouched(model, device):
        try:
            times = _alternate(model, forward_loss, candidates, device)
        except RuntimeError as error:
            return Precision("float32", f"bf16 does not run here: {str(error).splitlines()[0]}")
    plain, short = times["float32"], times["bf16"]
    name = "bf16" if short <= WORTH_IT * plain else "float32"
    return Precision(name, f"measured: float32 {plain * 1e3:.1f} ms, bf16 {short * 1e3:.1f} ms a forward-backward")


def _alternate(
    model: nn.Module,
    forward_loss: Callable[[Precision], Tensor],
    candidates: tuple[Precision, ...],
    device: torch.device,
) -> dict[str, float]:
    """Return the median seconds of a forward-backward per precision; the first round only warms up."""
    times: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for _ in range(1 + TIMED_ROUNDS):
        for candidate in candidates:
            wait_for(device)
            begin = time.perf_counter()
            forward_loss(candidate).backward()
            wait_for(device)
            times[candidate.name].append(time.perf_counter() - begin)
            model.zero_grad(set_to_none=True)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


@contextlib.contextmanager
def _untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put buffers, gradients and random number generators back to what they were."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    cuda = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        try:
            yield
        finally:
            model.zero_grad(set_to_none=True)
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(buffers[name])


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was asked for; a CPU always has.

    Parameters
    ----------
    device : torch.device
        The device whose clock is to be read.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
