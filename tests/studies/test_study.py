from __future__ import annotations

import pytest
from ruamel.yaml import YAML

from attnlab.core.errors import SpecError
from attnlab.studies.define.reading import library
from attnlab.studies.define.study import load_study, merge, parse_study, slug

GOOD = """\
question: Is it?
task: {name: shapes}
model: {name: cnn}
baseline: one
variants:
  one: {}
  two: {channels: 8}
rules:
  budget: {steps: 1e1}
  seeds: 3
  smallest_effect: 0.01
scales:
  small: {rules: {seeds: 1}, model: {channels: 4}}
"""


def complaint(path) -> str:
    with pytest.raises(SpecError) as caught:
        load_study(path)
    return str(caught.value)


def test_a_file_is_read_and_scales_merge(write_study):
    path = write_study(GOOD)
    study = load_study(path)
    assert (study.name, study.rules.seeds, study.rules.budget) == ("my-study", 3, {"steps": 10.0})
    small = load_study(path, scale="small")
    assert small.rules.seeds == 1
    assert small.model_spec("one") == {"name": "cnn", "channels": 4}
    assert small.model_spec("two") == {"name": "cnn", "channels": 8}
    assert small.hash != study.hash
    assert load_study(path, changes={"rules": {"seeds": 9}}).rules.seeds == 9


def test_a_scale_tunes_nothing(write_study):
    tuned = GOOD.replace("  seeds: 3", "  seeds: 3\n  tune: {lr: [1e-3, 3e-3, 1e-2]}")
    assert load_study(write_study(tuned), scale="small").rules.tune == {"lr": [1e-3, 3e-3, 1e-2]}
    untuned = tuned.replace("small: {rules: {", "small: {rules: {tune: null, ")
    assert load_study(write_study(untuned), scale="small").rules.tune == {}


def test_a_scale_leaves_out_what_its_variants_are_compared_with(write_study):
    judged = GOOD + "compare: {two: one, three: [one, two]}\n"
    judged = judged.replace("variants:", "variants:\n  three: {channels: 2}", 1)
    assert load_study(write_study(judged)).contrasts == (("two", "one"), ("three", "one"), ("three", "two"))
    smaller = judged.replace("small: {", "small: {variants: {two: null}, ")
    assert load_study(write_study(smaller), scale="small").contrasts == (("three", "one"),)


def test_a_scale_leaves_variants_out(write_study):
    smaller = GOOD.replace("small: {", "small: {variants: {two: null, three: {channels: 2}}, ")
    assert load_study(write_study(smaller), scale="small").variants == {"one": {}, "three": {"channels": 2}}
    with pytest.raises(SpecError, match="baseline 'one' is no variant; known: three, two"):
        load_study(write_study(smaller.replace("two: null", "one: null")), scale="small")
    with pytest.raises(SpecError, match=r"scales\.small\.variants: null leaves out 'twoo', .*; did you mean 'two'"):
        load_study(write_study(smaller.replace("two: null", "twoo: null")), scale="small")


def test_whole_models_need_none_that_they_share():
    said = {
        "question": "?",
        "task": "shapes",
        "baseline": "a",
        "variants": {"a": {"name": "cnn", "channels": 8}, "b": {"name": "lstm", "hidden": 4}},
        "rules": {"budget": {"steps": 1}, "smallest_effect": 0.0},
    }
    study = parse_study(said)
    assert [study.model_spec(name) for name in study.variants] == [*said["variants"].values()]
    with pytest.raises(SpecError, match="'model' is missing; it may be so where every variant has a 'name'"):
        parse_study({**said, "variants": {**said["variants"], "c": {"hidden": 8}}})


