"""Under which versions, on which machine and from which source a run was made."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

import attnlab
from attnlab.core.errors import SpecError

GIGA, MOST_SAID = 1e9, 1e18
NO_MEMORY = r"can't allocate memory|calculation overflowed|multiplication overflowed|Storage size|not enough memory"
"""How torch says that a tensor is too large for the memory, or for its own numbers."""
SMALLER = "choose smaller sizes"
GIT_TIMEOUT_S = 5.0  # a hanging network file system must not hold up a run


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Describe the software and hardware that a run uses; never fails.

    Parameters
    ----------
    device : torch.device or str
        Where the model is trained.

    Returns
    -------
    dict
        JSON types: python, torch, numpy, attnlab, commit, platform, cpu, cores, threads, device, features.
    """
    return {
        "attnlab": _installed_version(),
        "commit": source_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "device": _device_name(device),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "bf16_matrix_units": _has_cpu_flag("amx_bf16"),
        "multiplies_bf16": multiplies_bf16(torch.device(device)),
    }


def _installed_version() -> str:
    try:
        return importlib.metadata.version("attnlab")
    except importlib.metadata.PackageNotFoundError:  # imported from a bare checkout
        return "unknown"


def usable_cores() -> int:
    """How many cores this process may use.

    Returns
    -------
    int
        At least 1.
    """
    if hasattr(os, "sched_getaffinity"):  # absent on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_threads(processes: int = 1) -> int:
    """How many threads each of so many processes may use: its share of the cores, or what the environment allows.

    Parameters
    ----------
    processes : int
        How many run beside each other.

    Returns
    -------
    int
        At least 1, and at most the ``OMP_NUM_THREADS`` of the environment, which torch itself heeds.
    """
    share = max(1, usable_cores() // processes)
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]  # a list is of nested regions
    return min(share, int(wanted)) if wanted.isdecimal() and int(wanted) else share


def usable_bytes() -> int:
    """How many bytes of memory are available, by what Linux says; elsewhere all that there is, or a terabyte."""
    with contextlib.suppress(OSError, StopIteration, IndexError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    return memory_bytes()


def memory_bytes() -> int:
    """How many bytes of memory this machine has; a terabyte where it does not say."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 10**12


def require_memory(what: str, count: float) -> None:
    """Raise a `SpecError` if something asks for more bytes than this machine has, before any of them is taken."""
    if count > memory_bytes():
        asked = f"{count / GIGA:,.0f} GB" if count < MOST_SAID else "far more"
        raise SpecError(f"{what} would take {asked} of memory, and this machine has {_memory()}; {SMALLER}")


@contextlib.contextmanager
def within_memory(what: str = "it") -> Iterator[None]:
    """Make a `SpecError` of sizes that ask for more memory than can be had, or more than can be counted."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or re.search(NO_MEMORY, str(error))):
            raise
        raise SpecError(f"{what} asks for more memory than this machine has, {_memory()}; {SMALLER}") from error


def _memory() -> str:
    return f"{memory_bytes() / GIGA:,.0f} GB"


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """Compute on one thread, and put the number of threads back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def require_device(device: str, *more: str) -> None:
    """Raise a `SpecError` unless torch computes on a device here; `more` may be named beside ``cpu`` and ``cuda``."""
    known = (*more, "cpu", "cuda")
    if device not in known:
        raise SpecError(f"--device must be {', '.join(known[:-1])} or {known[-1]}; got '{device}'")
    if device == "cuda" and not torch.cuda.is_available():
        raise SpecError("--device cuda: torch finds no CUDA device here; use cpu")


@functools.cache  # what is imported stays as it is, and each run asks
def source_commit() -> str | None:
    """The commit of the checkout that attnlab runs from, with ``+`` if files were changed; None without a checkout."""
    folder = Path(attnlab.__file__).resolve().parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")  # installed inside another checkout: not its commit
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True
    )
    return done.stdout.strip()


def _cpu_name() -> str:
    for line in _cpu_lines():
        if line.lower().startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def multiplies_bf16(device: torch.device) -> bool:
    """Whether a device has instructions for products of bfloat16; without them bf16 is slower than float32.

    For a CPU it is what Linux tells of it, elsewhere False.
    """
    if device.type == "cuda":
        return torch.cuda.is_available() and torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and any(_has_cpu_flag(flag) for flag in ("amx_bf16", "avx512_bf16"))


def _has_cpu_flag(flag: str) -> bool:
    return any(flag in line.split() for line in _cpu_lines() if line.startswith("flags"))


def _cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # only Linux has it
        return []


def _device_name(device: torch.device | str) -> str:
    kind = torch.device(device)
    return torch.cuda.get_device_name(kind) if kind.type == "cuda" and torch.cuda.is_available() else kind.type
