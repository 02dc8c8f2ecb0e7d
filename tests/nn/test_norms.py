from __future__ import annotations

import pytest
import torch

from attnlab.core.errors import SpecError
from attnlab.nn.norms import NORMS, LayerNorm, RmsNorm


def test_by_hand() -> None:
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    centered = x - x.mean(-1, keepdim=True)
    layer = centered / (centered.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(LayerNorm(12).double()(x), layer)
    torch.testing.assert_close(RmsNorm(12).double()(x), x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gain", [True, False])
def test_gain_and_bias_are_there_or_not(gain: bool, bias: bool) -> None:
    norm, x = LayerNorm(12, gain=gain, bias=bias).double(), torch.randn(2, 5, 12, dtype=torch.float64)
    expected = LayerNorm(12, gain=False, bias=False).double()(x)
    torch.testing.assert_close(norm(x), expected)  # neither says anything at the start
    learned = dict(norm.named_parameters())
    assert learned.keys() == {name for name, wanted in (("weight", gain), ("bias", bias)) if wanted}
    with torch.no_grad():
        for name, parameter in learned.items():
            parameter.normal_()
            expected = expected * parameter if name == "weight" else expected + parameter
    torch.testing.assert_close(norm(x), expected)
    assert list(RmsNorm(12, gain=gain).state_dict()) == (["weight"] if gain else [])


@pytest.mark.parametrize("name", NORMS)
def test_width_must_be_positive(name: str) -> None:
    with pytest.raises(SpecError, match="got d_model=0"):
        NORMS[name](0)
