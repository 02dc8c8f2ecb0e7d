from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.core.build import build
from attnlab.core.errors import SpecError
from attnlab.nn.feedforward import (
    FEEDFORWARDS,
    GatedFeedForward,
    GeluFeedForward,
    MixtureOfExperts,
    NoFeedForward,
    NoisyMixtureOfExperts,
    ReluFeedForward,
    SquaredReluFeedForward,
    load_imbalance,
)


def test_by_hand() -> None:
    x = torch.randn(2, 5, 12)
    for part, bend in ((ReluFeedForward(12, d_ff=7), F.relu), (GeluFeedForward(12, d_ff=7), F.gelu)):
        torch.testing.assert_close(part(x), part.to_residual(bend(part.widen(x))))
    squared = SquaredReluFeedForward(12, d_ff=7)
    hidden = squared.widen(x)
    torch.testing.assert_close(squared(x), squared.to_residual(torch.where(hidden > 0, hidden * hidden, 0.0)))
    gated = GatedFeedForward(12, d_ff=7)
    gate, value = gated.widen(x)[..., :7], gated.widen(x)[..., 7:]
    torch.testing.assert_close(gated(x), gated.to_residual(gate * gate.sigmoid() * value))
    assert NoFeedForward()(x) is x


def test_default_widths() -> None:
    assert ReluFeedForward(10).to_residual.in_features == SquaredReluFeedForward(10).to_residual.in_features == 40
    assert GatedFeedForward(10).to_residual.in_features == 26
    gated, plain = (sum(p.numel() for p in kind(128).parameters()) for kind in (GatedFeedForward, GeluFeedForward))
    assert gated == pytest.approx(plain, rel=0.01)


@pytest.mark.parametrize("path", ["sparse", "readable"])
@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_experts_by_hand(top_k: int, path: str) -> None:
    torch.manual_seed(1)
    part = MixtureOfExperts(6, n_experts=4, top_k=top_k, d_ff=5, path=path).double().eval()
    x = torch.randn(2, 7, 6, dtype=torch.double)
    y = part(x)
    for place in ((0, 0), (1, 3), (1, 6)):
        p = part.router(x[place]).softmax(-1)
        trust, chosen = p.sort(descending=True)
        shares = trust[:1] if top_k == 1 else trust[:top_k] / trust[:top_k].sum()
        pairs = list(zip(shares, chosen[:top_k].tolist(), strict=True))
        expected = sum(weight * part.experts[expert](x[place]) for weight, expert in pairs)
        torch.testing.assert_close(y[place], expected)


def test_paths_have_the_same_gradients() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 9, 6, dtype=torch.double)
    parts = [MixtureOfExperts(6, n_experts=5, path=path).double() for path in ("sparse", "readable")]
    parts[1].load_state_dict(parts[0].state_dict())
    for part in parts:
        part(x).square().sum().backward()
    for one, other in zip(parts[0].parameters(), parts[1].parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_position_does_not_depend_on_others() -> None:
    torch.manual_seed(1)
    part, x = MixtureOfExperts(6, n_experts=3), torch.randn(2, 9, 6)
    changed = x.clone()
    changed[:, 4:] = torch.randn(2, 5, 6)
    torch.testing.assert_close(part(x)[:, :4], part(changed)[:, :4])


def test_imbalance_is_one_where_all_are_used_alike_and_n_where_one_is() -> None:
    even = torch.full((8, 4), 0.25)
    assert load_imbalance(even, torch.arange(8)[:, None] % 4).item() == pytest.approx(1.0)
    one = F.one_hot(torch.zeros(8, dtype=torch.long), 4).float()
    assert load_imbalance(one, torch.zeros(8, 1, dtype=torch.long)).item() == pytest.approx(4.0)


def test_balancing_reaches_the_router_and_no_other_number() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 9, 6)
    parts = [MixtureOfExperts(6, n_experts=3, balance=balance) for balance in (0.0, 0.5)]
    parts[1].load_state_dict(parts[0].state_dict())
    plain, balanced = (part(x) for part in parts)
    assert torch.equal(plain, balanced)
    for y in (plain, balanced):
        y.square().mean().backward()
    torch.testing.assert_close(parts[0].experts[0].widen.weight.grad, parts[1].experts[0].widen.weight.grad)
    p = parts[0].router(x.flatten(0, 1)).softmax(-1)
    loss = 0.5 * load_imbalance(p, p.topk(2).indices)
    (more,) = torch.autograd.grad(loss, parts[0].router.weight)
    torch.testing.assert_close(parts[1].router.weight.grad, parts[0].router.weight.grad + more)


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_router_learns_from_the_task(top_k: int) -> None:
    torch.manual_seed(1)
    part = MixtureOfExperts(6, n_experts=4, top_k=top_k, balance=0.0)
    part(torch.randn(2, 7, 6)).square().sum().backward()
    assert part.router.weight.grad is not None
    assert part.router.weight.grad.abs().max() > 1e-4


