"""What a notebook shows must be whole in itself, escaped, small, and readable without a script."""

from __future__ import annotations

import base64
import re
import zlib

import numpy as np
import pytest
import torch
from tests.studies.example_results import parts
from tests.viewer.conftest import browser  # noqa: F401 a fixture

from attnlab import Decoder, capture, cost, reach
from attnlab.core.errors import DataError
from attnlab.doctor.findings import Diagnosis, Finding
from attnlab.inspection import (
    Captured,
    HeadScores,
    ablate,
    agreement,
    draw_attention,
    draw_change,
    draw_heads,
    draw_lens,
    draw_tokens,
    gradient_times_input,
    head_scores,
    logit_attribution,
    logit_lens,
    maps,
)
from attnlab.inspection.drawing import pieces
from attnlab.inspection.drawing.maps import STILL, png
from attnlab.studies.report import draw_report, figures
from attnlab.studies.report.figures import Figure
from attnlab.studies.report.style import Drawing

LENGTH, VOCAB = 7, 11
EVIL = "<script>alert('&')</script>"
TOKENS = ["the ", "cat\n", EVIL, "sat ", "on ", "the ", "mat"]
VOCABULARY = [*"abcdefghij", EVIL]
SMALL = 25_000
"""Bytes that a piece of a tiny model takes at most, its styles and its script included."""
JUPYTERLAB = """(html) => { // as JupyterLab shows an output: scripts are made anew, then all of it is put into the page
  const host = document.createElement("div");
  host.innerHTML = html;
  for (const old of host.querySelectorAll("script")) {
    const script = document.createElement("script");
    for (const { name, value } of old.attributes) script.setAttribute(name, value);
    script.textContent = old.textContent;
    old.replaceWith(script);
  }
  document.body.append(host);
}"""


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    mixer = {"name": "attention", "n_heads": 3}
    return Decoder(vocab_size=VOCAB, max_length=LENGTH, d_model=12, n_layers=2, mixer=mixer).eval()


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def trace(model, tokens):
    with capture(model) as seen, torch.no_grad():
        model(tokens)
    return seen


@pytest.fixture(scope="module")
def shown(model, tokens, trace):
    """By name everything that a notebook shows, of one small model."""
    with torch.no_grad():
        clean = model(tokens)
        with ablate(model, "stack.blocks.0.mixer:1"):
            changed = model(tokens)
    rows = head_scores(trace, tokens)
    found = gradient_times_input(model, tokens, position=-1, token=3)
    results = {
        "trace": trace,
        "labelled": draw_attention(trace, TOKENS, sample=1),
        "reach": reach(model, (tokens,)),
        "cost": cost(model, (tokens,)),
        "attribution": logit_attribution(model, tokens, position=-1, token=3),
        "inputs": found,
        "tokens": draw_tokens(found.scores[0], TOKENS),
        "agreement": agreement(found.scores, found.scores**2),
        "lens": draw_lens(logit_lens(model, tokens), TOKENS, vocabulary=VOCABULARY),
        "heads": draw_heads(rows, {rows[0].place: {"local": 0.1}}),
        "change": draw_change(clean, changed),
        "predictions": draw_change(clean, changed, TOKENS, vocabulary=VOCABULARY),
        "diagnosis": Diagnosis(EVIL, (Finding("scale", "error", "not scaled", EVIL, "divide"),), {}),
    }
    return {name: one._repr_html_() for name, one in results.items()}


def test_every_piece_is_whole_in_itself_and_small(shown):
    for name, html in shown.items():
        assert not re.search(r"(src|href)=\"(?!data:)|url\(|@import|https?:", html), name
        assert len(html.encode()) < SMALL, name
        assert not re.search(r'\bid="', html), name  # two outputs of one page cannot meet


def test_texts_of_a_person_are_escaped(shown):
    for name in ("labelled", "tokens", "lens", "predictions", "diagnosis"):
        assert EVIL not in shown[name], name
        assert re.search("&lt;script&gt;|u003cscript", shown[name]), name


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("trace", "stack.blocks.1.mixer"),
        ("reach", "7 positions"),
        ("cost", "FLOPs per token"),
        ("attribution", "stack.blocks.0.mixer:2"),
        ("agreement", "1.00 ± 0.00"),
        ("lens", "after 2 layers"),
        ("heads", " ●"),
        ("predictions", "change in nats"),
        ("diagnosis", "it does not compute what it must (scale)"),
    ],
)
def test_what_was_found_is_told_without_a_script(shown, name, told):
    assert told in re.sub(r"<(script|style).*?</\1>", "", shown[name], flags=re.DOTALL)


def test_the_report_of_a_study_is_shown_with_its_charts_and_verdicts(monkeypatch):
    charts = [
        Drawing("cost", f'<svg><g id="cost-{at}"/><g clip-path="url(#cost-{at})"/></svg>', b"", "") for at in range(2)
    ]
    monkeypatch.setattr(figures, "figures", lambda _: [Figure(one, "What does it cost?", "Some.") for one in charts])
    html = draw_report(parts(seeds=2, variants=2)).html
    names = re.findall(r'\bid="([^"]+)"', html)
    assert names == re.findall(r"url\(#([^)]+)\)", html)
    assert len(set(names)) == 2
    assert "<h2>Verdicts</h2>" in html
    assert "<script>" not in html


