"""Several runs as one program: each is what it would be alone, also when it stops early, fails, or is killed."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from tests.training.tiny import N_IN, N_OUT, TinyTask, recipe, tiny_model
from torch import nn

from attnlab.core.contracts import Batch
from attnlab.core.errors import Interrupted, ModuleError, SpecError
from attnlab.training import load_model_weights, read_failure, read_metrics, read_result, train
from attnlab.training.speed import choosing
from attnlab.training.together.together import train_together

NEAR = {"rtol": 1e-4, "atol": 1e-5}
STEPS = 19


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def one_by_one(makers, task, recipes, **named):
    models = [make() for make in makers]
    results = [
        train(model, task, recipe, seed=seed, **named)
        for seed, (model, recipe) in enumerate(zip(models, recipes, strict=True))
    ]
    return models, results


def together(makers, task, recipes, **named):
    models = [make() for make in makers]
    return models, train_together(models, task, recipes, seeds=range(len(models)), **named)


def tiny_makers(count=3):
    return [lambda seed=seed: tiny_model(seed=seed).double() for seed in range(count)]


class DoubleTask(TinyTask):
    """The tiny task in float64, in which nothing but a mistake is seen."""

    def batch(self, number, size=7):
        batch = super().batch(number, size)
        return Batch((batch.inputs[0].double(),), batch.targets.double())


def assert_same(models, results, others, expected):
    for model, result, other, want in zip(models, results, others, expected, strict=True):
        torch.testing.assert_close(weights(model), weights(other), **NEAR)
        assert result.metrics == pytest.approx(want.metrics, rel=1e-4)
        assert (result.steps, result.stopped, result.seed) == (want.steps, want.stopped, want.seed)
        assert [record["step"] for record in result.curve] == [record["step"] for record in want.curve]
        assert [record["lr"] for record in result.curve] == [record["lr"] for record in want.curve]


def test_a_grid_of_learning_rates_is_what_single_runs_are():
    recipes = [recipe(STEPS, lr=lr) for lr in (1e-4, 1e-3, 1e-2, 1e-1)]
    makers = [lambda: tiny_model().double()] * len(recipes)
    seeds = [7] * len(recipes)
    models, singles = [make() for make in makers], [make() for make in makers]
    results = train_together(models, DoubleTask(), recipes, seeds=seeds)
    expected = [train(*one, seed=7) for one in zip(singles, [DoubleTask()] * 4, recipes, strict=True)]
    assert_same(models, results, singles, expected)
    assert {(result.together, result.together_note) for result in results} == {(4, "")}


@pytest.mark.parametrize("fields", [{"optimizer": "muon"}, {"optimizer": "sgd"}, {"weight_decay": 0.5}])
def test_every_optimizer_works_on_slices(fields):
    recipes = [recipe(STEPS, **fields), recipe(STEPS, clip=0.1, **fields), recipe(STEPS)]
    expected = one_by_one(tiny_makers(), DoubleTask(), recipes)
    assert_same(*together(tiny_makers(), DoubleTask(), recipes), *expected)


def test_runs_of_unequal_length_and_one_that_stops_early():
    class Stuck(DoubleTask):
        def evaluate(self, predict, part):
            metrics = super().evaluate(predict, part)
            return metrics | {"val_mse": 1.0} if part == "validation" else metrics

    patient = {"evaluate_every": 2}
    recipes = [
        recipe(STEPS, **patient),
        recipe(STEPS, early_stop={"patience": 3}, **patient),
        recipe(STEPS - 4, **patient),
    ]
    expected = one_by_one(tiny_makers(), Stuck(), recipes)
    models, results = together(tiny_makers(), Stuck(), recipes)
    assert [(result.steps, result.stopped) for result in results] == [
        (STEPS, "budget"),
        (8, "early stop"),
        (STEPS - 4, "budget"),
    ]
    assert_same(models, results, *expected)


def test_one_that_is_not_finite_fails_alone(tmp_path):
    recipes = [
        recipe(STEPS),
        recipe(STEPS, lr=1e30, clip=None, warmup=0.0, optimizer={"name": "sgd", "momentum": 0.0}),
        recipe(STEPS),
    ]
    folders = [tmp_path / str(number) for number in range(3)]
    models, results = together(tiny_makers(), DoubleTask(), recipes, folders=folders)
    assert isinstance(results[1], Exception)
    failure = read_failure(folders[1])
    assert failure["kind"] == "NonFiniteError"
    with pytest.raises(type(results[1])) as alone:
        one_by_one(tiny_makers()[1:2], DoubleTask(), recipes[1:2])
    assert failure["step"] == alone.value.step
    healthy = [0, 2]
    singles = [tiny_makers()[seed]() for seed in healthy]
    expected = [
        train(model, DoubleTask(), recipe(STEPS), seed=seed) for model, seed in zip(singles, healthy, strict=True)
    ]
    assert_same([models[i] for i in healthy], [results[i] for i in healthy], singles, expected)
    assert {results[i].together for i in healthy} == {3}


def test_folders_are_those_of_single_runs(tmp_path):
    specs = [{"seed": seed} for seed in range(3)]
    folders = [tmp_path / f"together-{seed}" for seed in range(3)]
    recipes = [recipe(STEPS, checkpoint_every=5)] * 3
    models, results = together(tiny_makers(), DoubleTask(), recipes, folders=folders, specs=specs)
    for seed, folder in enumerate(folders):
        alone = tmp_path / f"alone-{seed}"
        train(tiny_makers()[seed](), DoubleTask(), recipes[seed], seed=seed, folder=alone, spec=specs[seed])
        assert {path.name for path in folder.rglob("*")} == {path.name for path in alone.rglob("*")}
        assert (folder / "spec.json").read_text() == (alone / "spec.json").read_text()
        assert read_result(folder, read_metrics(folder)) == results[seed]
        fresh = tiny_makers()[seed]()
        assert load_model_weights(fresh, folder) == STEPS
        assert torch.equal(weights(fresh), weights(models[seed]))
    again = train_together(
        [make() for make in tiny_makers()], DoubleTask(), recipes, seeds=range(3), folders=folders, specs=specs
    )
    assert again == results


def test_events_say_which_run_they_are_about():
    seen = []
    together(
        tiny_makers(2), DoubleTask(), [recipe(5)] * 2, on_event=lambda run, event: seen.append((run, event["kind"]))
    )
    for run in range(2):
        kinds = [kind for number, kind in seen if number == run and kind != "preparing"]
        assert (kinds[0], kinds[-1]) == ("start", "done")
        assert kinds.count("evaluation") == 5


# ---- what cannot be batched ----


class Branches(nn.Linear):
    """Look at a number to decide what to compute."""

    def forward(self, x):
        return super().forward(x) if self.weight.sum() > 0 else -super().forward(x)


class Counts(nn.Linear):
    """Keep a number from call to call."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + self.calls % 2)


