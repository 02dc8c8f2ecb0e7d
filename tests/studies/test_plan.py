from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from attnlab.cli import FINE, call
from attnlab.cli.progress import title_of
from attnlab.core.contracts import Batch
from attnlab.core.errors import SpecError
from attnlab.studies.define.assemble import build_task
from attnlab.studies.define.rules import TUNING_SEED
from attnlab.studies.define.study import load_study, parse_study
from attnlab.studies.judge.tuning import choose
from attnlab.studies.plan import estimate
from attnlab.studies.plan import plan as planning
from attnlab.studies.plan.estimate import PRODUCTS, flops_per_second_on_one_thread
from attnlab.studies.plan.plan import NOT_COMPILED, NOT_EVALUATED, NOT_TIMED, plan_study


def plan_of(study, **options):
    return plan_study(parse_study(study), **options)


def test_costs_are_read_off_the_built_module(tiny):
    plan = plan_of(tiny)
    plain = plan.variant("plain")
    by_hand = (1 * 6 * 3 + 6) + (6 * 6 * 3 + 6) + (6 * 1 * 3 + 1)
    assert plain.parameters == by_hand
    products = 3 * (1 * 6 + 6 * 6 + 6 * 1)  # multiply-adds of the three convolutions, per position
    assert plain.flops_per_token == pytest.approx(
        2 * 3 * products, rel=0.1
    )  # forward + backward; the input has no gradient
    assert plain.steps == 5
    assert plain.seconds_per_seed is None


def test_epochs_are_steps_of_each_variant_s_own_batch(tiny, capsys):
    batch, n_train = tiny["task"]["batch"], tiny["task"]["n_train"]
    tiny["rules"] |= {"budget": {"epochs": 4}}
    tiny["variants"]["plain"]["task"] = {"batch": 2 * batch}
    plan = plan_of(tiny)
    assert [variant.steps for variant in plan.variants] == [
        round(4 * n_train / batch / (1 + (variant.name == "plain"))) for variant in plan.variants
    ]
    for cell in plan.judged_cells({name: {} for name in tiny["variants"]}):
        assert cell.spec["recipe"]["budget"] == {"steps": plan.variant(cell.variant).steps}
    assert any("4 epochs are" in note for note in plan.variant("plain").notes)


def test_a_task_without_an_end_has_no_epochs(tiny):
    tiny |= {"task": {"name": "repeated-tokens"}, "model": {"name": "decoder"}, "variants": {"a": {}}, "baseline": "a"}
    tiny["rules"] |= {"budget": {"epochs": 4}, "metric": "val_loss"}
    with pytest.raises(SpecError, match="'repeated-tokens' says no steps_per_epoch"):
        plan_of(tiny)


def test_data_is_drawn_per_run_where_the_task_can(tiny, words, tmp_path):
    tiny["rules"] |= {"split": {"seed": "per run"}}
    cells = plan_of(tiny).judged_cells({name: {} for name in tiny["variants"]}, dict.fromkeys(tiny["variants"], 2))
    assert [cell.spec["task"]["data_seed"] for cell in cells] == [cell.seed for cell in cells]
    sets = [build_task(cell.spec["task"]).train_batch(0, 0).inputs[0] for cell in cells[:: len(tiny["variants"])]]
    assert not torch.equal(*sets)


def test_data_that_cannot_be_drawn_per_run_is_an_error(tmp_path):
    split = {"budget": {"steps": 1}, "smallest_effect": 0.1, "split": {"seed": "per run"}}
    model = {"name": "encoder-decoder", "d_model": 8, "n_layers": 1}
    study = {"question": "?", "model": model, "baseline": "a", "variants": {"a": {}}, "rules": split}
    with pytest.raises(SpecError, match=r"task 'translation' cannot draw its data per run \(rules\.split\)"):
        plan_of(study | {"task": {"name": "translation", "corpus": "multi30k"}})
    with pytest.raises(SpecError, match=r"task sets 'data_seed', and rules\.split draws one for every run"):
        plan_of(study | {"task": {"name": "shapes", "data_seed": 3}})


