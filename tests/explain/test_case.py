"""Cases are read as people write them, and what is wrong with one is said in a sentence."""

from __future__ import annotations

import copy
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from ruamel.yaml import YAML

from attnlab.cli import WRONG_USE, call
from attnlab.core.contracts import Metric
from attnlab.core.errors import SpecError
from attnlab.explain import possible
from attnlab.explain.case import cases, load_asked, load_case, parse_case
from attnlab.explain.metrics import as_written, metric_of, metrics_of, rounding_of
from attnlab.studies.define.assemble import build_task
from attnlab.studies.define.reading import read

TWO = {"one": {}, "other": {"mixer": "none"}}


def both(one: float, other: float) -> dict:
    return {"variants": TWO, "saw": {"one": {"val_loss": one}, "other": {"val_loss": other}}}


def test_a_number_beside_another_is_read(said):
    case = parse_case(said(expected={"val_loss": 0.5}))
    assert (case.quantity.variant, case.quantity.beside, case.quantity.metric.name) == ("mine", None, "val_loss")
    assert (case.quantity.seen, case.quantity.expected, case.quantity.distance) == (1.0, 0.5, 0.5)
    assert case.study.rules.budget == {"steps": 60}


def test_zeros_at_the_end_of_a_number_are_digits(said):
    for text, half in (("0.90", 0.005), ("-1.500", 0.0005), (".5", 0.05), ("12", 0.05), ("1.50e-3", 0.00005)):
        seen = as_written(YAML(typ="rt").load(f"{{val_loss: {text}}}"))["val_loss"]
        assert (seen, rounding_of(seen)) == (float(text), pytest.approx(half))
    two = YAML(typ="rt").load("{one: {val_loss: 1.20}, other: {val_loss: 1.000}}")
    case = parse_case(said(variants=TWO, saw=two, expected="one is better than other"))
    assert rounding_of(case.quantity.seen) == pytest.approx(0.005)
    assert json.loads(json.dumps(copy.deepcopy(case.saw))) == {"one": {"val_loss": 1.2}, "other": {"val_loss": 1.0}}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("one is better than other", 0.0),
        ("'one' is better than 'other' by 0.3.", -0.3),
        ("other is worse than one", 0.0),
        ("one is as good as other", 0.0),
        ("one is worse than other", 0.2),
        ("one is worse than other by 0.5", 0.5),
        ("one should beat other by 0.3", -0.3),
        ("one is not worse than other", 0.0),
        ("one should be as good as other", 0.0),
        ("one outperforms other", 0.0),
    ],
)
def test_a_comparison_is_read_with_its_nearest_unsurprising_value(said, words, expected):
    case = parse_case(said(**both(1.2, 1.0), expected=words))
    sign = 1 if case.quantity.variant == "one" else -1
    assert sign * case.quantity.seen == pytest.approx(0.2)
    assert case.quantity.expected == pytest.approx(expected)
    assert case.quantity.one_sided != ("as good as" in words)


def test_a_number_that_is_to_be_reached_is_read(said):
    reached = parse_case(said(**both(1.2, 1.0), expected="one reaches val_loss 0.9"))
    assert (reached.quantity.seen, reached.quantity.expected) == (1.2, 0.9)
    already = parse_case(said(**both(1.2, 1.0), expected="other reaches loss of 1.1"))
    assert already.quantity.distance == 0


def test_what_people_call_a_metric_is_understood(said):
    case = parse_case(said(saw={"test_loss": 1.0, "accuracy": 0.5}, expected={"test_loss": 0.8}))
    assert dict(case.saw["mine"]) == {"val_loss": 1.0, "val_accuracy": 0.5}
    assert "'test_loss' is read as val_loss" in " ".join(case.notes)
    task = build_task(said()["task"] | {"test": True})
    assert metric_of("test_loss", task).name == "test_loss"
    assert metric_of("bleu", task) is None


