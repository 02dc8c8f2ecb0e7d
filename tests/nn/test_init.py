from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from attnlab.core.errors import SpecError
from attnlab.nn.block import Block
from attnlab.nn.foreign import adapt
from attnlab.nn.init import INITS

WIDTH = 64  # wide enough that a standard deviation is known to a few percent


def parameters(block: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in block.named_parameters()}


def test_torch_changes_nothing() -> None:
    block = Block(WIDTH)
    before = parameters(block)
    INITS["torch"](block, 5)
    assert all(torch.equal(value, before[name]) for name, value in parameters(block).items())


def test_gpt_draws_smaller_weights_for_what_is_added() -> None:
    block = nn.ModuleDict({"embedding": nn.Embedding(101, WIDTH), "block": Block(WIDTH)})
    INITS["gpt"](block, 5)
    expected = {"embedding.weight": 0.02, "block.mixer.heads.packed.linear.weight": 0.02}
    expected |= {"block.mixer.combiner.to_residual.weight": 0.02 / math.sqrt(10)}
    expected |= {"block.feedforward.widen.weight": 0.02, "block.feedforward.to_residual.weight": 0.02 / math.sqrt(10)}
    drawn = parameters(block)
    assert {name: drawn[name].std().item() for name in expected} == pytest.approx(expected, rel=0.1)
    assert all(torch.all(value == 0) for name, value in drawn.items() if name.endswith("bias"))
    assert torch.all(drawn["block.around_mixer.before.weight"] == 1)


def test_gpt_zero_begins_as_the_identity_and_leaves_it() -> None:
    torch.manual_seed(0)
    block, x = Block(WIDTH, feedforward="squared-relu"), torch.randn(2, 5, WIDTH)
    INITS["gpt-zero"](block, 5)
    assert torch.equal(block(x), x)
    assert block.feedforward.widen.weight.std().item() == pytest.approx(0.02, rel=0.1)
    block(x).square().mean().backward()
    for name, parameter in block.named_parameters():
        assert torch.any(parameter.grad != 0) == ("to_residual" in name), name


def test_xavier_bounds() -> None:
    block = Block(WIDTH)
    INITS["xavier"](block, 5)
    weight = block.feedforward.widen.weight
    bound = math.sqrt(6 / (WIDTH + 4 * WIDTH))
    assert 0.95 * bound < weight.abs().max().item() <= bound
    assert torch.all(block.feedforward.widen.bias == 0)


@pytest.mark.parametrize("name", INITS)
def test_equal_seeds_give_equal_weights(name: str) -> None:
    block, drawn = Block(WIDTH), []
    for _ in range(2):
        torch.manual_seed(3)
        INITS[name](block, 5)
        drawn.append(parameters(block))
    assert all(torch.equal(drawn[0][key], drawn[1][key]) for key in drawn[0])


def test_gpt_needs_layers() -> None:
    for name in ("gpt", "gpt-zero"):
        with pytest.raises(SpecError, match="n_layers must be positive; got 0"):
            INITS[name](Block(WIDTH), 0)


@pytest.mark.parametrize("name", ["gpt", "gpt-zero", "xavier"])
def test_a_person_s_own_module_keeps_its_start(name):
    own = nn.MultiheadAttention(6, 2, batch_first=True)
    model = nn.ModuleDict({"mixer": adapt(own, d_model=6), "after": nn.Linear(6, 6)})
    before = copy.deepcopy(model.state_dict())
    INITS[name](model, 3)
    kept = {key for key, value in model.state_dict().items() if torch.equal(value, before[key])}
    assert kept == {key for key in before if key.startswith("mixer.")}
