"""Capture must see what is there, change nothing, and leave nothing behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnlab.inspection import capture
from attnlab.nn.attention import Attention
from attnlab.nn.mixers import ConvolutionMixer
from attnlab.nn.recurrences import LinearAttention, LstmMixer

BATCH, LENGTH, HEADS, WIDTH = 3, 7, 2, 10


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(5)
    return torch.randn(BATCH, LENGTH, WIDTH)


def hooks_of(model: nn.Module) -> list[int]:
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Attention(WIDTH, HEADS, causal=True)
        self.second = Attention(WIDTH, HEADS, scores="dot")

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def test_own_layers_report_every_step(x: Tensor) -> None:
    model = TwoLayers().eval()
    expected = model(x)
    with capture(model) as trace:
        seen = model(x)
    assert list(trace) == ["first", "second"]
    torch.testing.assert_close(seen, expected)
    first = trace["first"]
    assert first.q.shape == first.k.shape == first.v.shape == (BATCH, HEADS, LENGTH, WIDTH // HEADS)
    assert first.weights.shape == first.scores.shape == (BATCH, HEADS, LENGTH, LENGTH)
    torch.testing.assert_close(first.weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH))
    torch.testing.assert_close(first.head_outputs, first.weights @ first.v)
    assert not first.weights.triu(1).any()
    torch.testing.assert_close(trace["second"].output, expected)


@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_has_weights_though_it_does_without_them(x: Tensor, causal: bool) -> None:
    layer = LinearAttention(WIDTH, n_heads=HEADS, causal=causal, chunk_size=3)
    real = torch.arange(LENGTH) < torch.tensor([LENGTH, 4, 1])[:, None]
    expected = layer(x, padding=real)
    with capture(layer) as trace:
        torch.testing.assert_close(layer(x, padding=real), expected)
    seen = trace["model"]
    assert seen.weights.shape == (BATCH, HEADS, LENGTH, LENGTH)
    assert not (seen.weights.triu(1).any() if causal else False)
    assert not seen.weights.masked_fill(real[:, None, None], 0).any()
    torch.testing.assert_close(seen.weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH))
    torch.testing.assert_close(layer.to_residual((seen.weights @ seen.v).transpose(1, 2).flatten(2)), expected)


def test_a_trace_says_what_makes_no_weights(x: Tensor) -> None:
    model = nn.Sequential(LstmMixer(WIDTH), nn.Sequential(ConvolutionMixer(WIDTH)))
    with capture(model) as trace:
        model(x)
    without = "without weights: 0 (LstmMixer), 1.0 (ConvolutionMixer)"
    assert repr(trace) == f"No weights of an attention could be seen: the model makes none, or did not run; {without}"
    assert without in trace._repr_html_()
    with pytest.raises(KeyError, match=r"no attention '0' was seen.*without weights: 0 \(LstmMixer\)"):
        trace["0"]


def test_nothing_is_left(x: Tensor) -> None:
    model = TwoLayers()
    before = hooks_of(model)
    with capture(model):
        assert hooks_of(model) != before
    assert hooks_of(model) == before
    assert all("forward" not in vars(module) for module in model.modules())


def test_nothing_is_left_after_an_error(x: Tensor) -> None:
    model = nn.Sequential(TwoLayers(), nn.Linear(WIDTH + 1, 1))
    before, fast_path = hooks_of(model), torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(RuntimeError), capture(model):
        model(x)
    assert hooks_of(model) == before
    assert torch.backends.mha.get_fastpath_enabled() == fast_path
    assert all("forward" not in vars(module) for module in model.modules())
    assert torch.overrides._get_current_function_mode_stack() == []


def test_an_error_inside_does_not_confuse_the_names(x: Tensor) -> None:
    model = TwoLayers()
    with capture(model) as trace:
        with pytest.raises(RuntimeError):
            model(x[..., :-1])
        model(x)
    assert list(trace) == ["first", "second"]


def test_a_forward_of_its_own_is_put_back(x: Tensor) -> None:
    layer = Attention(WIDTH, HEADS)
    own = layer.forward
    layer.forward = own
    with capture(layer) as trace:
        layer(x)
    assert vars(layer)["forward"] == own
    assert list(trace) == ["model"]


def test_a_second_call_gets_a_name_of_its_own(x: Tensor) -> None:
    layer = Attention(WIDTH, HEADS)
    with capture(layer) as trace:
        layer(layer(x))
    assert list(trace) == ["model", "model#2"]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("average", [True, False])
def test_torch_attention_answers_as_it_was_asked(x: Tensor, *, need_weights: bool, average: bool) -> None:
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    asked = {"need_weights": need_weights, "average_attn_weights": average}
    output, weights = layer(x, x, x, **asked)
    with capture(layer) as trace:
        seen, seen_weights = layer(x, x, x, **asked)
    torch.testing.assert_close(seen, output)
    assert (seen_weights is None) == (weights is None)
    if weights is not None:
        torch.testing.assert_close(seen_weights, weights)
    assert trace["model"].weights.shape == (BATCH, HEADS, LENGTH, LENGTH)
    assert trace["model"].output is seen


def test_torch_attention_without_a_batch(x: Tensor) -> None:
    layer = nn.MultiheadAttention(WIDTH, HEADS)
    with capture(layer) as trace:
        _, weights = layer(x[0], x[0], x[0])
    assert trace["model"].weights.shape == (1, HEADS, LENGTH, LENGTH)
    assert weights.shape == (LENGTH, LENGTH)


@pytest.mark.parametrize("training", [True, False])
def test_torch_encoder_layer_in_both_modes(x: Tensor, *, training: bool) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 13, dropout=0.0, batch_first=True).train(training)
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    with torch.no_grad():  # eval without gradients would take the path outside Python
        expected = layer(x, src_mask=mask, is_causal=True)
        with capture(layer) as trace:
            seen = layer(x, src_mask=mask, is_causal=True)
    torch.testing.assert_close(seen, expected)
    assert list(trace) == ["self_attn"]
    weights = trace["self_attn"].weights
    assert not weights.triu(1).any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH))


def test_capture_keeps_the_graph(x: Tensor) -> None:
    layer = Attention(WIDTH, HEADS)
    with capture(layer):
        layer(x).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
