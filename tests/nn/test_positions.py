from __future__ import annotations

import math

import pytest
import torch

from attnlab.core.errors import SpecError
from attnlab.nn.axes.positions import (
    POSITIONS,
    LearnedConcatenated,
    LearnedPositions,
    SinusoidalConcatenated,
    SinusoidalPositions,
    sinusoids,
)


def test_sinusoids_by_hand() -> None:
    table = sinusoids(5, 6, dtype=torch.float64)
    for position in range(5):
        for pair in range(3):
            angle = position / 10000 ** (2 * pair / 6)
            assert table[position, 2 * pair].item() == pytest.approx(math.sin(angle))
            assert table[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle))


def test_odd_width_drops_the_last_cosine() -> None:
    table = sinusoids(5, 7, dtype=torch.float64)
    assert table.shape == (5, 7)
    assert table[3, 6].item() == pytest.approx(math.sin(3 / 10000 ** (6 / 7)))


def test_added_sinusoids() -> None:
    x = torch.randn(2, 5, 6)
    torch.testing.assert_close(SinusoidalPositions()(x), x + sinusoids(5, 6))


def test_concatenation_with_two_identities_is_addition() -> None:
    x = torch.randn(2, 5, 6)
    for positions, added in (
        (SinusoidalConcatenated(6), sinusoids(5, 6)),
        (learned := LearnedConcatenated(6, max_length=7), learned.table.weight[:5]),
    ):
        with torch.no_grad():
            positions.to_model.weight.copy_(torch.cat((torch.eye(6), torch.eye(6)), dim=1))
            positions.to_model.bias.zero_()
        torch.testing.assert_close(positions(x), x + added)


def test_learned_positions_are_added() -> None:
    positions, x = LearnedPositions(6, max_length=7), torch.randn(2, 5, 6)
    torch.testing.assert_close(positions(x) - x, positions.table.weight[:5].expand(2, 5, 6))


@pytest.mark.parametrize("kind", [LearnedPositions, LearnedConcatenated])
def test_too_long_for_the_table(kind: type) -> None:
    with pytest.raises(SpecError, match="a sequence of 8 positions is longer than max_length=7"):
        kind(6, max_length=7)(torch.zeros(2, 8, 6))


def test_every_entry_has_a_level() -> None:
    assert {entry.level for entry in POSITIONS.values()} == {"input", "scores"}
    assert POSITIONS["none"].level == "scores"
