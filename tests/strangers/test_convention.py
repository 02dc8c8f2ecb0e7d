"""A convention keeps to what it says: arguments, masks in every encoding and shape, layouts, outputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.masking import (
    ENCODINGS,
    KEY_SHAPES,
    LENGTHS,
    ONE_LENGTH_EACH,
    PAD_TOKEN,
    SHAPES,
    Masking,
)
from attnlab.strangers.calling.sources import MEMORY_LENGTH, Argument

BATCH, LENGTH, WIDTH = 3, 5, 8


class Recorder(nn.Module):
    """Return the input, and keep what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, **given: object) -> torch.Tensor:
        self.x, self.given = x, given
        return x * self.scale if x.is_floating_point() else torch.ones(*x.shape, WIDTH)


def inputs() -> torch.Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(3))


def convention(**more: object) -> Convention:
    return Convention("layer", "embeddings", WIDTH, WIDTH, **more)  # type: ignore[arg-type]


def given_to(how: Convention, **call: object) -> dict[str, object]:
    module = Recorder()
    how.call(module, inputs(), **call)  # type: ignore[arg-type]
    return module.given


def padding() -> torch.Tensor:
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    real[1, 3:] = False
    return real


@pytest.mark.parametrize("layout", ["batch-first", "sequence-first", "channels-first"])
def test_the_layout_is_the_module_s_and_the_output_batch_first(layout):
    module, x = Recorder(), inputs()
    output = convention(layout=layout).call(module, x)
    assert torch.equal(output, x)
    sizes = {"batch-first": (BATCH, LENGTH, WIDTH), "sequence-first": (LENGTH, BATCH, WIDTH)}
    assert module.x.shape == sizes.get(layout, (BATCH, WIDTH, LENGTH))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_causal_mask_is_given_where_the_module_is_causal_by_it(encoding, shape):
    how = convention(causal=True, causal_means="mask", masks=(Masking("mask", "pairs", encoding, shape),))
    lower = torch.ones(BATCH, LENGTH, LENGTH, dtype=torch.bool).tril()
    expected = ENCODINGS[encoding](SHAPES[shape](lower), torch.float32)
    assert torch.equal(given_to(how)["mask"], expected)  # type: ignore[arg-type]
    assert given_to(how, causal=False) == {}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("shape", KEY_SHAPES)
def test_padding_is_told_by_the_mask_over_keys(encoding, shape):
    how = convention(masks=(Masking("mask", "keys", encoding, shape),))
    expected = ENCODINGS[encoding](KEY_SHAPES[shape](padding()), torch.float32)
    assert torch.equal(given_to(how, padding=padding())["mask"], expected)  # type: ignore[arg-type]
    assert given_to(how) == {}


def test_one_argument_can_tell_pairs_and_padding():
    pairs = Masking("mask", "pairs", "bool, True = may attend", "(batch, q_len, k_len)")
    keys = Masking("mask", "keys", "bool, True = may attend", "(batch, q_len, k_len)")
    how = convention(causal=True, causal_means="mask", masks=(pairs, keys))
    both = torch.ones(BATCH, LENGTH, LENGTH, dtype=torch.bool).tril() & padding()[:, None, :]
    assert torch.equal(given_to(how, padding=padding())["mask"], both)  # type: ignore[arg-type]


def test_an_argument_over_keys_by_shape_is_used_so_unless_pairs_are_to_be_hidden():
    pairs = Masking("mask", "pairs", "bool, True = may attend", "(batch, 1, q_len, k_len)")
    keys = Masking("mask", "keys", "bool, True = may attend", "(batch, k_len)")
    how = convention(masks=(pairs, keys))
    assert torch.equal(given_to(how, padding=padding())["mask"], padding())  # type: ignore[arg-type]
    allowed = torch.ones(BATCH, LENGTH, LENGTH, dtype=torch.bool).tril()
    both = (allowed & padding()[:, None, :])[:, None]
    assert torch.equal(given_to(how, padding=padding(), allowed=allowed)["mask"], both)  # type: ignore[arg-type]


def test_a_required_mask_hides_nothing_where_nothing_is_to_be_hidden():
    pairs = Masking("mask", "pairs", "bool, True = blocked", "(q_len, k_len)", required=True)
    assert not given_to(convention(masks=(pairs,)))["mask"].any()  # type: ignore[union-attr]


def test_lengths_tell_padding_at_the_end_alone():
    masking = Masking("lengths", "keys", LENGTHS, ONE_LENGTH_EACH, required=True)
    how = convention(masks=(masking,))
    assert given_to(how)["lengths"].tolist() == [LENGTH] * BATCH  # type: ignore[union-attr]
    assert given_to(how, padding=padding())["lengths"].tolist() == [LENGTH, 3, LENGTH]  # type: ignore[union-attr]
    assert not masking.tells_left_padding
    with pytest.raises(ModuleError, match="'lengths' can tell padding at the end only"):
        given_to(how, padding=padding().flip(1))


