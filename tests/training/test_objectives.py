"""Objectives that learn from what a model writes: their formulas, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from tests.training.tiny import TinyTask
from torch import nn

from attnlab.core.errors import SpecError
from attnlab.training.recipe.objectives import ExpectedReward, Likelihood, MinimumRisk
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.run.loop import train
from attnlab.training.together.together import train_together

BUDGET = {"steps": 2}
REWARDS = torch.tensor([[1.0, 0.5, 0.1, 0.3], [1.0, 0.2, 0.2, 0.2]])


def log_probabilities():
    return torch.tensor([[-3.0, -4.0, -2.0, -5.0], [-1.0, -2.0, -3.0, -4.0]], requires_grad=True)


def test_what_is_better_than_the_mean_becomes_likelier_and_what_is_worse_less_likely():
    found = log_probabilities()
    ExpectedReward(samples=3, likelihood=0.0).loss(found, REWARDS).backward()
    own = REWARDS[:, 1:]
    assert torch.allclose(found.grad[:, 1:], -(own - own.mean(1, keepdim=True)) / own.numel())
    assert not found.grad[:, 0].any()
    assert not found.grad[1].any()  # all as good as each other


def test_the_likelihood_of_what_is_right_is_added():
    found = log_probabilities()
    ExpectedReward(samples=3, likelihood=0.25).loss(found, REWARDS).backward()
    assert torch.allclose(found.grad[:, 0], torch.full((2,), -0.25 / 2))
    assert Likelihood().loss(found, REWARDS).item() == pytest.approx(2.0)


def test_the_risk_is_that_of_what_is_held_likely():
    sharpness = 0.5
    found = log_probabilities()
    held = found.detach().double().exp() ** sharpness
    expected = ((1 - REWARDS.double()) * held / held.sum(1, keepdim=True)).sum(1).mean()
    loss = MinimumRisk(samples=3, sharpness=sharpness).loss(found, REWARDS)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    loss.backward()
    assert found.grad[0, 0] < 0 < found.grad[0, 2]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("reward", "unknown objective 'reward'"),
        ({"name": "expected-reward", "samples": 1}, "samples must be at least 2"),
        ({"name": "expected-reward", "after": 1.0}, "after must be a fraction of the budget in"),
        ({"name": "minimum-risk", "sharpness": 0.0}, "sharpness must be a positive number"),
        ({"name": "minimum-risk", "likelihood": -1.0}, "likelihood must be a number of at least 0"),
        ({"name": "likelihood", "samples": 3}, "samples"),
    ],
)
def test_bad_objectives(spec, said):
    with pytest.raises(SpecError, match=said):
        Recipe.parse({"budget": BUDGET, "objective": spec})


def test_a_model_that_writes_nothing_has_nothing_to_learn_from():
    recipe = Recipe.parse({"budget": BUDGET, "objective": "minimum-risk"})
    with pytest.raises(SpecError, match="objective 'minimum-risk' needs a task whose models write sentences"):
        train(nn.Linear(5, 3), TinyTask(), recipe)


def test_batches_stay_whole_and_runs_alone():
    recipe = Recipe.parse({"budget": BUDGET, "objective": {"name": "expected-reward"}, "accumulate": 2})
    with pytest.raises(SpecError, match="'expected-reward' takes whole batches; give it devices: 1 and accumulate: 1"):
        train(nn.Linear(5, 3), TinyTask(), recipe, attempt=lambda *_: None)
    recipes = [recipe.model_copy(update={"accumulate": 1})] * 2
    with pytest.raises(SpecError, match="learns from what one model writes: train it alone"):
        train_together([nn.Linear(5, 3), nn.Linear(5, 3)], TinyTask(), recipes, seeds=[0, 1])
