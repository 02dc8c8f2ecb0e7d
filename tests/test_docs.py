"""The pages say what the code does: generated ones are current, links resolve, examples parse and run."""

from __future__ import annotations

import doctest
import re
import tomllib
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from attnlab.core.errors import SpecError
from attnlab.core.processes import apart
from attnlab.core.storage import cache, shared_cache
from attnlab.nn.attention import Attention
from attnlab.nn.axes import scores
from attnlab.studies.define.study import Study, load_study, parse_study
from attnlab.studies.plan.plan import plan_study
from attnlab.tasks import datasets
from tests.scripts import loaded
from tests.test_architecture import LAYERS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, info: str) -> list[str]:
    return [text for words, text in FENCE.findall(page.read_text(encoding="utf-8")) if words.strip() == info]


def study_examples() -> list[tuple[str, str]]:
    found = [(page, number, text) for page in PAGES for number, text in enumerate(blocks(page, "yaml study"), 1)]
    return [pytest.param(text, id=f"{page.name}-{number}") for page, number, text in found]


def anchors(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    broken = []
    for match in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page):
    assert not broken_links(page)


def test_a_broken_link_would_be_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A title\n[there](page.md#a-title) [web](https://example.org) [gone](gone.md) [no](#no-title)\n")
    assert broken_links(page) == ["gone.md", "#no-title"]


def test_every_page_is_in_the_table_of_contents():
    contents = (DOCS / "index.md").read_text(encoding="utf-8")
    missing = [page.name for page in DOCS.glob("*.md") if page.name != "index.md" and f"({page.name})" not in contents]
    assert not missing


def test_the_page_on_installing_names_every_extra_and_what_is_read_from_the_environment():
    named = re.findall(r"`(?:attnlab\[(\w+)\]|(ATTNLAB_\w+))`", (DOCS / "install.md").read_text(encoding="utf-8"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert sorted(extra for extra, _ in named if extra) == sorted(extras)
    assert {name for _, name in named if name} == {
        cache.VARIABLE,
        shared_cache.VARIABLE,
        datasets.VARIABLE,
        apart.PATIENCE,
    }


def test_the_page_of_parts_is_the_generated_one():
    make_parts = loaded("docs/make_parts.py")
    current = (DOCS / "parts.md").read_text(encoding="utf-8")
    assert current == make_parts.page() + "\n", "run .venv/bin/python docs/make_parts.py"


def test_the_tour_is_that_of_the_tree():
    make_tour = loaded("docs/make_tour.py")
    current = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert current == make_tour.written(LAYERS), "run .venv/bin/python docs/make_tour.py"


@pytest.mark.parametrize("text", study_examples())
def test_study_examples_parse(text):
    study = YAML(typ="rt").load(text)
    assert isinstance(parse_study(study), Study)
    for scale in study.get("scales", {}):
        assert parse_study(study, scale=scale).scale == scale


def test_the_example_of_an_own_module_can_be_planned(tmp_path):
    page = DOCS / "own-module.md"
    (tmp_path / "mine.py").write_text(blocks(page, "python mine.py")[0], encoding="utf-8")
    (tmp_path / "study.yaml").write_text(blocks(page, "yaml study")[0], encoding="utf-8")
    plan = plan_study(load_study(tmp_path / "study.yaml"))
    assert all(variant.parameters > 0 for variant in plan.variants)


def test_the_example_of_a_whole_model_can_be_planned(tmp_path):
    page = DOCS / "own-module.md"
    (tmp_path / "gpt.py").write_text(blocks(page, "python gpt.py")[0], encoding="utf-8")
    (tmp_path / "text.txt").write_text("to be, or not to be: that is the question\n" * 99, encoding="utf-8")
    study = blocks(page, "yaml whole")[0].replace("tinyshakespeare", "text.txt")
    (tmp_path / "study.yaml").write_text(study, encoding="utf-8")
    _, mine = plan_study(load_study(tmp_path / "study.yaml")).variants
    assert mine.parameters > 0
    assert "called as forward(idx) -> [0], batch-first" in mine.notes


def test_the_python_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, text in enumerate(blocks(DOCS / "python.md", "python"), 1):
        exec(compile(text, f"python.md, block {number}", "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "pycon")], ids=lambda page: page.name)
def test_what_a_page_shows_of_a_session_is_what_comes_out(page):
    session = "\n".join(blocks(page, "pycon"))
    examples = doctest.DocTestParser().get_doctest(session, {}, page.name, str(page), 0)
    assert len(examples.examples) > 1
    told: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(examples, out=told.append).failed == 0, "".join(told)


def test_a_session_that_shows_something_else_would_be_found():
    examples = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "page", "page", 0)
    assert doctest.DocTestRunner(verbose=False).run(examples, out=lambda _: None).failed == 1


def test_a_new_score_takes_the_one_class_of_the_guide_and_one_table_line(monkeypatch):
    names = dict(vars(scores))
    exec(blocks(ROOT / "CONTRIBUTING.md", "python new score")[0], names)
    monkeypatch.setitem(scores.SCORES, "distance", names["DistanceScore"])
    layer = Attention(d_model=6, n_heads=3, scores="distance", causal=True).double()
    x = torch.randn(2, 5, 6, dtype=torch.double)
    changed = x.clone()
    changed[:, 3:] = 7.0
    assert torch.equal(layer(x)[:, :3], layer(changed)[:, :3])
    assert not torch.allclose(layer(x)[:, 3:], layer(changed)[:, 3:])
    with pytest.raises(SpecError, match="distance"):
        Attention(d_model=6, n_heads=3, scores="distance", path="fused")
