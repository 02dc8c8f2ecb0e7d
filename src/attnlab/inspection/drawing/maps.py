"""Attention maps as a piece of a page: one of them large, and all heads small to choose from."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlab.inspection.drawing.palette import MOST

if TYPE_CHECKING:
    from markupsafe import Markup

TILE = 32
"""Pixels of a side of a small head, at most: of a longer map the largest weight of a block is shown."""
GAP, LINE = 3, 60
"""Pixels between two heads, and how opaque they are, of 255."""
HEIGHT = 46
"""Of a small head on the page, in px."""
STILL = "To choose a head and to read its numbers, trust this notebook or run its cell."
"""Said until a script runs: a notebook that nobody trusts yet keeps neither scripts nor styles."""


def one_map(name: str, data: Mapping[str, Any], small: Markup | str = "") -> Markup:
    """The maps of one model, of which ``maps.js`` draws the chosen one.

    Parameters
    ----------
    name : str
        What stands above them; nothing does if empty.
    data : mapping
        What `attention_maps` returned.
    small : Markup, optional
        Where all heads are shown small, from `small_heads`.

    Returns
    -------
    Markup
        An ``article`` without style and script, which makes what can be chosen and pointed at.
    """
    from jinja2.utils import htmlsafe_json_dumps
    from markupsafe import Markup

    title = Markup("<h3>{}</h3>").format(name) if name else ""
    return Markup('<article class="map">{}{}<script type="application/json">{}</script></article>').format(
        title, small, htmlsafe_json_dumps(data)
    )


def small_heads(data: Mapping[str, Any]) -> Markup:
    """All heads of all layers as pictures, seen without a script; one makes them buttons that choose a head."""
    from markupsafe import Markup

    row = Markup('<div><span>{} </span><img width="{}" height="{}" alt="{} heads, one beside another" src="{}"></div>')
    rows = []
    for layer in data["layers"]:
        strip = _picture(layer)
        address = f"data:image/png;base64,{base64.b64encode(png(strip)).decode('ascii')}"
        width = round(HEIGHT * strip.shape[1] / strip.shape[0])
        rows.append(row.format(layer["name"], width, HEIGHT, layer["shape"][0], address))
    return Markup('<div class="small">{}</div><p class="still note">{}</p>').format(Markup().join(rows), STILL)


def _picture(layer: Mapping[str, Any]) -> np.ndarray:
    """The heads of a layer beside each other, as opacities."""
    weights = np.frombuffer(base64.b64decode(layer["weights"]), np.uint8).reshape(layer["shape"])
    tiles = [np.pad(_coarse(head), 1, constant_values=LINE) for head in weights]
    gap = np.zeros((len(tiles[0]), GAP), np.uint8)
    return np.hstack([part for tile in tiles for part in (tile, gap)][:-1])


def _coarse(weights: np.ndarray) -> np.ndarray:
    """A map of at most `TILE` pixels a side."""
    block = -(-max(weights.shape) // TILE)
    padded = np.pad(weights, [(0, -size % block) for size in weights.shape])
    rows, columns = (size // block for size in padded.shape)
    return padded.reshape(rows, block, columns, block).max(axis=(1, 3))


def png(opacity: np.ndarray) -> bytes:
    """A picture in the color of the largest weight, more or less opaque.

    Parameters
    ----------
    opacity : array of uint8
        Of each pixel, (rows, columns).

    Returns
    -------
    bytes
        A PNG file with a palette of 256 opacities of one color.
    """
    rows, columns = opacity.shape
    lines = np.pad(opacity, ((0, 0), (1, 0))).tobytes()  # a line begins with its filter: none
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0),
        b"PLTE": bytes(MOST) * 256,
        b"tRNS": bytes(range(256)),
        b"IDAT": zlib.compress(lines, 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )
