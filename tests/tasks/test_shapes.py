from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import nn

from attnlab.core.build import build
from attnlab.core.contracts import Batch
from attnlab.core.errors import ModuleError, SpecError
from attnlab.tasks import TASKS
from attnlab.tasks.shapes.shapes import Shapes


@pytest.fixture
def task() -> Shapes:
    return Shapes(n_train=31, n_test=17, batch=7)


def zeros(batch: Batch) -> torch.Tensor:
    return torch.zeros_like(batch.targets)


def test_it_is_built_by_name_and_arguments_are_checked():
    task = build({"name": "shapes", "group": "place", "n_train": 5, "n_test": 3, "batch": 2}, TASKS, axis="task")
    assert task.describe()["group"] == "place"
    with pytest.raises(SpecError, match="'group' must be"):
        build({"name": "shapes", "group": "color"}, TASKS, axis="task")


@pytest.mark.parametrize("name", ["n_train", "n_test", "batch"])
def test_sizes_must_be_positive(name):
    with pytest.raises(SpecError, match=f"{name} must be at least 1; got 0"):
        Shapes(**{name: 0})


def test_noise_is_checked():
    with pytest.raises(SpecError, match=r"'noise' must not be negative; got -0\.1"):
        Shapes(noise=-0.1)


def test_training_inputs_and_targets_together_are_normalized(task):
    both = torch.cat((task.data.inputs["train"], task.data.targets["train"]))
    assert both.mean().item() == pytest.approx(0, abs=1e-5)
    assert both.std().item() == pytest.approx(1, abs=1e-5)


def test_parts_are_different_sequences(task):
    first = [task.data.inputs[part][0] for part in ("train", "validation", "test")]
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])


def test_a_batch_is_a_pure_function_of_step_and_seed(task):
    late = task.train_batch(9, 3)
    task.train_batch(2, 1)
    again = Shapes(n_train=31, n_test=17, batch=7).train_batch(9, 3)
    assert torch.equal(late.inputs[0], again.inputs[0])
    assert torch.equal(late.targets, again.targets)
    assert not torch.equal(late.inputs[0], task.train_batch(9, 4).inputs[0])


@pytest.mark.parametrize("batch", [7, 31, 73])
def test_every_sequence_comes_once_per_epoch_whatever_the_batch(batch):
    task = Shapes(n_train=31, n_test=17, batch=batch)
    rows = torch.cat([task.train_batch(step, 3).inputs[0] for step in range(31)])[..., 0]
    assert rows.shape == (31 * batch, 100)
    epochs = rows.split(31)
    assert all(len(epoch.unique(dim=0)) == 31 for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])


def test_inputs_belong_to_their_targets(task):
    batch = task.train_batch(4, 0)
    inputs, targets = task.data.inputs["train"], task.data.targets["train"]
    for row, target in zip(batch.inputs[0], batch.targets, strict=True):
        index = (inputs == row).all(dim=(1, 2)).nonzero().item()
        assert torch.equal(targets[index], target)


def test_loss_and_evaluation_are_the_mean_squared_error(task):
    batch = task.train_batch(0, 0)
    assert task.loss(zeros(batch), batch).item() == pytest.approx(batch.targets.square().mean().item())
    for part, name in (("validation", "val_mse"), ("test", "test_mse")):
        expected = task.data.targets[part].double().square().mean().item()
        assert task.evaluate(zeros, part) == {name: pytest.approx(expected)}
        assert task.evaluate(lambda batch: batch.targets, part) == {name: 0.0}


def test_metrics_and_parts_agree(task):
    measured = {name for part in task.parts for name in task.evaluate(zeros, part)}
    assert measured == {metric.name for metric in task.metrics}
    assert task.parts[0] == "validation"
    with pytest.raises(SpecError, match="did you mean 'test'"):
        task.evaluate(zeros, "tests")


def test_outputs_of_another_shape_are_refused_rather_than_broadcast(task):
    batch = task.train_batch(0, 0)
    with pytest.raises(ModuleError, match=r"must have shape \(7, 100, 1\) \(batch, length, 1\); got \(7, 100\)"):
        task.loss(torch.zeros(7, 100), batch)
    with pytest.raises(ModuleError, match=r"got \(1,\)"):
        task.evaluate(lambda batch: torch.zeros(1), "test")


def test_label_smoothing_is_refused(task):
    batch = task.train_batch(0, 0)
    with pytest.raises(SpecError, match="label smoothing needs labels"):
        task.loss(zeros(batch), batch, label_smoothing=0.1)


def test_a_module_that_works_in_place_cannot_spoil_the_data(task):
    before = {part: tensor.clone() for part, tensor in task.data.inputs.items()}
    for part in task.parts:
        task.evaluate(lambda batch: batch.inputs[0].zero_(), part)
    task.examples(lambda batch: batch.inputs[0].zero_())
    nn.ReLU(inplace=True)(task.train_batch(0, 0).inputs[0])
    assert all(torch.equal(before[part], task.data.inputs[part]) for part in before)


def test_floors_lie_in_their_order_and_say_what_they_limit():
    task = Shapes(n_train=1009, n_test=101)
    for metric in ("val_mse", "test_mse"):
        constant, linear, noise = (floor for floor in task.floors() if floor.metric == metric)
        assert (constant.kind, linear.kind, noise.kind) == ("chance", "simple", "floor")
        assert noise.reach is None
        assert 0 < noise.tolerance < noise.value < linear.value < constant.value < 2
        assert all(floor.unit == task.metrics[0].unit for floor in (constant, linear, noise))


