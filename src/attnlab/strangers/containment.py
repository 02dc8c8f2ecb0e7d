"""Let foreign code run without harm: prints are swallowed, time is limited, what is global is put back and reported."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

CUDA, OF_BYTES = "CUDA", "masks of bytes"

_SEED = 20  # any
_NEXT_TO_ZERO = 1e-4  # as gains of residual branches start
_BUSY = 5.0  # times as long on the clock as computing alone takes, on a machine with much else to do
_OF_CUDA = re.compile(r"CUDA|cuda:\d|NVIDIA|No viable backend")  # what torch says without it, or beside the CPU
_OF_BYTES = re.compile(
    r"only supports boolean masks, but got .* unsigned char|expected BoolTensor for mask|mask with dtype Byte"
)
_AGAIN_S = 1.0  # a module that swallows the first interruption gets another one every second


def _set_default_device(device: torch.device) -> None:
    """Set the default device; for the CPU none, as torch cannot compile everything where a device is set."""
    torch.set_default_device(None if device == torch.device("cpu") else device)


_GLOBALS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device": (torch.get_default_device, _set_default_device),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "whether gradients are recorded": (torch.is_grad_enabled, torch.set_grad_enabled),
    "anomaly detection": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "the working directory": (os.getcwd, os.chdir),
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
}
"""What one module could change for everybody: how it is read, how it is put back."""


@final
class OvertimeError(BaseException):  # not an Exception: a module's `except Exception` must not swallow it
    """Report that foreign code did not come back in time."""


@final
@dataclass
class Traces:
    """Hold what foreign code left behind."""

    printed: io.StringIO = field(default_factory=io.StringIO)  # what it wrote to standard output and standard error
    changed: list[str] = field(default_factory=list)
    """Global settings that it changed, in words with the value; they were put back."""
    lent: set[str] = field(default_factory=set)
    """What it does not run without and is run as if it were there: `CUDA`, for which the CPU stands, or `OF_BYTES`."""


@contextlib.contextmanager
def contained(traces: Traces) -> Iterator[None]:
    """Swallow prints and warnings, and put random states and global settings back as they were."""
    before = {name: read() for name, (read, _) in _GLOBALS.items()}
    with (
        contextlib.redirect_stdout(traces.printed),
        contextlib.redirect_stderr(traces.printed),
        warnings.catch_warnings(),
        random_states_kept(),
        _CpuForCuda() if CUDA in traces.lent else contextlib.nullcontext(),
        _BoolForBytes() if OF_BYTES in traces.lent else contextlib.nullcontext(),
    ):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            _put_back(before, traces)


def asked_for(error: BaseException | None) -> str | None:
    """What an exception, or what caused it, says is lacking that can be lent: see `Traces`."""
    if error is None:
        return None
    wanted = (name for name, told in ((CUDA, _OF_CUDA), (OF_BYTES, _OF_BYTES)) if told.search(str(error)))
    return next(wanted, None) or asked_for(error.__cause__)


@final
class _BoolForBytes(TorchFunctionMode):
    """Take masks of bytes as True and False, as torch did before it wanted those."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        named = dict(kwargs or {})
        if getattr(func, "__name__", "").rstrip("_") in ("masked_fill", "masked_select", "masked_scatter"):
            args = (*args[:1], *map(_as_bool, args[1:2]), *args[2:])
            named |= {name: _as_bool(value) for name, value in named.items() if name == "mask"}
        return func(*args, **named)


def _as_bool(mask: Any) -> Any:
    return mask.bool() if isinstance(mask, Tensor) and mask.dtype == torch.uint8 else mask


@final
class _CpuForCuda(TorchFunctionMode):
    """Leave tensors where they are that are sent to CUDA by name, and make on the CPU those that are made there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        named = dict(kwargs or {})
        if func is Tensor.cuda:
            return args[0]
        if func is nn.functional.scaled_dot_product_attention:
            with sdpa_kernel([SDPBackend.MATH]):  # whatever kernel of CUDA was asked for
                return func(*args, **named)
        here = args[0].device if func is Tensor.to else "cpu"
        if _is_cuda(named.get("device")):
            named["device"] = here
        return func(*(here if _is_cuda(value) else value for value in args), **named)


def _is_cuda(value: Any) -> bool:
    return isinstance(value, str | torch.device) and str(value).startswith("cuda")


def _put_back(before: dict[str, Any], traces: Traces) -> None:
    """Compare the global settings with those of before, note what changed and restore it."""
    for name, value in before.items():
        read, write = _GLOBALS[name]
        now = read()
        if now != value:
            traces.changed.append(f"{name} (from {value} to {now})")
            write(value)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt what computes longer, in each of torch's threads; waiting may take several times as long.

    Notes
    -----
    It rests on timer signals, which interrupt Python code in the main thread of a POSIX process; elsewhere, and
    inside one long call of compiled code, nothing is interrupted. The command line kills the process then.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    timers = {
        signal.SIGPROF: (signal.ITIMER_PROF, seconds * torch.get_num_threads()),
        signal.SIGALRM: (signal.ITIMER_REAL, seconds * _BUSY),
    }
    previous = {kind: signal.signal(kind, _interrupt) for kind in timers}
    for timer, limit_s in timers.values():
        signal.setitimer(timer, limit_s, _AGAIN_S)
    try:
        yield
    finally:
        for kind, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(kind, previous[kind])


def _interrupt(_signal: int, _frame: Any) -> None:
    raise OvertimeError


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Leave the states of all three random generators, Python's, NumPy's and torch's on the CPU, as they were."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def seed_all(seed: int) -> None:
    """Start the three generators that foreign code may draw from anew."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Compute on the CPU without gradients, and leave the random states of all three generators as they were."""
    with random_states_kept(), torch.no_grad(), torch.device("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # wrong guesses warn
        torch.default_generator.manual_seed(_SEED)
        yield


def wake(module: nn.Module, spread: float = 0.1) -> None:
    """Give parameters that are zero, or nearly, small random values, in place: behind them nothing could be seen."""
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel() and parameter.abs().max() <= _NEXT_TO_ZERO:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(noise.to(parameter.dtype) * spread)
