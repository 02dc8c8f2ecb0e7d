"""Compile a model where a compiler is there, and say so plainly where none is.

Only training steps are compiled. Evaluation calls the model as it is: batches of another shape and a model in
evaluation mode would each be compiled once more, for 7 to 9 s, to save a hundredth of a second per batch (0.185 s to
0.175 s: 6 layers, width 256, 64 x 128 characters, bf16, two cores).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnlab.core.errors import SpecError

MORE_FOR_A_MODEL = 8
"""Compiled forms that torch allows a function, counted over all models of a class: each model brings as many, or from
the ninth on they would silently be left as they are."""

CPP_COMPILERS = ("g++", "clang++", "c++", "cl")


def compile_model(model: nn.Module | Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """A compiled form of a model that shares its parameters."""
    require_compiler(device)
    torch._dynamo.config.recompile_limit += MORE_FOR_A_MODEL
    return torch.compile(model)


def require_compiler(device: torch.device) -> None:
    """Check that a compiler is there."""
    missing = missing_compiler(device)
    if missing:
        raise SpecError(f"compile: true needs {missing}, which is not there; install it or set compile: false")


def missing_compiler(device: torch.device) -> str:
    """Name what compiling for a device would need and this machine lacks."""
    if device.type == "cuda":
        return "" if importlib.util.find_spec("triton") else "triton"
    named = os.environ.get("CXX", "")
    found = any(shutil.which(name) for name in (named, *CPP_COMPILERS) if name)
    return "" if found else "a C++ compiler (g++ or clang++)"
