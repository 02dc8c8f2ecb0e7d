"""What runs watched is drawn by layer for every variant, and nothing where no run watched anything."""

from __future__ import annotations

import dataclasses
import re

from tests.studies.example_results import parts

from attnlab.studies.report.figures import figures
from attnlab.studies.report.inside.watched import caption, watched
from attnlab.studies.report.style import spec_of

LAYERS = [f"blocks.{number}" for number in range(7)]


def looked_at(results, count, layers=LAYERS, note=None):
    """Let every run of the first so many variants have looks."""
    variants = [
        dataclasses.replace(
            variant,
            cells=tuple(
                dataclasses.replace(cell, curve=[*cell.curve, *looks(place + cell.seed, layers, note)])
                for cell in variant.cells
            ),
        )
        if place < count
        else variant
        for place, variant in enumerate(results.variants)
    ]
    return dataclasses.replace(results, variants=tuple(variants))


def looks(offset, layers, note):
    for step in range(1, 1000, 10):
        heads = [0.25 + offset / 100, 0.75 + offset / 100, None]
        seen = {"entropy": dict.fromkeys(layers, heads), "gradient_norm": dict.fromkeys(layers, 1.0 + offset)}
        yield {"step": step, "lr": 1e-3, "watch": seen | ({"note": note} if note else {})}


def _data(place):
    """The data of a chart, which altair puts at the outermost place that shares them."""
    for one in (place, *place.get("layer", ())):
        if "data" in one:
            yield one["data"]["values"]


def rows_of(chart):
    """By quantity and layer the rows of every panel."""
    spec = spec_of(chart)
    data = [
        next(_data(place)) for strip in spec["vconcat"] for place in ([strip] if "data" in strip else strip["hconcat"])
    ]
    return {(rows[0]["quantity"], rows[0]["layer"]): rows for rows in data}


def test_a_study_that_watched_nothing_has_no_such_chart():
    assert watched(parts(seeds=2)) is None
    assert "watched" not in {figure.drawing.name for figure in figures(parts(seeds=2))}


def test_the_first_and_the_last_layers_and_some_between_have_panels():
    panels = rows_of(watched(looked_at(parts(seeds=2), 2)))
    shown = [layer for layer in LAYERS if layer in {layer for _, layer in panels}]
    assert list(panels) == [(quantity, layer) for quantity in ("entropy", "gradient_norm") for layer in shown]
    assert (len(shown), shown[0], shown[-1]) == (4, "blocks.0", "blocks.6")
    single = rows_of(watched(looked_at(parts(seeds=2), 2, layers=["one"])))
    assert list(single) == [("entropy", "one"), ("gradient_norm", "one")]


def test_a_curve_is_the_mean_over_heads_and_seeds_with_the_seeds_as_its_band():
    results = looked_at(parts(seeds=3), 1)
    rows = rows_of(watched(results))["entropy", "blocks.0"]
    assert {row["variant"] for row in rows} == {results.variants[0].name}
    assert (len(rows), rows[0]["step"], rows[-1]["step"]) == (60, 1, 991)
    assert [round(rows[0][key], 6) for key in ("low", "mean", "high")] == [0.5, 0.51, 0.52]


def test_runs_that_failed_are_shown_since_why_may_be_seen():
    results = parts(seeds=2)
    failed = next(place for place, variant in enumerate(results.variants) if variant.failed)
    variant = results.variants[failed]
    only = dataclasses.replace(results, variants=(dataclasses.replace(variant, cells=variant.failed),))
    assert watched(looked_at(only, 1)) is not None


def test_no_more_variants_than_colors_are_shown_and_the_rest_is_said():
    results = parts(seeds=2)
    many = tuple(dataclasses.replace(results.variants[0], name=f"variant {number}") for number in range(11))
    many = dataclasses.replace(results, variants=(*many, *(v for v in results.variants if v.name == results.baseline)))
    shown = {row["variant"] for row in rows_of(watched(looked_at(many, 12)))["entropy", "blocks.0"]}
    assert len(shown) == 8
    assert results.baseline in shown
    assert "4 more variants are not shown." in caption(many)


def test_what_could_not_be_seen_is_said_once_with_its_variants():
    text = caption(looked_at(parts(seeds=2), 2, note="no attention was seen in Conv: gradients alone are watched"))
    assert len(re.findall("no attention was seen in Conv", text)) == 1
    assert "note" not in caption(parts(seeds=2))