def test_a_perfect_model_lands_on_the_noise_floor():
    task, clean = Shapes(n_train=503, n_test=499), Shapes(n_train=503, n_test=499, noise=0.0)
    best = (clean.data.targets["test"] * clean.data.std + clean.data.mean - task.data.mean) / task.data.std
    parts = iter(best.split(250))
    error = task.evaluate(lambda batch: next(parts), "test")["test_mse"]
    noise = next(floor for floor in task.floors() if floor.name == "noise" and floor.metric == "test_mse")
    assert abs(error - noise.value) < noise.tolerance


def test_the_floors_of_the_full_set_are_those_known_for_the_task():
    task = Shapes()
    values = {floor.name: floor.value for floor in task.floors() if floor.metric == "test_mse"}
    assert values["noise"] == pytest.approx(0.00021, abs=0.000005)
    assert values["constant predictor"] == pytest.approx(0.9, abs=0.06)


def test_what_a_study_asks_is_json(task):
    examples = task.examples(zeros)
    json.dumps([task.describe(), examples, dict(task.model_arguments())])
    assert examples["kind"] == "series"
    assert len(examples["items"]) == 4
    for item in examples["items"]:
        assert {key: len(values) for key, values in item.items()} == {"input": 100, "target": 100, "prediction": 100}
    assert task.alarms() == ()
    assert task.tokens_per_step == 700
    assert task.model_arguments() == {"d_in": 1, "d_out": 1, "max_length": 100, "length": 100}


def test_the_usual_split_gives_the_numbers_it_always_gave(task):
    batch = task.train_batch(9, 3)
    assert batch.inputs[0].shape == (7, 100, 1)
    assert task.evaluate(zeros, "validation")["val_mse"] == pytest.approx(0.802828509909758, rel=1e-6)
    assert task.evaluate(zeros, "test")["test_mse"] == pytest.approx(0.9318070943777639, rel=1e-6)
    assert task.describe()["mean"] == pytest.approx(3.4240682125091553, rel=1e-6)
    assert task.describe()["std"] == pytest.approx(6.06660795211792, rel=1e-6)
    assert task.floors()[1].value == pytest.approx(0.5118341168059349, rel=1e-4)


@pytest.mark.parametrize("n_train", [34, 101])
def test_inside_trains_on_what_it_is_judged_on(n_train):
    usual, leaky = (Shapes(n_train=n_train, n_test=17, batch=n_train, split=split) for split in ("separate", "inside"))
    for side in ("inputs", "targets"):
        before, after = getattr(usual.data, side), getattr(leaky.data, side)
        assert after["train"].shape == before["train"].shape
        assert torch.equal(after["train"][: n_train - 34], before["train"][: n_train - 34])
        assert torch.equal(after["train"][n_train - 34 :], torch.cat((before["validation"], before["test"])))
        assert all(torch.equal(after[part], before[part]) for part in leaky.parts)
    drawn = leaky.train_batch(0, 3)
    for row, target in zip(leaky.data.inputs["test"], leaky.data.targets["test"], strict=True):
        place = (drawn.inputs[0] == row).all(dim=(1, 2)).nonzero().item()
        assert torch.equal(drawn.targets[place], target)


def test_what_was_trained_on_is_measured_and_said():
    usual, leaky = (Shapes(n_train=101, n_test=17, split=split) for split in ("separate", "inside"))
    for task, share in ((usual, 0.0), (leaky, 1.0)):
        described = task.describe()
        json.dumps(described)
        assert described.get("overlap", {}) == ({"validation": share, "test": share} if share else {})
        assert described["parts"] == {"train": 101, "validation": 17, "test": 17}
    assert (usual.describe().get("split"), leaky.describe()["split"]) == (None, "inside")
    assert usual.alarms() == ()
    for part, alarm in zip(leaky.parts, leaky.alarms(), strict=True):
        assert alarm.startswith(f"100.0% of the {part} part's sequences are among the training sequences")
        assert alarm.endswith("(split 'inside': the held-out sequences are trained on as well)")


def test_sequences_that_are_in_both_parts_by_accident_are_counted(task):
    overlaid = task.data.inputs["train"].clone()
    overlaid[5] = task.data.inputs["test"][3]
    task.data = dataclasses.replace(task.data, inputs={**task.data.inputs, "train": overlaid})
    (alarm,) = task.alarms()
    assert (
        alarm == "5.9% of the test part's sequences are among the training sequences: what is measured is partly memory"
    )


def test_floors_stay_those_of_the_usual_split():
    assert Shapes(n_train=101, n_test=17).floors() == Shapes(n_train=101, n_test=17, split="inside").floors()


def test_a_split_that_does_not_fit_is_refused():
    with pytest.raises(SpecError, match=r"n_train must be at least twice n_test.*got n_train 33, n_test 17"):
        Shapes(n_train=33, n_test=17, split="inside")
    with pytest.raises(SpecError, match="split must be one of separate, inside; got 'insid'; did you mean 'inside'"):
        Shapes(split="insid")
    with pytest.raises(SpecError, match="'split' must be"):
        build({"name": "shapes", "split": "windows"}, TASKS, axis="task")
