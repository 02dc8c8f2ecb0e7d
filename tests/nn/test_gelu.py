"""GELU from a compiled program is GELU, forward, backward and for many models at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from attnlab.nn.kernels import gelu as module
from attnlab.nn.kernels.gelu import gelu


@pytest.fixture
def called(monkeypatch):
    """Let compiled programs call the kernels for few numbers too, and count the calls."""
    calls = []
    monkeypatch.setattr(module, "LARGE", 1)
    original = F.gelu
    monkeypatch.setattr(F, "gelu", lambda x, **how: calls.append(x.shape) or original(x, **how))
    torch.compiler.reset()
    yield calls
    torch.compiler.reset()


def derivatives(function, x):
    output = function(x)
    return output, torch.autograd.grad(output.square().sum(), x)[0]


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_compiled_is_torchs(called, kind):
    torch.manual_seed(0)
    x = torch.randn(5, 7, dtype=kind, requires_grad=True)
    found = derivatives(torch.compile(gelu, backend="aot_eager", fullgraph=True), x)
    assert called == [x.shape]  # by the operator, when the program runs
    torch.testing.assert_close(found, derivatives(F.gelu, x))


@pytest.mark.parametrize("axis", [0, 1])
def test_many_at_once(called, axis):
    torch.manual_seed(0)
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    many = torch.compile(torch.vmap(gelu, in_dims=axis, out_dims=axis), backend="aot_eager")
    found = derivatives(many, x)
    assert called
    torch.testing.assert_close(found, derivatives(F.gelu, x))


def test_few_numbers_are_left_to_the_compiler(called, monkeypatch):
    monkeypatch.setattr(module, "LARGE", 1000)
    x = torch.randn(5, 7, requires_grad=True)
    torch.testing.assert_close(
        derivatives(torch.compile(gelu, backend="aot_eager"), x), derivatives(torch.nn.GELU(), x)
    )


def test_the_operators_keep_their_promises():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(torch.ops.attnlab.gelu.default, (x,))
    torch.library.opcheck(torch.ops.attnlab.gelu_backward.default, (x.detach(), x.detach()))
