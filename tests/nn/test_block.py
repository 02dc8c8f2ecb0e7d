from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.core.build import build
from attnlab.core.errors import SpecError
from attnlab.nn.block import BLOCKS, Block, LiteralBlock

D_MODEL, LENGTH = 12, 7
LITERAL = {"name": "attention", "n_heads": 1, "combiners": "concatenate"}


def activations() -> Tensor:
    return torch.randn(3, LENGTH, D_MODEL, dtype=torch.float64)


class ByHand(nn.Module):
    """Attention as a beginner writes it: no output projection, and everything through a linear map and a ReLU."""

    def __init__(self, width: int, *, attend: bool, residual: bool, norm: bool) -> None:
        super().__init__()
        self.attend, self.residual, self.width = attend, residual, width
        self.query, self.key, self.value, self.linear = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.attend:
            future = torch.triu(torch.ones(x.size(1), x.size(1)), diagonal=1).bool()
            scores = self.query(x) @ self.key(x).transpose(1, 2) * self.width ** (-1 / 2)
            found = F.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ self.value(x)
            x = self.norm(x + found if self.residual else found)
        return F.relu(self.linear(x))


@pytest.mark.parametrize(
    ("attend", "residual", "norm"),
    [(False, False, False), (True, False, False), (True, True, False), (True, True, True)],
    ids=["no attention", "attention", "+ residual", "+ layer norm"],
)
def test_literal_wiring_is_attention_written_by_hand(attend: bool, residual: bool, norm: bool) -> None:
    theirs = ByHand(D_MODEL, attend=attend, residual=residual, norm=norm).double()
    ours = LiteralBlock(
        D_MODEL,
        LITERAL if attend else "none",
        residual=residual,
        norm="post" if norm else "none",
        context={"causal": True},
    ).double()
    copies = {"linear.weight": theirs.linear.weight, "linear.bias": theirs.linear.bias}
    if attend:
        parts = (theirs.query, theirs.key, theirs.value)
        copies["mixer.heads.packed.linear.weight"] = torch.cat([part.weight for part in parts])
        copies["mixer.heads.packed.linear.bias"] = torch.cat([part.bias for part in parts])
    if norm:
        copies |= {f"around_mixer.after.{name}": value for name, value in theirs.norm.named_parameters()}
    ours.load_state_dict(copies)  # strict: not one parameter more, not one less
    x = activations()
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_wiring_by_hand(norm: Any, residual: bool) -> None:
    block, x = Block(D_MODEL, norm=norm, residual=residual).double(), activations()
    expected = x
    for around, part in ((block.around_mixer, block.mixer), (block.around_feedforward, block.feedforward)):
        found = part(around.before(expected) if norm == "pre" else expected)
        found = expected + found if residual else found
        expected = around.after(found) if norm == "post" else found
    torch.testing.assert_close(block(x), expected)
    assert sum(isinstance(part, nn.LayerNorm) for part in block.modules()) == (0 if norm == "none" else 2)


def test_absent_sublayers_are_left_out() -> None:
    x = activations()
    assert Block(D_MODEL, "none", feedforward="none")(x) is x
    assert not list(Block(D_MODEL, "none", feedforward="none").parameters())
    only_mapping = {name.split(".")[0] for name, _ in Block(D_MODEL, "none").named_parameters()}
    assert only_mapping == {"feedforward", "around_feedforward"}
    assert len(list(LiteralBlock(D_MODEL, {"name": "none"}, norm="post").parameters())) == 2


def test_context_reaches_the_mixer() -> None:
    context = {"causal": True, "positions": "relative-bias", "n_heads": 3}
    for kind in BLOCKS.values():
        mixer = kind(D_MODEL, dropout=0.1, context=context).mixer
        assert (mixer.mask.kind, mixer.heads.n_heads, mixer.dropout) == ("causal", 3, 0.1)
        assert mixer.positions.causal
        assert kind(D_MODEL, {"name": "attention", "dropout": 0.0}, dropout=0.1).mixer.dropout == 0.0


@pytest.mark.parametrize("name", BLOCKS)
def test_dropout_acts_in_training_only(name: str) -> None:
    spec = {"name": name, "mixer": {"name": "attention", "dropout": 0.0}, "dropout": 0.5}
    block, x = build(spec, BLOCKS, axis="block", offered={"d_model": D_MODEL}).double(), activations()
    assert not torch.equal(block.train()(x), block(x))
    assert torch.equal(block.eval()(x), block(x))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"norm": "before"}, "'norm' must be"),
        ({"norm_kind": "batch"}, "unknown norm 'batch'"),
        ({"mixer": {"name": "attention", "n_heads": 5}}, "n_heads must divide d_model; got d_model=12, n_heads=5"),
        ({"dropout": 2.0}, r"dropout must be a probability in \[0, 1\); got 2.0"),
        ({"feedforward": "rely"}, "unknown feed-forward 'rely'; did you mean 'relu'?"),
    ],
)
def test_bad_specifications(spec: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=f"block 'transformer': .*{text}"):
        build({"name": "transformer", **spec}, BLOCKS, axis="block", offered={"d_model": 12})