@pytest.mark.parametrize(
    ("said_as", "value", "metric", "read"),
    [
        ("perplexity", 9.2, "val_loss", 2.22),
        ("Validation ppl", 2.718, "val_loss", 0.9999),
        ("train_perplexity", 7.4, "train_loss", 2.0),
        ("error rate", 0.47, "val_accuracy", 0.53),
        ("valid_acc", 0.5, "val_accuracy", 0.5),
        ("bpc", 2.1, "val_bits_per_character", 2.1),
        ("training loss", 1.3, "train_loss", 1.3),
    ],
)
def test_what_is_said_in_another_unit_is_converted(said, said_as, value, metric, read):
    case = parse_case(said(saw={said_as: value}, expected={said_as: value / 2}))
    assert dict(case.saw["mine"]) == {metric: pytest.approx(read)}
    assert f"'{said_as}'" in case.notes[0]
    assert f"is read as {metric}" in case.notes[0]


def test_variants_that_are_whole_models_need_no_model_around_them(said, tmp_path):
    case = said(variants={"mine": {"name": "decoder", "n_layers": 2, "d_model": 24}, "other": {"name": "decoder"}})
    del case["model"]
    numbers = {"saw": {"mine": {"val_loss": 1.0}}, "expected": {"mine": {"val_loss": 0.8}}}
    study = parse_case(case | numbers).study
    assert study.model_spec("mine") == {"name": "decoder", "n_layers": 2, "d_model": 24}
    (tmp_path / "case.yaml").write_text(json.dumps(case | numbers))
    assert load_case(tmp_path / "case.yaml").study.model_spec("other") == {"name": "decoder"}
    case["variants"]["other"] = {"mixer": "none"}
    with pytest.raises(SpecError, match="'model' is missing; a case says"):
        parse_case(case)


def test_epochs_are_steps_of_the_task(said):
    case = parse_case(said(training={"budget": {"epochs": 2}}))
    # 5400 characters are trained on, 16 windows of 12 a step
    assert case.study.rules.budget == {"steps": round(2 * 5400 / 192)}
    assert "2 epochs are 56 steps" in case.notes[0]


WRONG = [
    ({"saw": {"mine": {"bleu": 1.0}}}, "task 'char-lm' has no metric 'bleu'; it has val_loss, val_bits_per_character"),
    ({"saw": {"mine": {"perplexity": 0}}}, "task 'char-lm' has no metric 'perplexity'; it has val_loss"),
    ({"saw": {"mine": {"perplexity": 0.5}}}, "val_loss cannot be below 0; got -0.7"),
    ({"saw": {"mine": {"val_accuracy": 53.1}}}, r"val_accuracy is a fraction of 1; got 53.1 \(53.1 % is 0.531\)"),
    ({"saw": {"mine": {"val_loss": "low"}}}, r"val_loss must be a number \(nats/character\); got 'low'"),
    ({"saw": {"mine": {"val_loss": -1.0}}}, "val_loss cannot be below 0; got -1"),
    ({"saw": {"mien": {"val_loss": 1.0}}}, "saw: 'mien' is no variant; did you mean 'mine'"),
    ({"saw": {"mine": {"val_loss": 1.0}, "x": 2}}, "saw: 'x' is no variant"),
    ({"saw": [1.0]}, "saw must be a mapping"),
    ({"expected": "less"}, "expected cannot be read: 'less'; it may be 'A is better than B'"),
    ({"expected": "mine is better than yours"}, "expected: 'yours' is no variant"),
    ({"expected": "I hoped mine is better than x"}, "'I hoped mine' is no variant; .*; it may be 'A is better than B'"),
    ({"expected": "mine is better than mine"}, "expected compares 'mine' with itself"),
    ({"expected": "mine reaches val_loss 1.e.3"}, "expected: '1.e.3' is no number"),
    ({"expected": {"val_accuracy": 0.5}}, "expected names no number that saw has"),
    ({"expected": {"mine": 0.5, "other": {"val_loss": 1}}}, "expected: mine: a number without a metric"),
    ({"expected": None}, "'expected' is missing; a case says question, task"),
    ({"training": {"lr": 1e-3}}, "training.budget must be one of steps, epochs, tokens; got None"),
    ({"training": {"budget": {"seconds": 3}}}, "training.budget must be one of steps, epochs, tokens"),
    ({"training": {"budget": {"epochs": -1}}}, "training.budget.epochs must be a positive number; got -1"),
    ({"training": [1]}, "training and variants must be mappings"),
    ({"runs": 0}, "runs must be the number of runs behind each number, 1 or more; got 0"),
    ({"reported": "first"}, "reported must be one of last, best; got 'first'"),
    ({"sawn": {}}, "unknown key 'sawn'; did you mean 'saw'"),
]