LATE = """
import torch
from torch import nn


class Late(nn.Module):
    # one position ahead takes the place of each from position {first} on

    def __init__(self, d_model: int):
        super().__init__()
        self.map, self.gate = nn.Linear(d_model, d_model), nn.Parameter(torch.full((), {gate}))

    def forward(self, x):
        ahead = torch.cat((x[:, 1:], x[:, -1:]), 1)
        late = torch.arange(x.shape[1], device=x.device)[None, :, None] >= {first}
        return self.map(x + self.gate * torch.where(late, ahead, x))
"""
HEARD = "its outputs depend on inputs up to 1 position ahead: it sees what it should predict"
UNHEARD = "sees the future: it has no mask argument, and its output depends on later positions"


@pytest.mark.parametrize(
    ("first", "gate", "message"), [(9, 1.0, HEARD), (1000, 1.0, None), (0, 0.0, UNHEARD)], ids=["late", "none", "gated"]
)
def test_what_sees_ahead_only_late_is_said_before_training(first, gate, message, tmp_path, words, capsys):
    (tmp_path / "text.txt").write_text(words)
    (tmp_path / "late.py").write_text(LATE.format(first=first, gate=gate))
    study = {
        "question": "Does it see ahead?",
        "task": {"name": "char-lm", "text": str(tmp_path / "text.txt"), "context": 20, "batch": 2},
        "model": {"name": "decoder", "n_layers": 1, "d_model": 8, "mixer": {"name": "attention", "n_heads": 1}},
        "baseline": "lab",
        "variants": {"lab": {}, "late": {"mixer": f"{tmp_path}/late.py:Late"}},
        "rules": {"budget": {"steps": 1}, "seeds": 3, "smallest_effect": 0.01},
    }
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    assert call(["plan", str(tmp_path / "study.yaml"), "--no-calibrate", "--json"]) == FINE
    alarms = json.loads(capsys.readouterr().out)["alarms"]
    expected = {"check": "causality", "variant": "late", "message": message}
    assert [alarm for alarm in alarms if alarm["check"] == "causality"] == ([expected] if message else [])


def test_code_that_ends_its_process_is_said(tiny, tmp_path):
    (tmp_path / "mine.py").write_text("import os\nos._exit(0)\n")
    tiny["variants"]["mine"] = {"mixer": f"{tmp_path}/mine.py:Mixer", "mixer_at": 1}
    tiny["variants"]["wrong"] = {"channels": "many"}
    with pytest.raises(SpecError) as refused:
        plan_of(tiny)
    first, second = str(refused.value).splitlines()
    assert first == "variant 'mine': the process in which its code was tried ended with exit code 0"
    assert second.startswith("variant 'wrong': ")


def test_a_task_that_ends_its_process_is_said(tiny, tmp_path):
    (tmp_path / "mine.py").write_text("import os\nos._exit(0)\n")
    tiny["task"] = {"name": f"{tmp_path}/mine.py:Task"}
    with pytest.raises(SpecError, match="the process in which its code was tried ended with exit code 0"):
        plan_of(tiny)


def test_calibration_gives_seconds(tiny):
    plan = plan_of(tiny, calibrate=True)
    assert all(variant.seconds_per_seed > 0 for variant in plan.variants)


@pytest.mark.parametrize("precision", ["bf16", "auto"])
def test_calibration_uses_the_recipe_s_precision(tiny, precision, monkeypatch):
    seen = []

    def timed(*_, products, **__):
        seen.append(products)
        return len(seen)

    monkeypatch.setattr("attnlab.studies.plan.estimate.seconds_per_step", timed)
    evaluated_in(monkeypatch, {"validation": 0.25, "test": 0.5}, tiny, evaluations=2)
    tiny["training"] |= {"precision": precision, "compile": "auto"}
    tiny["variants"] = {"plain": {}}
    variant = plan_of(tiny, calibrate=True).variants[0]
    assert seen == list(PRODUCTS[precision])
    assert variant.seconds_per_seed == variant.steps + 1.0  # the fastest took one second a step
    assert NOT_COMPILED in variant.notes


def test_a_model_that_does_not_run_in_bf16_is_timed_in_float32(tiny, monkeypatch):
    def timed(*_, products, **__):
        if products == torch.bfloat16:
            raise RuntimeError("not implemented for 'BFloat16'")
        return 3.0

    monkeypatch.setattr("attnlab.studies.plan.estimate.seconds_per_step", timed)
    evaluated_in(monkeypatch, {"validation": 0.5, "test": 0.0}, tiny, evaluations=5)
    tiny["training"] |= {"precision": "auto"}
    variant = plan_of(tiny, calibrate=True).variants[0]
    assert variant.seconds_per_seed == variant.steps * 3.0 + 2.5


