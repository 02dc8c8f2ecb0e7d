"""Train: it learns, records, evaluates what it should, and stops as it should."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.training.tiny import N_IN, N_OUT, TinyTask, recipe, tiny_model
from torch import nn

from attnlab.core.contracts import Batch, Judgement
from attnlab.core.errors import DataError, Interrupted, ModuleError, RunError, SpecError, TrainingError
from attnlab.training import load_model_weights, read_failure, read_metrics, read_result, train


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_it_learns():
    task, model = TinyTask(), tiny_model(0.0)
    result = train(model, task, recipe(300, lr=0.03))
    assert result.metrics["val_mse"] < 0.2 * result.curve[0]["train_loss"]
    assert result.metrics.keys() == {"val_mse", "test_mse"}
    assert (result.steps, result.tokens, result.stopped) == (300, 2100, "budget")


def test_test_part_is_seen_once_at_the_end():
    task = TinyTask()
    train(tiny_model(), task, recipe(20, evaluate_every=7))
    assert task.evaluated == ["validation"] * 3 + ["test"]


def test_right_answers_are_counted_in_the_last_batches_of_training():
    class Counting(TinyTask):
        def accuracy(self, predict, batches):
            self.counted = [batch.inputs[0] for batch in batches]
            self.answers = predict(self.batch(3))
            return 0.25

    task, model = Counting(), tiny_model()
    result = train(model, task, recipe(13), seed=4)
    assert result.metrics["train_accuracy"] == 0.25
    assert torch.equal(torch.stack(task.counted), torch.stack([task.train_batch(n, 4).inputs[0] for n in range(3, 13)]))
    assert torch.equal(task.answers, model.eval()(task.batch(3).inputs[0]))
    train(tiny_model(), task, recipe(2))
    assert len(task.counted) == 2


def test_a_judge_sees_the_trained_model_once(tmp_path):
    seen = []

    def judge(model):
        seen.append((model.training, torch.is_grad_enabled(), weights(model)))
        return Judgement({"points": 7.0}, written=3)

    model = tiny_model()
    result = train(model, TinyTask(), recipe(11), judge=judge, folder=tmp_path)
    ((training, gradients, found),) = seen
    assert (training, gradients) == (False, False)
    assert torch.equal(found, weights(model))
    assert result.metrics.keys() == {"val_mse", "test_mse", "points"}
    assert result.written_per_second > 0
    assert train(tiny_model(), TinyTask(), recipe(11), judge=judge, folder=tmp_path).metrics == result.metrics
    assert len(seen) == 1, "a run that is done is not judged again"


def test_a_judge_without_a_number_is_an_error():
    with pytest.raises(TrainingError, match="after step 11: points is nan though the training loss is finite"):
        train(tiny_model(), TinyTask(), recipe(11), judge=lambda model: Judgement({"points": float("nan")}))


@pytest.mark.parametrize(
    "fields", [{"precision": "bf16"}, {"precision": "auto"}, {"optimizer": "muon"}, {"clip": None}]
)
def test_same_seed_same_bits(fields):
    runs = []
    for _ in range(2):
        model = tiny_model()
        result = train(model, TinyTask(), recipe(13, **fields), seed=5)
        runs.append((result.precision, result.metrics, weights(model)))
    assert runs[0][:2] == runs[1][:2]
    assert torch.equal(runs[0][2], runs[1][2])


IN_FRESH = """
import json
from attnlab.training import train
from tests.training.test_loop import TinyTask, recipe, tiny_model, weights

