"""Draw trees: labels above, words in one line below."""

from __future__ import annotations

from html import escape

from attnlab.text.trees.tree import Tree

LETTER, ROW, GAP, EDGE = 8.2, 44.0, 14.0, 16.0
"""Width of a letter, distance of two rows, room between words and around all, in px."""
BELOW, ABOVE = 6.0, 14.0  # from a label's baseline to the line that leaves it, and to the one that comes


def tree_svg(tree: Tree) -> str:
    """A tree as an SVG picture, which follows the colors of the page around it.

    Parameters
    ----------
    tree : Tree
        What to draw.

    Returns
    -------
    str
        A document with a title that says the tree in brackets.
    """
    depth, pieces = _depth(tree), []
    width = EDGE

    def place(one: Tree, level: int) -> float:
        nonlocal width
        y = EDGE + ABOVE + level * ROW
        if not one.children:
            room = LETTER * max(len(one.word), len(one.label))
            x, base = width + room / 2, EDGE + ABOVE + depth * ROW
            width += room + GAP
            pieces.append(_line(x, y + BELOW, x, base - ABOVE))
            pieces.append(_text(x, y, one.label, "tag") + _text(x, base, one.word, "word"))
            return x
        below = [(place(child, level + 1), y + ROW - ABOVE) for child in one.children]
        x = (below[0][0] + below[-1][0]) / 2
        pieces.extend(_line(x, y + BELOW, *end) for end in below)
        pieces.append(_text(x, y, one.label, "label"))
        return x

    place(tree, 0)
    wide, high = f"{width - GAP + EDGE:.0f}", f"{depth * ROW + 2 * EDGE + ABOVE:.0f}"
    font = "text{font:14px ui-sans-serif,system-ui,sans-serif;fill:currentColor;text-anchor:middle}"
    style = f"{font}.word{{font-weight:600}}line{{stroke:currentColor;stroke-opacity:.45}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        f'role="img"><title>{escape(str(tree))}</title><style>{style}</style>{"".join(pieces)}</svg>\n'
    )


def _depth(tree: Tree) -> int:
    """Rows below the outermost label, the words' own among them."""
    return 1 + max((_depth(child) for child in tree.children), default=0)


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'
