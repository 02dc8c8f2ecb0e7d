"""Convolutional translators: formulas by hand, how far they go, and arguments that cannot be."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from attnlab.core.errors import SpecError
from attnlab.models import ByteNet, ConvS2S

VOCAB, LONGEST = 19, 12


def tokens(length, seed, rows=3):
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_convs2s_by_hand():
    """One layer at the first place, from the formulas of the source."""
    torch.manual_seed(0)
    model = ConvS2S(VOCAB, VOCAB, LONGEST, d_model=4, n_layers=1, dropout=0.0).double()
    source, target = tokens(3, 1, rows=1), tokens(1, 2, rows=1)
    e = model.source_embedding(source)[0] + model.source_positions.table.weight[:3]
    kernel, bias = model.encoder[0].convolution.weight, model.encoder[0].convolution.bias
    around = F.pad(e, (0, 0, 1, 1))
    z = []
    for place in range(3):
        seen = around[place : place + 3]  # (kernel, d_model)
        a, b = (torch.einsum("ock,kc->o", kernel, seen) + bias).chunk(2)
        z.append((a * b.sigmoid() + e[place]) * math.sqrt(0.5))
    z = torch.stack(z)
    g = model.target_embedding(target)[0, 0] + model.target_positions.table.weight[0]
    kernel, bias = model.decoder[0].convolution.weight, model.decoder[0].convolution.bias
    a, b = (kernel[:, :, 2] @ g + bias).chunk(2)
    h = a * b.sigmoid()
    d = (model.queries[0](h) + g) * math.sqrt(0.5)
    weights = (z @ d).softmax(0)
    c = (weights[:, None] * (z + e) * math.sqrt(0.5)).sum(0) * math.sqrt(3)
    h = ((h + c) * math.sqrt(0.5) + g) * math.sqrt(0.5)
    torch.testing.assert_close(model(source, target)[0, 0], model.logits(h))


def test_a_block_of_bytenet_by_hand():
    """Norm, ReLU, narrow; norm, ReLU, dilated convolution of what came before; norm, ReLU, widen; add."""
    torch.manual_seed(0)
    model = ByteNet(VOCAB, VOCAB, d_model=6, n_sets=1, dilations=(2,), kernel_size=3, dropout=0.0).double()
    block = model.decoder[0]
    x = torch.randn(1, 7, 6, dtype=torch.double)
    narrow = block.norms[1](block.narrow(block.norms[0](x).relu())).relu()[0]
    kernel, bias = block.convolution.convolution.weight, block.convolution.convolution.bias
    expected = []
    for place in range(7):
        y = bias
        for tap, before in enumerate((4, 2, 0)):
            y = y + kernel[:, :, tap] @ narrow[place - before] if place >= before else y
        expected.append(x[0, place] + block.widen(block.norms[2](y).relu()))
    torch.testing.assert_close(block(x)[0], torch.stack(expected))


def test_gradients_into_the_encoder_of_convs2s_are_divided():
    """By twice the number of decoder layers, beside the slope of the same loss along one weight of the encoder."""
    torch.manual_seed(0)
    model = ConvS2S(VOCAB, VOCAB, LONGEST, d_model=6, n_layers=3, dropout=0.0).double()
    source, target, step = tokens(5, 1, rows=1), tokens(4, 2, rows=1), 1e-6
    bias = model.encoder[0].convolution.bias
    before = model(source, target).square().sum()
    before.backward()
    with torch.no_grad():
        bias[0] += step
        slope = (model(source, target).square().sum() - before) / step
    assert bias.grad[0].item() == pytest.approx(slope.item() / 6, rel=1e-3)


def test_bytenet_goes_on_beyond_the_source():
    """What it writes past `unfold` times the source no longer reads the encoder at its own place."""
    torch.manual_seed(0)
    model = ByteNet(VOCAB, VOCAB, d_model=6, n_sets=1, dilations=(1,), kernel_size=1, unfold=2.0, dropout=0.0).double()
    target = tokens(7, 2, rows=1)
    one, other = (model(tokens(2, seed, rows=1), target) for seed in (1, 3))
    assert (one != other).any(-1)[0].tolist() == [True, True, False, False, False, False, False]
    torch.testing.assert_close(one[:, 4:], other[:, 4:])


@pytest.mark.parametrize("unfold", [1.2, 1.5])
def test_bytenet_unfolds_a_padded_source_as_it_does_one_alone(unfold):
    """25 * 1.2 is 30 and no more, also where the product is rounded up."""
    torch.manual_seed(0)
    model = ByteNet(VOCAB, VOCAB, d_model=6, n_sets=1, unfold=unfold, dropout=0.0).double().eval()
    source, target = tokens(25, 1, rows=1), tokens(34, 2, rows=1)
    padded = torch.cat((source, torch.zeros(1, 9, dtype=torch.long)), dim=1)
    torch.testing.assert_close(model(padded, target), model(source, target))
    torch.testing.assert_close(model(source, target[:, :30]), model(source, target)[:, :30])


def test_a_sequence_without_positions():
    model = ConvS2S(VOCAB, VOCAB, LONGEST, d_model=6)
    with pytest.raises(SpecError, match="a sequence of 13 positions is longer than max_length=12"):
        model(tokens(13, 1), tokens(3, 1))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ConvS2S(9, 9, 5, d_model=0), "sizes must be positive integers; got d_model=0"),
        (lambda: ConvS2S(9, 9, 5, kernel_size=4), "kernel_size must be odd, so that lengths stay; got 4"),
        (lambda: ByteNet(9, 9, kernel_size=2), "kernel_size must be odd, so that lengths stay; got 2"),
        (lambda: ByteNet(9, 9, d_model=7), "d_model must be even and unfold at least 1; got 7 and 1.5"),
        (lambda: ByteNet(9, 9, unfold=0.5), "d_model must be even and unfold at least 1; got 256 and 0.5"),
        (lambda: ByteNet(9, 9, dilations=()), "sizes must be positive integers; got dilation=0"),
        (lambda: ByteNet(9, 9, dropout=1.0), "dropout must be a probability"),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises(SpecError, match=text):
        make()
