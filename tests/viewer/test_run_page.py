"""The page of a run, asked by a script and used in a browser: what is shown, switched off, linked to and refused."""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.viewer.conftest import PATIENCE_S, asked, serving, write
from tests.viewer.example_runs import DECODER, SENTENCES, TEXT, run_with_data, text_run, translation_run

from attnlab.core.errors import DataError
from attnlab.core.files import read_json, write_json
from attnlab.viewer.inside.apart import AnsweringApart
from attnlab.viewer.inside.own import OwnModule

HOSTILE = "</script><img src=x onerror=alert(1)>"
ONE, OTHER, PAIR = "text/it/seed-0", "text/it/seed-1", "pair/it/seed-0"
FIELDS = {"text": TEXT, "off": [], "how": "zero"}
MIXER = "stack.blocks.1.mixer"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with runs of a text and of two languages, not to be changed."""
    folder = tmp_path_factory.mktemp("view")
    for seed in range(2):
        text_run(folder / f"text/it/seed-{seed}", seed=seed)
    look = {"step": 1, "watch": {"entropy": {"stack.blocks.0.mixer": [0.9, 0.8], MIXER: [0.7, 0.6]}}}
    (folder / OTHER / "metrics.jsonl").write_text(json.dumps(look) + "\n")
    translation_run(folder / PAIR)
    translation_run(folder / "characters/it/seed-0", tokenizer="characters")
    return folder


@pytest.fixture(scope="module")
def port(folder):
    """Return the port of a server of `folder`."""
    with serving(folder) as number:
        yield number


@pytest.fixture
def kept_maps(runs):
    """Return a folder with a study whose models read neither text nor a sequence of numbers."""
    path = runs / "tiny" / "with-attention" / "seed-0" / "inside.json"
    write_json(path, {**read_json(path), "predictions": {"kind": "pictures"}})
    return runs


def post(port, path, body):
    """The status and content of an answer to a question of the page's script."""
    headers = {"Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/json"}
    text = body if isinstance(body, str) else json.dumps(body)
    status, _, answer = asked(port, path, "POST", headers, text.encode())
    return status, json.loads(answer)


def test_a_look_a_map_and_a_translation_are_answered(port):
    status, look = post(port, f"/run/{ONE}/look", FIELDS)
    assert (status, [layer["name"] for layer in look["layers"]]) == (200, ["stack.blocks.0.mixer", MIXER])
    status, found = post(port, f"/run/{ONE}/map", {**FIELDS, "layer": MIXER, "head": 3, "shown": "scores"})
    assert (status, found["shape"]) == (200, [len(TEXT), len(TEXT)])
    status, found = post(port, f"/run/{PAIR}/write", {"text": SENTENCES[0]})
    assert (status, found["text"]) == (200, found["whole"])


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        (f"{ONE}/look", "{", 422, "the body of a request must be JSON: "),
        (f"{ONE}/look", "[]", 422, "the body of a request must be an object; got list"),
        (f"{ONE}/look", {"text": 3}, 422, "'text' must be a str; got 3"),
        (f"{ONE}/look", {"text": "a", "off": [2]}, 422, "'off' must be a list of heads such as "),
        (f"{ONE}/look", {"text": "a", "off": [f"{MIXER}:9"]}, 422, "there is no head 9, only 4, counted from 0"),
        (f"{ONE}/look", {"text": "ö"}, 422, "the training text has no character 'ö'"),
        (f"{ONE}/write", {"text": "a"}, 422, "this model translates nothing"),
        ("text/look", {"text": "a"}, 404, "text is no run (no spec.json in it); see the start page"),
        ("../etc/look", {"text": "a"}, 404, "there is no '../etc' in "),
    ],
)
def test_what_is_refused_in_one_sentence(port, path, body, status, sentence):
    found, answer = post(port, f"/run/{path}", body)
    assert found == status
    assert sentence in answer["error"]


def test_no_other_run_outside_of_the_folder_is_compared(port):
    assert asked(port, f"/run/{ONE}?other=..%2F..")[0] == 404


def test_a_run_that_trains_on_is_seen_as_it_was_saved_last(tmp_path):
    text_run(tmp_path / "run")
    with serving(tmp_path) as port:
        _, before = post(port, "/run/run/look", FIELDS)
        text_run(tmp_path / "run", seed=5)
        _, after = post(port, "/run/run/look", FIELDS)
    assert before["sides"] != after["sides"]


