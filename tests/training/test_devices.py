"""One model on several devices: the numbers are those of one, whatever the number of ranks, and so is what is kept."""

from __future__ import annotations

import re

import pytest
import torch
from tests.training.forked import on_forks, one_fails
from tests.training.on_ranks import Answers, made
from tests.training.tiny import TinyTask, recipe, tiny_model

from attnlab.core.contracts import Batch
from attnlab.core.errors import SpecError, TrainingError
from attnlab.training import load_model_weights, on_devices, read_metrics, read_result
from attnlab.training.devices import launching
from attnlab.training.devices.context import cut_positions
from attnlab.training.devices.division import unlike_rows
from attnlab.training.devices.ranks import Alone
from attnlab.training.together.together import train_together

MODULE = "tests.training.on_ranks"
STEPS = 13
ADAMW = {"steps": STEPS, "clip": 0.5, "sharding": "none"}
MUON = {**ADAMW, "optimizer": "muon"}
FULL = {"sharding": "full"}
TENSOR = {"sharding": "tensor"}
CONTEXT = {"sharding": "context"}
NEAR = 1e-9
"""Relative; float64 rounds by 1e-16."""

ALONE = {"columns": ADAMW, "decoder": ADAMW, "encoder": ADAMW, "encoder-decoder": MUON, "gated decoder": ADAMW}
DIVIDED = {
    "decoder on 4 ranks": (4, "decoder", {}),
    "decoder on 2 ranks in 2 pieces each": (2, "decoder", {"accumulate": 2}),
    "encoder in 2 pieces": (1, "encoder", {"accumulate": 2}),
    "lists of lists, sharded": (2, "columns", FULL),
    "encoder in little memory": (2, "encoder", {"sharding": "auto"}),
    "encoder-decoder with Muon": (2, "encoder-decoder", {}),
    "encoder-decoder with Muon, sharded": (2, "encoder-decoder", FULL),
    "encoder-decoder with Muon, by heads": (2, "encoder-decoder", TENSOR),
    "decoder by positions": (2, "decoder", CONTEXT),
    "encoder by positions in 2 pieces": (2, "encoder", {**CONTEXT, "accumulate": 2}),
    "gated decoder by positions on 3 ranks": (3, "gated decoder", CONTEXT),
    "gated decoder by heads in 2 pieces": (2, "gated decoder", {**TENSOR, "accumulate": 2}),
}
REFUSED = {
    "3 ranks do not divide 8 rows": (3, "encoder", {}, "SpecError: a batch of 8 rows cannot be divided into 3 equal"),
    "rows that see each other": (
        2,
        "batch norm",
        {},
        "SpecError: the loss of 2 rows is not the mean of the losses of each, so Sequential cannot be trained on "
        "pieces of a batch; what it keeps changes as it reads (0.running_mean), by which rows may see each other",
    ),
    "compiled": (2, "encoder", {"compile": True}, "SpecError: steps on several devices or in several pieces are not"),
    "watched in parts": (2, "encoder", {**FULL, "watch": ["gradients"]}, "SpecError: watch needs a whole model on one"),
    "watched by heads": (
        2,
        "encoder",
        {**TENSOR, "watch": ["gradients"]},
        "SpecError: watch needs a whole model on one",
    ),
    "watched by positions": (2, "encoder", {**CONTEXT, "watch": ["gradients"]}, "SpecError: watch needs a whole model"),
    "4 ranks do not divide 6 positions": (4, "encoder", CONTEXT, "SpecError: sharding: context: 6 positions cannot be"),
    "another number of processes": (1, "encoder", {"devices": 2}, "SpecError: a recipe of 2 devices needs as many"),
}
UNDIVIDED = {
    "three heads": "3 heads cannot be divided among 2 devices (stack.blocks.0.mixer)",
    "uneven decoder": "7 hidden features cannot be divided among 2 devices (stack.blocks.0.feedforward)",
    "grouped heads": "GroupedHeads has other numbers or widths of queries than of keys and values, which cannot be "
    "divided among devices; use heads 'split' (stack.blocks.0.mixer)",
    "biased heads": "LinearBias differs from head to head, and cannot be divided (stack.blocks.0.mixer)",
    "learned scores": "CosineScore has weights, which cannot be divided (stack.blocks.0.mixer)",
    "talking heads": "TalkingHeads does not add up heads, which cannot be divided (stack.blocks.0.mixer)",
    "experts": "MixtureOfExperts cannot be divided among 2 devices (stack.blocks.0.feedforward)",
    "convolution": "ConvolutionMixer cannot be divided among 2 devices (stack.blocks.0.mixer)",
    "batch norm": "Sequential has no attention and no feed-forward to divide",
}
"""What is said of models that 2 ranks cannot share by their heads and hidden features."""
APART = {
    "encoder-decoder": "EncoderDecoder cannot be computed at some positions alone",
    "convolution": "ConvolutionMixer cannot be computed at some positions alone",
    "convolved heads": "Convolution mixes positions, and cannot be computed at some alone",
    "experts": "MixtureOfExperts balances experts over all positions, and cannot be computed at some alone",
    "window": "the readout 'window' reads all positions at once, and cannot be computed at some alone",
    "reader": "TokenEncoder cannot be computed at some positions alone",
    "batch norm": "Sequential cannot be computed at some positions alone",
}
"""What is said of models whose positions 2 ranks cannot share."""
KEPT = {**ADAMW, "steps": 16, "checkpoint_every": 3, "average": {"last": 0.9, "points": 8}}
CHAIN = ((4, FULL, 4), (2, TENSOR, 7), (1, {}, 10), (2, TENSOR, 13), (2, CONTEXT, 15), (2, FULL, -1))
"""Ranks, how the model lies on them, and the step at which all of them die: a run that goes on in other numbers."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def runs(folder):
    """What every rank of every run gave."""
    cases = {kind: (1, "trained", [kind, fields]) for kind, fields in ALONE.items()}
    for name, (count, kind, more) in DIVIDED.items():
        how = "trained_in_little_memory" if "little memory" in name else "trained"
        cases[name] = (count, how, [kind, {**ALONE[kind], "devices": count, **more}])
    for name, (count, kind, more, _) in REFUSED.items():
        cases[name] = (count, "failing", [kind, {**ADAMW, "devices": count, **more}])
    cases["undivided"] = (2, "failing_each", [list(UNDIVIDED), {**ADAMW, **TENSOR, "devices": 2}])
    cases["apart"] = (2, "failing_each", [list(APART), {**ADAMW, **CONTEXT, "devices": 2}])
    cases["held"] = (2, "held", ["gated decoder"])
    for kind in ("cuts padding", "faint"):
        cases[kind] = (2, "trained", [kind, {**ADAMW, "steps": 1, "devices": 2}])
    cases["unbroken"] = (1, "trained", ["decoder", KEPT])
    for number, (count, more, dies_at) in enumerate(CHAIN):
        fields = {**KEPT, "devices": count, **more}
        cases[f"part {number}"] = (count, "trained", ["decoder", fields, str(folder), dies_at])
    return dict(zip(cases, on_forks(MODULE, list(cases.values())), strict=True))


@pytest.mark.parametrize("name", DIVIDED)
def test_numbers_do_not_depend_on_the_number_of_ranks(runs, name):
    (alone,) = runs[DIVIDED[name][1]]
    for found in runs[name]:
        assert found["metrics"] == pytest.approx(alone["metrics"], rel=NEAR), "every rank decides by the same metrics"
    first = runs[name][0]
    assert first["losses"] == pytest.approx(alone["losses"], rel=NEAR)
    assert first["weights"] == pytest.approx(alone["weights"], rel=NEAR)


def test_the_result_says_how_a_run_was_divided(runs):
    division = runs["decoder on 2 ranks in 2 pieces each"][0]["division"]
    assert division.startswith("2 devices, parameters whole on each")
    assert division.endswith("2 pieces one after another")
    chosen = r"2 devices, parameters sharded \(a step needs \S+ GB a device of 1e-05 GB\)"
    assert re.match(chosen, runs["encoder in little memory"][0]["division"])
    assert runs["encoder"][0]["division"] == ""


def test_the_result_says_where_random_numbers_are_those_of_the_rows_of_a_rank(runs):
    others = "random numbers are others than in one piece"
    assert [others in runs[kind][0]["division"] for kind in ("cuts padding", "faint")] == [True, True]
    assert not any(others in runs[name][0]["division"] for name in DIVIDED)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_divided_is_an_error_in_words(runs, name):
    for said in runs[name]:
        assert said.startswith(REFUSED[name][-1])


def test_a_part_that_ranks_cannot_share_is_an_error_that_names_it(runs):
    said = [f"SpecError: sharding: tensor: {one}" for one in UNDIVIDED.values()]
    assert runs["undivided"] == [said] * 2


def test_a_part_that_cannot_be_computed_at_some_positions_is_an_error_that_names_it(runs):
    said = [f"SpecError: sharding: context: {one}" for one in APART.values()]
    assert runs["apart"] == [said] * 2


def test_a_rank_holds_its_heads_and_hidden_features_alone(runs):
    for found in runs["held"]:
        assert sorted(set(found)) == [0.5, 1.0]
        assert found.count(0.5) == 12, "two layers, in each q, k, v and gates with biases, and two matrices back"


def test_parts_of_a_checkpoint_are_gone_on_with_on_any_number_of_ranks(runs, folder):
    assert [runs[f"part {number}"][0] for number in range(5)] == [None] * 5, "they were to die on the way"
    (alone,), found = runs["unbroken"], runs["part 5"][0]
    assert found["resumed"] == [3, 6, 9, 12, 15]
    assert found["metrics"] == pytest.approx(alone["metrics"], rel=NEAR)
    assert found["losses"] == pytest.approx(alone["losses"], rel=NEAR)
    model, _ = made("decoder")
    assert load_model_weights(model, folder) == KEPT["steps"]
    assert float(sum(one.detach().abs().sum() for one in model.parameters())) == pytest.approx(alone["weights"], NEAR)
    assert {path.name for path in (folder / "last").iterdir()} == {"model.safetensors", "state.json"}
    assert [record["step"] for record in read_metrics(folder)] == list(range(1, KEPT["steps"] + 1))
    assert read_result(folder).metrics == found["metrics"]


@pytest.mark.parametrize(
    ("how", "expected", "tracebacks"),
    [("killed", "SIGKILL", 0), ("raises", "failed: ValueError: this rank has its own trouble", 1)],
)
def test_a_rank_that_fails_ends_all_with_its_own_error(how, expected, tracebacks, capfd):
    with pytest.raises(TrainingError, match=f"rank 1 .process .*{expected}.*the same command goes on"):
        on_devices(2, one_fails, how)
    assert capfd.readouterr().err.count("Traceback") == tracebacks


def test_a_rank_that_fails_since_another_is_gone_shows_nothing(capfd, monkeypatch):
    monkeypatch.setattr(launching, "GRACE_S", 0)
    with pytest.raises(RuntimeError), launching._staying_when_failed():
        raise RuntimeError("Connection closed by peer")
    assert not capfd.readouterr().err


def test_a_batch_of_one_row_is_tried_as_it_is():
    batch = Batch((torch.ones(1, 3, dtype=torch.long),), torch.ones(1, 3))
    assert len(unlike_rows(batch).targets) == 1


def test_inputs_and_targets_of_other_lengths_are_not_cut_at_positions():
    task = Answers()
    with pytest.raises(SpecError, match="inputs and targets must be sequences of one length, cut at the same places"):
        cut_positions(task, task.batch(0), 1, Alone())


def test_no_devices_are_an_error():
    with pytest.raises(SpecError, match="devices must be at least 1; got 0"):
        on_devices(0, one_fails)
    with pytest.raises(SpecError, match="devices 2: torch finds 0 CUDA devices on this machine"):
        on_devices(2, one_fails, device="cuda")
    with pytest.raises(SpecError, match=r"devices 9999: this machine has \d+ cores, and processes beyond 4 a core"):
        on_devices(9999, one_fails)
    with pytest.raises(SpecError, match="'devices': should be greater than 0; got 0"):
        recipe(devices=0)


def test_an_older_torch_is_an_error(monkeypatch):
    monkeypatch.setattr("torch.__version__", "2.11.0+cu130")
    with pytest.raises(SpecError, match=r"several devices need torch 2\.13 or later; this is 2\.11\.0"):
        on_devices(2, one_fails)


def test_runs_that_train_together_share_one_device():
    with pytest.raises(SpecError, match="runs that train together share one device"):
        train_together([tiny_model()] * 2, TinyTask(), [recipe(3, devices=2)] * 2, seeds=range(2))
