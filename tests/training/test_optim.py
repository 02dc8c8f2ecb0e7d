"""Optimizers: who is decayed, who is Muon's, and state that survives saving."""

from __future__ import annotations

import pytest
import torch
from tests.training.tiny import TinyTask, tiny_model
from torch import nn

from attnlab.core.errors import RunError, SpecError
from attnlab.training.recipe.muon import BatchedMuon, orthogonalize
from attnlab.training.recipe.optim import OPTIMIZERS, Adam, AdamW, Muon, Sgd, hidden_matrices


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(17, 5)
        self.positions = nn.Parameter(torch.randn(11, 5))
        self.block = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 5))
        self.kernel = nn.Conv1d(5, 5, 3)
        self.head = nn.Linear(5, 17)


def steps(model, optimizer, n):
    task = TinyTask()
    for number in range(n):
        batch = task.train_batch(number, 0)
        task.loss(model(*batch.inputs), batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def made_for(name):
    """A small model; for counts one without negative weights."""
    model = tiny_model(0.0)
    if name == "em":
        for parameter in model.parameters():
            parameter.data.abs_()
    return model


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_saved_state_goes_on_to_the_same_bits(name):
    whole, first = (made_for(name) for _ in range(2))
    steps(whole, OPTIMIZERS[name]().over(whole, 0.01, 0.1), 5)
    before = OPTIMIZERS[name]().over(first, 0.01, 0.1)
    task = TinyTask()
    steps(first, before, 3)
    after = OPTIMIZERS[name]().over(first, 0.01, 0.1)
    after.load_state_tensors({key: tensor.clone() for key, tensor in before.state_tensors().items()})
    for number in (3, 4):
        batch = task.train_batch(number, 0)
        task.loss(first(*batch.inputs), batch).backward()
        after.step()
        after.zero_grad()
    for mine, theirs in zip(first.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "em"])
def test_only_matrices_decay(name):
    model = tiny_model(0.0)
    for optimizer in OPTIMIZERS[name]().over(model, 0.01, 0.1).members.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                assert (group["weight_decay"] > 0.0) == (parameter.ndim >= 2)


def trained_by(optimizer, weight_decay):
    model = tiny_model(0.0)
    steps(model, optimizer.over(model, 0.01, weight_decay), 5)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_adam_without_decay_is_adamw_and_with_it_decays_through_its_means():
    betas = (0.8, 0.95)
    torch.testing.assert_close(trained_by(Adam(betas), 0.0), trained_by(AdamW(betas), 0.0), rtol=0, atol=0)
    by_hand, task = tiny_model(0.0), TinyTask()
    means = {
        parameter: (torch.zeros_like(parameter), torch.zeros_like(parameter)) for parameter in by_hand.parameters()
    }
    for number in range(5):
        batch = task.train_batch(number, 0)
        task.loss(by_hand(*batch.inputs), batch).backward()
        with torch.no_grad():
            for parameter, (first, second) in means.items():
                gradient = parameter.grad + (0.1 * parameter if parameter.ndim >= 2 else 0.0)
                first.lerp_(gradient, 1 - betas[0])
                second.lerp_(gradient**2, 1 - betas[1])
                root = (second / (1 - betas[1] ** (number + 1))).sqrt() + 1e-8
                parameter.sub_(0.01 * first / (1 - betas[0] ** (number + 1)) / root)
        by_hand.zero_grad()
    expected = torch.cat([parameter.detach().flatten() for parameter in by_hand.parameters()])
    torch.testing.assert_close(trained_by(Adam(betas), 0.1), expected, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(expected, trained_by(AdamW(betas), 0.1), atol=1e-4)


def test_state_of_another_optimizer():
    with pytest.raises(RunError, match="an optimizer 'sgd' that this run does not use"):
        AdamW().over(tiny_model(), 0.01, 0.0).load_state_tensors({"sgd.0.momentum_buffer": torch.zeros(1)})


def test_muon_takes_hidden_matrices_only():
    model = Language()
    hidden = hidden_matrices(model)
    assert [id(p) for p in hidden] == [id(model.block[0].weight), id(model.block[2].weight)]
    members = Muon().over(model, 0.01, 0.1).members
    counted = sum(len(group["params"]) for one in members.values() for group in one.param_groups)
    assert counted == len(list(model.parameters()))


def test_muon_is_torch_s_on_matrices_of_every_shape():
    torch.manual_seed(0)
    shapes = [(12, 5), (5, 12), (5, 5), (12, 5), (7, 7)]
    mine, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    settings = {"lr": 0.1, "weight_decay": 0.3, "momentum": 0.8}
    batched = BatchedMuon(mine, **settings)
    plain = torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **settings)
    for _ in range(3):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        mine[2].grad = theirs[2].grad = None
        batched.step()
        plain.step()
    assert torch.equal(mine[2], torch.ones(5, 5))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0.01)  # steps of 0.1 in bfloat16
    assert all("momentum_buffer" in state for state in batched.state.values())


def test_orthogonalized_matrices_have_singular_values_near_one():
    torch.manual_seed(0)
    found = orthogonalize(torch.randn(3, 7, 11) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None])
    values = torch.linalg.svdvals(found.float())
    assert 0.6 < values.min() <= values.max() < 1.3
    assert torch.equal(orthogonalize(torch.zeros(1, 3, 5)), torch.zeros(1, 3, 5).bfloat16())


def test_bad_arguments():
    with pytest.raises(SpecError, match="'betas' must be two numbers"):
        AdamW([0.9])
    with pytest.raises(SpecError, match="'momentum' must lie in"):
        Sgd(1.0)
    with pytest.raises(SpecError, match="'nesterov' needs"):
        Sgd(0.0, True)
    with pytest.raises(SpecError, match="muon needs hidden matrices"):
        Muon().over(nn.Linear(3, 5), 0.01, 0.1)
    with pytest.raises(SpecError, match="no trainable parameters"):
        AdamW().over(nn.ReLU(), 0.01, 0.1)
