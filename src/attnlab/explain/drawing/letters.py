"""How wide a text is, and how it is broken into lines, without asking for a font."""

from __future__ import annotations

import textwrap

NARROW, MIDDLE, WIDE, WIDEST = 0.29, 0.36, 0.74, 0.95
ORDINARY = 0.57
"""Widths in units of the font's size: those of Helvetica and Arial, rounded up."""
CLASSES = (
    ("ijl.,:;|'!", NARROW),
    ("frt()[]{}/\\-I ", MIDDLE),
    ("ABCDEFGHJKLNOPQRSTUVXYZ&wm", WIDE),
    ("MW@%…→", WIDEST),
)
WIDTHS = {letter: width for letters, width in CLASSES for letter in letters}
BOLD = 1.08
SPARE = 1.12
"""Other fonts that a reader's machine puts in the place of these are wider by so much."""

TIMES = "\N{MULTIPLICATION SIGN}"

LONGEST_LINE = 36
"""Characters after which a text in a box goes on in the next line."""


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """The room that one line of text needs, in px, rather too much than too little."""
    units = sum(WIDTHS.get(letter, ORDINARY) for letter in text)
    return units * size * SPARE * (BOLD if bold else 1.0)


def product(*sizes: int) -> str:
    """Sizes that are multiplied, such as a number of heads and the width of each."""
    return f" {TIMES} ".join(f"{size:,}" for size in sizes)


def counted(number: int, what: str) -> str:
    """A number of things, the plural where there are several.

    Examples
    --------
    >>> counted(1, "head"), counted(1200, "head")
    ('1 head', '1,200 heads')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def lines_of(text: str, longest: int = LONGEST_LINE) -> list[str]:
    """A text as lines of at most so many characters.

    Examples
    --------
    >>> lines_of("Linear 64 -> 256, GELU, Linear 256 -> 64", 24)
    ['Linear 64 -> 256, GELU,', 'Linear 256 -> 64']
    """
    return textwrap.wrap(text, longest) or [""]
