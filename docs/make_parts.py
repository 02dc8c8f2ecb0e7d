"""Write ``docs/parts.md`` from the tables: ``python docs/make_parts.py``.

Every line of the page comes from a table or from the docstring of what the table names, so the page says what the
code says. ``tests/test_docs.py`` fails when the committed page is another.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attnlab.cli.catalog import TABLES, entries, imported, sections

PAGE = Path(__file__).with_name("parts.md")
KINDS = {
    "tasks": ("Tasks", "`task:` of a study file. More in [tasks.md](tasks.md)."),
    "tokenizers": ("Tokenizers", "`tokenizer:` of the task `translation`."),
    "models": ("Models", "`model:` of a study file, or of a single variant."),
    "blocks": ("Blocks", "`block:` of the models `decoder` and `encoder`."),
    "mixers": ("Mixers", "`mixer:` of `decoder`, `encoder` and `cnn`: what lets positions speak with each other."),
    "heads": ("Heads", "`heads:` of the mixer `attention`: how queries, keys and values are projected."),
    "positions": (
        "Positions",
        "`positions:` of a model, or of the mixer `attention` for those that act on scores.",
    ),
    "scores": ("Scores", "`scores:` of the mixer `attention`: how well a query fits a key."),
    "masks": ("Masks", "`masks:` of the mixer `attention`; all masks of a list must allow a pair."),
    "normalizers": ("Normalizers", "`normalizers:` of the mixer `attention`: from scores to weights."),
    "combiners": ("Combiners", "`combiners:` of the mixer `attention`: from the heads' outputs to `d_model`."),
    "feedforwards": ("Feed-forward parts", "`feedforward:` of `decoder` and `encoder`."),
    "norms": ("Norms", "`norm_kind:` of `decoder` and `encoder`; where the norm stands is `norm:`."),
    "inits": ("Initial weights", "`init:` of `decoder` and `encoder`."),
    "optimizers": ("Optimizers", "`optimizer:` under `training:`."),
    "objectives": ("Objectives", "`objective:` under `training:`: what is minimized."),
    "schedules": ("Schedules", "`schedule:` under `training:`: the learning rate after warm-up."),
}
"""Title of each table and where its names may stand."""

OPENING = """\
# Parts

Every name a study file may use, from the plainest to the strangest of each kind. `attnlab list` prints the same
names with their summaries, `attnlab list NAME` what the arguments of one mean.

A part is written as its name, or as a mapping with `name` and arguments:

```yaml
mixer: {name: attention, n_heads: 4, scores: {name: additive, d_hidden: 32}}
```

Arguments without a default (`d_model`, `d_head`, ...) are filled in by the place where the part stands; the
others may be left out. A value is checked against the type the constructor declares.

This page is generated: `.venv/bin/python docs/make_parts.py` writes it from the tables and docstrings of the code.
"""


def page() -> str:
    """Return the whole page.

    Returns
    -------
    str
        Markdown.
    """
    contents = "\n".join(f"- [{title}](#{_anchor(title)})" for title, _ in (KINDS[kind] for kind in TABLES))
    return "\n".join([OPENING, contents, *(_table(kind) for kind in TABLES)])


def _anchor(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def _table(kind: str) -> str:
    """Return the section of one table."""
    title, place = KINDS[kind]
    file, name = TABLES[kind]
    table = imported(kind)
    found = [_entry(entry.name, entry.summary, table[entry.name]) for entry in entries(kind)]
    return "\n".join([f"\n## {title}\n", f"{place} Table `{name}` of `src/attnlab/{file}`.", *found])


def _entry(name: str, summary: str, target: Callable[..., Any]) -> str:
    """Return what the page says of one name."""
    found = sections(inspect.getdoc(target) or "")
    lines = [f"\n### `{name}`\n", _code(summary), "", f"Class `{target.__qualname__}`. {_arguments(target)}"]
    if inspect.isfunction(target):
        lines = [f"\n### `{name}`\n", _code(summary), "", f"Function `{target.__qualname__}`."]
    notes, references = found.get("Notes", ""), dict(_references(found.get("References", "")))
    if notes:
        lines += ["", re.sub(r" ?\[(\d+)\]_", lambda mark: f" (source {mark[1]})", _code(notes))]
    if references:
        lines += ["", *(f"- Source {number}: {text}" for number, text in references.items())]
    return "\n".join(lines)


def _arguments(target: Callable[..., Any]) -> str:
    """Return the constructor's arguments with their defaults."""
    words = [
        f"`{name}`" if one.default is one.empty else f"`{name}={_shown(one.default)}`"
        for name, one in inspect.signature(target).parameters.items()
    ]
    return f"Arguments: {', '.join(words)}." if words else "No arguments."


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _references(text: str) -> Iterator[tuple[str, str]]:
    """Yield number and text of each source."""
    for number, source in re.findall(r"^\.\. \[(\d+)\] (.*(?:\n(?!\.\.).*)*)", text, flags=re.MULTILINE):
        words = " ".join(source.split())
        yield number, re.sub(r"arXiv:(\d{4}\.\d{5}|\d{4}\.\d{4})", r"[arXiv:\1](https://arxiv.org/abs/\1)", words)


def _code(text: str) -> str:
    """Return reStructuredText's inline literals as Markdown's."""
    return text.replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page() + "\n", encoding="utf-8")