def test_padding_by_a_token_stands_at_padded_positions_and_nowhere_else():
    how = Convention(
        *("model", "tokens", 0, WIDTH), vocab_size=4, pad_token=0, masks=(Masking("x", "keys", PAD_TOKEN, ""),)
    )
    module, tokens = Recorder(), torch.tensor([[0, 1, 2, 3, 0]] * BATCH)
    how.call(module, tokens, padding=padding())
    assert torch.equal(module.x == 0, ~padding())
    how.call(module, tokens)
    assert not (module.x == 0).any()


@pytest.mark.parametrize("call", [{"padding": padding()}, {"allowed": torch.ones(BATCH, LENGTH, LENGTH).bool()}])
def test_what_cannot_be_said_is_refused(call):
    with pytest.raises(ModuleError, match="has no mask argument"):
        given_to(convention(), **call)


def test_a_mask_without_a_batch_axis_cannot_differ_between_samples():
    how = convention(masks=(Masking("mask", "pairs", "bool, True = may attend", "(q_len, k_len)"),))
    allowed = torch.ones(BATCH, LENGTH, LENGTH, dtype=torch.bool)
    allowed[1, 0, 3] = False
    with pytest.raises(ModuleError, match="'mask' has no batch axis"):
        given_to(how, allowed=allowed)


@pytest.mark.parametrize(("causal", "expected"), [(None, True), (False, False), (True, True)])
def test_a_flag_is_given_at_every_call(causal, expected):
    how = convention(causal=True, causal_means="flag", flag="is_causal")
    assert given_to(how, causal=causal) == {"is_causal": expected}


def test_other_arguments_are_made_from_the_input_and_the_same_for_every_sample():
    sources = {"memory": "memory", "positions": "positions of each", "rope": "cos and sin", "n": "length"}
    values = {"rope": 4}
    arguments = tuple(Argument(name, source, value=values.get(name)) for name, source in sources.items())
    given = given_to(convention(arguments=(Argument("x", "x", by_name=False), *arguments)))
    memory = given["memory"]
    assert isinstance(memory, torch.Tensor)
    assert memory.shape == (BATCH, MEMORY_LENGTH, WIDTH)
    assert torch.equal(memory[0], memory[-1])
    assert given["positions"].tolist() == [list(range(LENGTH))] * BATCH  # type: ignore[union-attr]
    cos, sin = given["rope"]  # type: ignore[misc]
    assert cos.shape == sin.shape == (1, LENGTH, 4)
    torch.testing.assert_close(cos**2 + sin**2, torch.ones_like(cos))
    assert given["n"] == LENGTH


class Returns(nn.Module):
    """Return something made from the input."""

    def __init__(self, make: object) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> object:
        return self.make(x)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (lambda x: (x, None), {}),
        (lambda x: {"weights": x @ x.mT, "out": x}, {"output": "out"}),
        (lambda x: [None, x], {"output": 1}),
    ],
)
def test_the_output_is_found_in_what_is_returned(make, fields):
    assert torch.equal(convention(**fields).call(Returns(make), inputs()), inputs())


@pytest.mark.parametrize("layout", ["batch-first", "sequence-first", "channels-first"])
def test_pooled_outputs_have_no_length_in_any_layout(layout):
    axis = {"batch-first": 1, "sequence-first": 0, "channels-first": 2}[layout]
    how = convention(layout=layout, pooled=True)
    assert torch.equal(how.call(Returns(lambda x: x.mean(axis)), inputs()), inputs().mean(1))


def test_one_number_per_position_is_a_width_of_one():
    assert convention().call(Returns(lambda x: x.sum(-1)), inputs()).shape == (BATCH, LENGTH, 1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x: x[:, 1:], r"returned \(3, 4, 8\) for an input \(3, 5, 8\); it must return a floating"),
        (lambda x: x.mean(), "it must return"),
        (lambda _x: None, "returned None for an input"),
        (lambda x: x > 0, "returned .* bool for an input"),
        (lambda _x: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_wrong_outputs_and_exceptions_are_module_errors(make, text):
    with pytest.raises(ModuleError, match=text):
        convention().call(Returns(make), inputs())


def test_nan_is_returned_as_it_is():
    assert convention().call(Returns(lambda x: x / 0), inputs()).isinf().all()


def test_everything_made_for_a_call_lies_where_the_input_lies():
    sources = ("memory", "positions", "cos and sin", "turns", "segments", "position vectors")
    widths = {"cos and sin": 4, "turns": 4, "segments": 1}
    arguments = tuple(Argument(source.replace(" ", "_"), source, value=widths.get(source)) for source in sources)
    masks = (
        Masking("mask", "pairs", "float, 0 or -inf added to the scores", "(q_len, k_len)", required=True),
        Masking("pad", "keys", "bool, True = blocked", "(batch, k_len)", required=True),
    )
    module = Recorder().to("meta")
    how = convention(
        arguments=(Argument("x", "x", by_name=False), *arguments), masks=masks, causal=True, causal_means="mask"
    )
    how.call(module, inputs().to("meta"))
    made = [each for value in module.given.values() for each in (value if isinstance(value, tuple) else (value,))]
    assert made
    assert all(each.is_meta for each in made)
