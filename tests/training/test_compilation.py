"""A machine without a compiler is told so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.errors import SpecError
from attnlab.training.compilation import compile_model


def test_no_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SpecError, match=r"needs a C\+\+ compiler .* set compile: false"):
        compile_model(nn.Linear(2, 3), torch.device("cpu"))


def test_no_triton(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SpecError, match="needs triton"):
        compile_model(nn.Linear(2, 3), torch.device("cuda"))
