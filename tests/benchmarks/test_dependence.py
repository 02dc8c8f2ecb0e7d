from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from attnlab.benchmarks.measuring.dependence import layers_until_seen, longest_chain
from attnlab.core.errors import AttnlabError
from attnlab.nn.mixers import build_mixer

WIDTH = 8


def layer(depth, **spec):
    spec = {key: value(depth) if callable(value) else value for key, value in spec.items()}
    return build_mixer(spec, {"d_model": WIDTH, "n_heads": 2, "causal": True})


def layers(length, **spec):
    return layers_until_seen(partial(layer, **spec), length, WIDTH)


@pytest.mark.parametrize("length", [1, 2, 7, 64])
@pytest.mark.parametrize("name", ["attention", "lstm", "linear-attention"])
def test_one_layer_that_sees_everything_is_enough(name, length):
    assert layers(length, name=name) == 1


@pytest.mark.parametrize("length", [2, 7, 16, 17, 61])
@pytest.mark.parametrize("width", [2, 3, 8])
def test_a_window_carries_as_far_as_it_reaches(width, length):
    expected = math.ceil((length - 1) / (width - 1))
    assert layers(length, name="attention", masks={"name": "window", "width": width}) == expected


@pytest.mark.parametrize("length", [2, 7, 16, 17, 61])
@pytest.mark.parametrize("kernel_size", [2, 3, 5])
def test_a_convolution_carries_as_far_as_it_reaches(kernel_size, length):
    assert layers(length, name="convolution", kernel_size=kernel_size) == math.ceil((length - 1) / (kernel_size - 1))


@pytest.mark.parametrize("kernel_size", [2, 3])
@pytest.mark.parametrize("exponent", [1, 2, 3])
def test_dilation_multiplies_what_is_seen_by_the_kernel(kernel_size, exponent):
    dilated = {"name": "convolution", "kernel_size": kernel_size, "dilation": lambda depth: kernel_size**depth}
    assert layers(kernel_size**exponent, **dilated) == exponent
    assert layers(kernel_size**exponent + 1, **dilated) == exponent + 1


def test_hundreds_of_layers_do_not_lose_the_signal():
    assert layers(301, name="convolution", kernel_size=2) == 300


def test_a_layer_that_mixes_nothing_never_carries():
    with pytest.raises(AttnlabError, match="does not depend on the first input after 5 layers"):
        layers(5, name="position-wise")


def test_the_longest_chain_is_counted_not_the_shortest():
    x = torch.ones(3, requires_grad=True)
    side = x.exp().exp().exp()
    assert longest_chain(side) == 3
    assert longest_chain((x + side) * x) == 5
    assert longest_chain(x) == 0


@pytest.mark.parametrize("spec", [{"name": "attention", "path": "readable"}, {"name": "convolution"}])
def test_what_is_computed_at_once_has_a_chain_of_one_length(spec):
    chains = {length: longest_chain(layer(0, **spec)(torch.randn(1, length, WIDTH))) for length in (3, 17, 50)}
    assert len(set(chains.values())) == 1


def test_a_recurrence_adds_as_many_operations_with_every_position():
    chains = [
        longest_chain(layer(0, name="lstm", path="readable")(torch.randn(1, length, WIDTH))) for length in (10, 20, 30)
    ]
    assert chains[2] - chains[1] == chains[1] - chains[0] >= 10


def test_deep_graphs_need_no_recursion():
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(5000):
        y = y + 1
    assert longest_chain(y) == 5000


def test_layers_are_made_one_after_another_and_no_more_than_needed():
    made = []

    def make(depth):
        made.append(depth)
        return layer(depth, name="convolution", kernel_size=2)

    assert layers_until_seen(make, 4, WIDTH) == 3
    assert made == [0, 1, 2]