def test_a_run_without_weights_says_so(tmp_path):
    run = text_run(tmp_path / "run")
    shutil.rmtree(run / "last")
    (run / "result.json").write_text("{}")
    with serving(tmp_path) as port:
        status, answer = post(port, "/run/run/look", FIELDS)
    assert (status, "no checkpoint 'last'" in answer["error"]) == (422, True)
    assert "its weights were removed" in answer["error"]


@pytest.mark.parametrize("content", ["{", "[]", '{"task": "char-lm"}'])
def test_a_damaged_run_says_so(tmp_path, content):
    (text_run(tmp_path / "run") / "spec.json").write_text(content)
    with serving(tmp_path) as port:
        status, answer = post(port, "/run/run/look", FIELDS)
        page = asked(port, "/run/run")[0]
    assert (status, page) == (422, 422)
    assert re.search(r"spec\.json (cannot be read|is damaged: it names no task and model)", answer["error"])


def test_code_of_a_run_is_run_only_once_it_is_trusted(tmp_path):
    run = text_run(tmp_path / "run")
    code = tmp_path / "own.py"
    code.write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom attnlab.models.stacks import Decoder\n"
        f"def own(vocab_size, max_length):\n    from attnlab.core.build import build\n"
        f"    from attnlab.models import MODELS\n    offered = dict(vocab_size=vocab_size, max_length=max_length)\n"
        f"    return build({DECODER!r}, MODELS, axis='model', offered=offered)\n"
    )
    write_json(run / "spec.json", {**read_json(run / "spec.json"), "model": {"name": f"{code}:own"}})
    with serving(tmp_path) as port:
        status, answer = post(port, "/run/run/look", FIELDS)
        assert (status, "code of a person's own; trust it first" in answer["error"]) == (422, True)
        assert f"{code}:own; looking at it runs that code" in asked(port, "/run/run")[2]
        assert not (tmp_path / "ran").exists()
        status, answer = post(port, "/run/run/look", {**FIELDS, "trust": True})
        assert status == 200, answer
        assert (tmp_path / "ran").exists()


def test_maps_of_a_task_that_reads_nothing_a_person_can_give_are_those_that_were_kept(kept_maps):
    path = "/run/tiny/with-attention/seed-0"
    with serving(kept_maps) as port:
        page = asked(port, path)[2]
        assert "A model of the task shapes reads nothing that you could give it" in page
        assert "after 5 steps" in page
        status, look = post(port, f"{path}/look", {"text": ""})
        assert (status, len(look["layers"])) == (200, 1)
        for question in ("write", "explain", "heads", "worth"):
            status, answer = post(port, f"{path}/{question}", {"text": ""})
            assert (status, "maps of this run were kept; there is no model to ask" in answer["error"]) == (422, True)


def test_a_run_whose_folder_is_gone_says_so(tmp_path):
    folder = text_run(tmp_path / "run")
    with serving(tmp_path) as port:
        assert post(port, "/run/run/look", FIELDS)[0] == 200
        shutil.rmtree(folder)
        status, answer = post(port, "/run/run/look", FIELDS)
    assert (status, "there is no 'run' in" in answer["error"]) == (404, True)


def test_a_run_that_was_cut_off_says_what_is_damaged(tmp_path):
    weights = text_run(tmp_path / "run") / "last" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with serving(tmp_path) as port:
        status, answer = post(port, "/run/run/look", FIELDS)
        assert (status, "model.safetensors is damaged or cut off (100 bytes)" in answer["error"]) == (422, True)
        assert '<span class="state stopped">' in asked(port, "/run/run")[2]


def test_a_browser_that_goes_before_its_answer_keeps_nobody_waiting(port):
    body = json.dumps(FIELDS)
    head = f"POST /run/{ONE}/look HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    assert post(port, f"/run/{ONE}/look", FIELDS)[0] == 200


# ---- in a browser ----

READY = "main:not(:has(.busy)) .drawing :is(canvas, svg)"
PICTURE = "canvas => canvas.toDataURL()"
SHOWN_AT_MOST = "most => document.querySelectorAll('.drawing line:not([style*=none])').length <= most"