class Holds(nn.Module):
    """Hold a weight where nobody who swaps parameters looks for it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(N_IN, N_OUT)
        self.hidden = [self.linear.weight]

    def forward(self, x):
        return x @ self.hidden[0].T + self.linear.bias


class DrawsInPlace(nn.Linear):
    """Draw numbers in a form for which there is no rule."""

    def forward(self, x):
        return super().forward(x) + 0.1 * torch.randperm(N_OUT).double()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Branches(N_IN, N_OUT), "data-dependent control flow"),
        (lambda: Counts(N_IN, N_OUT), "keeps 'calls' from call to call"),
        (Holds, "batched over seeds than alone"),
        (lambda: DrawsInPlace(N_IN, N_OUT), ""),
    ],
)
def test_what_cannot_be_batched_is_trained_one_by_one(make, why):
    def maker(seed):
        torch.manual_seed(seed)
        return make().double()

    makers = [lambda seed=seed: maker(seed) for seed in range(3)]
    recipes = [recipe(STEPS, lr=lr) for lr in (1e-3, 1e-2, 3e-2)]
    singles, expected = one_by_one(makers, DoubleTask(), recipes)
    models, results = together(makers, DoubleTask(), recipes)
    for model, single, result, want in zip(models, singles, results, expected, strict=True):
        assert torch.equal(weights(model), weights(single))
        assert result.metrics == want.metrics
        assert result.together == 1
        assert result.together_note.startswith("one by one: ")
        assert why in result.together_note


def test_batches_of_unequal_shapes():
    class Ragged(DoubleTask):
        def train_batch(self, step, seed):
            return self.batch(1_000_003 * seed + step, size=7 + (seed if step == 3 else 0))

    recipes = [recipe(STEPS)] * 3
    expected = one_by_one(tiny_makers(), Ragged(), recipes)
    models, results = together(tiny_makers(), Ragged(), recipes)
    assert_same(models, results, *expected)
    assert all("differ in shape" in result.together_note for result in results)
    assert {result.together for result in results} == {3}  # for the first steps


def test_models_that_differ():
    makers = [lambda: nn.Linear(N_IN, N_OUT).double(), lambda: nn.Linear(N_IN, N_OUT, bias=False).double()]
    _, results = together(makers, DoubleTask(), [recipe(3)] * 2)
    assert "differ in the names, shapes or types" in results[0].together_note


def test_a_model_that_raises_fails_in_every_run():
    class Fails(nn.Linear):
        def forward(self, x):
            raise ValueError("mine")

    _, results = together([lambda: Fails(N_IN, N_OUT)] * 2, TinyTask(), [recipe(3)] * 2)
    assert all(isinstance(result, ModuleError) and "mine" in str(result) for result in results)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("tried to allocate"), MemoryError()])
def test_where_memory_runs_out_runs_go_by_halves(monkeypatch, error):
    monkeypatch.setattr("attnlab.training.together.stack.Caller.outputs", _raising_above(2, error))
    recipes = [recipe(STEPS)] * 4
    models, results = together(tiny_makers(4), DoubleTask(), recipes)
    monkeypatch.undo()
    assert_same(models, results, *one_by_one(tiny_makers(4), DoubleTask(), recipes))
    assert {result.together for result in results} == {2}
    assert {result.together_note for result in results} == {"at most 2 at a time: memory does not suffice for more"}


def _raising_above(runs, error):
    from attnlab.training.run.step import Caller, _out_of_memory

    original = Caller.outputs

    def outputs(self, batch, setting, *, step):
        if batch.inputs[0].ndim > 2 and len(batch.inputs[0]) > runs:
            raise error if isinstance(error, MemoryError) else _out_of_memory(error, step)
        return original(self, batch, setting, step=step)

    return outputs


@pytest.mark.parametrize("fields", [{"budget": {"seconds": 1}}, {"stop_at": {"val_mse": 0.1}}])
def test_runs_that_need_the_machine_to_themselves(fields):
    with pytest.raises(SpecError, match="needs a run that has the machine to itself"):
        together(tiny_makers(2), TinyTask(), [recipe(**fields)] * 2)


def test_one_seed_too_few():
    with pytest.raises(SpecError, match="2 models and 1 seeds"):
        train_together([tiny_model(), tiny_model()], TinyTask(), [recipe(3)] * 2, seeds=[1])


# ---- settings ----


def test_one_setting_is_chosen_for_all(monkeypatch):
    monkeypatch.setattr(choosing, "multiplies_bf16", lambda device: True)
    recipes = [recipe(60, precision="auto")] * 2
    _, results = together([lambda seed=seed: tiny_model(seed=seed) for seed in range(2)], TinyTask(), recipes)
    assert len({(result.precision, result.setting_reason) for result in results}) == 1
    assert "too small to gain from bf16" in results[0].setting_reason


def test_batch_statistics_are_each_runs_own():
    def maker(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(N_IN, 5), nn.BatchNorm1d(5), nn.Linear(5, N_OUT)).double()

    makers = [lambda seed=seed: maker(seed) for seed in range(3)]
    singles, expected = one_by_one(makers, DoubleTask(), [recipe(STEPS)] * 3)
    models, results = together(makers, DoubleTask(), [recipe(STEPS)] * 3)
    assert_same(models, results, singles, expected)
    for model, single in zip(models, singles, strict=True):
        torch.testing.assert_close(model[1].running_mean, single[1].running_mean)
        assert model[1].num_batches_tracked == single[1].num_batches_tracked == STEPS


# ---- stopped ----


def test_a_person_stops_all_and_they_go_on(tmp_path):
    class Stops(DoubleTask):
        def train_batch(self, step, seed):
            if (step, seed) == (6, 1):
                os.kill(os.getpid(), signal.SIGINT)
            return super().train_batch(step, seed)

    recipes, folders = [recipe(STEPS)] * 3, [tmp_path / str(number) for number in range(3)]
    with pytest.raises(Interrupted, match=f"stopped after step 7 of {STEPS}; start the same run again"):
        together(tiny_makers(), Stops(), recipes, folders=folders)
    models, results = together(tiny_makers(), DoubleTask(), recipes, folders=folders)
    assert [result.resumed_at for result in results] == [[7]] * 3
    assert_same(models, results, *one_by_one(tiny_makers(), DoubleTask(), recipes))


def test_a_folder_of_another_run_fails_alone(tmp_path):
    folders = [tmp_path / str(number) for number in range(2)]
    train(tiny_model().double(), DoubleTask(), recipe(3), folder=folders[0], spec={"other": True})
    _, results = together(tiny_makers(2), DoubleTask(), [recipe(3)] * 2, folders=folders)
    assert "holds another run" in str(results[0])
    assert read_failure(folders[0]) is None
    assert results[1].steps == 3


def test_compiled_it_is_the_same(monkeypatch):
    """Traced by the compiler's front end; what its back end makes of it is torch's concern."""
    compile_model = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_model(model, backend="aot_eager"))
    monkeypatch.setattr("attnlab.training.speed.compilation.missing_compiler", lambda device: "")
    makers = [lambda seed=seed: tiny_model(0.0, seed=seed).double() for seed in range(2)]
    models, results = together(makers, DoubleTask(), [recipe(5, compile=True)] * 2)
    assert [(result.compiled, result.together) for result in results] == [(True, 2)] * 2
    assert_same(models, results, *one_by_one(makers, DoubleTask(), [recipe(5)] * 2))


def test_compiled_dropout_differs_between_runs(monkeypatch):
    compile_model = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_model(model, backend="aot_eager"))
    monkeypatch.setattr("attnlab.training.speed.compilation.missing_compiler", lambda device: "")
    models, results = together([lambda: tiny_model().double()] * 2, SameBatches(), [recipe(5, compile=True)] * 2)
    assert {result.together for result in results} == {2}
    assert not torch.allclose(weights(models[0]), weights(models[1]))


class SameBatches(DoubleTask):
    """Give every seed the same batches, so that only dropout differs."""

    def train_batch(self, step, seed):
        return super().train_batch(step, 0)
