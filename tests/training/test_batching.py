"""A person's own module draws under vmap what it draws alone, and attends the same, whatever it calls."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

from attnlab.core.generators import Generators
from attnlab.nn.kernels.dropout import dropout
from attnlab.training.together.batching import BatchingRules, OwnRandomNumbers

WIDTH, LENGTH, HEADS = 8, 7, 2


class Layer(nn.Module):
    """Set up what the calls below need."""

    def __init__(self):
        super().__init__()
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.bias = nn.Parameter(torch.randn(HEADS, LENGTH, LENGTH))
        self.torch_attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.3, batch_first=True)

    def qkv(self, x):
        return self.to_qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x, call):
        return call(self, x)


def fused(layer, x, **options):
    return F.scaled_dot_product_attention(*layer.qkv(x), **options)


CALLS = {
    "causal": lambda layer, x: fused(layer, x, is_causal=True),
    "learned bias": lambda layer, x: fused(layer, x, attn_mask=layer.bias),
    "one mask for all": lambda layer, x: fused(layer, x, attn_mask=torch.ones(LENGTH, LENGTH).tril().bool()),
    "bias and dropout": lambda layer, x: fused(layer, x, attn_mask=layer.bias, dropout_p=0.4),
    "without a batch": lambda layer, x: F.scaled_dot_product_attention(x[0], x[1], x[2]),
    "torch's layer": lambda layer, x: layer.torch_attention(x, x, x, need_weights=False)[0],
    "dropout": lambda layer, x: F.dropout(layer.to_qkv(x), 0.3),
    "dropout of a transposed tensor": lambda layer, x: F.dropout(layer.to_qkv(x).transpose(1, 2), 0.3),
    "dropout of channels": lambda layer, x: F.dropout1d(layer.to_qkv(x), 0.3),
    "the lab's dropout": lambda layer, x: dropout(layer.to_qkv(x), 0.3),
    "dropout in place": lambda layer, x: F.dropout(layer.to_qkv(x), 0.3, True, True),
    "no dropout": lambda layer, x: F.dropout(layer.to_qkv(x), 0.3, training=False),
    "noise": lambda layer, x: layer.to_qkv(x) + torch.randn_like(layer.to_qkv(x)),
    "noise of a shape": lambda layer, x: x + torch.rand(LENGTH, WIDTH).double(),
    "numbers": lambda layer, x: x * torch.randint(5, (LENGTH, 1)),
    "a coin": lambda layer, x: x * torch.bernoulli(layer.to_qkv(x)[..., :1].sigmoid().detach()),
}


def seeded(count):
    generators = Generators()
    for run in range(count):
        generators.give_to(run)
        torch.manual_seed(run)
    return generators


@pytest.mark.parametrize("batch", [3, 5])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_batched_is_one_by_one(call, batch):
    """With as many runs as samples too: the first axis alone does not say what it holds."""
    runs = 3
    torch.manual_seed(0)
    layers = [Layer().double() for _ in range(runs)]
    inputs = torch.randn(runs, batch, LENGTH, WIDTH, dtype=torch.float64)
    generators = seeded(runs)
    expected = []
    for run, layer in enumerate(layers):
        generators.give_to(run)
        expected.append(layer(inputs[run], call))
    owned = [dict(layer.named_parameters()) for layer in layers]
    stacked = {name: torch.stack([own[name].detach() for own in owned]).requires_grad_() for name in owned[0]}
    frame = copy.deepcopy(layers[0])
    random = OwnRandomNumbers(runs, seeded(runs).give_to)
    with random, BatchingRules(random):
        found = vmap(lambda own, x: functional_call(frame, own, (x, call)), randomness="different")(stacked, inputs)
    torch.testing.assert_close(found, torch.stack(expected))
    if found.requires_grad:
        found.square().sum().backward()
        torch.stack(expected).square().sum().backward()
        for name, together in stacked.items():
            alone = [own[name].grad for own in owned]
            assert (together.grad is None) == (alone[0] is None)
            if together.grad is not None:
                torch.testing.assert_close(together.grad, torch.stack(alone))


def test_generators_go_from_hand_to_hand_and_back():
    generators = seeded(2)
    generators.give_to(0)
    first = torch.rand(3)
    bookmark = generators.bookmark()
    following = torch.rand(3)
    generators.give_to(1)
    other = torch.rand(3)
    generators.go_back(bookmark)
    generators.give_to(0)
    assert torch.equal(torch.rand(3), following)
    generators.give_to(1)
    assert torch.equal(torch.rand(3), other)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), first)
