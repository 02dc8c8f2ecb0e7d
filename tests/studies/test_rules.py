from __future__ import annotations

from attnlab.studies.define.rules import Rules, at_edge


def rules(**changes) -> Rules:
    return Rules.model_validate({"budget": {"steps": 3}, "smallest_effect": 0.1, **changes})


def test_the_grid_is_every_combination_in_order():
    grid = list(rules(tune={"lr": [1.0, 2.0, 3.0], "weight_decay": [0.0, 0.5]}).grid())
    assert grid == [
        {"lr": 1.0, "weight_decay": 0.0},
        {"lr": 1.0, "weight_decay": 0.5},
        {"lr": 2.0, "weight_decay": 0.0},
        {"lr": 2.0, "weight_decay": 0.5},
        {"lr": 3.0, "weight_decay": 0.0},
        {"lr": 3.0, "weight_decay": 0.5},
    ]
    assert list(rules().grid()) == [{}]


def test_edges_of_the_grid():
    three = rules(tune={"lr": [3.0, 1.0, 2.0]})
    assert [at_edge(three, {"lr": value}) for value in (1.0, 2.0, 3.0)] == [[{"lr": 2.0}], [], [{"lr": 2.0}]]
    assert not at_edge(rules(tune={"lr": [1.0]}), {"lr": 1.0})
    assert not at_edge(rules(tune={"weight_decay": [0.0, 0.1, 0.2]}), {"weight_decay": 0.0})