def test_a_variant_of_another_model_replaces_and_training_is_its_own():
    study = parse_study(
        {
            "question": "?",
            "task": "shapes",
            "model": {"name": "cnn", "channels": 8},
            "baseline": "a",
            "variants": {"a": None, "b": {"name": "lstm", "hidden": 4, "training": {"lr": 1.0}}},
            "rules": {"budget": {"steps": 1}, "smallest_effect": 0.0},
            "training": {"lr": 2.0, "clip": 3.0},
        }
    )
    assert study.model_spec("b") == {"name": "lstm", "hidden": 4}
    assert study.training_settings("b") == {"lr": 1.0, "clip": 3.0}
    assert study.training_settings("a") == {"lr": 2.0, "clip": 3.0}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  seeds: 3", "  sedes: 3", "line 10: unknown key 'sedes'; did you mean 'seeds'?"),
        ("question:", "qestion:", "line 1: unknown key 'qestion'; did you mean 'question'?"),
        (
            "question:",
            "saw: {}\nexpected: {}\nquestion:",
            "says what was seen and expected, as a case does: attnlab explain /",
        ),
        ("  seeds: 3", "  seeds: 0", "line 10: rules.seeds: must be at least 1; got 0"),
        ("  seeds: 3", "  split: 3", "line 10: rules.split: must be {seed: per run}; got 3"),
        (
            "  seeds: 3",
            "  seeds: three",
            "line 10: rules.seeds: must be a whole number, or {at_least: 3, at_most: 20};",
        ),
        ("  seeds: 3", "  seeds: {at_least: 9, at_most: 4}", "rules.seeds: at_most must not be below at_least; got 4"),
        (
            "  seeds: 3",
            "  seeds: {at_leats: 9}",
            "rules.seeds: takes at_least and at_most; got 'at_leats'; did you mean",
        ),
        ("{steps: 1e1}", "{steps: -10}", "line 9: rules.budget: steps must be positive; got -10"),
        (
            "{steps: 1e1}",
            "{hours: 3}",
            "line 9: rules.budget: must be exactly one of steps, epochs, tokens, flops, seconds",
        ),
        ("baseline: one", "baseline: oen", "line 4: baseline 'oen' is no variant; did you mean 'one'?"),
        ("  two: {channels: 8}", "  one: {channels: 8}", "line 7: 'one' is written twice; names must differ"),
        ("  two: {channels: 8}", "  One!: {}", "variants 'one' and 'One!' would share the folder 'one'"),
        ("  two: {channels: 8}", '  "t\\0wo": {}', r"'t\x00wo' holds characters that cannot be shown; leave them out"),
        ("rules:\n", "training: {budget: 3}\nrules:\n", "training may not set 'budget'"),
        ("  seeds: 3", "  tune: {lr: [1e-3, 3e-3]}", "line 10: rules.tune: lr: the better of two values always lies"),
        ("  seeds: 3", "  tune: {budget: [1, 2, 3]}", "line 10: rules.tune: the budget cannot be tuned"),
        ("  seeds: 3", "  tune: {lr: [1e-3, 1.0000001e-3, 1]}", "line 10: rules.tune: lr needs one or more different"),
        ("effect: 0.01", "effect: .inf", "line 11: rules.smallest_effect: Input should be a finite number"),
        ("{channels: 8}", "{training: fast}", "line 5: variants: training of 'two' must be a mapping; got 'fast'"),
        ("  two:", "  report.html:", "line 5: variants: 'report.html' cannot be a folder of the study"),
        ("scales:\n  small: {rules: {seeds: 1}, model: {channels: 4}}", "scales: small", "scales must be a mapping"),
        *(
            (
                "scales:\n  small: {rules: {seeds: 1}, model: {channels: 4}}",
                f"scales: {value}",
                "scales must be a mapping",
            )
            for value in ("0", "[]", "''", "false")
        ),
        ("question: Is it?", "question: 2020-01-01", "a study file holds texts, numbers, lists and mappings"),
        ("question: Is it?", "question: [", "line 3: expected"),
        ("question: Is it?\n", "", "'question' is missing"),
        (
            "model: {name: cnn}\n",
            "",
            "'model' is missing; it may be so where every variant has a 'name'; one of your own is",
        ),
        ("rules:\n", "compare: {two: oen}\nrules:\n", "compare: 'oen' is no variant; did you mean 'one'?"),
        ("rules:\n", "compare: {two: [one, two]}\nrules:\n", "compare: 'two' is compared with itself"),
        ("rules:\n", "compare: {two: one, one: two}\nrules:\n", "compare: 'one' and 'two' are compared twice"),
        (
            "rules:\n",
            "compare: [two]\nrules:\n",
            "compare: must be {variant: other} or {variant: [other, another]}; got ['t",
        ),
        (
            "rules:\n",
            "compare: {two: 3}\nrules:\n",
            "compare: must be {variant: other} or {variant: [other, another]}; got {'t",
        ),
        ("rules:\n", "compare: {two: []}\nrules:\n", "compare: names no comparison; leave it out to compare every"),
    ],
)
def test_problems_are_named_with_file_and_line(write_study, old, new, expected):
    path = write_study(GOOD.replace(old, new))
    text = complaint(path)
    assert expected in text
    assert str(path) in text