@pytest.mark.parametrize(("changes", "sentence"), WRONG, ids=lambda value: str(value)[:60])
def test_what_is_wrong_is_said(said, changes, sentence):
    with pytest.raises(SpecError, match=sentence):
        parse_case(said(**changes))


@pytest.mark.parametrize("lost", [math.nan, math.inf, "nan"])
def test_what_does_not_end_in_a_number_is_read_as_what_knowing_nothing_gives(said, lost):
    case = parse_case(said(saw={"val_loss": lost}))
    floors = build_task(case.study.task_spec()).floors()
    (chance,) = (floor for floor in floors if (floor.kind, floor.metric) == ("chance", "val_loss"))
    assert case.quantity.seen == chance.value
    assert f"'val_loss' {lost} is read as val_loss {chance.value:g}, which {chance.name} gives" in case.notes[0]


def test_a_percentage_is_told_how_to_be_written(said):
    with pytest.raises(SpecError, match=r"must be a number \(nats/character\); got '53%' \(53.1 % is 0.531\)"):
        parse_case(said(saw={"val_loss": "53%"}))


def test_what_was_run_in_a_case_is_a_study(said, tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text(json.dumps(said()))
    assert load_asked(path).variants == parse_case(said(), path=path).study.variants
    assert load_asked("heads", scale="small").rules.looks[-1] > 1  # a study's own
    with pytest.raises(SpecError, match=r"no study 'head'.*did you mean 'heads'"):
        load_asked("head")


def test_a_number_without_a_metric_is_said(said):
    with pytest.raises(SpecError, match=r"a number without a metric: write \{metric: 1.3\}"):
        parse_case(said(saw={"mine": 1.3}))
    with pytest.raises(SpecError, match=r"a number without a metric: write \{metric: 1.0\}"):
        parse_case(said(variants=TWO, saw={"one": 1.0, "other": {"val_loss": 1.0}}))


def test_a_comparison_needs_a_metric_of_both(said):
    saw = {"one": {"val_loss": 1.0}, "other": {"val_accuracy": 0.5}}
    with pytest.raises(SpecError, match="saw has no metric of both 'one' and 'other'"):
        parse_case(said(variants=TWO, saw=saw, expected="one is better than other"))
    saw = {"one": {"val_loss": 1.0}, "other": {"train_loss": 0.5}}
    words = (
        "val_loss of 'one' and train_loss of 'other' are of different data, and do not compare; give both of the same"
    )
    with pytest.raises(SpecError, match=words):
        parse_case(said(variants=TWO, saw=saw, expected="one is better than other"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"expected": "less"}, "expected cannot be read"),
        ({"expected": "mine reaches val_loss 1e"}, "expected: '1e' is no number"),
        ({"saw": {"val_accuracy": 31}}, "saw.mine: val_accuracy is a fraction of 1; got 31"),
        ({"task": {"name": "char-lm", "split": "as they did"}}, "task 'char-lm': 'split' must be 'contiguous' or"),
    ],
)
def test_file_and_line_are_named(said, tmp_path, changes, sentence):
    file = tmp_path / "case.yaml"
    with file.open("w") as out:
        YAML().dump(said(**changes), out)
    (key,) = changes
    line = next(i for i, text in enumerate(file.read_text().splitlines(), 1) if text.startswith(key))
    with pytest.raises(SpecError, match=rf"case.yaml line {line}: {sentence}"):
        load_case(file)


def test_scales_are_merged_and_unknown_ones_said(said):
    scaled = said(scales={"small": {"model": {"d_model": 8}, "training": {"budget": {"steps": 3}}}})
    case = parse_case(scaled, scale="small")
    assert (case.scale, case.study.model["d_model"], case.study.rules.budget) == ("small", 8, {"steps": 3})
    assert parse_case(scaled).scale is None
    with pytest.raises(SpecError, match="no scale 'smal'; did you mean 'small'"):
        parse_case(scaled, scale="smal")
    with pytest.raises(SpecError, match="no scale 'small'; it has none"):
        parse_case(said(), scale="small")


@pytest.mark.parametrize("scales", [["small"], {"small": None}, {"small": "x"}])
def test_scales_must_be_mappings(said, scales):
    with pytest.raises(SpecError, match="scales must be a mapping of names to mappings"):
        parse_case(said(scales=scales), scale="small")


