"""A recipe is checked as a whole, and every problem is named in words."""

from __future__ import annotations

import pytest
from tests.training.tiny import TinyTask

from attnlab.core.errors import SpecError
from attnlab.training.recipe.recipe import Recipe


def refused(**fields) -> str:
    with pytest.raises(SpecError) as caught:
        Recipe.parse({"budget": {"steps": 7}, **fields}, "rules")
    assert str(caught.value).startswith("rules: ")
    return str(caught.value)


def test_all_problems_at_once_with_nearest_names():
    text = refused(lrr=1.0, clip=-1.0, optimizer="adamww", schedule={"name": "cosine", "final": 2.0}, precision="fp16")
    assert "unknown key 'lrr'; did you mean 'lr'?" in text
    assert "'clip': should be greater than 0; got -1.0" in text
    assert "did you mean 'adamw'?" in text
    assert "'final' must lie between 0 and 1" in text
    assert "'precision'" in text


@pytest.mark.parametrize("value", [True, False, "auto"])
def test_compiling_is_yes_no_or_auto(value):
    assert Recipe.parse({"budget": {"steps": 7}, "compile": value}).compile is value


@pytest.mark.parametrize("value", ["true", "yes", 2, None])
def test_compiling_is_nothing_else(value):
    assert f"'compile': should be true, false or 'auto'; got {value!r}" in refused(compile=value)


@pytest.mark.parametrize("budget", [{}, {"steps": 3, "tokens": 5}])
def test_budget_is_exactly_one(budget):
    assert "exactly one of steps, epochs, tokens, flops, seconds" in refused(budget=budget)


@pytest.mark.parametrize("budget", [{"steps": -3}, {"seconds": 0.0}, {"steps": 2.5}, {"tokens": float("inf")}])
def test_budget_is_positive(budget):
    assert "'budget." in refused(budget=budget)


def test_unknown_budget_and_missing_budget():
    assert "unknown key 'budget.step'; did you mean 'steps'?" in refused(budget={"step": 3})
    with pytest.raises(SpecError, match="missing 'budget'"):
        Recipe.parse({})


def test_a_recipe_made_in_python_says_in_one_error_what_is_wrong():
    with pytest.raises(SpecError, match=r"'lr': should be greater than 0; got -1; unknown key 'steps'; "):
        Recipe(budget={"steps": 7}, lr=-1, steps=3)
    with pytest.raises(SpecError, match="recipe: unknown key '3'"):
        Recipe.parse({"budget": {"steps": 7}, 3: 4})


@pytest.mark.parametrize("warmup", [-1, 1.0, 1.5, "5%"])
def test_warmup_is_steps_or_a_fraction(warmup):
    assert "warmup" in refused(warmup=warmup)


def test_warmup_in_steps_with_seconds():
    assert "no meaning with a budget in seconds" in refused(budget={"seconds": 3.0}, warmup=10)


class FiveTargets(TinyTask):
    """A task of five targets a step, that is seen once in 3.5 steps."""

    tokens_per_step = 5
    steps_per_epoch = 3.5


def test_steps_of_each_budget():
    task = FiveTargets()
    assert Recipe.parse({"budget": {"steps": 7}}).total_steps(task) == 7
    assert Recipe.parse({"budget": {"epochs": 3}}).total_steps(task) == 10
    assert Recipe.parse({"budget": {"epochs": 0.1}}).total_steps(task) == 1
    assert Recipe.parse({"budget": {"tokens": 38}}).total_steps(task) == 7
    assert Recipe.parse({"budget": {"flops": 1e3}}).total_steps(task, 11.0) == 18
    assert Recipe.parse({"budget": {"seconds": 2}}).total_steps(task) is None


def test_budgets_that_cannot_be_steps():
    with pytest.raises(SpecError, match="needs flops_per_token"):
        Recipe.parse({"budget": {"flops": 1e3}}).total_steps(FiveTargets())
    with pytest.raises(SpecError, match="buys no step"):
        Recipe.parse({"budget": {"tokens": 3}}).total_steps(FiveTargets())
    with pytest.raises(SpecError, match="'tiny' says no steps_per_epoch"):
        Recipe.parse({"budget": {"epochs": 1}}).total_steps(TinyTask())


def test_warmup_as_fraction():
    assert Recipe.parse({"budget": {"steps": 50}, "warmup": 5}).warmup_fraction(50) == 0.1
    assert Recipe.parse({"budget": {"steps": 50}, "warmup": 0.2}).warmup_fraction(50) == 0.2
    assert Recipe.parse({"budget": {"steps": 5}, "warmup": 50}).warmup_fraction(5) == 1.0


def test_dump_and_parse_agree():
    recipe = Recipe.parse({"budget": {"tokens": 1e6}, "early_stop": {"patience": 3}, "clip": None, "warmup": 11})
    assert Recipe.parse(recipe.model_dump(mode="json", exclude_none=False)) == recipe