def test_all_problems_are_named_at_once(write_study):
    text = complaint(write_study(GOOD.replace("seeds: 3", "seeds: 0").replace("{steps: 1e1}", "{steps: 0}")))
    assert len(text.splitlines()) == 2


def test_unknown_study_scale_and_text(write_study, tmp_path):
    with pytest.raises(SpecError, match=r"no study 'shpaes' in the library .* did you mean 'shapes'"):
        load_study("shpaes")
    path = write_study(GOOD)
    with pytest.raises(SpecError, match=rf"no study file .*; did you mean '{path}'"):
        load_study(path.with_suffix(".yml"))
    with pytest.raises(SpecError, match=rf"and no file of that name; did you mean '{path}'"):
        load_study(path.with_suffix(""))
    with pytest.raises(SpecError, match=r"no study file .*missing.yaml$"):
        load_study(tmp_path / "other" / "missing.yaml")
    with pytest.raises(SpecError, match=r"no study file ~nobody-known/missing\.yaml"):
        load_study("~nobody-known/missing.yaml")
    with pytest.raises(SpecError, match="no scale 'smal'; did you mean 'small'"):
        load_study(write_study(GOOD), scale="smal")
    deep = tmp_path / "deep.yaml"
    deep.write_text("question: " + "[" * 9_999)
    with pytest.raises(SpecError, match=r"deep\.yaml cannot be read: it is nested too deeply"):
        load_study(deep)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"question: \xff\xfe")
    with pytest.raises(SpecError, match="not UTF-8"):
        load_study(binary)
    listed = tmp_path / "list.yaml"
    listed.write_text("- a\n- b\n")
    with pytest.raises(SpecError, match="must be a mapping; got list"):
        load_study(listed)


def test_paths_of_own_modules_start_at_the_file(write_study):
    path = write_study(GOOD.replace("two: {channels: 8}", "two: {mixer: ./mine.py:Mixer}"))
    assert load_study(path).model_spec("two")["mixer"] == f"{path.parent / 'mine.py'}:Mixer"
    assert load_study(path).content["variants"]["two"]["mixer"] == "./mine.py:Mixer"  # the hash knows no machine


def test_a_text_beside_the_study_is_found_from_anywhere(write_study, tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("abc")
    path = write_study(GOOD.replace("{name: shapes}", "{name: char-lm, text: mine.txt}"))
    monkeypatch.chdir("/")
    assert load_study(path).task["text"] == str(tmp_path / "mine.txt")
    assert load_study(path).content["task"]["text"] == "mine.txt"
    empty = write_study(GOOD.replace("{name: shapes}", "{name: char-lm, text: ''}"))
    assert load_study(empty).task["text"] == ""  # not the folder that the study lies in


def test_a_folder_of_the_same_name_hides_no_study(tmp_path, monkeypatch):
    (tmp_path / "shapes").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_study("shapes").name == "shapes"


def test_merge_replaces_a_part_of_another_name():
    below = {"mixer": {"name": "attention", "n_heads": 4}, "d_model": 3}
    assert merge(below, {"mixer": {"n_heads": 2}})["mixer"] == {"name": "attention", "n_heads": 2}
    assert merge(below, {"mixer": {"name": "lstm"}}) == {"mixer": {"name": "lstm"}, "d_model": 3}
    assert merge(below, {"mixer": "none"})["mixer"] == "none"


@pytest.mark.parametrize("name", sorted(library()))
def test_every_study_of_the_library_is_valid_at_every_scale(name):
    study = load_study(name)
    assert study.question.endswith("?")
    for scale in YAML().load(library()[name].read_text(encoding="utf-8")).get("scales", {}):
        assert load_study(name, scale=scale).hash != study.hash


def test_slugs():
    assert slug("CNN + attention (k=5)") == "cnn-attention-k-5"
    assert slug("///") == "variant"
