"""The convolution stack: its published sizes, its reach, its misuse."""

from __future__ import annotations

import pytest
import torch

from attnlab.core.errors import SpecError
from attnlab.inspection import capture, count_parameters, reach
from attnlab.models import ConvStack
from attnlab.nn import Attention

LENGTH, BATCH = 37, 3
BLOG_ATTENTION = {
    "name": "attention",
    "n_heads": 1,
    "heads": {"name": "split", "d_head": 96, "d_v": 64, "bias": False},
    "scores": "dot",
    "combiners": "concatenate",
}


def x() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(BATCH, LENGTH, 1)


def test_parameters_of_the_plain_stack() -> None:
    assert count_parameters(ConvStack(1, 1, 100)) == 62_337


def test_parameters_with_attention_in_the_middle() -> None:
    replaced, attention = 64 * 64 * 5 + 64, 64 * 96 * 2 + 64 * 64
    assert count_parameters(ConvStack(1, 1, 100, mixer=BLOG_ATTENTION)) == 62_337 - replaced + attention


def test_it_computes_what_its_source_computes() -> None:
    model = ConvStack(1, 1, 100)
    convolutions = [layer.convolution for layer in model.layers]
    expected = x().transpose(1, 2)
    for index, convolution in enumerate(convolutions):
        expected = convolution(expected if index == 0 else expected.relu())
    torch.testing.assert_close(model(x()), expected.transpose(1, 2))


def test_reach_is_that_of_the_kernels() -> None:
    seen = reach(ConvStack(1, 1, LENGTH, channels=5), (x(),))
    assert seen.past + seen.future == 21
    dilated = reach(ConvStack(1, 1, LENGTH, channels=5, kernel_size=3, dilations=[1, 2, 3, 1, 1]), (x(),))
    assert (dilated.past, dilated.future) == (1 + 8, 8)


def test_attention_in_the_middle_sees_all_and_shows_its_weights() -> None:
    model = ConvStack(1, 1, LENGTH, mixer=BLOG_ATTENTION).eval()
    assert reach(model, (x(),)).past == LENGTH
    with capture(model) as trace:
        model(x())
    (found,) = trace.values()
    torch.testing.assert_close(found.scores, found.q @ found.k.mT)
    assert found.weights.shape == (BATCH, 1, LENGTH, LENGTH)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "sinusoidal-concatenated"])
def test_positions_are_marked_after_the_first_layer(positions: str) -> None:
    model = ConvStack(1, 2, LENGTH, channels=6, positions=positions)
    torch.nn.init.zeros_(model.layers[0].convolution.weight)
    middle = model(torch.zeros(1, LENGTH, 1))[0, 15:21]  # far from the padding at the ends
    assert not torch.allclose(middle, middle[:1].expand_as(middle))


def test_score_positions_go_to_the_mixer() -> None:
    assert ConvStack(1, 2, LENGTH, channels=8, mixer="attention", positions="rotary")(x()).shape == (BATCH, LENGTH, 2)


def test_mixers_stand_where_they_are_said_to_each_of_its_own() -> None:
    layers = ConvStack(1, 1, LENGTH, channels=8, mixer="attention", mixer_at=[1, 3]).layers
    assert [isinstance(layer, Attention) for layer in layers] == [False, True, False, True, False]
    assert layers[1] is not layers[3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": 0}, "sizes must be positive integers; got channels=0"),
        ({"kernel_size": 4}, "kernel_size must be odd, so that the length stays; got 4"),
        ({"dilations": [1, 2]}, "dilations needs one entry per layer; got 2 for n_layers 5"),
        ({"dilations": [1, 2, 0, 1, 1]}, "dilations must be at least 1; got [1, 2, 0, 1, 1]"),
        ({"mixer": "attention", "mixer_at": 4}, "mixer_at must name a layer between the first and the last of 5"),
        ({"mixer": "attention", "mixer_at": 0}, "counted from 0, where d_in and d_out do not matter (1, 2, 3); got 0"),
        ({"mixer": "attention", "n_layers": 2}, "(none: give n_layers of 3 or more); got 2"),
        ({"mixer": "attention", "mixer_at": [1, 4]}, "got 4"),
        ({"positions": "rotary"}, "positions 'rotary' act on attention scores, but no mixer of this model"),
    ],
)
def test_misuse_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as error:
        ConvStack(1, 1, LENGTH, **changes)
    assert message in str(error.value)