@pytest.fixture
def opened(browser, port):
    """Return a function that opens a page and waits until all is drawn; nothing may be said on the console."""
    pages, problems = [], []

    def open_page(path, width=1200, port=port, root="run/"):
        page = browser.new_page(viewport={"width": width, "height": 900})
        pages.append(page)
        page.set_default_timeout(1000 * PATIENCE_S)
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append("a script of a text ran"), dialog.dismiss()))
        page.goto(f"http://127.0.0.1:{port}/{root}{path}")
        page.wait_for_selector(READY)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert [one for one in problems if "422" not in one] == []  # the browser tells every refusal


def total(page):
    return page.locator(".total").first.inner_text()


def look_at(page, text, name="text"):
    """Type a text and wait for what comes of it."""
    with page.expect_response(re.compile("/look$")):
        page.locator(f"[name={name}]").fill(text)
    page.wait_for_selector(READY)


def click(page, selector, at=0):
    with page.expect_response(re.compile("/look$")):
        page.locator(selector).nth(at).click()
    page.wait_for_selector(READY)


def test_the_page_begins_with_a_held_out_text_and_follows_what_is_typed(opened):
    page = opened(ONE)
    assert page.locator("[name=text]").input_value() == TEXT
    assert page.locator(".run .tokens [role=option]").count() == len(TEXT) + 1
    before = total(page)
    look_at(page, "dogs and cats")
    assert page.locator(".run .tokens [role=option]").count() == 14
    assert total(page) != before
    page.locator(".run .tokens [role=option]").nth(3).hover()
    assert page.locator(".guesses tr").count() == 5
    assert page.locator(".guesses p").inner_text().startswith("“s” costs ")
    page.locator(".run .tokens [role=option]").nth(3).focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".guesses p").inner_text().startswith("“g” costs ")


def test_a_click_switches_a_head_off_and_on(opened):
    page = opened(ONE)
    before = total(page)
    later = page.locator(".head canvas").nth(5)
    picture = later.evaluate(PICTURE)
    click(page, ".head button", 2)
    assert "with 1 head off" in total(page)
    assert page.locator(".head").nth(2).get_attribute("aria-label") == "stack.blocks.0.mixer, head 2, off"
    assert later.evaluate(PICTURE) != picture, "a later layer reads something else"
    click(page, ".layer", 1)
    assert "with 5 heads off" in total(page)
    with page.expect_response(re.compile("/look$")):
        page.locator("[name=how]").select_option("mean")
    click(page, ".all-on")
    assert total(page) == before


def test_heads_are_reached_by_keys(opened):
    page = opened(ONE)
    page.locator(".head").first.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowRight"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == f"{MIXER}, head 1"
    assert page.locator(".large h3").inner_text() == "layer 1 · head 1"
    with page.expect_response(re.compile("/look$")):
        page.keyboard.press("x")
    page.wait_for_selector(READY)
    assert page.locator(".switch").inner_text() == "Switch on"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == f"{MIXER}, head 1, off"


