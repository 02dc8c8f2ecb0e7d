"""The colors of reports and notebooks, on light ground and on dark, as CSS variables."""

from __future__ import annotations

LIGHT = (
    "--ink: #1f2430; --muted: #667085; --grid: #e4e7ec; --faint: #c4cad4; --band: #eef1f5; --paper: #ffffff; "
    "--ground: #fafaf8; --better: #0b72b5; --worse: #cc5500; --equivalent: #7d8590; --undecided: #7d8590; "
    "--exploratory: #7d8590; --baseline: #1f2430; --alarm: #9a3412; --alarm-ground: #fff4ec; --loss: 204, 85, 0; "
    "--low: #0b72b5; --high: #cc5500; --picture: none;"
)
DARK = (
    "--ink: #e6e8ec; --muted: #98a2b3; --grid: #2e3440; --faint: #4a5260; --band: #232a35; --paper: #171b22; "
    "--ground: #12151b; --better: #53a9e8; --worse: #f08a45; --equivalent: #98a2b3; --undecided: #98a2b3; "
    "--exploratory: #98a2b3; --baseline: #e6e8ec; --alarm: #fdba8c; --alarm-ground: #2c1d14; --loss: 240, 138, 69; "
    "--low: #53a9e8; --high: #f08a45; --picture: invert(1) hue-rotate(180deg);"
)
"""``--low`` and ``--high`` are the ends of a scale around zero; `attention_pixels.js` has them too, as numbers.
``--picture`` is what makes a picture in `MOST` light."""

MOST = (3, 57, 108)
"""Red, green and blue of the largest weight of a map, likewise."""
