"""The report in all its forms: stable keys, finite numbers, escaped names, words that agree with the numbers."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from html import escape as escape_html
from itertools import pairwise

import pytest
from rich.console import Console
from tests.studies.example_results import ACCURACY, against, parts, shapes, translations

from attnlab.core.contracts import Metric
from attnlab.core.errors import RunError
from attnlab.studies.judge.results import MOST_DRAWN, Alarm, CellResults
from attnlab.studies.report import headline, numbers, report, verdict_table, write_report
from attnlab.studies.report.charts import _compressed_ticks, _cost_rows, _effect_rows, effect_caption, effects
from attnlab.studies.report.figures import figures
from attnlab.studies.report.html import page
from attnlab.studies.report.markdown import escape, markdown
from attnlab.studies.report.numbers import ABSENT, duration, number, spread
from attnlab.studies.report.span import Span, apart, beside, span_of
from attnlab.studies.report.style import draw, label, spec_of
from attnlab.studies.report.surfaces import surfaces
from attnlab.studies.report.tables import RANKS, TRAINED, WRITTEN, facts, measures, ranks, specifications, verdicts
from attnlab.studies.report.words import CLOSE, OPEN, mean_seconds, price, title

NAME = "attention only <script>alert(1)</script>"


def loads_strictly(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("report")
    assert write_report(parts(), target.as_uri()) == target / "report.html"
    return target


def unfinished():
    """Nothing has run yet."""
    full = parts()
    empty = tuple(
        dataclasses.replace(variant, cells=tuple(CellResults(cell.seed, "missing") for cell in variant.cells))
        for variant in full.variants
    )
    return dataclasses.replace(full, variants=empty, alarms=(), complete=False)


def in_hundreds():
    """Give every variant a metric and a time of some hundreds, each its own."""
    results = parts(seeds=2)
    variants = [
        dataclasses.replace(
            variant,
            cells=tuple(
                CellResults(cell.seed, "done", {"score": 100.0 + 10 * place + cell.seed}, seconds=25.0 * place)
                for cell in variant.cells
            ),
        )
        for place, variant in enumerate(results.variants, start=1)
    ]
    metric = Metric("score", "points", "lower", "score")
    return dataclasses.replace(results, variants=tuple(variants), metric=metric)


def with_value(results, name, seed, value):
    variants = []
    for variant in results.variants:
        cells = [
            dataclasses.replace(cell, metrics=dict(cell.metrics) | {results.metric.name: value})
            if (variant.name, cell.seed) == (name, seed)
            else cell
            for cell in variant.cells
        ]
        variants.append(dataclasses.replace(variant, cells=tuple(cells)))
    return dataclasses.replace(results, variants=tuple(variants))


def with_values(*values):
    """Give as many variants, the first the baseline, these losses by seed."""
    full = parts(seeds=len(values[0]))
    rows = [
        tuple(CellResults(seed, "done", {"val_loss": loss}) for seed, loss in enumerate(losses)) for losses in values
    ]
    variants = [dataclasses.replace(one, tuning={}, cells=row) for one, row in zip(full.variants, rows, strict=False)]
    first = variants[0].name
    changed = {"variants": tuple(variants), "contrasts": against(first, variants), "alarms": ()}
    return dataclasses.replace(full, baseline=first, **changed)


def computed_in(results, setting):
    variants = tuple(
        dataclasses.replace(variant, cells=tuple(dataclasses.replace(cell, setting=setting) for cell in variant.cells))
        for variant in results.variants
    )
    return dataclasses.replace(results, variants=variants)


def test_the_setting_of_all_runs_is_a_fact_where_it_is_not_the_usual_one():
    assert "computed in bf16, compiled" in facts(computed_in(parts(), "bf16, compiled"))
    assert not any("computed" in fact for fact in facts(computed_in(parts(), "float32")))
    assert report(computed_in(parts(), "bf16"))["variants"][0]["settings"] == ["bf16"]


def test_every_form_is_written(folder):
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {
        *("report.html", "report.md", "report.json"),
        *("charts/effects.png", "charts/curves.png", "charts/cost.png", "charts/surface.png"),
    }


def test_json_has_the_documented_keys_only(folder):
    found = loads_strictly((folder / "report.json").read_text())
    assert set(found) == {
        *("study", "question", "task", "rules", "floors", "complete"),
        *("variants", "verdicts", "claims", "alarms", "environment", "heads"),
    }
    costs = {"parameters", "flops_per_token", "training_flops", "activation_bytes", "seconds", "written_per_second"}
    assert set(found["variants"][0]) == {"name", "settings", "spec", "tuning", "metrics"} | costs
    assert set(found["variants"][0]["metrics"]["val_loss"]) == {"mean", "std", "values"}
    assert set(found["verdicts"][0]) == {
        *("variant", "baseline", "metric", "difference", "low", "high"),
        *("p_adjusted", "verdict", "seeds_needed", "look", "failures", "median", "better_share", "reason"),
    }
    assert set(found["alarms"][0]) == {"check", "variant", "message"}
    assert "hash" in found["rules"]


def test_specifications_name_all_of_the_baseline_and_where_the_others_differ():
    found = specifications(parts())
    assert found[0].name == "attention + residual + norm"
    assert {"task.name", "model.mixer.n_heads", "training.lr", "training.budget.steps"} <= set(dict(found[0].rows))
    (plain,) = (one for one in found if one.name == "no attention")
    assert dict(plain.rows) == {
        "model.mixer": "none",
        "model.mixer.name": "not set",
        "model.mixer.n_heads": "not set",
    }


def test_json_has_a_verdict_for_every_variant_but_the_baseline(folder):
    found = loads_strictly((folder / "report.json").read_text())
    names = [variant["name"] for variant in found["variants"]]
    names.remove("attention + residual + norm")
    assert [verdict["variant"] for verdict in found["verdicts"]] == names


def test_values_keep_the_place_of_a_failed_seed():
    values = report(parts())["variants"][1]["metrics"]["val_loss"]["values"]
    assert [value is None for value in values] == [False, True, False, False, False]


def test_one_seed_has_no_standard_deviation():
    summary = report(parts(seeds=1))["variants"][0]["metrics"]["val_loss"]
    assert summary["std"] is None
    assert summary["mean"] == summary["values"][0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_becomes_null(value):
    results = with_value(shapes(), "CNN", 1, value)
    found = json.loads(json.dumps(report(results), allow_nan=False))
    assert found["variants"][0]["metrics"]["test_mse"]["values"][1] is None


def test_the_page_holds_nothing_from_elsewhere(folder):
    page = (folder / "report.html").read_text()
    names = re.sub(r"xmlns(:\w+)?=\"[^\"]+\"", "", page)
    assert re.findall(r"https?://", names) == []
    assert re.findall(r"<(?:img|iframe|object|script[^>]+src)", page) == []


def test_names_are_text_in_every_form(folder):
    page, document = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<script>alert" not in document
    assert OPEN not in page + document
    assert CLOSE not in page + document


def test_a_table_of_markdown_survives_a_pipe():
    assert escape("a | b\n`c` <i>") == r"a \| b \`c\` \<i\>"


def test_results_show_themselves_in_a_notebook():
    results = parts()
    html = results._repr_html_()
    assert "<script>" not in html
    assert all(f"{alarm.check}" in html for alarm in results.alarms)
    for one in results.verdicts:
        assert f"<td>{escape_html(one.variant)}</td>" in html
        assert f"<td>{one.verdict}</td>" in html
        assert f"{one.comparison.difference:+.4g}" in html
    assert unfinished()._repr_html_()  # nothing has run, and nothing is concluded


def test_alarms_stand_before_the_verdicts(folder):
    for name in ("report.html", "report.md"):
        text = (folder / name).read_text()
        assert 0 < text.index("leak or mixing suspected") < text.index("Verdicts")


def test_markdown_links_the_charts_that_exist(folder):
    links = re.findall(r"\]\((charts/[^)]+)\)", (folder / "report.md").read_text())
    assert len(links) == 4
    assert all((folder / link).is_file() for link in links)


def test_predictions_and_maps_have_their_place(tmp_path):
    write_report(shapes(), tmp_path)
    assert (tmp_path / "charts" / "predictions.png").is_file()
    assert (tmp_path / "report.html").read_text().count("<canvas") == 1


def test_translations_stand_beside_those_of_a_person(tmp_path):
    page = write_report(translations(), tmp_path).read_text(encoding="utf-8")
    assert "What do they write?" in page
    assert "<th>Two men are standing in a &lt;b&gt;park.</th>" in page
    assert page.count("<td>Zwei M\u00e4nner stehen in einem Park.</td>") == 1
    assert [f"<td>Zwei M\u00e4nner {place}</td>" in page for place in (0, 1)] == [True, True]
    assert "What do they write?" not in write_report(shapes(), tmp_path).read_text(encoding="utf-8")


def test_the_headline_names_the_best_variant_and_by_how_much():
    text = headline(shapes())
    assert text.startswith("“CNN + attention” is better than the baseline “CNN”: it reaches a test MSE of 0.0013")
    assert "times as much" in text
    nats = dataclasses.replace(shapes().metric, unit="nats/token")
    assert "times as much" not in headline(dataclasses.replace(shapes(), metric=nats))


def test_the_headline_does_not_lead_with_a_variant_that_raised_an_alarm():
    text = headline(parts())
    assert text.startswith("“attention + residual + norm, 4 heads” is better")
    assert "Not to be believed before its alarm is explained: “leaky”" in text
    assert "1 run failed and 1 alarm was raised" in text


def test_a_failed_or_untuned_run_does_not_make_its_variant_suspect():
    full = parts()
    name = "attention + residual + norm, 4 heads"
    raised = (*full.alarms, Alarm("failed", name, "seed 1 failed"), Alarm("untuned", name, "edge of the grid"))
    text = headline(dataclasses.replace(full, alarms=raised))
    assert text.startswith(f"“{name}” is better")
    assert "1 run failed and 2 alarms were raised" in text


def test_the_headline_says_that_one_seed_shows_nothing():
    text = headline(parts(seeds=1))
    assert text.startswith("Undecided: one seed shows nothing.")
    assert text.count("ndecided") == 1


def test_what_tuning_tried_is_told(folder):
    for name in ("report.html", "report.md"):
        assert re.search(r"0\.003: \u2013", (folder / name).read_text())


def test_ranks_are_means_over_the_heads_of_a_variant_that_was_looked_into(folder):
    results = parts()
    told = ranks(results)
    assert "no attention" not in [name for name, *_ in told]
    assert told[0][1:] == ("16", "4", "18.5", "50\u202f%")
    row = f"| {' | '.join(escape(cell) for cell in told[0])} |"
    assert f"{row}\n" in (folder / "report.md").read_text()
    assert RANKS in (folder / "report.html").read_text()


def test_runs_of_earlier_versions_have_maps_without_ranks():
    results = translations()
    assert results.variants[0].attention
    assert ranks(results) == []
    assert RANKS not in markdown(results, ()) + page(results, ())


def test_lines_of_one_kind_are_clipped_together():
    results = parts()
    svg = draw(surfaces(results), "surface").svg
    panels = sum(any(cell.surface for cell in variant.done) for variant in results.variants)
    assert svg.count('aria-roledescription="line mark"') > 2 * panels, "each panel has several lines of a kind"
    assert svg.count(' clip-path="') == 2 * panels, "once the others' lines and once the variant's own"


def test_charts_of_a_large_study_show_the_baseline_and_the_best():
    results = parts()
    first, *_ = results.variants
    values = first.values("val_loss")
    many = tuple(
        dataclasses.replace(
            first,
            name=f"v{number}",
            cells=tuple(
                dataclasses.replace(cell, metrics={"val_loss": values[cell.seed] - number / 100})
                for cell in first.cells
            ),
        )
        for number in range(MOST_DRAWN + 6)
    )
    contrasts = tuple((one.name, "v0") for one in many[1:])
    large = dataclasses.replace(results, variants=many, baseline="v0", contrasts=contrasts, alarms=())
    best = [f"v{number}" for number in range(7, MOST_DRAWN + 6)]
    assert [variant.name for variant in large.charted] == ["v0", *best]
    assert [row["variant"] for row in _effect_rows(large)[0]] == best[::-1]
    assert [row["number"] for row in _cost_rows(large)] == ["1", *(str(int(name[1:]) + 1) for name in best)]
    assert f"charts show the baseline and the {MOST_DRAWN - 1} best" in facts(large)
    assert len(verdicts(large)) == len(many)
    assert results.charted == results.variants
    assert not any("charts show" in fact for fact in facts(results))


def writing(results, a_second):
    """Results whose variants but for the first wrote so many sentences a second."""
    return dataclasses.replace(
        results,
        variants=tuple(
            dataclasses.replace(
                one,
                cells=tuple(dataclasses.replace(cell, written_per_second=a_second * bool(place)) for cell in one.cells),
            )
            for place, one in enumerate(results.variants)
        ),
    )


def test_what_no_verdict_is_about_is_told_as_well(folder):
    """A study judged by its loss says what its translations score, and whatever else its task measures."""
    results = parts()
    titles, rows = measures(results)
    assert titles == [f"val_accuracy ({ACCURACY.unit})"]
    values = list(results.variants[0].values("val_accuracy").values())
    assert rows[0] == ("no attention", [spread(values)])
    for name in ("report.html", "report.md"):
        assert spread(values) in (folder / name).read_text()
    assert measures(writing(results, 12.5)) == (
        [*titles, WRITTEN],
        [(name, [*of, "12.50 ± 0" if place else ABSENT]) for place, (name, of) in enumerate(rows)],
    )
    alone = dataclasses.replace(results, metrics=(results.metric,))
    assert "Everything measured" not in markdown(alone, ()) + page(alone, figures(alone))


def test_what_training_took_is_told_of_what_finished():
    """By the tokens of each run: one that stops early takes less."""
    full = parts()
    first, *others = full.variants
    tokens = [1_000_000 + 500_000 * seed for seed, _ in enumerate(first.cells)]
    cells = [dataclasses.replace(cell, tokens=count) for cell, count in zip(first.cells, tokens, strict=True)]
    some = dataclasses.replace(full, variants=(dataclasses.replace(first, cells=tuple(cells)), *others))
    titles, rows = measures(some)
    flops = first.flops_per_token * sum(tokens) / len(tokens)
    assert titles[-1] == TRAINED
    assert [values[-1] for _, values in rows] == [numbers.flops(flops), *[ABSENT] * len(others)]
    assert [one["training_flops"] for one in report(some)["variants"]] == [flops, *[None] * len(others)]


def test_an_untuned_variant_gets_no_verdict():
    verdicts = {one["variant"]: one for one in report(parts())["verdicts"]}
    assert verdicts["literal wiring: relu(linear(norm(x + mix(x))))"]["verdict"] == "undecided"


def test_the_headline_says_when_nothing_beats_the_baseline():
    full = shapes()
    kept = tuple(one for one in full.variants if one.name == "CNN" or "batch" in one.name)
    few = dataclasses.replace(full, variants=kept, contrasts=against("CNN", kept))
    assert headline(few).startswith("Nothing beats the baseline “CNN”")


def test_comparisons_that_leave_the_baseline_aside_are_told_with_both_names(tmp_path):
    full = parts()
    first, second = "attention + residual + norm, 4 heads", "no attention"
    few = dataclasses.replace(full, contrasts=((first, second), (second, first)))
    assert headline(few).startswith(f"“{first}” is better than “{second}”")
    assert f"Worse: “{second}” against “{first}”" in headline(few)
    page = write_report(few, tmp_path).read_text()
    told = json.loads((tmp_path / "report.json").read_text())["verdicts"]
    assert (told[0]["variant"], told[0]["baseline"]) == (first, second)
    assert [one["verdict"] for one in told[2:]] == ["exploratory"] * (len(full.variants) - 3)
    assert "not among the comparisons of the rules" in page
    assert "exploratory" in (tmp_path / "report.md").read_text()


def test_a_comparison_is_shown_once_and_what_others_are_compared_with_says_so():
    full = parts()
    other = next(variant.name for variant in full.variants if variant.name != full.baseline)
    few = dataclasses.replace(full, contrasts=((full.baseline, other),))
    assert other not in {one.variant for one in few.exploratory}
    row = next(row for row in verdicts(few) if row["name"] == other)
    assert (row["verdict"], row["reason"]) == ("compared with", f"what {full.baseline} is compared with")


def test_an_open_question_has_its_price():
    full = parts()
    one = next(one for one in full.verdicts if one.seeds_needed)
    seconds = sum(mean_seconds(full.variant(name)) for name in (one.variant, one.baseline))
    row = next(row for row in verdicts(full) if row["name"] == title(full, one))
    assert row["reason"] == f"{one.reason}: {duration(one.seeds_needed * seconds)} of training"  # begun anew
    looks = {"looks": [one.look, 2 * one.look], "levels": [0.01, 0.01]}
    going_on = dataclasses.replace(full, rules={**full.rules, **looks})
    same = next(each for each in going_on.verdicts if each.variant == one.variant)
    assert price(going_on, same) == duration((same.seeds_needed - same.comparison.pairs) * seconds)


def test_comparisons_with_long_names_keep_rows_of_their_own():
    full = parts()
    long = [dataclasses.replace(variant, name="part of the block " * 6 + variant.name) for variant in full.variants]
    few = dataclasses.replace(
        full, variants=tuple(long), baseline=long[0].name, contrasts=against(long[0].name, long), alarms=()
    )
    axis = effects(few).to_dict()["layer"][2]["encoding"]["y"]
    assert len(axis["scale"]["domain"]) == len(set(axis["scale"]["domain"])) == len(long) - 1


def test_seeds_beyond_the_axis_of_effects_are_counted_at_its_ends():
    usual = [0.01 * (seed % 3) for seed in range(30)]
    results = with_values([0.0] * 30, [-2.0, *usual[1:28], 3.0, 4.0])
    (dots,) = (layer for layer in spec_of(effects(results))["layer"] if layer["mark"].get("opacity") == 0.45)
    low, high = dots["encoding"]["x"]["scale"]["domain"]
    shown = [row["value"] for row in dots["data"]["values"]]
    assert len(shown) == 27
    assert -2 < low <= min(shown) <= max(shown) <= high < 3
    effect = figures(results)[0]
    assert re.findall(">([^<>]*[\u25c4\u25ba][^<>]*)<", effect.drawing.svg) == ["\u25c4\u00a01", "2\u00a0\u25ba"]
    assert "those beyond the axis counted" in effect.caption
    assert "beyond" not in effect_caption(parts())


def test_the_median_and_the_chance_to_be_better_stand_beside_the_mean():
    results = with_values([10.0, 20.0, 30.0], [9.0, 18.0, 33.0])
    first, second = verdicts(results)
    assert (first["median"], first["chance"]) == ("", "")
    assert (second["difference"], second["median"], second["chance"]) == ("+0.0", "\u22121.0", "55.6\u202f%")
    assert "| \u22121.0 / 55.6 % |" in markdown(results, ())
    assert '<td class="n">\u22121.0<small>55.6\u202f%</small></td>' in page(results, ())


def test_a_comparison_without_a_pair_has_neither_median_nor_chance():
    results = with_values([10.0], [math.nan])
    assert [(row["median"], row["chance"]) for row in verdicts(results)] == [("", "")] * 2


def test_the_headline_says_when_there_is_nothing_to_compare():
    full = shapes()
    assert "nothing to compare" in headline(dataclasses.replace(full, variants=full.variants[:1], contrasts=()))


@pytest.mark.parametrize("make", [lambda: parts(seeds=1), lambda: parts(2, 11)])
def test_any_state_of_a_study_can_be_written(make, tmp_path):
    page = write_report(make(), tmp_path).read_text()
    loads_strictly((tmp_path / "report.json").read_text())
    assert "Which part of the Transformer block carries the result?" in page


def test_an_unfinished_study_says_so(tmp_path):
    page = write_report(unfinished(), tmp_path).read_text()
    loads_strictly((tmp_path / "report.json").read_text())
    assert "This study is not finished" in page
    assert "35 runs are missing" in page


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write in"):
        write_report(shapes(seeds=2), tmp_path / "file")


@pytest.mark.parametrize("width", [28, 40, 53, 80, 200])
def test_the_terminal_table_has_every_variant_and_verdict(width):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(verdict_table(parts(), width))
    text = console.export_text()
    for word in ("leaky", "baseline", "better", "worse", "undecided", "<script>"):
        assert word in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (2.5e-7, "2.50e\u221207"),
        (123_456.0, "123,456"),
        (-0.05, "\u22120.05"),
        (math.nan, "\u2013"),
        (1e9, "1.00e+09"),
    ],
)
def test_numbers_read_well(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "\u2013"),
        ([1.25], "1.25"),
        ([1.7, 1.708], "1.7040 ± 0.0057"),
        ([1.98849, 1.98850], "1.9885 ± 7.1e\u221206"),
        ([3.0, 3.0], "3.000 ± 0"),
    ],
)
def test_mean_and_deviation_show_the_digits_they_deserve(values, text):
    assert spread(values) == text


def test_long_names_take_two_balanced_lines():
    assert label("attention + residual + norm, 4 heads").count("\n") == 1
    assert label("short") == "short"
    assert len(label("word " * 50).split("\n")) == 2


def test_a_span_and_its_inverse_agree():
    for span in (Span(1.0, 100.0, logarithmic=True), Span(-3.0, 5.0, logarithmic=False)):
        assert [span.value(span.at(value)) for value in (2.0, 4.0)] == pytest.approx([2.0, 4.0])
    assert span_of([3.0, 3.0], ratio_for_log=5, margin=0.0).high > 3


def test_labels_keep_their_distance_and_stay_inside():
    places = apart([0.97, 0.98, 0.99, 0.2], 0.05)
    ordered = sorted(places)
    assert all(b - a > 0.0499 for a, b in pairwise(ordered))
    assert max(places) <= 1


def test_points_do_not_cover_each_other():
    points = [(0.5, 0.5)] * 5
    places = sorted(beside(points, 0.1, 0.1))
    assert all(b - a > 0.09 for a, b in pairwise(places))


def test_a_compressed_axis_has_zero_and_stays_in_its_range():
    ticks = _compressed_ticks(0.05, [-0.1, 2.0])
    assert ticks == sorted(ticks)
    assert 0.0 in ticks
    assert min(ticks) >= -0.1
    assert max(ticks) <= 2.0


def test_hundreds_are_written_out_on_axes():
    drawings = {figure.drawing.name: figure.drawing.svg for figure in figures(in_hundreds())}
    assert drawings.keys() >= {"effects", "cost"}
    for svg in drawings.values():
        assert re.findall(r">[^<>\d]?[\d.]+e[^<>]*</text>", svg) == []
    assert ">150</text>" in drawings["cost"]


def test_small_numbers_keep_an_exponent_on_axes():
    assert Span(2e-7, 8e-7, logarithmic=False).ticks()["format"] == "~g"
    assert Span(2e-7, 8.0, logarithmic=False).ticks()["format"] == ",~r"
