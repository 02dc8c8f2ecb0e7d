"""What the documentation site adds to the pages of this folder: hooks of ``mkdocs.yml``; ``make docs`` calls them.

Pages are written for the file view of a repository. The site adds those that lie above this folder, a reference page a
package from its docstrings, and the JSON schema of study files; it drops links to what it does not hold.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PACKAGE = ROOT / "src" / "attnlab"
ABOVE = {"README.md": "first-steps.md", "CONTRIBUTING.md": None, "SECURITY.md": None, "CHANGELOG.md": None}
"""Pages above this folder, by the name each has in the site where that differs: a README.md would be the home page."""
ROOMS = ("nn", "models", "tasks", "training", "inspection", "doctor", "explain", "studies")
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What Material loads for search in pages opened as files, which may start no workers."""
FENCE = re.compile(r"^(```\w+) [^\n`]+$", re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Add the reference pages to the navigation, and a choice of versions where mike builds one among several."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    reference = next(part["Reference"] for part in config.nav if "Reference" in part)
    reference += [{f"attnlab.{room}": f"reference/{room}.md"} for room in ROOMS]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages above this folder, the reference, and the schema."""
    for name, path in ABOVE.items():
        files.append(File.generated(config, path or name, content=(ROOT / name).read_text(encoding="utf-8")))
    for room in ROOMS:
        files.append(File.generated(config, f"reference/{room}.md", content=reference(room)))
    schema = subprocess.run([sys.executable, "-m", "attnlab", "schema"], capture_output=True, text=True, check=True)
    files.append(File.generated(config, "study.schema.json", content=schema.stdout))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Keep the language of a block of code alone, and turn links to what the site does not hold into their words."""
    above = next((name for name, path in ABOVE.items() if page.file.src_uri == (path or name)), None)
    folder = ROOT if above else (DOCS / page.file.src_uri).parent
    depth = page.file.src_uri.count("/")
    return FENCE.sub(r"\1", LINK.sub(lambda link: in_site(link, folder, "../" * depth), markdown))


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Let search work without a network: what it needs where pages are opened as files lies beside them."""
    return output.replace(SHIM, "../" * page.file.src_uri.count("/") + "vendor/iframe-worker.js")


def on_post_template(output_content: str, **_: Any) -> str:
    """Leave it out of the page that a server shows for what is missing."""
    return output_content.replace(f'<script src="{SHIM}"></script>', "")


def in_site(link: re.Match[str], folder: Path, up: str) -> str:
    """A link as the site needs it."""
    picture, words, target = link.groups()
    name, mark, anchor = target.partition("#")
    place = (folder / name).resolve()
    if re.match(r"[a-z]+:", target) or not name:
        return link[0]
    words = LINK.sub(lambda inner: in_site(inner, folder, up), words)
    if place.parent == ROOT and place.name in ABOVE:
        return f"[{words}]({up}{ABOVE[place.name] or place.name}{mark}{anchor})"
    if place.is_file() and place.is_relative_to(DOCS) and place.suffix != ".py":
        return f"{picture}[{words}]({up}{place.relative_to(DOCS).as_posix()}{mark}{anchor})"
    return words


def reference(room: str) -> str:
    """The page of a package: what its contents name, but for tables, which have a page of their own."""
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "attnlab.core.lazy"]
    names = sorted((name.name, f"{node.module}") for node in imports for name in node.names if not name.name.isupper())
    shown = [f"::: {module}.{name}" for name, module in names if str(module).startswith("attnlab")]
    return "\n\n".join([f"# attnlab.{room}", (ast.get_docstring(tree) or "").split("\n")[0], *shown]) + "\n"


class PlainMarkdown(griffe.Extension):
    """Write the sources of docstrings, which are reStructuredText, as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one class or function."""
        if obj.docstring:
            text = re.sub(r" ?\[(\d+)\]_", r" (source \1)", obj.docstring.value)
            obj.docstring.value = re.sub(r"^\.\. \[(\d+)\] ", r"- Source \1: ", text, flags=re.MULTILINE)