def test_a_trace_says_its_shapes_on_a_terminal(trace):
    assert "'stack.blocks.0.mixer': (2, 3, 7, 7)" in repr(trace)
    trace = maps.AttentionTrace()
    trace["unseen"] = Captured()
    assert "None" in repr(trace)
    assert "No weights" in trace._repr_html_()


def test_pictures_hold_the_weights_as_opacity(tokens):
    wanted = torch.randint(256, (3, 5), generator=torch.Generator().manual_seed(2)).numpy().astype(np.uint8)
    file = png(wanted)
    start = file.index(b"IDAT") + 4
    size = int.from_bytes(file[start - 8 : start - 4], "big")
    lines = np.frombuffer(zlib.decompress(file[start : start + size]), np.uint8).reshape(3, 6)
    np.testing.assert_array_equal(lines[:, 1:], wanted)


def test_long_sequences_are_drawn_by_the_largest_weight_of_a_square(monkeypatch):
    weights = torch.rand(1, 2, 5, 7)
    monkeypatch.setattr(maps, "MOST_WEIGHTS", 30)
    html = draw_attention({"mixer": Captured(weights=weights)}, ["a"] * 5, ["b"] * 7).html
    assert "largest of 2 x 2 weights" in html
    assert '[["0-1", "2-3", "4-4"], ["0-1", "2-3", "4-5", "6-6"]]' in html
    encoded = re.search(r'"weights": "([^"]+)"', html)[1]
    first = np.frombuffer(base64.b64decode(encoded), np.uint8).reshape(2, 3, 4)[0, 0, 0]
    assert first == round(float(weights[0, 0, :2, :2].max() / weights.max()) * 255)


def test_what_has_no_room_is_counted(monkeypatch):
    monkeypatch.setattr(pieces, "MOST_BARS", 2)
    monkeypatch.setattr(pieces, "MOST_CELLS", 4)
    assert "2 smaller ones together" in pieces.bars({"a": 4.0, "b": -3.0, "c": 1.0, "d": 1.0})
    assert "1 more" in pieces.tokens("abcde", [1.0] * 5)
    rows = [HeadScores("mixer", head, {"local": 0.5, "induction": torch.nan}, {}) for head in range(3)]
    assert "and 1 more rows" in draw_heads(rows).html


@pytest.mark.parametrize(
    ("draw", "told"),
    [
        (lambda: draw_tokens(torch.ones(3), ["a"]), "one text for each position, 3; got 1"),
        (lambda: draw_lens(torch.ones(1, 1, 1, 3), vocabulary=["a"]), "one text for each token of the vocabulary, 3;"),
        (lambda: draw_change(torch.ones(1, 2, 3), torch.ones(1, 3, 3)), "of one shape; got (1, 2, 3) and (1, 3, 3)"),
    ],
)
def test_what_does_not_fit_is_said(draw, told):
    with pytest.raises(DataError) as raised:
        draw()
    assert told in str(raised.value)


def test_a_head_is_chosen_by_a_click_in_a_notebook(browser, shown):  # noqa: F811
    page = browser.new_page(color_scheme="light")
    wrong = []
    page.on("pageerror", lambda error: wrong.append(error.message))
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    for name in ("trace", "labelled"):
        page.evaluate(JUPYTERLAB, shown[name])
    page.wait_for_function("document.querySelectorAll('article.map[data-drawn]').length === 2")
    first, second = page.locator("article.map").all()
    second.get_by_role("button", name="stack.blocks.1.mixer, head 2").click()
    assert second.locator(".layer").evaluate("one => one.selectedOptions[0].text") == "stack.blocks.1.mixer"
    assert second.locator(".head").evaluate("one => one.selectedOptions[0].text") == "2"
    assert first.locator(".head").evaluate("one => one.selectedOptions[0].text") == "0"
    second.locator(".axes canvas").hover(position={"x": 3, "y": 3})
    assert second.locator("output").inner_text() == '"the " (0) looks at "the " (0): 1.0'
    pixels = "one => [...one.getContext('2d').getImageData(6, 0, 1, 1).data]"
    assert second.locator(".axes canvas").evaluate(pixels) == [23, 27, 34, 255]  # dark, as the notebook says
    assert page.locator(".still").count() == 0
    assert not wrong
    page.close()


@pytest.mark.parametrize("removed", ["", "<style>.*?</style>|<script.*?</script>"], ids=["no script", "untrusted"])
def test_without_a_script_all_heads_are_seen_and_nothing_that_does_nothing(browser, shown, removed):  # noqa: F811
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_content(re.sub(removed, "", shown["labelled"], flags=re.DOTALL) if removed else shown["labelled"])
    assert [one.is_visible() for one in page.locator(".small img").all()] == [True, True]
    assert not page.locator("select, canvas, output").count()
    assert page.locator(".still").inner_text() == STILL
    context.close()