def test_the_large_map_is_read_by_pointer_and_keys(opened):
    page = opened(ONE)
    canvas = page.locator(".drawing canvas")
    weights = canvas.evaluate(PICTURE)
    canvas.focus()
    for key in ("ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert page.locator(".large .told").inner_text().startswith("“ ” (1) looks at “a” (0): weight ")
    page.locator(".shown").select_option("scores")
    page.wait_for_selector(".ramp.signed")
    assert canvas.evaluate(PICTURE) != weights
    page.locator("[data-view=lines]").click()
    page.wait_for_selector(".drawing svg line", state="attached")  # one may be as flat as no pixel
    page.locator(".drawing text[data-row='2']").hover()
    page.wait_for_function(SHOWN_AT_MOST, arg=3)  # a causal query looks at itself and what stands before it
    assert page.locator(".drawing line:not([style*=none])").count() > 0


def test_a_link_shows_the_same_again(opened):
    page = opened(ONE)
    look_at(page, "cats and dogs")
    click(page, ".head button", 1)
    page.locator(".head").nth(6).click()
    page.locator("[data-view=lines]").click()
    page.locator(".shown").select_option("values")
    page.wait_for_selector(".drawing svg")
    again = opened(page.url.split("/run/")[1])
    for what in (".total", ".large h3", ".run .tokens", ".large .told"):
        assert again.locator(what).first.inner_text() == page.locator(what).first.inner_text()
    assert "with 1 head off" in total(again)
    assert again.locator("[data-view=lines]").get_attribute("aria-pressed") == "true"
    assert again.locator(".shown").input_value() == "values"


def test_a_map_is_saved_with_its_names(opened):
    page = opened(ONE)
    look_at(page, "a,cat")
    files = {}
    for kind in ("csv", "svg", "png"):
        with page.expect_download() as download:
            page.locator(f"[data-save={kind}]").click()
        assert download.value.suggested_filename == f"text-it-seed-0-stack.blocks.0.mixer-head-0-weights.{kind}"
        files[kind] = download.value.path().read_bytes()
    rows = files["csv"].decode().split("\r\n")
    assert rows[0] == ',"a",",","c","a","t"'
    assert sum(map(float, rows[5].split(",")[1:])) == pytest.approx(1, abs=1e-5)
    assert b"<svg" in files["svg"]
    assert files["png"].startswith(b"\x89PNG")


def test_a_mistake_is_said_and_what_was_shown_stays(opened):
    page = opened(ONE)
    before = total(page)
    look_at(page, "")
    trouble = page.locator(".trouble")
    trouble.wait_for()
    assert trouble.inner_text() == "there is no text to look at; type some"
    assert total(page) == before
    look_at(page, TEXT)
    trouble.wait_for(state="hidden")
    page = opened(f"{ONE}#text=a+dog&off=stack.blocks.0.mixer%3A9")
    assert "there is no head 9, only 4" in page.locator(".trouble").inner_text()
    assert page.locator(".run .tokens [role=option]").count() == 6


def test_a_link_explains_in_the_other_run_too_and_says_what_it_names_in_vain(opened):
    page = opened(f"{ONE}?other={OTHER}#why1=3&head={MIXER}:77")
    page.locator(".run").nth(1).locator(".why:not(.busy) .reasons section").first.wait_for()
    assert page.locator(".run").first.locator(".why").is_hidden()
    assert page.locator(".trouble").first.inner_text().startswith(f"There is no head 77 in {MIXER}")


def test_nothing_typed_yet_is_no_mistake(browser, port):
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{port}/run/{ONE}#text=")
    page.locator("[name=text]:not([disabled])").wait_for()
    page.wait_for_function(
        "document.querySelector('.trouble').hidden && !document.querySelector('.run').matches('.busy')"
    )
    assert page.locator(".seen").is_hidden()
    page.locator("[name=text]").fill("cats")
    page.wait_for_selector(READY)
    page.close()


def test_a_hostile_text_is_text(opened):
    page = opened(f"{ONE}#text={urllib.parse.quote('<a>/<a>')}&head={urllib.parse.quote(HOSTILE)}:0")
    assert page.locator(".run .tokens").inner_text() == "<a>/<a>▸"
    page = opened(f"{PAIR}#text={urllib.parse.quote(HOSTILE)}&target={urllib.parse.quote(HOSTILE)}")
    assert page.locator("main img").count() == 0


def test_a_translation_is_judged_and_written_without_a_head(opened):
    page = opened(PAIR)
    assert page.locator(".tabs button").all_inner_texts() == ["encoder", "decoder", "cross"]
    assert page.locator("[name=example] :checked").inner_text() == SENTENCES[0]
    assert page.locator("[name=reference]").is_enabled()
    page.locator("[name=example]").select_option(index=2)
    page.wait_for_selector(READY)
    click(page, "[name=reference]")
    assert page.locator("[name=target]").input_value() == SENTENCES[1].upper()
    assert page.locator(".run .tokens").nth(1).inner_text() == f"<begin> {SENTENCES[1].upper()}<end>"
    page.locator(".tabs button").nth(2).click()
    with page.expect_response(re.compile("/write$")):
        click(page, ".layer")
    page.locator(".written p").nth(1).wait_for()
    assert page.locator(".written p").first.inner_text().startswith("With heads off it writes ")


def test_two_runs_are_compared_by_passages(opened):
    page = opened(f"{ONE}?other={OTHER}")
    page.locator(".apart:not([hidden]) .tokens").wait_for()
    assert page.locator(".apart .tokens [role=option]").count() == len(TEXT) - 1
    sums = [float(re.search(r", ([\d.]+) over", one).group(1)) for one in page.locator(".total").all_inner_texts()]
    said = re.search(r"costs ([\d.]+) nats (less|more) than", page.locator(".apart .note").inner_text())
    assert float(said.group(1)) == pytest.approx(abs(sums[1] - sums[0]), abs=0.15), "rounded to tenths"
    assert said.group(2) == ("less" if sums[1] < sums[0] else "more")
    assert "off" not in page.locator(".apart .note").inner_text()
    click(page, ".head button", 1)
    assert "run, with 1 head off" in page.locator(".apart .note").inner_text().replace(ONE, "run")
    page.locator(".watched summary >> visible=true").click()
    page.locator(".watched svg").nth(1).wait_for()
    names = [
        f"entropy of {name}, at the end {ends}"
        for name, ends in (("stack.blocks.0.mixer", "0.9, 0.8"), (MIXER, "0.7, 0.6"))
    ]
    assert [chart.get_attribute("aria-label") for chart in page.locator(".watched svg").all()] == names


def test_what_is_watched_grows_while_the_run_trains(opened, tmp_path):
    def look(step):
        values = [1 / step, None if step == 2 else 0.5]
        return {"step": step, "watch": {"entropy": {MIXER: values}, "gradient_norm": {"stack": None}}}

    run = text_run(tmp_path / "run")
    with serving(tmp_path) as other:
        page = opened("run", port=other)
        assert page.locator(".watched").is_hidden()
        write(run / "metrics.jsonl", look(1), look(2))
        page.locator(".watched summary").click()
        entropy = page.locator(".watched svg")
        entropy.wait_for()
        assert entropy.get_attribute("aria-label") == f"entropy of {MIXER}, at the end 0.5"
        before = entropy.locator(".curve").first.get_attribute("d")
        write(run / "metrics.jsonl", look(4))
        page.locator(".watched svg[aria-label$='0.25, 0.5']").wait_for()
        assert entropy.locator(".curve").first.get_attribute("d") != before
        assert page.locator(".facts .state").inner_text() == "stopped"
        write_json(run / "result.json", {})
        page.locator(".facts .state.finished").wait_for()
        assert page.locator(".watched svg").count() == 1, "a quantity without a number is not drawn"


def test_a_run_that_is_deleted_meanwhile_is_told_in_a_sentence(opened, tmp_path):
    run = text_run(tmp_path / "run")
    with serving(tmp_path) as other:
        page = opened("run", port=other)
        shutil.rmtree(run)
        page.get_by_text("the folder run is not there any more").wait_for()


def test_a_server_that_has_ended_is_told_in_a_sentence(browser, folder):
    page = browser.new_page()
    with serving(folder) as other:
        page.goto(f"http://127.0.0.1:{other}/run/{ONE}")
        page.wait_for_selector(READY)
    page.locator(".head button").first.click()
    page.get_by_text("the server is out of reach; begin attnlab view again and load this page anew").wait_for()
    page.close()


def test_two_tokenizers_are_compared_by_the_characters_they_share(opened):
    page = opened(f"{PAIR}?other=characters/it/seed-0#text=two+dogs+run&target=TWO+DOGS")
    page.locator(".apart:not([hidden]) .tokens").wait_for()
    passages = page.locator(".apart .tokens [role=option]").all_inner_texts()
    assert [passage.strip() for passage in passages] == ["TWO", "DOGS"]
    words, characters = (page.locator("section.run").nth(at).locator(".tokens").nth(1) for at in (0, 1))
    words.locator("[role=option]").nth(2).hover()
    assert "".join(characters.locator(".linked").all_inner_texts()).strip() == "DOGS"


def test_kept_maps_are_shown_without_a_text(opened, kept_maps):
    with serving(kept_maps) as other:
        page = opened("tiny/with-attention/seed-0", port=other)
        assert page.locator("form.asking").is_hidden()
        assert page.locator(".head").count() == 2


def test_a_sequence_is_drawn_by_mouse_and_by_keys(opened, runs):
    with serving(runs) as other:
        page = opened("tiny/with-attention/seed-1", port=other)
        assert total(page).startswith("mean squared error ")
        curve = page.locator(".drawn .prediction")
        before = curve.get_attribute("d")
        click(page, ".head button", 1)
        assert "with 1 head off" in total(page)
        assert page.locator(".drawn .before").get_attribute("d") == before
        frame = page.locator(".drawn svg").bounding_box()
        with page.expect_response(re.compile("/look$")):
            page.mouse.move(frame["x"] + 300, frame["y"] + 60)
            page.mouse.down()
            page.mouse.move(frame["x"] + 500, frame["y"] + 60)
            page.mouse.up()
        page.wait_for_selector(READY)
        assert total(page) == "What is right for a drawn sequence nobody knows."
        assert curve.get_attribute("d") != before
        assert re.fullmatch(r"position \d+: input [\d.]+, predicted \S+", page.locator(".reading .told").inner_text())
        with page.expect_response(re.compile("/look$")):
            page.keyboard.press("ArrowUp")
        page.wait_for_selector(READY)
        assert page.locator(".reading .told").inner_text().startswith("position ")
        again = opened(page.url.split("/run/")[1], port=other)
        assert (again.url, total(again)) == (page.url, total(page))


def test_a_token_that_is_chosen_is_explained_and_heads_are_measured(opened, runs):
    page = opened(ONE)
    page.locator(".run .tokens [role=option]").nth(4).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".why:not(.busy) .reasons section")
    assert page.locator(".why h3").inner_text().startswith(f"Why “{TEXT[4]}”?")
    titles = ["Layer by layer", "Part by part", "By what was read", "Without a key"]
    assert page.locator(".why h4").all_inner_texts() == titles
    assert "Kendall's τ with attention" in page.locator(".why").inner_text()
    assert "looks" in page.locator(".why .verdict").inner_text()
    parts = page.locator("table[aria-label='Part by part'] td:first-child").all_inner_texts()
    assert {"layer 0 · head 0", "layer 1 · head 3"} <= set(parts)
    assert not [name for name in parts if ":" in name]
    page.keyboard.press("Escape")
    page.locator(".why").wait_for(state="hidden")
    with serving(runs) as other:
        page = opened("tiny/with-attention/seed-1", port=other)
        page.locator(".measure").click()
        page.wait_for_selector(".measured:not(:empty)")
        assert page.locator(".worth").count() == 2
        assert "Worth " in page.locator(".head-said").inner_text()


