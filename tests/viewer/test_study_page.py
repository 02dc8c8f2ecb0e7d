"""The page of a study in a real browser: curves that follow a run, values that can be read, names that stay text."""

from __future__ import annotations

import copy
import json
import os
import platform
import re
from pathlib import Path

import pytest
from tests.conftest import in_this_process
from tests.studies.conftest import TINY
from tests.viewer.conftest import record, serving, write

from attnlab.studies import parse_study, run_study
from attnlab.training.keeping.runs import HOLDER

HOSTILE = "a \"quoted' <b onclick=alert(1)>&amp; name"
QUESTION = "<img src=x onerror=alert(1)>?"
LOSS = "#loss svg path.mean"


@pytest.fixture
def opened(browser, runs):
    """Return a function that opens a page of `runs`; whatever a browser complains about fails the test."""
    problems, pages = [], []
    with serving(runs) as port:

        def open_page(path, **how):
            page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}, **how})
            pages.append(page)
            page.on("console", lambda message: problems.append(message.text))
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("dialog", lambda dialog: (problems.append("a script of a name ran"), dialog.dismiss()))
            page.goto(f"http://127.0.0.1:{port}{path}")
            return page

        yield open_page
        for page in pages:
            page.close()
    assert problems == []


def test_curves_verdicts_and_runs_are_shown(opened):
    page = opened("/")
    page.get_by_role("link", name="Does a mixer in the middle help?").click()
    page.locator(LOSS).nth(1).wait_for()
    assert page.locator("#metric h3").inner_text() == "validation mean squared error"
    assert page.locator("#loss svg path.single").count() == 4
    assert page.locator("#loss svg path.band").count() == 2
    assert page.locator("#loss svg").get_by_text("training step", exact=True).is_visible()
    assert page.locator("#effects svg .dot").count() == 1
    assert page.locator("#verdicts tbody tr").count() == 2
    assert page.locator("#runs tbody a").count() == 4
    assert page.locator("#runs tbody a").first.get_attribute("href") == "/run/tiny/plain/seed-0"


def test_the_start_page_follows_what_runs(opened, runs, unfinished):
    assert unfinished.is_file()
    holder = runs / "tiny" / HOLDER
    holder.write_text(json.dumps({"pid": os.getpid(), "host": platform.node()}))
    page = opened("/")
    page.get_by_text(re.compile("3 of 4 runs, about .* left")).wait_for()
    holder.unlink()
    page.locator(".state.stopped").wait_for()
    assert page.locator("[data-events]").count() == 0


def test_a_curve_grows_while_its_run_goes_on(opened, unfinished):
    page = opened("/study/tiny")
    page.get_by_text("step 2", exact=True).wait_for()
    before = page.locator("#loss svg path.single").nth(3).get_attribute("d")
    write(unfinished, record(3), record(4))
    page.get_by_text("step 4", exact=True).wait_for()
    assert len(page.locator("#loss svg path.single").nth(3).get_attribute("d")) > len(before)


def test_values_are_read_with_pointer_and_keys_and_as_a_table(opened):
    page = opened("/study/tiny")
    page.locator(LOSS).nth(1).wait_for()
    told, chart = page.locator("#loss output"), page.locator("#loss svg")
    assert told.inner_text().startswith("last: plain ")
    assert "plain" in chart.get_attribute("aria-label")
    chart.focus()
    for key, step in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 5), ("Home", 1)):
        page.keyboard.press(key)
        assert told.inner_text().startswith(f"step {step}: plain ")
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 10, box["y"] + 50)
    assert told.inner_text().startswith("step 5: plain ")
    page.locator("#loss summary").click()
    page.locator("#loss table tbody tr").first.wait_for()
    assert page.locator("#loss table thead th").all_inner_texts() == ["step", "plain", "with attention"]
    assert page.locator("#loss table tbody tr").count() == 5


def test_a_variant_can_be_put_away(opened):
    page = opened("/study/tiny")
    page.locator(LOSS).nth(1).wait_for()
    page.locator("#legend button").first.click()
    assert page.locator(LOSS).count() == 1
    assert page.locator("#legend button").first.get_attribute("aria-pressed") == "false"


def test_names_of_a_person_stay_text(opened, runs):
    study = copy.deepcopy(TINY) | {"question": QUESTION}
    study["variants"][HOSTILE] = study["variants"].pop("with attention")
    study["rules"]["budget"] = {"steps": 2}
    study["rules"]["tune"] = {"lr": [1e-3, 3e-3, 1e-2]}
    with in_this_process():
        run_study(parse_study(study, name="sly", path=Path("sly.yaml")), runs / "sly")
    opened("/").get_by_text(QUESTION).wait_for()
    page = opened("/study/sly")
    page.locator(LOSS).nth(1).wait_for()
    assert page.locator("h1").inner_text() == QUESTION
    assert HOSTILE in page.locator("#legend").inner_text()
    assert HOSTILE in page.locator("#runs").inner_text()
    assert HOSTILE in page.locator("#verdicts").inner_text()
    page.get_by_role("button", name="runs that choose settings").click()
    assert page.locator(LOSS).count() == 2 * (3 + 2)  # settings, and the best two again
    assert page.locator("main img, main b[onclick]").count() == 0


def test_a_lost_connection_is_said(browser, runs):
    page = browser.new_page()
    with serving(runs) as port:
        page.goto(f"http://127.0.0.1:{port}/study/tiny")
        page.locator(LOSS).nth(1).wait_for()
    page.locator("#study.lost").wait_for()
    page.close()


@pytest.mark.parametrize("width", [400, 2000])
@pytest.mark.parametrize("path", ["/", "/study/tiny"])
def test_nothing_but_tables_scrolls_sideways(opened, path, width):
    page = opened(path, viewport={"width": width, "height": 900})
    if path != "/":
        page.locator(LOSS).nth(1).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_ground_has_light_words(opened):
    page = opened("/study/tiny", color_scheme="dark")
    ground, ink = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    dark, light = (sum(int(part) for part in color[4:-1].split(",")) for color in (ground, ink))
    assert light - dark > 300
