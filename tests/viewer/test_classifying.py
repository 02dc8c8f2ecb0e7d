"""Texts through trained classifiers, from Python, on the command line and on the page of a run."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from tests.viewer.conftest import serving
from tests.viewer.example_runs import text_run

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.errors import DataError, RunError
from attnlab.studies import classify, load_run
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.run.executor import InProcess
from attnlab.viewer.inside.asked import Asked
from attnlab.viewer.inside.looking import run_in_view

MOST = 4  # tokens


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds that learn whether a text speaks of a dog; the file of the texts is gone."""
    folder = tmp_path_factory.mktemp("classes")
    rows = [
        {"text": " ".join((one, other, "red", "blue")[:length]), "label": "dog" if "dog" in (one, other) else "none"}
        for length in (2, 3, 4)
        for one in ("dog", "cat", "house", "tree")
        for other in ("dog", "cat", "house", "tree")
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    spec = {
        "question": "Is there a dog?",
        "task": {"name": "classify", "inputs": str(folder / "rows.jsonl"), "tokenizer": "words", "validation": 0.2},
        "model": {"name": "encoder", "d_model": 16, "n_layers": 1, "mixer": {"name": "attention", "n_heads": 2}},
        "baseline": "attention",
        "variants": {"attention": {}},
        "rules": {"metric": "val_loss", "budget": {"steps": 60}, "seeds": 2, "smallest_effect": 0.1},
        "training": {"lr": 1e-2},
    }
    study = parse_study(spec, name="dogs", path=folder / "dogs.yaml")
    run_study(study, folder / "dogs", jobs=1, executor=InProcess())
    (folder / "rows.jsonl").unlink()
    return [folder / "dogs" / "attention" / f"seed-{seed}" for seed in (0, 1)]


def test_the_likeliest_class_comes_first_and_models_are_averaged(runs):
    trained = [load_run(run) for run in runs]
    texts = ["dog tree", "cat house red"]
    alone = [classify([one], texts) for one in trained]
    together = classify(trained, texts)
    assert [next(iter(one)) for one in together] == ["dog", "none"]
    for number, chances in enumerate(together):
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        for name, chance in chances.items():
            assert chance == pytest.approx(sum(one[number][name] for one in alone) / 2, abs=1e-6)


def test_a_text_is_read_as_in_training(runs):
    trained = load_run(runs[0])
    codec = trained.task.codec
    (tokens,) = codec.encode(["cat dog"])
    padded = torch.tensor([[*tokens, 0, 0]])
    with torch.no_grad():
        logits = trained.model(padded)[0, :2].mean(dim=0)
    expected = dict(zip(codec.classes, logits.softmax(dim=0).tolist(), strict=True))
    assert classify([trained], ["cat dog"]) == [pytest.approx(expected)]
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than 4 tokens and were cut: text 2"):
        cut, whole = classify([trained], ["cat dog tree red", "cat dog tree red blue"])
    assert cut == whole


def test_what_cannot_be_classified_is_said(runs, tmp_path, capsys):
    trained = load_run(runs[0])
    with pytest.raises(DataError, match="text 8 is empty: there is nothing to classify"):
        classify([trained], ["dog", " "], first=7)
    assert classify([trained], []) == []
    writer = load_run(text_run(tmp_path / "run"))
    with pytest.raises(RunError, match=r"is no classifier of texts: its task is '.*'; attnlab generate uses it"):
        classify([writer], ["dog"])
    assert call(["generate", str(runs[0])]) == WRONG_USE
    assert "attnlab classify uses it" in " ".join(capsys.readouterr().err.split())
    assert call(["classify", str(runs[0]), "dog", "--file", "texts"]) == WRONG_USE
    assert "give texts or --file, not both" in capsys.readouterr().err
    other = shutil.copytree(runs[1], tmp_path / "other")
    kept = json.loads((other / "task.json").read_text())
    kept["codec"]["classes"] = ["dog", "nothing"]
    (other / "task.json").write_text(json.dumps(kept))
    with pytest.raises(RunError, match=r"has another tokenizer or other classes than .*: they cannot write together"):
        classify([trained, load_run(other)], ["dog"])


def test_the_command_prints_a_line_a_text(runs, tmp_path, capsys):
    (tmp_path / "texts").write_text("dog tree\ncat house red\n", encoding="utf-8")
    words = ["classify", str(runs[0]), "--file", str(tmp_path / "texts"), "--also", str(runs[1])]
    assert call(words) == FINE
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["dog", "none"]
    assert call([*words, "--json"]) == FINE
    assert [set(json.loads(line)) for line in capsys.readouterr().out.splitlines()] == [{"dog", "none"}] * 2


def test_the_page_of_a_run_names_classes_and_what_heads_change(runs):
    view = run_in_view(runs[0])
    told = view.look(Asked("cat dog"))
    chances = {one["name"]: one["chance"] for one in told["classes"]}
    assert chances == pytest.approx(classify([load_run(runs[0])], ["cat dog"])[0], abs=1e-5)
    (side,) = told["sides"]
    assert [token["text"].strip() for token in side["tokens"]] == ["cat", "dog", "<pad>", "<pad>"]
    off = view.look(Asked("cat dog", off=("stack.blocks.0.mixer:0",)))
    assert {one["name"]: one["before"] for one in off["classes"]} == pytest.approx(chances, abs=1e-5)
    assert {one["name"]: one["chance"] for one in off["classes"]} != pytest.approx(chances, abs=1e-5)
    with pytest.raises(DataError, match="the text has 5 tokens and this model reads at most 4; shorten it"):
        view.look(Asked("cat dog cat dog cat"))


def test_in_a_browser_a_text_is_typed_and_its_classes_are_shown(runs, browser):
    page, problems = browser.new_page(), []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    with serving(runs[0].parents[2]) as port:
        page.goto(f"http://127.0.0.1:{port}/run/dogs/attention/seed-0")
        page.locator(".classes-of tr").first.wait_for()
        assert page.locator("[name=example] option").count() > 1
        page.locator("[name=text]").fill("dog tree")
        page.get_by_text("It says: dog").wait_for()
        page.locator(".head button").first.click()
        page.get_by_text("With 1 head off: ").wait_for()
        assert page.locator(".classes-of tr").first.locator("td").count() == 4
        page.get_by_text("On held-out data it cannot be said: ").wait_for()
        page.close()
    assert [one for one in problems if "422" not in one] == []  # the browser tells every refusal
