"""The page in a real browser: no errors, no requests, maps that are drawn and can be chosen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.studies.example_results import SOURCE, TARGET, across, parts, translations

from attnlab.studies.report import write_report
from attnlab.studies.report.html import sentences_page
from attnlab.studies.using.looking import SentenceMaps

CHROMIUM = Path("/usr/bin/chromium")
PICTURE = "canvas => canvas.toDataURL()"
PIXELS = """canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return Array.from(data);
}"""

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium at /usr/bin/chromium")


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        running = playwright.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        yield running
        running.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_report(parts(seeds=2), tmp_path_factory.mktemp("page"))


@pytest.fixture
def opened(browser, path):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    problems, requests = [], []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append("a script of a name ran"), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    yield page, problems, requests
    page.close()


def test_the_page_works_alone(opened):
    page, problems, requests = opened
    assert (
        page.get_by_role("heading", level=1).inner_text() == "Which part of the Transformer block carries the result?"
    )
    assert page.locator("svg").first.is_visible()
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def test_a_map_is_drawn_and_changes_with_head_and_layer(opened):
    page, problems, _ = opened
    canvas = page.locator("article.map canvas").first
    first = canvas.evaluate(PICTURE)
    page.locator("article.map .head").first.select_option(index=1)
    second = canvas.evaluate(PICTURE)
    page.locator("article.map .layer").first.select_option(index=1)
    third = canvas.evaluate(PICTURE)
    assert first != second
    assert second != third
    assert page.locator("article.map .head").first.input_value() == "1"
    assert problems == []


def test_a_map_is_not_blank(opened):
    page, _, _ = opened
    red = page.locator("article.map canvas").first.evaluate(PIXELS)[0::4]
    assert len(set(red)) > 10


def test_a_weight_is_told_with_the_labels_of_both_positions(opened):
    page, _, _ = opened
    canvas = page.locator("article.map canvas").first
    canvas.scroll_into_view_if_needed()
    canvas.hover(position={"x": 2, "y": 2})
    assert '"F" (0) looks at "F" (0): ' in page.locator("article.map output").first.inner_text()


def test_the_rank_of_the_head_that_is_drawn_is_told(opened):
    page, problems, _ = opened
    told = page.locator("article.map .rank").first
    assert told.inner_text() == "effective rank of the weights 18.5 of 37, of the scores 4.0 (heads 16 wide)"
    page.locator("article.map .head").first.select_option(index=2)
    assert told.inner_text() == "effective rank of the weights 18.5 of 37 (heads 16 wide)"
    assert problems == []


@pytest.mark.parametrize(("layer", "queries", "keys"), [(0, SOURCE, SOURCE), (1, TARGET, TARGET), (2, TARGET, SOURCE)])
def test_axes_of_maps_have_the_tokens_of_their_sequence(browser, tmp_path, layer, queries, keys):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(write_report(translations(), tmp_path).as_uri())
    page.locator("article.map .layer").first.select_option(index=layer)
    for axis, wanted in ((".queries", queries), (".keys", keys)):
        found = page.locator(f"article.map {axis}").first.locator("span").all_text_contents()
        assert found == [name.strip() for name in wanted]
    box = page.locator("article.map canvas").first.bounding_box()
    label = page.locator("article.map .queries").first.locator("span").last.bounding_box()
    assert label["y"] + label["height"] == pytest.approx(box["y"] + box["height"], abs=3)
    assert problems == []
    page.close()


@pytest.mark.parametrize(("layer", "queries", "keys"), [(0, SOURCE, SOURCE), (1, TARGET, TARGET), (2, TARGET, SOURCE)])
def test_axes_of_sequences_of_one_length_are_told_by_the_layer(browser, tmp_path, layer, queries, keys):
    length = min(len(SOURCE), len(TARGET))
    rng = np.random.default_rng(0)
    sides = {"encoder.blocks.0.mixer": [0, 0], "decoder.blocks.0.mixer": [1, 1], "decoder.blocks.0.cross": [1, 0]}
    layers = [across(rng, length, length, name) | {"axes": axes} for name, axes in sides.items()]
    found = {"labels": [SOURCE[:length], TARGET[:length]], "layers": layers}
    (tmp_path / "maps.html").write_text(sentences_page([SentenceMaps("Two <b>men", "Zwei", {"a run": found})]))
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto((tmp_path / "maps.html").as_uri())
    assert page.locator("h2").first.inner_text() == "Two <b>men"
    page.locator("article.map .layer").first.select_option(index=layer)
    for axis, wanted in ((".queries", queries), (".keys", keys)):
        shown = page.locator(f"article.map {axis}").first.locator("span").all_text_contents()
        assert shown == [name.strip() for name in wanted[:length]]
    page.locator("article.map canvas").first.hover(position={"x": 2, "y": 2})
    told = page.locator("article.map output").first.inner_text()
    assert told.startswith(f"{json.dumps(queries[0])} (0) looks at {json.dumps(keys[0])} (0): ")
    assert problems == []
    page.close()


@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_but_charts_and_tables_scrolls_sideways(opened, width):
    page, _, _ = opened
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_verdict_table_fits_a_page_of_usual_width(opened):
    page, _, _ = opened
    table = page.locator("table.verdicts")
    assert "chance to\nbe better" in table.locator("thead").inner_text()
    assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")


def test_dark_ground_is_readable(opened):
    page, _, _ = opened
    page.emulate_media(color_scheme="dark")
    ground, ink = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    lightness = [sum(map(int, color[4:-1].split(","))) for color in (ground, ink)]
    assert lightness[0] < 150 < 500 < lightness[1]


CUT_TEXTS = """charts => charts.flatMap(chart => {
  const outer = chart.getBoundingClientRect(), svg = chart.querySelector("svg"), drawing = svg.getBoundingClientRect();
  const seen = getComputedStyle(svg).overflow === "visible" ? outer : drawing;
  return [...svg.querySelectorAll("text")].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < seen.left || box.right > seen.right;
  }).map(text => text.textContent);
})"""


def test_a_wider_font_cuts_no_text_of_a_chart(opened):
    page, _, _ = opened
    page.add_style_tag(content="svg text { font-family: 'DejaVu Sans', Verdana !important; }")
    assert page.locator(".chart").evaluate_all(CUT_TEXTS) == []
