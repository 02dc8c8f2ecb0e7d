from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from attnlab.core.build import build
from attnlab.core.errors import SpecError
from attnlab.nn.axes.combiners import (
    COMBINERS,
    AttentionOverHeads,
    Concatenate,
    Convolution,
    Project,
    Sum,
    TalkingHeads,
    concatenate,
)

SIZES = {"n_heads": 3, "d_v": 5}


def outputs() -> torch.Tensor:
    return torch.randn(2, 3, 7, 5, dtype=torch.float64)


def test_concatenation_puts_head_0_first() -> None:
    given = outputs()
    torch.testing.assert_close(concatenate(given)[1, 4], torch.cat((given[1, 0, 4], given[1, 1, 4], given[1, 2, 4])))
    assert torch.equal(Concatenate(15, **SIZES)(given), concatenate(given))


def test_projection_is_a_sum_over_heads() -> None:
    given, combiner = outputs(), Project(12, **SIZES).double()
    by_head = combiner.to_residual.weight.unflatten(1, (3, 5))  # (d_model, heads, d_v)
    by_hand = torch.einsum("bhlv,mhv->blm", given, by_head) + combiner.to_residual.bias
    torch.testing.assert_close(combiner(given), by_hand)


def test_sum_by_hand() -> None:
    given, combiner = outputs(), Sum(12, d_v=5).double()
    torch.testing.assert_close(combiner(given), combiner.to_residual(given[:, 0] + given[:, 1] + given[:, 2]))


@pytest.mark.parametrize("causal", [False, True])
def test_each_head_has_a_convolution_of_its_own(causal: bool) -> None:
    given, combiner = outputs(), Convolution(12, **SIZES, kernel_size=3, causal=causal).double()
    weight, bias = combiner.convolutions.weight, combiner.convolutions.bias
    padded = F.pad(given, (0, 0, 2, 0) if causal else (0, 0, 1, 1))
    heads = [
        F.conv1d(padded[:, h].transpose(1, 2), weight[4 * h : 4 * h + 4], bias[4 * h : 4 * h + 4]) for h in range(3)
    ]
    torch.testing.assert_close(combiner(given), torch.cat(heads, dim=1).transpose(1, 2))


def attending() -> AttentionOverHeads:
    """Return a combiner whose queries are no longer zero."""
    combiner = AttentionOverHeads(12, **SIZES).double()
    with torch.no_grad():
        combiner.queries.normal_()
    return combiner


def test_attention_over_heads_by_hand() -> None:
    given, combiner = outputs(), attending()
    by_head = combiner.to_residual.weight.unflatten(1, (3, 5))  # (d_model, heads, d_v)
    by_hand = combiner.to_residual.bias.repeat(2, 7, 1)
    for sample in range(2):
        for position in range(7):
            found = given[sample, :, position]  # (heads, d_v)
            scores = torch.stack([combiner.queries[h] @ found[h] / 5**0.5 for h in range(3)])
            for h, weight in enumerate(scores.softmax(0)):
                by_hand[sample, position] += 3 * weight * by_head[:, h] @ found[h]
    torch.testing.assert_close(combiner(given), by_hand)


def test_attention_over_heads_starts_as_a_projection_and_learns_another() -> None:
    given, combiner, plain = outputs(), AttentionOverHeads(12, **SIZES).double(), Project(12, **SIZES).double()
    plain.to_residual.load_state_dict(combiner.to_residual.state_dict())
    torch.testing.assert_close(combiner(given), plain(given))
    gradients = torch.autograd.grad(combiner(given).pow(2).sum(), list(combiner.parameters()))
    assert all((gradient != 0).all() for gradient in gradients)
    assert not torch.allclose(attending().weights(given), torch.full((2, 3, 7, 1), 1 / 3, dtype=torch.float64))


def test_attention_over_heads_knows_heads_by_their_queries_and_maps_alone() -> None:
    given, combiner, order = outputs(), attending(), [2, 0, 1]
    before, weights = combiner(given), combiner.weights(given)
    torch.testing.assert_close(combiner.weights(given).sum(1), torch.ones(2, 7, 1, dtype=torch.float64))
    assert not torch.allclose(combiner(given[:, order]), before)
    with torch.no_grad():
        combiner.queries.copy_(combiner.queries[order])
        by_head = combiner.to_residual.weight.unflatten(1, (3, 5))
        combiner.to_residual.weight.copy_(by_head[:, order].flatten(1))
    torch.testing.assert_close(combiner.weights(given[:, order]), weights[:, order])
    torch.testing.assert_close(combiner(given[:, order]), before)


@pytest.mark.parametrize("name", COMBINERS)
def test_only_what_says_so_mixes_positions(name: str) -> None:
    combiner = build(name, COMBINERS, axis="combiner", offered={"d_model": 15, **SIZES}).double()
    with torch.no_grad():
        for parameter in combiner.parameters():
            parameter.add_(torch.randn_like(parameter))
    given = outputs().requires_grad_()
    (gradient,) = torch.autograd.grad(combiner(given)[:, 3].pow(2).sum(), given)
    elsewhere = [position for position in range(7) if position != 3]
    assert (gradient[:, :, 3] != 0).all()
    assert (gradient[:, :, elsewhere] != 0).any() == combiner.mixes_positions


def test_talking_heads_mix_over_heads() -> None:
    combiner = TalkingHeads(12, **SIZES).double()
    scores = torch.randn(2, 3, 7, 7, dtype=torch.float64)
    assert torch.equal(combiner.mix_scores(scores), scores)
    with torch.no_grad():
        combiner.score_mixing.normal_()
    by_hand = sum(combiner.score_mixing[1, head] * scores[:, head] for head in range(3))
    torch.testing.assert_close(combiner.mix_scores(scores)[:, 1], by_hand)


@pytest.mark.parametrize("name", COMBINERS)
def test_only_what_says_so_mixes(name: str) -> None:
    combiner = build(name, COMBINERS, axis="combiner", offered={"d_model": 15, **SIZES})
    with torch.no_grad():
        for parameter in combiner.parameters():
            parameter.add_(torch.randn_like(parameter))
    scores = torch.randn(2, 3, 7, 11)
    unmixed = torch.equal(combiner.mix_scores(scores), scores) and torch.equal(combiner.mix_weights(scores), scores)
    assert unmixed != combiner.mixes_heads


def test_heads_side_by_side_must_fit() -> None:
    with pytest.raises(SpecError, match="n_heads \\* d_v must be d_model; got n_heads=3, d_v=5, d_model=12"):
        Concatenate(12, **SIZES)
    with pytest.raises(SpecError, match="n_heads must divide d_model; got d_model=13, n_heads=3"):
        Convolution(13, **SIZES)