def test_batches_of_a_long_evaluation_are_reckoned_at_the_pace_of_the_first(monkeypatch):
    clock, asked = [0.0], []
    monkeypatch.setattr(estimate, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    class Slow(nn.Module):
        def forward(self, x):
            asked.append(len(x))
            clock[0] += 0.25 * len(x)
            return torch.ones(*x.shape, 7)

    class Task:
        def evaluate(self, predict, part):
            assert part == "validation"
            for rows in (2, 3, 1, 2):
                outputs = predict(Batch((torch.zeros(rows, 5),), torch.zeros(rows, 5)))
                assert outputs.shape == (rows, 5, 7)

    assert estimate.evaluation_seconds_on_one_thread(Slow(), Task(), "validation") == 0.25 * (2 + 3 + 1 + 2)
    assert asked == [2, 3]


def test_an_evaluation_that_cannot_be_tried_is_said(tiny, monkeypatch):
    monkeypatch.setattr("attnlab.studies.plan.estimate.seconds_per_step", lambda *_, **__: 3.0)
    evaluated_in(monkeypatch, {}, tiny, evaluations=1)
    variant = plan_of(tiny, calibrate=True).variants[0]
    assert variant.seconds_per_seed == variant.steps * 3.0
    assert NOT_EVALUATED in variant.notes


def evaluated_in(monkeypatch, seconds, tiny, *, evaluations):
    """Let evaluations of parts take these seconds, and so many be made."""
    monkeypatch.setattr(planning, "evaluation_seconds_on_one_thread", lambda model, task, part: seconds[part])
    tiny["training"] = {"evaluate_every": math.ceil(tiny["rules"]["budget"]["steps"] / evaluations)}


def test_a_step_that_takes_too_long_is_not_tried(tiny, monkeypatch):
    def timed(*_, **__):
        raise AssertionError("a step was timed")

    monkeypatch.setattr("attnlab.studies.plan.estimate.seconds_per_step", timed)
    monkeypatch.setattr("attnlab.studies.plan.plan.flops_per_second_on_one_thread", lambda precision: 1.0)
    plan = plan_of(tiny, calibrate=True)
    for variant in plan.variants:
        assert variant.seconds_per_seed == variant.steps * plan.task.tokens_per_step * variant.flops_per_token
        assert NOT_TIMED in variant.notes


@pytest.mark.parametrize("precision", PRODUCTS)
def test_products_have_a_pace(precision):
    threads = torch.get_num_threads()
    assert 1e7 < flops_per_second_on_one_thread(precision) < 1e13
    assert torch.get_num_threads() == threads


def test_what_a_paper_says_stands_beside_what_is_counted(tiny, write_study, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    tiny["baseline"], tiny["variants"] = "plain", {"plain": {}, "wide": {"channels": 60}, "other": {}}
    tiny["published"] = {"source": "A paper, Table 9", "parameters": {"plain": 3_000_000, "wide": 65_000_000}}
    path = write_study(json.dumps(tiny))
    assert call(["plan", str(path), "--no-calibrate"]) == FINE
    printed = capsys.readouterr().out
    assert "paper: A paper, Table 9" in printed
    counted = {variant.name: variant.parameters for variant in plan_of(tiny).variants}
    more = f"{(counted['wide'] - counted['plain']) / 1e6:+.1f}"
    (row,) = [line.split() for line in printed.splitlines() if "65 M" in line]
    assert row == ["wide", f"{counted['wide']:,}", "65", "M", more, "M", "+62", "M"]
    tiny["published"]["parameters"]["wiide"] = 1
    with pytest.raises(SpecError, match="published: 'wiide' is no variant; did you mean 'wide'"):
        parse_study(tiny)


def test_a_model_for_another_kind_of_task_names_those_that_fit(tiny):
    tiny["variants"] = {"plain": {}, "other": {"name": "decoder"}}
    with pytest.raises(
        SpecError, match=r"'decoder' needs vocab_size, which this task does not give; .*: encoder, cnn, lstm"
    ):
        plan_of(tiny)


def test_no_number_is_cut_in_a_narrow_terminal(tiny, write_study, capsys, monkeypatch):
    """The name of a variant gives way; numbers of any size stay whole, and without an exponent."""
    monkeypatch.setenv("COLUMNS", "60")
    tiny["baseline"], tiny["variants"] = "plain", {"plain": {}, "a wide one with a long name": {"channels": 1200}}
    assert call(["plan", str(write_study(json.dumps(tiny))), "--no-calibrate"]) == FINE
    printed = capsys.readouterr().out
    wide = plan_of(tiny).variants[1]
    assert f"{wide.parameters:,}" in printed
    assert f"{wide.flops_per_token / 1e6:.3g}" in printed
    assert "e+" not in printed
    assert "…" not in printed


def test_json_has_the_documented_keys(tiny):
    content = json.loads(json.dumps(plan_of(tiny).to_json(), allow_nan=False))
    assert set(content) == {"study", "task", "metric", "floors", "rules", "variants", "published"}
    assert content["published"] is None
    assert {"name", "value", "unit"} == set(content["floors"][0])
    assert len(content["rules"]["hash"]) == 64
    assert {"name", "parameters", "flops_per_token", "activation_bytes", "seconds_per_seed"} <= set(
        content["variants"][0]
    )


def test_what_cannot_be_built_is_said_for_all_variants_at_once(tiny):
    tiny["variants"]["odd kernel"] = {"kernel_size": 4}
    tiny["variants"]["typo"] = {"mixer": {"name": "atention"}, "mixer_at": 1}
    tiny["variants"]["heads"] = {"mixer": {"name": "attention", "n_heads": 5}, "mixer_at": 1}
    tiny["variants"]["fused additive"] = {
        "mixer": {"name": "attention", "n_heads": 2, "scores": "additive", "path": "fused"},
        "mixer_at": 1,
    }
    tiny["variants"]["unknown argument"] = {"chanels": 5}
    with pytest.raises(SpecError) as caught:
        plan_of(tiny)
    text = str(caught.value)
    assert "variant 'odd kernel': model 'cnn': kernel_size must be odd" in text
    assert "unknown mixer 'atention'; did you mean 'attention'?" in text
    assert "variant 'heads'" in text
    assert "5" in text
    assert "6" in text
    assert "variant 'fused additive'" in text
    assert "unknown argument 'chanels'; did you mean 'channels'?" in text


def test_complaints_of_variants_and_task_name_file_and_line(write_study):
    text = """\
question: q
task:
  name: shapes
model: {name: cnn, channels: 6, n_layers: 3}
baseline: plain
variants:
  plain: {}
  odd kernel: {kernel_size: 4}
rules: {metric: test_mse, budget: {steps: 5}, smallest_effect: 0.1}
"""
    path = write_study(text)
    with pytest.raises(SpecError) as caught:
        plan_study(load_study(path))
    assert str(caught.value).startswith(f"{path} line 8: variant 'odd kernel': model 'cnn': kernel_size must be odd")
    path = write_study(text.replace("name: shapes", "name: shapes\n  lenth: 5"))
    with pytest.raises(SpecError) as caught:
        plan_study(load_study(path))
    assert str(caught.value).startswith(f"{path} line 2: task 'shapes': unknown argument 'lenth'")


@pytest.mark.parametrize(
    ("wrong", "line", "said"),
    [
        (("  n_layers: 3", "  n_layers: many"), "line 6", "model 'cnn': 'n_layers' must be int; got 'many'"),
        (("name: cnn", "name: cn"), "line 4", "unknown model 'cn'; did you mean 'cnn'?"),
        (("  lr: 0.1", "  lr: -1"), "line 13", "training: 'lr': should be greater than 0; got -1"),
        (
            ("batch: 20", "batch: 10000000000000"),
            "line 3",
            "a batch of 1,000,000,000,000,000 positions would",
        ),
        (("{channels: 6}", "{channels: 0}"), "line 9", "variants 'one', 'two': model 'cnn': sizes must be positive"),
    ],
)
def test_what_variants_have_wrong_alike_is_told_once_where_it_stands(write_study, wrong, line, said):
    text = """\
question: q
task: {name: shapes, n_train: 60, n_test: 11,
  batch: 20}
model:
  name: cnn
  n_layers: 3
baseline: one
variants:
  one: {channels: 6}
  two: {channels: 6}
  three: {channels: 7}
training:
  lr: 0.1
rules: {metric: test_mse, budget: {steps: 5}, smallest_effect: 0.1}
"""
    path = write_study(text.replace(*wrong))
    with pytest.raises(SpecError) as caught:
        plan_study(load_study(path))
    (told,) = str(caught.value).splitlines()
    assert told.startswith(f"{path} {line}: {said}")


@pytest.mark.parametrize(
    ("part", "sizes", "said"),
    [
        ("task", {"n_train": 10**11}, "task 'shapes': 100,000,000,022 sequences would take 80,000 GB of memory, and"),
        ("task", {"batch": 10**11}, "a batch of 10,000,000,000,000 positions would take 80,000 GB of memory, and"),
        ("model", {"channels": 10**11, "kernel_size": 10**9 + 1}, "it asks for more memory than this machine has, "),
        ("model", {"n_layers": 10**6}, "a model of more than 300 modules and parameters takes too long to build; "),
        ("model", {"n_layers": 10**30}, "a model of more than 300 modules and parameters takes too long to build; "),
        ("rules", {"seeds": 10**11}, "a list of 200,000,000,000 runs would take 2,000,000 GB of memory, and this"),
    ],
)
def test_sizes_that_no_machine_has_room_for_are_refused_at_once(tiny, monkeypatch, part, sizes, said):
    monkeypatch.setattr("attnlab.core.sizes.MOST_PARTS", 300)
    tiny[part] |= sizes
    with pytest.raises(SpecError, match=said):
        plan_of(tiny, calibrate=True)


def test_data_for_which_there_is_no_memory_is_said(tiny, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nclass Task:\n    def __init__(self):\n        torch.ones(10**15)\n"
    )
    tiny["task"] = f"{tmp_path}/mine.py:Task"
    with pytest.raises(SpecError, match=r"can't allocate memory"):
        plan_of(tiny)
    tiny["task"] = {"name": "repeated-tokens", "context": 10**13}
    tiny["rules"]["metric"] = "val_loss"
    with pytest.raises(SpecError, match=r"the task asks for more memory than this machine has, .* GB; "):
        plan_of(tiny)


def test_wrong_metric_training_or_tuning(tiny):
    tiny["rules"]["metric"] = "test_msee"
    with pytest.raises(SpecError, match="has no metric 'test_msee'; did you mean 'test_mse'"):
        plan_of(tiny)
    tiny["rules"]["metric"] = "test_mse"
    with pytest.raises(SpecError, match="unknown key 'warmpu'; did you mean 'warmup'"):
        plan_of({**tiny, "training": {"warmpu": 3}})
    with pytest.raises(SpecError, match="optimizer"):
        plan_of({**tiny, "training": {"optimizer": "adamm"}})
    tiny["rules"] |= {"tune": {"lr": [0.1, 0.2, 0.3]}, "tune_by": "test_mse"}
    with pytest.raises(SpecError, match="measured on the test part"):
        plan_of(tiny)
    tiny["rules"] |= {"tune": {"lrr": [0.1, 0.2, 0.3]}, "tune_by": None}
    with pytest.raises(SpecError, match="unknown key 'lrr'; did you mean 'lr'"):
        plan_of(tiny)


@pytest.mark.parametrize("quantity", ["parameters", "flops"])
def test_matching_makes_the_comparison_fair(tiny, quantity):
    tiny["model"]["channels"] = 24
    tiny["variants"]["with attention"]["channels"] = 48
    tiny["rules"]["match"] = quantity
    plan = plan_of(tiny)
    key = {"parameters": "parameters", "flops": "flops_per_token"}[quantity]
    plain, other = plan.variant("plain"), plan.variant("with attention")
    assert getattr(other, key) == pytest.approx(getattr(plain, key), rel=0.1)
    assert other.model["channels"] % 2 == 0  # what two heads need
    assert "matched by channels 48 ->" in other.notes[0]


def test_a_model_without_a_width_cannot_be_matched(tiny, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        "    def __init__(self, d_in, d_out):\n"
        "        super().__init__()\n        self.a = torch.nn.Linear(d_in, d_out)\n"
        "    def forward(self, x):\n        return self.a(x)\n"
    )
    tiny["variants"]["mine"] = {"name": f"{tmp_path}/mine.py:Model"}
    plan_of(tiny)
    tiny["rules"]["match"] = "parameters"
    with pytest.raises(SpecError, match="no width"):
        plan_of(tiny)


def test_cells_pair_over_seeds_and_tuning_has_a_seed_of_its_own(tiny):
    tiny["rules"]["tune"] = {"lr": [0.1, 0.2, 0.3]}
    plan = plan_of(tiny)
    tuning = plan.tuning_cells()
    assert len(tuning) == 6
    assert {cell.seed for cell in tuning} == {TUNING_SEED}
    runs = {"0.1": [3.0], "0.2": [1.0, 4.0], "0.3": [2.0, 2.0]}
    chosen = {"plain": choose(plan, runs), "with attention": choose(plan, {"0.1": [None], "0.2": [5.0], "0.3": [6.0]})}
    assert chosen == {"plain": {"lr": 0.3}, "with attention": {"lr": 0.2}}
    again = plan.tuning_cells_again({"plain": [{"lr": 0.2}], "with attention": []})
    assert [(cell.seed, cell.tuning_run) for cell in again] == [(TUNING_SEED + 1, 2)]
    judged = plan.judged_cells(chosen)
    assert [(cell.variant, cell.seed) for cell in judged[:2]] == [("plain", 0), ("with attention", 0)]
    assert len({cell.folder for cell in tuning + judged}) == 10
    assert judged[0].spec["recipe"]["lr"] == 0.3


def test_tuning_may_have_several_seeds(tiny):
    tiny["rules"] |= {"tune": {"lr": [0.1, 0.2, 0.3]}, "tune_seeds": 2}
    cells = plan_of(tiny).tuning_cells()
    assert len({cell.folder for cell in cells}) == 12
    assert [cell.seed for cell in cells] == [TUNING_SEED] * 6 + [TUNING_SEED + 1] * 6
    assert len({title_of(cell) for cell in cells}) == 12  # a bar and a line of its own for each
    assert title_of(cells[0]) == "plain, tuning, lr 0.1"
    assert title_of(cells[6]) == "plain, tuning 2, lr 0.1"


def test_one_value_is_no_tuning(tiny):
    tiny["rules"]["tune"] = {"lr": [0.1]}
    plan = plan_of(tiny)
    assert plan.tuning_cells() == []
    assert plan.tried_again == 0
    assert plan.judged_cells({v.name: choose(plan, {}) for v in plan.variants})[0].spec["recipe"]["lr"] == 0.1


def test_what_was_found_out_about_an_own_module_is_in_the_notes(tiny, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nclass Mixer(torch.nn.Module):\n"
        "    def __init__(self, d_model):\n        super().__init__()\n"
        "        self.lstm = torch.nn.LSTM(d_model, d_model)\n"
        "    def forward(self, x):\n        return self.lstm(x)\n"
    )
    tiny["variants"]["mine"] = {"mixer": f"{tmp_path}/mine.py:Mixer", "mixer_at": 1}
    notes = plan_of(tiny).variant("mine").notes
    assert any("keeps the weights it starts with" in note for note in notes)
    assert any("sequence-first" in note for note in notes)
    assert not any(note.startswith("padding") for note in notes)


def test_that_padding_cannot_be_told_to_an_own_module_is_in_the_notes(tiny, tmp_path):
    for name in ("train.en", "train.de", "val.en", "val.de"):
        (tmp_path / name).write_text("one\none two\n", encoding="utf-8")
    (tmp_path / "mine.py").write_text(
        "import torch\nclass Mixer(torch.nn.Linear):\n"
        "    def __init__(self, d_model):\n        super().__init__(d_model, d_model)\n"
    )
    tiny["task"] = {"name": "translation", "corpus": str(tmp_path), "tokenizer": "words"}
    tiny["model"] = {"name": "encoder-decoder", "d_model": 8, "n_layers": 1, "feedforward": {"name": "relu", "d_ff": 8}}
    tiny["variants"] = {"plain": {}, "mine": {"mixer": f"{tmp_path}/mine.py:Mixer"}}
    tiny["rules"]["metric"] = "val_loss"
    notes = plan_of(tiny).variant("mine").notes
    assert any(note.startswith("padding is not told to it") for note in notes)