def test_a_difference_below_zero_is_none(said):
    with pytest.raises(SpecError, match="'by -1' is no difference: it must be 0 or more"):
        parse_case(said(**both(1.2, 1.0), expected="one is as good as other by -1"))


def test_of_several_numbers_that_is_explained_which_is_not_as_expected(said):
    numbers = {"one": {"val_loss": 1.2}, "other": {"val_loss": 0.7}}
    case = parse_case(said(**both(1.2, 1.0), expected=numbers))
    assert (case.quantity.variant, case.quantity.distance) == ("other", pytest.approx(0.3))


def test_as_good_as_allows_what_it_says(said):
    case = parse_case(said(**both(1.2, 1.0), expected="one is as good as other by 0.1"))
    assert (case.quantity.seen, case.quantity.expected) == (pytest.approx(0.2), pytest.approx(0.1))
    assert parse_case(said(**both(1.2, 1.0), expected="one is as good as other by 5")).quantity.distance == 0


@pytest.mark.parametrize(("expected", "coarse"), [(0.77, True), (0.2, False)])
def test_an_accuracy_of_few_answers_is_said_to_be_coarse(said, tmp_path, expected, coarse):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(300, 7, 1)))
    np.save(tmp_path / "y.npy", np.arange(300) % 2)
    task = {"name": "classify", "inputs": str(tmp_path / "x.npy"), "labels": str(tmp_path / "y.npy")}
    saw = {"saw": {"val_accuracy": 0.73}, "expected": {"val_accuracy": expected}}
    case = parse_case(said(task=task, model={"name": "encoder"}, **saw))
    words = (
        "val_accuracy is the share of 30 held-out answers that are right: one of them is 0.033, "
        "and another draw of 30 would move it by up to about 0.16"
    )
    assert possible.coarse(case, build_task(task)) == [words] * coarse


@pytest.mark.parametrize(
    ("text", "seen", "expected", "reached"),
    [
        ("chain", 0.8, 2.0, True),
        ("chain", 0.6, 0.65, False),
        ("chain", 2.0, 0.8, False),
        ("repeating", 0.8, 2.0, False),
    ],
)
def test_what_data_allow_without_a_network_is_known_of_a_number_that_is_too_good(
    said, texts, text, seen, expected, reached
):
    task = {**said()["task"], "text": str(texts / f"{text}.txt")}
    case = parse_case(said(task=task, saw={"val_loss": seen}, expected={"val_loss": expected}))
    found = possible.allowed(case, build_task(task))
    assert (found is not None) == reached
    if found:
        assert found.words.startswith("Without any network 'trigram (sees 2 characters)' reaches 0.72")
        assert found.words.endswith("of what is held out, of which 0.0% stands in the training part")


def test_unknown_cases_are_said(capsys):
    assert call(["explain", "forum-part"]) == WRONG_USE
    error = " ".join(capsys.readouterr().err.split())
    assert "no case 'forum-part' in the library and no file of that name; did you mean 'forum-parts'?" in error
    assert call(["explain", "nowhere.yaml"]) == WRONG_USE
    assert "no case file nowhere.yaml" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", sorted(cases()))
def test_the_cases_of_the_library_are_whole(name, tinyshakespeare):
    assert tinyshakespeare
    case = load_case(name)
    assert case.quantity.distance != 0
    for scale in read(cases()[name]).get("scales", ()):
        assert load_case(name, scale=scale).study.variants.keys() <= case.study.variants.keys()


def test_only_a_task_that_counts_right_answers_has_an_accuracy_in_training():
    measured = {"metrics": [Metric("val_accuracy", "fraction", "higher", "predicted right")], "judged": ()}
    assert "train_accuracy" not in metrics_of(SimpleNamespace(**measured))
    assert "train_accuracy" in metrics_of(SimpleNamespace(**measured, accuracy=lambda predict, batches: 1.0))


def test_an_error_in_units_of_the_data_is_a_reading_of_a_normalized_one():
    mse = Metric("val_mse", "normalized squared error", "lower", "mean squared error")
    read = {
        deviation: dict(possible.readings(mse, SimpleNamespace(deviation=deviation))) for deviation in (650.0, None)
    }
    (of_data,) = read[650.0].keys() - read[None].keys()
    assert read[650.0][of_data](0.04) == 16_900
    assert "units of the data" in of_data
