"""Scripts and styles that pieces of a page are drawn with: what notebooks, reports and the viewer share."""

from __future__ import annotations

from pathlib import Path

SCRIPT = "attention_pixels.js"


def asset(name: str) -> str:
    """The text of a file beside this one."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def pixel_script() -> str:
    """The JavaScript module that turns numbers into colors, and a map into one pixel per number."""
    return asset(SCRIPT)