model = tiny_model()
result = train(model, TinyTask(), recipe(13), seed=5)
print(json.dumps([result.metrics, weights(model).tolist()]))
"""


def test_what_a_process_did_before_changes_no_bit():
    """Generators, allocator and torch's switches are as a run needs them, whatever runs came before it."""
    train(tiny_model(seed=7), TinyTask(), recipe(17, optimizer="muon", precision="bf16"), seed=3)
    torch.rand(11)
    model = tiny_model()
    result = train(model, TinyTask(), recipe(13), seed=5)
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    fresh = subprocess.run(
        [sys.executable, "-c", IN_FRESH],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(fresh.stdout) == [result.metrics, weights(model).tolist()]


def test_other_seed_other_numbers():
    first, second = (train(tiny_model(), TinyTask(), recipe(13), seed=seed) for seed in (5, 7))
    assert first.metrics != second.metrics


def test_folder_holds_what_was_returned(tmp_path):
    model = tiny_model()
    result = train(model, TinyTask(), recipe(29), folder=tmp_path, spec={"variant": "a"})
    assert read_result(tmp_path, read_metrics(tmp_path)) == result
    assert json.loads((tmp_path / "spec.json").read_text()) == {"variant": "a"}
    assert not (tmp_path / "last" / "optimizer.safetensors").exists()
    other = tiny_model(seed=11)
    assert load_model_weights(other, tmp_path) == 29
    assert torch.equal(weights(other), weights(model))
    assert load_model_weights(other, tmp_path, which="best") == result.best["step"]
    assert {"step", "tokens", "seconds", "lr", "train_loss", "val_mse"} == read_metrics(tmp_path)[-1].keys()


@pytest.mark.parametrize("name", ["metrics.jsonl", "spec.json"])
def test_a_finished_run_that_lost_a_file_says_so(tmp_path, name):
    train(tiny_model(), TinyTask(), recipe(2), folder=tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(RunError, match=f"{tmp_path}: {name} of a finished run is missing; put it back, or remove"):
        read_result(tmp_path)


def test_best_weights_give_the_best_metric(tmp_path):
    """With a rate far too high at the end, the best weights are not the last."""
    model, task = tiny_model(0.0), TinyTask()
    result = train(model, task, recipe(60, schedule="constant", warmup=0.0, lr=0.3), folder=tmp_path)
    load_model_weights(model, tmp_path, which="best")
    model.eval()
    with torch.no_grad():
        found = task.evaluate(lambda batch: model(*batch.inputs), "validation")
    assert found == result.best["metrics"]
    assert found["val_mse"] == min(record["val_mse"] for record in result.curve if "val_mse" in record)


def test_done_is_not_trained_again(tmp_path):
    first = train(tiny_model(), TinyTask(), recipe(11), folder=tmp_path)
    model, task = tiny_model(seed=5), TinyTask()
    assert train(model, task, recipe(11), folder=tmp_path) == first
    assert task.evaluated == []
    expected = tiny_model()
    load_model_weights(expected, tmp_path)
    assert torch.equal(weights(model), weights(expected))


def test_another_run_in_the_folder(tmp_path):
    train(tiny_model(), TinyTask(), recipe(3), folder=tmp_path)
    with pytest.raises(RunError, match=r"another run \(recipe.budget.steps is 3 there and 5 here\)"):
        train(tiny_model(), TinyTask(), recipe(5), folder=tmp_path)


def test_early_stop_only_when_asked():
    class Stuck(TinyTask):
        def evaluate(self, predict, part):
            return {"val_mse": 1.0} if part == "validation" else {"test_mse": 1.0}

    assert train(tiny_model(), Stuck(), recipe(20, evaluate_every=2)).steps == 20
    result = train(tiny_model(), Stuck(), recipe(20, evaluate_every=2, early_stop={"patience": 3}))
    assert (result.steps, result.stopped, result.best["step"]) == (8, "early stop", 2)


def test_budget_in_seconds(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr("attnlab.training.run.loop.time", SimpleNamespace(perf_counter=lambda: next(ticks) * 0.25))
    result = train(tiny_model(), TinyTask(), recipe(budget={"seconds": 1.0}))
    assert result.steps == 4
    assert result.seconds >= 1.0


def test_label_smoothing_reaches_the_task():
    seen = []

    class Records(TinyTask):
        def loss(self, outputs, batch, label_smoothing=0.0):
            seen.append(label_smoothing)
            return super().loss(outputs, batch)

    train(tiny_model(), Records(), recipe(2, label_smoothing=0.1))
    assert seen == [0.1, 0.1]


def test_events_in_order():
    events = []
    train(tiny_model(), TinyTask(), recipe(20), on_event=events.append)
    kinds = [event["kind"] for event in events]
    assert kinds[0] == "start"
    assert kinds[-2:] == ["step", "done"]
    assert kinds.count("evaluation") == 10
    assert events[-2]["progress"] == 1.0
    assert events[-2]["rate"] > 0.0


class TurnsNaN(nn.Module):
    """Overflow in a named layer once the third batch arrives."""

    def __init__(self):
        super().__init__()
        self.first, self.overflow, self.calls = nn.Linear(N_IN, N_OUT), nn.Identity(), 0
        self.overflow.register_forward_hook(self.spoil)

    def spoil(self, module, inputs, output):
        return output * float("inf") if self.calls >= 3 else output

    def forward(self, x):
        self.calls += self.training
        return self.overflow(self.first(x))


def test_nan_names_step_and_layer(tmp_path):
    with pytest.raises(TrainingError, match=r"step 3: the loss is .*it begins in 'overflow'"):
        train(TurnsNaN(), TinyTask(), recipe(9), folder=tmp_path)
    failure = read_failure(tmp_path)
    assert (failure["kind"], failure["step"], failure["layer"]) == ("NonFiniteError", 3, "overflow")
    assert read_result(tmp_path) is None


def test_infinite_metric():
    class Bad(TinyTask):
        def evaluate(self, predict, part):
            return {"val_mse": float("nan")}

    with pytest.raises(TrainingError, match="after step 1: val_mse is nan"):
        train(tiny_model(), Bad(), recipe(5))


def test_raising_model_is_recorded_and_a_new_start_forgets_it(tmp_path):
    class Fails(nn.Linear):
        def forward(self, x):
            raise ValueError("mine")

    with pytest.raises(ModuleError, match="Fails raised ValueError in step 1: mine"):
        train(Fails(N_IN, N_OUT), TinyTask(), recipe(3), folder=tmp_path, spec={})
    assert read_failure(tmp_path)["kind"] == "ModuleError"
    train(nn.Linear(N_IN, N_OUT), TinyTask(), recipe(3), folder=tmp_path, spec={})
    assert read_failure(tmp_path) is None


def test_task_without_its_first_metric():
    class Nameless(TinyTask):
        def evaluate(self, predict, part):
            return {"other": 1.0}

    with pytest.raises(DataError, match="first metric is 'val_mse', but evaluating 'validation' gave"):
        train(tiny_model(), Nameless(), recipe(3))


def test_absent_device():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(SpecError, match="finds no CUDA device"):
        train(tiny_model(), TinyTask(), recipe(3), device="cuda")


class Signals(TinyTask):
    """Send a signal to this process while the batch of a step is made."""

    def __init__(self, number, at):
        super().__init__()
        self.number, self.at = number, at

    def train_batch(self, step: int, seed: int) -> Batch:
        if step == self.at:
            os.kill(os.getpid(), self.number)
        return super().train_batch(step, seed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, number):
    whole, stopped = tiny_model(), tiny_model()
    expected = train(whole, TinyTask(), recipe(23), seed=3)
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match="stopped after step 6 of 23; start the same run again"):
        train(stopped, Signals(number, at=5), recipe(23), seed=3, folder=tmp_path)
    assert signal.getsignal(number) is before
    resumed = tiny_model(seed=17)
    result = train(resumed, TinyTask(), recipe(23), seed=3, folder=tmp_path)
    assert (result.metrics, result.best, result.train_loss) == (expected.metrics, expected.best, expected.train_loss)
    assert result.resumed_at == [6]
    assert torch.equal(weights(resumed), weights(whole))


def test_a_stopped_run_that_lost_its_curve_says_so(tmp_path):
    with pytest.raises(Interrupted):
        train(tiny_model(), Signals(signal.SIGINT, at=5), recipe(23), folder=tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(
        RunError, match=r"metrics.jsonl is missing, and the curve up to step 6 .* put it back, or remove"
    ):
        train(tiny_model(), TinyTask(), recipe(23), folder=tmp_path)


@pytest.fixture
def pythons_own_interrupt():
    """Set the handler that a program started in the background of a shell does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("pythons_own_interrupt")
def test_without_a_folder_an_interrupt_is_pythons_own():
    with pytest.raises(KeyboardInterrupt):
        train(tiny_model(), Signals(signal.SIGINT, at=2), recipe(9))


def test_full_disk_in_a_run(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", full)
        with pytest.raises(RunError, match="no room left"):
            train(tiny_model(), TinyTask(), recipe(9, checkpoint_every=4), folder=tmp_path)
    assert train(tiny_model(), TinyTask(), recipe(9, checkpoint_every=4), folder=tmp_path).steps == 9
