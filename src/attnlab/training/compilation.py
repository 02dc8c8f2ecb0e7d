"""Compile a model where a compiler is there, and say so plainly where none is."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnlab.errors import SpecError

CPP_COMPILERS = ("g++", "clang++", "c++", "cl")


def compile_model(model: nn.Module, device: torch.device) -> Callable[..., Tensor]:
    """Return a compiled form of a model that shares its parameters.

    Parameters
    ----------
    model : nn.Module
        The model; it stays as it is.
    device : torch.device
        Where it runs.

    Returns
    -------
    callable
        Called like the model; the first call of a new shape compiles, which takes seconds to a minute.

    Raises
    ------
    SpecError
        If the machine has no compiler for the device.
    """
    missing = _missing_compiler(device)
    if missing:
        raise SpecError(f"compile: true needs {missing}, which is not there; install it or set compile: false")
    return torch.compile(model)


def _missing_compiler(device: torch.device) -> str:
    if device.type == "cuda":
        return "" if importlib.util.find_spec("triton") else "triton"
    named = os.environ.get("CXX", "")
    found = any(shutil.which(name) for name in (named, *CPP_COMPILERS) if name)
    return "" if found else "a C++ compiler (g++ or clang++)"