def test_what_heads_cost_on_held_out_data_stands_beside_the_text(opened, tmp_path):
    run_with_data(tmp_path / "run")
    with serving(tmp_path) as other:
        page = opened("run", port=other)
        said = page.locator(".held-out")
        assert said.is_hidden()
        click(page, ".head button", 2)
        said.get_by_text("with 1 head off: the mean over").wait_for()
        assert re.match(r"On held-out data [+−]0\.\d+ \S+.* \(95 % interval [+−]", said.inner_text())  # noqa: RUF001
        assert said.inner_text().endswith("The interval is over sequences of this run, not over seeds.")
        click(page, ".head button", 5)
        said.get_by_text("with 2 heads off: the mean over").wait_for()
        click(page, ".all-on")
        said.wait_for(state="hidden")


def test_data_that_are_not_there_are_told_beside_the_text(opened, port, monkeypatch):
    def refuse(*_):
        raise DataError("no file text.txt")

    monkeypatch.setattr(AnsweringApart, "__call__", refuse)
    page = opened(ONE)
    click(page, ".head button", 3)
    page.get_by_text("On held-out data it cannot be said: no file text.txt").wait_for()
    assert "with 1 head off" in total(page)


def test_looks_are_answered_while_heads_are_measured(folder, tmp_path, monkeypatch):
    run_with_data(tmp_path / "run")
    begun, waits = threading.Event(), threading.Event()
    monkeypatch.setattr(AnsweringApart, "__call__", lambda *_: (begun.set(), waits.wait(PATIENCE_S), {})[-1])
    with serving(tmp_path) as other, ThreadPoolExecutor(1) as thread:
        cost = thread.submit(post, other, "/run/run/cost", FIELDS)
        assert begun.wait(PATIENCE_S)
        assert post(other, "/run/run/look", FIELDS)[0] == 200
        assert not cost.done()
        waits.set()
        assert cost.result() == (200, {})


def test_a_module_of_a_person_has_a_page(opened, tmp_path):
    code = tmp_path / "mine.py"
    code.write_text("from torch import nn\nlayer = nn.MultiheadAttention(16, 4, batch_first=True)\n")
    with serving(OwnModule(f"{code}:layer", {})) as other:
        page = opened("", port=other, root="")
        assert page.locator(".head").count() == 4
        assert "every token is given a random one" in page.locator(".called").inner_text()
        look_at(page, "3 1 3 1 3")
        assert page.locator(".run .tokens [role=option]").count() == 5
        click(page, ".head button", 2)
        assert page.locator(".head.off").count() == 1


@pytest.mark.parametrize("width", [400, 2000])
def test_nothing_scrolls_sideways(opened, width):
    page = opened(PAIR, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
