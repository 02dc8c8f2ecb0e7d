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


@pytest.mark.parametrize("name", NORMS)
def test_width_must_be_positive(name: str) -> None:
    with pytest.raises(SpecError, match="got d_model=0"):
        NORMS[name](0)
