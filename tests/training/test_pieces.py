"""A batch in pieces: what is random is that of the whole batch, and every row counts by its targets."""

from __future__ import annotations

import pytest
import torch
from tests.training.on_ranks import IGNORED, Numbers, Words, made
from tests.training.tiny import recipe
from torch.nn import functional as F

from attnlab.core.contracts import Batch
from attnlab.core.errors import SpecError
from attnlab.nn.kernels.dropout import dropout
from attnlab.training import train
from attnlab.training.devices.pieces import cut, drawn_alike

ROWS = 6
DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "the lab's dropout, of rows that no number of four fills": lambda x: dropout(x, 0.4),
    "the same of heads": lambda x: dropout(x.flatten(0, 1), 0.4).unflatten(0, x.shape[:2]),
    "the same of rows alone": lambda x: dropout(x.flatten(1), 0.4).view(x.shape),
    "dropout of heads": lambda x: F.dropout(x.flatten(0, 1), 0.4).unflatten(0, x.shape[:2]),
    "dropout where the batch lies second in memory": lambda x: F.dropout(
        x.transpose(0, 1).contiguous().transpose(0, 1)
    ),
    "attention with dropout": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
    "attention without": lambda x: F.scaled_dot_product_attention(x, x, x) + torch.rand_like(x),
    "noise": lambda x: x + torch.randn(len(x), 1, 1, 1),
    "noise like it": lambda x: x + torch.rand_like(x),
    "noise in place": lambda x: x.clone().normal_(),
    "one number for all": lambda x: x * torch.rand(()),
    "an order for all": lambda x: x[..., torch.randperm(x.shape[-1])],
    "by its own chances": lambda x: torch.bernoulli(x.sigmoid()),
}


@pytest.mark.parametrize("name", DRAWS)
def test_pieces_draw_what_the_whole_batch_draws(name):
    count = 3 if "in memory" in name else 4  # of a single row nobody sees where the batch lay; 6 by 4 is uneven
    x = torch.randn(ROWS, 3, 5, 7, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    whole = DRAWS[name](x)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    parts = []
    for piece in drawn_alike(cut(Words(), Batch((x,), torch.full((ROWS,), 2)), count, range(count))):
        with piece.drawing():
            parts.append(DRAWS[name](*piece.batch.inputs))
        assert torch.equal(torch.get_rng_state(), after), "ranks must not drift apart"
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-6)


def test_pieces_weigh_as_many_targets_as_they_have():
    targets = torch.tensor([[1, 1, 1], [1, IGNORED, IGNORED], [1, 1, 1], [1, 1, IGNORED], [IGNORED, 1, IGNORED]])
    pieces = cut(Words(), Batch((targets,), targets), 3, range(3))
    assert [len(piece.batch.targets) for piece in pieces] == [1, 2, 2]
    assert [piece.weight for piece in pieces] == [0.3, 0.4, 0.3]


def test_rows_that_pieces_do_not_divide_are_an_error():
    batch = Numbers().train_batch(0, 0)
    with pytest.raises(SpecError, match="a batch of 8 rows cannot be divided into 3 equal pieces"):
        cut(Numbers(), batch, 3, [0])
    with pytest.raises(SpecError, match="a batch of 8 rows cannot be divided into 9"):
        cut(Words(), batch, 9, [0])


class PartlySilent(Words):
    """Ask nothing of the first row."""

    def batch(self, number):
        batch = super().batch(number)
        batch.targets[0] = IGNORED
        return batch


def test_a_piece_without_targets_adds_nothing():
    runs = []
    for accumulate in (1, 8):
        model, _ = made("decoder")
        runs.append(train(model, PartlySilent(), recipe(5, accumulate=accumulate)).curve[-1]["train_loss"])
    assert runs[1] == pytest.approx(runs[0], rel=1e-9)
