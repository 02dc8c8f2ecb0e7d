"""The terminal as everything is printed on it: what people named is shown as it is written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, final

from rich.console import Console, ConsoleOptions, HighlighterType, JustifyMethod, OverflowMethod, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that would move the cursor, change colors or the direction of writing."""


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


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
