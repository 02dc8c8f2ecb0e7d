"""The measured reach must be the reach that follows from the architecture."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.inspection import Reach, reach
from attnlab.inspection.reach import MOST_CALLS, SAMPLES

BATCH, LENGTH, WIDTH, VOCAB = 3, 17, 5, 11


class Tokens(nn.Module):
    """An embedding, something over (batch, length, width), and logits."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.embedding, self.middle, self.logits = nn.Embedding(VOCAB, WIDTH), middle, nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.middle(self.embedding(tokens)))


class Convolution(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.padding = (before, after)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, before + after + 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(nn.functional.pad(x.transpose(1, 2), self.padding)).transpose(1, 2)


class Over(nn.Module):
    """Mix with whatever function of (batch, length, width)."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def causal_attention(x: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


@pytest.fixture
def tokens() -> Tensor:
    torch.manual_seed(2)
    return torch.randint(VOCAB, (BATCH, LENGTH))


@pytest.mark.parametrize(
    ("middle", "expected"),
    [
        (nn.Identity(), Reach(1, 0, mixes_batch=False)),
        (Over(torch.zeros_like), Reach(0, 0, mixes_batch=False)),
        (Convolution(3, 0), Reach(4, 0, mixes_batch=False)),
        (Convolution(3, 2), Reach(4, 2, mixes_batch=False)),
        (nn.Sequential(Convolution(3, 0), nn.ReLU(), Convolution(2, 0)), Reach(6, 0, mixes_batch=False)),
        (Over(causal_attention), Reach(LENGTH, 0, mixes_batch=False)),
        (Over(lambda x: x + x.mean(1, keepdim=True)), Reach(LENGTH, LENGTH - 1, mixes_batch=False)),
        (Over(lambda x: x + x.roll(1, 0)), Reach(1, 0, mixes_batch=True)),
        (Over(lambda x: x.cumsum(0)), Reach(1, 0, mixes_batch=True)),
        (
            Over(lambda x: x.roll(-1, 1)),
            Reach(LENGTH, 1, mixes_batch=False, delay=LENGTH - 1),
        ),  # the last sees the first
        (Over(lambda x: x.roll(2, 1)), Reach(3, LENGTH - 2, mixes_batch=False, delay=2)),
    ],
)
def test_reach_of_known_functions(tokens: Tensor, middle: nn.Module, expected: Reach) -> None:
    assert reach(Tokens(middle), (tokens,)) == expected


def test_a_tiny_influence_is_seen(tokens: Tensor) -> None:
    model = Tokens(Over(lambda x: x + 1e-9 * x.mean(1, keepdim=True)))
    assert reach(model, (tokens,)).past == LENGTH


def masked_attention(x: Tensor) -> Tensor:
    mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=torch.float32).triu(1)
    return nn.functional.scaled_dot_product_attention(*[x[:, None]] * 3, mask)[:, 0]


class Layer(nn.Module):
    """Attention of torch with a mask that is made in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


@pytest.mark.parametrize("middle", [Over(masked_attention), Layer()], ids=["a function", "a layer"])
def test_a_mask_of_another_precision_hides_what_it_hides(middle: nn.Module) -> None:
    tokens = torch.randint(VOCAB, (BATCH, 64))  # a fused kernel reads such a mask wrongly, of some dozen keys and more
    assert reach(Tokens(middle), (tokens,)) == Reach(64, 0, mixes_batch=False)


def in_an_order_that_others_choose(x: Tensor) -> Tensor:
    """Return three fifths of `x`, summed in one order or the other by what stands in the last position of all."""
    last = x[-1:, -1:] > 0
    return torch.where(last, (0.1 * x + 0.2 * x) + 0.3 * x, 0.1 * x + (0.2 * x + 0.3 * x))


def test_the_order_of_a_sum_is_no_influence(tokens: Tensor) -> None:
    assert reach(Tokens(Over(in_an_order_that_others_choose)), (tokens,)) == Reach(1, 0, mixes_batch=False)


def test_float_inputs_and_a_single_sequence() -> None:
    model = Convolution(2, 3)
    assert reach(model, (torch.randn(1, LENGTH, WIDTH),)) == Reach(3, 3, mixes_batch=False)


def test_text_of_one_letter() -> None:
    model = Tokens(Over(causal_attention))
    assert reach(model, (torch.zeros(BATCH, LENGTH, dtype=torch.long),)).past == LENGTH


def test_position_in_the_middle(tokens: Tensor) -> None:
    model = Tokens(Over(causal_attention))
    assert reach(model, (tokens,), position=6) == Reach(7, 0, mixes_batch=False)
    assert reach(Tokens(Convolution(3, 2)), (tokens,), position=6) == Reach(4, 2, mixes_batch=False, ahead=2)


def test_the_model_and_the_random_numbers_stay(tokens: Tensor) -> None:
    model = Tokens(nn.Dropout(0.5)).train()
    state = torch.get_rng_state()
    assert reach(model, (tokens,)).past == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert next(model.parameters()).dtype == torch.float32


def test_one_answer_for_a_sequence_depends_on_what_it_is_made_of(tokens: Tensor) -> None:
    assert reach(Tokens(Over(lambda x: x.mean(1))), (tokens,)) == Reach(LENGTH, 0, mixes_batch=False)
    assert reach(Tokens(Over(lambda x: x[:, -4:].mean(1))), (tokens,)) == Reach(4, 0, mixes_batch=False)


def test_other_outputs_are_refused(tokens: Tensor) -> None:
    shorter = Tokens(Over(lambda x: x[:, 1:]))
    with pytest.raises(ModuleError, match=r"the output must be \(batch, length, ...\) with \(3, 17\)"):
        reach(shorter, (tokens,))


@pytest.mark.parametrize("position", [LENGTH, -LENGTH - 1])
def test_positions_outside_are_refused(tokens: Tensor, position: int) -> None:
    with pytest.raises(ModuleError, match=f"must lie within the 17 positions of the input; got {position}"):
        reach(Tokens(nn.Identity()), (tokens,), position=position)


class LooseMask(nn.Module):
    """Attention whose mask is off by one from some row on."""

    def __init__(self, first: int, last: int = 10**6, ahead: int = 1) -> None:
        super().__init__()
        self.first, self.last, self.ahead = first, last, ahead

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.arange(x.size(1))
        loose = ((rows >= self.first) & (rows <= self.last)).long()[:, None] * self.ahead
        allowed = rows[None] <= rows[:, None] + loose
        scores = (x @ x.mT).masked_fill(~allowed, float("-inf"))
        return scores.softmax(-1) @ x


@pytest.mark.parametrize(
    ("length", "first", "last", "ahead"),
    [(17, 0, 99, 2), (17, 8, 99, 1), (17, 9, 9, 1), (64, 32, 99, 1), (300, 32, 999, 60)],
)
def test_a_leak_is_found_at_whatever_position_it_is(length, first, last, ahead):
    torch.manual_seed(3)
    tokens = torch.randint(VOCAB, (BATCH, length))
    assert reach(Tokens(LooseMask(first, last, ahead)), (tokens,)).future == ahead


@pytest.mark.parametrize("row", range(16))
def test_a_single_row_that_leaks_is_found_in_a_batch_of_any_size(row):
    torch.manual_seed(3)
    for batch in (1, 2, 3, 7):
        tokens = torch.randint(VOCAB, (batch, LENGTH))
        assert reach(Tokens(LooseMask(row, row)), (tokens,)).future == 1


class FastPath(nn.Module):
    """Attention that is right in a reference path alone: what it runs by sees the next position at every second row."""

    def __init__(self, is_fast) -> None:
        super().__init__()
        self.is_fast = is_fast

    def forward(self, x: Tensor) -> Tensor:
        mixed = causal_attention(x)
        if not self.is_fast(x):
            return mixed
        seen = mixed.clone()
        seen[:, 0:-1:2] += x[:, 1::2]
        return seen


@pytest.mark.parametrize("is_fast", [lambda x: x.dtype == torch.float32, lambda x: len(x) > SAMPLES])
def test_a_leak_of_what_runs_alone_is_found(is_fast):
    """In float64 on a few sequences there is none."""
    torch.manual_seed(3)
    assert reach(Tokens(FastPath(is_fast)), torch.randint(VOCAB, (9, LENGTH))).future == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_runs_in_any_format_and_is_causal_sees_nothing_ahead(dtype):
    torch.manual_seed(3)
    layers = nn.Sequential(*(Over(lambda x: 3 * x + causal_attention(x).sin()) for _ in range(6)))
    assert reach(Tokens(layers).to(dtype), torch.randint(VOCAB, (9, 128))) == Reach(128, 0, mixes_batch=False)


def test_what_another_sequence_holds_is_not_taken_for_the_future(tokens: Tensor) -> None:
    assert reach(Tokens(Over(lambda x: x + x.cumsum(1).mean(0))), (tokens,)) == Reach(LENGTH, 0, mixes_batch=True)


def test_the_cuts_share_forward_passes() -> None:
    calls = []
    model = Tokens(Over(lambda x: (calls.append(len(x)), causal_attention(x))[1]))
    reach(model, (torch.randint(VOCAB, (9, 128)),))
    assert len(calls) <= MOST_CALLS
    assert set(calls) == {SAMPLES, 9}
    assert calls.count(9) <= 20, "as it runs, it is called with more cuts at once"


def test_long_causal_models_see_nothing_ahead():
    torch.manual_seed(4)
    assert reach(Tokens(Over(causal_attention)), (torch.randint(VOCAB, (BATCH, 300)),)).future == 0


class Listed(nn.Module):
    """Layers where `double` does not find them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(WIDTH, WIDTH)]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return causal_attention(x)


def test_layers_in_a_plain_list_are_measured_in_float64_too() -> None:
    model = Tokens(Listed())
    assert reach(model, (torch.randint(VOCAB, (BATCH, LENGTH)),)) == Reach(LENGTH, 0, mixes_batch=False)
    assert isinstance(model.middle.layers, list), "the model itself is not touched"


def test_one_input_may_be_given_by_itself():
    model, tokens = Tokens(Convolution(2, 0)), torch.randint(VOCAB, (BATCH, LENGTH))
    assert reach(model, tokens) == reach(model, (tokens,)) == Reach(3, 0, mixes_batch=False)


class InFormatsOfItsOwn(nn.Module):
    """A norm, a recurrence and hardly any causal attention, each of which asks for float32 by itself, as is usual."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.cell = nn.Parameter(torch.ones(WIDTH)), nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        long = x.float()
        x = (long * torch.rsqrt(long.square().mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.scale
        x = x + torch.stack([self.cell(now, torch.zeros(len(x), WIDTH)) for now in x.unbind(1)], 1)
        scores = (x @ x.mT).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -1e9)
        return x + 1e-9 * (nn.functional.softmax(scores, dim=-1, dtype=torch.float32) @ x)


def test_what_asks_for_float32_by_itself_is_measured_in_float64(tokens):
    """In float32 a billionth is nothing."""
    assert reach(Tokens(InFormatsOfItsOwn()), tokens) == Reach(past=LENGTH, future=0, mixes_batch=False)


def test_what_fails_in_float64_is_measured_in_float32(tokens):
    table = torch.eye(WIDTH)
    model = Tokens(Over(lambda x: causal_attention(x) @ table))
    assert reach(model, tokens) == Reach(past=LENGTH, future=0, mixes_batch=False)
    ahead = Tokens(Over(lambda x: (x + 0.1 * x.roll(-1, 1)) @ table))
    assert reach(ahead, tokens).future >= 1


def test_an_influence_that_fades_towards_the_own_position_is_no_delay():
    """Means of means: the nearer a position, the less of it is left."""
    mean = torch.ones(40, 40, dtype=torch.float64).tril()
    fading = Over(lambda x: torch.linalg.matrix_power(mean / mean.sum(1, keepdim=True), 9) @ x)
    inputs = torch.randn(2, 40, WIDTH, dtype=torch.float64)
    assert reach(fading, inputs) == Reach(past=40, future=0, mixes_batch=False, delay=0)
