"""Weights are averaged over the end of training, alone and together, and only where training came to its end."""

from __future__ import annotations

import pytest
import torch
from tests.training.tiny import TinyTask, recipe, tiny_model

from attnlab.core.errors import SpecError
from attnlab.training import train
from attnlab.training.together.together import train_together

STEPS = 20
AVERAGE = {"last": 0.5, "points": 5}
TAKEN = (12, 14, 16, 18, 20)


class WatchingTask(TinyTask):
    """Keep the weights of a model after every step but the last."""

    def __init__(self, model):
        super().__init__()
        self.model, self.after = model, []

    def train_batch(self, step, seed):
        assert len(self.after) == step
        self.after.append(weights(self.model))
        return super().train_batch(step, seed)


def weights(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def trained(**fields):
    model = tiny_model()
    task = WatchingTask(model)
    result = train(model, task, recipe(STEPS, **fields), seed=3)
    return result, [*task.after, weights(model)]


def test_the_end_is_the_mean_of_the_points():
    plain, after = trained()
    averaged, found = trained(average=AVERAGE)
    assert all(torch.equal(one, other) for one, other in zip(after[:-1], found[:-1], strict=True))
    torch.testing.assert_close(found[-1], torch.stack([after[step] for step in TAKEN]).mean(dim=0))
    assert not torch.allclose(found[-1], after[-1], atol=1e-4)
    assert (plain.averaged, averaged.averaged) == (0, len(TAKEN))


def test_metrics_are_those_of_the_average():
    model = tiny_model()
    result = train(model, TinyTask(), recipe(STEPS, average=AVERAGE), seed=3)
    model.eval()
    task = TinyTask()
    for part in task.parts:
        found = task.evaluate(lambda batch: model(*batch.inputs).detach(), part)
        assert found == {name: pytest.approx(result.metrics[name], rel=1e-6) for name in found}


def test_a_run_that_ends_early_keeps_its_last_weights():
    fields = {"evaluate_every": 1, "stop_at": {"val_mse": 1e9}}
    stopped, found = trained(average={"last": 1.0, "points": STEPS}, **fields)
    _, plain = trained(**fields)
    assert (stopped.stopped, stopped.averaged) == ("target", 0)
    assert torch.equal(found[-1], plain[-1])


def test_a_run_that_reaches_its_target_at_the_end_is_averaged():
    reached, found = trained(average=AVERAGE, evaluate_every=STEPS, stop_at={"val_mse": 1e9})
    _, plain = trained(average=AVERAGE)
    assert (reached.stopped, reached.averaged) == ("target", len(TAKEN))
    assert torch.equal(found[-1], plain[-1])


def test_runs_that_train_together_are_averaged_each():
    fields = recipe(STEPS, average=AVERAGE)
    alone, together = ([tiny_model(seed=seed) for seed in (1, 2)] for _ in range(2))
    for seed, model in enumerate(alone):
        train(model, TinyTask(), fields, seed=seed)
    results = train_together(together, TinyTask(), [fields] * 2, seeds=[0, 1])
    assert [result.averaged for result in results] == [len(TAKEN)] * 2
    assert [result.together for result in results] == [2, 2]
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(weights(other), weights(one), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("average", "text"),
    [
        ({"last": 0.0}, "'average.last': should be greater than 0; got 0.0"),
        ({"last": 1.5}, "'average.last': should be less than or equal to 1; got 1.5"),
        ({"points": 0}, "'average.points': should be greater than 0; got 0"),
        ({"point": 5}, "unknown key 'average.point'; did you mean 'points'"),
    ],
)
def test_errors(average, text):
    with pytest.raises(SpecError, match=text):
        recipe(average=average)
