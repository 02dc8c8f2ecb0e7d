"""The documentation site has every page once, and its links stay within what it holds."""

from __future__ import annotations

import re

import pytest
from ruamel.yaml import YAML

from tests.scripts import loaded
from tests.test_docs import DOCS, PAGES, ROOT


def settings():
    yaml = YAML(typ="rt")  # keeps the tags of Python's objects as they are
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def hooks():
    return loaded("docs/site_hooks.py")


def shown(nav):
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else shown(value)


def test_every_page_is_in_the_navigation_once(hooks):
    pages = list(shown(settings()["nav"]))
    above = {path or name for name, path in hooks.ABOVE.items()}
    notebooks = {f"notebooks/{path.name}" for path in (DOCS / "notebooks").glob("*.ipynb")}
    assert sorted(pages) == sorted({path.name for path in DOCS.glob("*.md")} | above | notebooks)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_the_site_lead_to_what_it_holds(page, hooks):
    inside = page.is_relative_to(DOCS)
    folder, up = (page.parent, "../" * (len(page.relative_to(DOCS).parts) - 1)) if inside else (ROOT, "")
    above = {path or name: ROOT / name for name, path in hooks.ABOVE.items()}
    for found in hooks.LINK.finditer(
        hooks.LINK.sub(lambda link: hooks.in_site(link, folder, up), page.read_text(encoding="utf-8"))
    ):
        target = found[3].partition("#")[0]
        if target and not re.match(r"[a-z]+:", target):
            place = (folder / target).resolve() if inside else (DOCS / target).resolve()
            assert place.is_file() or above.get(str(place.relative_to(DOCS))), found[0]


def test_links_out_of_the_site_keep_their_words_alone(hooks):
    def in_site(text):
        return hooks.LINK.sub(lambda link: hooks.in_site(link, DOCS, ""), text)

    assert in_site("[the files](../src/attnlab) and [changes](../CHANGELOG.md#added)") == (
        "the files and [changes](CHANGELOG.md#added)"
    )
    assert in_site("[start](../README.md) ![a](images/report.png) [web](https://example.org)") == (
        "[start](first-steps.md) ![a](images/report.png) [web](https://example.org)"
    )


def test_the_reference_names_what_packages_hold(hooks):
    import attnlab.nn

    page = hooks.reference("nn")
    classes = {name for name in attnlab.nn.__all__ if not name.isupper()}
    assert {line.rpartition(".")[2] for line in page.splitlines() if line.startswith("::: ")} == classes


def test_no_font_and_no_script_comes_from_elsewhere(hooks):
    assert settings()["theme"]["font"] is False
    page = type("Page", (), {"file": type("File", (), {"src_uri": "reference/nn.md"})})
    assert hooks.on_post_page(f'<script src="{hooks.SHIM}">', page=page) == '<script src="../vendor/iframe-worker.js">'
    assert (DOCS / "vendor" / "iframe-worker.js").is_file()


def test_the_start_page_names_pages_by_their_titles_and_begins_with_the_first_steps(hooks):
    links = hooks.LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))
    assert links[0][1:] == ("First steps", "../README.md")
    for _, words, target in links[1:]:
        if target.endswith(".md"):
            assert f"# {words}" == (DOCS / target).read_text(encoding="utf-8").split("\n", 1)[0]
