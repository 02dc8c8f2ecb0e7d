"""The terminal as everything is printed on it: what people named is shown as it is written."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, final

from rich.console import Console, ConsoleOptions, HighlighterType, JustifyMethod, OverflowMethod, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that would move the cursor, change colors or the direction of writing."""
_OWN, _PLAIN = "−–—×·“”‘’√▁▂▃▄▅▆▇█\xa0\u202f", "---x.\"\"''V_.:-=+*#  "  # noqa: RUF001
PLAINLY = {"±": "+-", "→": "->", "…": "..."} | dict(zip(_OWN, _PLAIN, strict=True))
"""How the lab's own characters are written where a terminal's encoding lacks them."""
LEGIBLE = "attnlab.legible"
NARROWEST = 20
"""Columns below which a set width is a mistake, such as that of a terminal that says 0."""


@final
class Terminal(Console):
    """Print without making emoji of ``:names:``, and show control characters instead of obeying them.

    Parameters
    ----------
    stderr : bool
        Whether to print on standard error.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, emoji=False)

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        emoji: bool | None = None,
        markup: bool | None = None,
        highlight: bool | None = None,
        highlighter: HighlighterType | None = None,
    ) -> Text:
        """A string as it is measured and printed."""
        how: dict[str, Any] = {"style": style, "justify": justify, "overflow": overflow, "emoji": emoji}
        how |= {"markup": markup, "highlight": highlight, "highlighter": highlighter}
        return super().render_str(ACTING.sub(_escaped, text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of what is printed, texts that are no strings among them; rich's own codes stay."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(ACTING.sub(_escaped, piece.text), piece.style)


def adapt_to_surroundings() -> None:
    """Print on this process's streams whatever their encoding lacks, and leave a width out that nothing fits in."""
    codecs.register_error(LEGIBLE, _legible)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=LEGIBLE)
    width = os.environ.get("COLUMNS", "")
    if width.isdecimal() and int(width) < NARROWEST:
        del os.environ["COLUMNS"]


@contextlib.contextmanager
def each_warning_once(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell each warning in a line, and once: what is called in many contexts would print it in each."""
    told = set[str]()

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
        words = f"{category.__name__}: {str(message).strip().partition(chr(10))[0]}"
        if words not in told:
            told.add(words)
            tell(f"{words} ({Path(filename).name}, line {lineno})")

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]  # is given all by position
        yield


def holds_all_characters() -> bool:
    """Whether standard output has an encoding that lacks no character."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")


def _legible(error: UnicodeError) -> tuple[str | bytes, int]:
    """Characters that an encoding lacks, as plain ones or as JSON escapes them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(PLAINLY.get(one) or json.dumps(one)[1:-1] for one in lacking), error.end


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