def test_training_balances_the_load() -> None:
    """Inputs that all look alike go to one expert, until balancing spreads them."""
    torch.manual_seed(0)
    part = MixtureOfExperts(6, n_experts=4, top_k=1, balance=1.0)
    x = torch.randn(64, 1, 6) + 3.0
    before = load_imbalance(*_routed(part, x)).item()
    optimizer = torch.optim.Adam(part.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        (0.0 * part(x)).sum().backward()
        optimizer.step()
    assert load_imbalance(*_routed(part, x)).item() < 1.3 < before


def _routed(part: MixtureOfExperts, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    p = part.router(x.flatten(0, 1)).softmax(-1)
    return p, p.topk(part.top_k).indices


def noisy(**sizes: Any) -> NoisyMixtureOfExperts:
    torch.manual_seed(1)
    part = NoisyMixtureOfExperts(6, n_experts=5, d_ff=4, **sizes).double()
    nn.init.normal_(part.router.weight)
    nn.init.normal_(part.noise.weight)
    return part


@pytest.mark.parametrize("path", ["sparse", "readable"])
def test_noise_chooses_experts_by_hand(path: str) -> None:
    part, x = noisy(top_k=2, path=path), torch.randn(2, 7, 6, dtype=torch.double)
    for training in (True, False):
        torch.manual_seed(3)
        y = part.train(training)(x)
        torch.manual_seed(3)
        noise = torch.randn(14, 5, dtype=torch.double).view(2, 7, 5) * training
        for place in ((0, 0), (1, 3), (1, 6)):
            h = part.router(x[place]) + noise[place] * F.softplus(part.noise(x[place]))
            best, chosen = h.sort(descending=True)
            pairs = zip(best[:2].softmax(0), chosen[:2].tolist(), strict=True)
            torch.testing.assert_close(y[place], sum(trust * part.experts[one](x[place]) for trust, one in pairs))


def test_the_load_is_how_often_noise_drawn_again_would_choose() -> None:
    """Equations 8 to 10 and appendix A, counted: the expected number of positions that choose each expert."""
    part, x = noisy(top_k=2), torch.randn(3, 6, dtype=torch.double)
    torch.manual_seed(3)
    trust, chosen, imbalance = part.choose(x)
    torch.manual_seed(3)
    clean, spread = part.router(x), F.softplus(part.noise(x))
    h, again = clean + torch.randn(3, 5, dtype=torch.double) * spread, torch.randn(40_000, dtype=torch.double)
    importance, load = torch.zeros(5, dtype=torch.double), torch.zeros(5, dtype=torch.double)
    for row in range(3):
        for expert in range(5):
            second = h[row, [one for one in range(5) if one != expert]].topk(2).values[1]
            load[expert] += (clean[row, expert] + again * spread[row, expert] > second).double().mean()
        importance[chosen[row]] += trust[row].detach()
    expected = sum((one.std(correction=0) / one.mean()) ** 2 for one in (importance, load))
    assert imbalance().item() == pytest.approx(expected.item(), abs=0.02)


def test_noisy_experts_begin_alike_and_balance_teaches_router_and_noise() -> None:
    torch.manual_seed(1)
    part, x = NoisyMixtureOfExperts(6, n_experts=4, top_k=2, balance=1.0), torch.randn(64, 6) + 2.0
    assert not part.router.weight.any()
    optimizer = torch.optim.Adam(part.parameters(), lr=0.02)
    nn.init.normal_(part.router.weight)
    before = part.choose(x)[2]().item()
    for _ in range(200):
        optimizer.zero_grad()
        (0.0 * part(x)).sum().backward()
        optimizer.step()
    assert part.choose(x)[2]().item() < 0.5 * before
    assert part.noise.weight.any()


def test_bad_arguments() -> None:
    with pytest.raises(SpecError, match=r"top_k must be less than n_experts \(2\), as noise chooses among them; got 2"):
        NoisyMixtureOfExperts(12, n_experts=2, top_k=2)
    with pytest.raises(SpecError, match="feed-forward 'gelu': sizes must be positive integers; got d_ff=0"):
        build({"name": "gelu", "d_ff": 0}, FEEDFORWARDS, axis="feed-forward", offered={"d_model": 12})
    with pytest.raises(SpecError, match=r"dropout must be a probability in \[0, 1\); got -0.1"):
        ReluFeedForward(12, dropout=-0.1)
    with pytest.raises(SpecError, match=r"top_k must be at most n_experts \(2\); got 3"):
        MixtureOfExperts(12, n_experts=2, top_k=3)
    with pytest.raises(SpecError, match=r"balance must not be negative; got -1.0"):
        MixtureOfExperts(12, balance=-1.0)
