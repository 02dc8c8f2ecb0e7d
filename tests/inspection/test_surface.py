"""The loss along lines through the weights is what it is by hand, and the weights are what they were."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.core.errors import SpecError
from attnlab.inspection import loss_surface

ROWS, WIDTH = 3, 5


@pytest.fixture
def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, ROWS)


def size(model: nn.Linear) -> torch.Tensor:
    """The squared distance of each row from where it was."""
    return model.weight.detach().square().sum()


def test_every_row_moves_by_its_own_norm(model):
    original, moved = model.weight.detach().clone(), []

    def loss() -> torch.Tensor:
        moved.append(model.weight.detach() - original)
        return torch.zeros(())

    surface = loss_surface(model, loss, directions=2, points=5, reach=0.5)
    assert surface.at == (-0.5, -0.25, 0.0, 0.25, 0.5)
    norms = torch.stack([move.norm(dim=1) for move in moved]).view(2, 5, ROWS)
    torch.testing.assert_close(norms, torch.tensor(surface.at).abs().view(5, 1) * original.norm(dim=1).expand(2, 5, -1))
    assert not torch.allclose(moved[0], moved[5])  # two directions
    torch.testing.assert_close(moved[0], -moved[4])  # on one line


def test_along_a_line_a_square_is_a_parabola(model):
    surface = loss_surface(model, lambda: size(model), directions=4, points=3, reach=0.5)
    for before, here, after in surface.loss:
        assert here == pytest.approx(float(size(model)))
        assert before + after - 2 * here == pytest.approx(2 * 0.25 * here, rel=1e-5)


def test_weights_come_back_to_the_bit_and_vectors_never_move(model):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def failing() -> torch.Tensor:
        assert torch.equal(model.bias, before["bias"])
        if not torch.equal(model.weight, before["weight"]):
            raise RuntimeError("no such loss")
        return torch.zeros(())

    with pytest.raises(RuntimeError, match="no such loss"):
        loss_surface(model, failing, points=3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    first, again = (loss_surface(model, lambda: size(model)) for _ in range(2))
    assert first == again
    assert first != loss_surface(model, lambda: size(model), seed=1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"points": 4}, "points must be odd and 3 at least: one is where the weights are; got 4"),
        ({"directions": 0}, "directions must be at least 1; got 0"),
        ({"reach": 0.0}, "reach must be a positive number; got 0.0"),
    ],
)
def test_what_cannot_be_is_refused(model, arguments, sentence):
    with pytest.raises(SpecError, match=sentence):
        loss_surface(model, lambda: size(model), **arguments)
