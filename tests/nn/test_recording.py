"""Programs recorded from layers fit inputs of other sizes: every entry of every axis, of mixers and feed-forwards."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.export import Dim

from attnlab.nn.attention import Attention
from attnlab.nn.axes.combiners import COMBINERS
from attnlab.nn.axes.heads import HEADS
from attnlab.nn.axes.normalizers import NORMALIZERS
from attnlab.nn.axes.positions import POSITIONS
from attnlab.nn.axes.scores import SCORES
from attnlab.nn.feedforward import FEEDFORWARDS
from attnlab.nn.mixers import LinearAttention

D_MODEL, LONGEST = 24, 200
MASKS = {
    "none": "none",
    "window": {"name": "window", "width": 3},
    "dilated": {"name": "dilated", "width": 2, "dilation": 3},
}
BIASES = {name: kind for name, kind in POSITIONS.items() if kind.level == "scores"}
AXES = {"heads": HEADS, "scores": SCORES, "normalizers": NORMALIZERS, "combiners": COMBINERS, "positions": BIASES}
MOST = max(map(len, [*AXES.values(), MASKS]))


def attention(number: int) -> Attention:
    """One of as many layers as the longest axis has entries; each entry is in one of them at least."""
    parts = {axis: list(table)[number % len(table)] for axis, table in AXES.items()}
    mask = list(MASKS.values())[number % len(MASKS)]
    n_heads = 1 if parts["heads"] == "full-width" and parts["combiners"] == "concatenate" else 2
    return Attention(D_MODEL, n_heads, **parts, masks=mask, causal=number % 2 == 0)


LAYERS = {
    **{f"attention {number}": lambda number=number: attention(number) for number in range(MOST)},
    "linear-attention": lambda: LinearAttention(D_MODEL, causal=True),
    "mixture-of-experts": lambda: FEEDFORWARDS["mixture-of-experts"](D_MODEL),
    "noisy-mixture-of-experts": lambda: FEEDFORWARDS["noisy-mixture-of-experts"](D_MODEL),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_recorded_layer_fits_other_sizes(name):
    torch.manual_seed(1)
    layer = LAYERS[name]().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        shapes = ({0: Dim("batch"), 1: Dim("length", max=LONGEST)},)
        exported = torch.export.export(layer, (torch.randn(2, 7, D_MODEL),), dynamic_shapes=shapes).module()
        traced = torch.jit.trace(layer, torch.randn(2, 7, D_MODEL))
        for size, program in itertools.product(((1, 1), (3, 5), (2, LONGEST)), (exported, traced)):
            x = torch.randn(*size, D_MODEL)
            torch.testing.assert_close(program(x), layer(x), rtol=1e-4, atol=1e-5)
