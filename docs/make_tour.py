"""Write the tour of the code into ``CONTRIBUTING.md`` from the tree: ``python docs/make_tour.py``.

One line per package and room, from the first line of its docstring; ``tests/test_docs.py`` fails when the tour is another.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "attnlab"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- tour: written by docs/make_tour.py -->\n", "<!-- end of the tour -->\n"


def tour(layers: tuple[tuple[str, ...], ...]) -> str:
    """The tour, layer by layer from the lowest."""
    lines = []
    for depth, packages in enumerate(layers):
        rooms = [folder for package in packages for folder in _rooms(PACKAGE / package)]
        if rooms:
            lines += [f"\n### Layer {depth}\n", "| room | what it is |", "|---|---|", *map(_line, rooms)]
    return "\n".join(lines) + "\n\n"


def _rooms(package: Path) -> list[Path]:
    return sorted(folder.parent for folder in package.rglob("__init__.py"))


def _line(folder: Path) -> str:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return f"| `{folder.relative_to(PACKAGE)}/` | {text.splitlines()[0]} |"


def written(layers: tuple[tuple[str, ...], ...]) -> str:
    """The whole page with the tour of the tree as it is."""
    page = PAGE.read_text(encoding="utf-8")
    return page[: page.index(BEGIN) + len(BEGIN)] + tour(layers) + page[page.index(END) :]


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(ROOT))
    from tests.test_architecture import LAYERS

    PAGE.write_text(written(LAYERS), encoding="utf-8")
