from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnlab.core.errors import ModuleError, SpecError
from attnlab.nn.attention import Attention
from attnlab.nn.mixers import MIXERS, ConvolutionMixer, NoMixer, PositionWise, build_mixer

WITH_MEMORY = {"attention", "linear-attention"}


def test_none_returns_its_input() -> None:
    x = torch.randn(2, 5, 12)
    assert NoMixer()(x) is x


def test_position_wise_by_hand() -> None:
    mixer, x = PositionWise(12), torch.randn(2, 5, 12)
    torch.testing.assert_close(mixer(x), (x @ mixer.linear.weight.T + mixer.linear.bias).clamp(min=0))


@pytest.mark.parametrize("causal", [False, True])
def test_convolution_reaches_what_it_says(causal: bool) -> None:
    mixer = ConvolutionMixer(12, kernel_size=3, dilation=2, causal=causal).double()
    x = torch.randn(1, 13, 12, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(mixer(x)[:, 6].sum(), x)
    reached = gradient[0].abs().sum(-1).nonzero().flatten().tolist()
    assert reached == ([2, 4, 6] if causal else [4, 6, 8])


@pytest.mark.parametrize("name", sorted(set(MIXERS) - WITH_MEMORY))
def test_no_other_sequence(name: str) -> None:
    mixer = build_mixer(name, {"d_model": 12})
    with pytest.raises(ModuleError, match=f"mixer '{name}' cannot look at another sequence"):
        mixer(torch.zeros(2, 5, 12), torch.zeros(2, 7, 12))


def test_offers_are_taken_where_asked_for() -> None:
    offered = {"d_model": 12, "n_heads": 3, "causal": True, "max_length": 17, "positions": "rotary"}
    mixer = build_mixer("attention", offered)
    assert isinstance(mixer, Attention)
    assert mixer.heads.n_heads == 3
    assert mixer.mask.kind == "causal"
    assert build_mixer({"name": "attention", "n_heads": 2}, offered).heads.n_heads == 2
    assert isinstance(build_mixer("none", offered), NoMixer)


def test_a_ready_made_mixer_stays() -> None:
    mixer = PositionWise(12)
    assert build_mixer(mixer, {"d_model": 12}) is mixer


def test_unknown_name() -> None:
    with pytest.raises(SpecError, match=r"unknown mixer 'atention'; did you mean 'attention'\?"):
        build_mixer("atention", {"d_model": 12})


def test_a_persons_own_module_stands_where_a_name_stands(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Mine(nn.Module):\n"
        "    def __init__(self, emb_size):\n"
        "        super().__init__()\n"
        "        self.linear = nn.Linear(emb_size, emb_size)\n"
        "    def forward(self, x):\n"
        "        return self.linear(x)\n"
    )
    mixer = build_mixer(f"{tmp_path}/mine.py:Mine", {"d_model": 12})
    assert mixer(torch.zeros(2, 5, 12)).shape == (2, 5, 12)
