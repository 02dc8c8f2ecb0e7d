"""A figure as text: what it shows, sentence by sentence, in the order in which it is computed."""

# ruff: noqa: ARG001 -- entries of one function share its signature; not every entry needs all of it

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from attnlab.explain.drawing import nodes
from attnlab.explain.drawing.attention import Layer, seen_by
from attnlab.explain.drawing.letters import counted
from attnlab.explain.drawing.models import Halves


def described(found: Halves, layers: Sequence[Layer]) -> str:
    """A model and its attention layers in sentences."""
    names = ("The model.",) if len(found.columns) == 1 else ("The encoder.", "The decoder.")
    lines: list[str] = []
    for name, column in zip(names, found.columns, strict=True):
        lines += [name, *sentences(column)]
    for layer in layers:
        lines += [f"{layer.title}.", *sentences(layer.heads), "Inside each head.", *sentences(layer.inside)]
        lines += [f"{use.path}: keys and values from {use.source}; it sees {seen_by(use)}." for use in layer.uses]
    return " ".join(lines)


@functools.singledispatch
def sentences(node: nodes.Node) -> Iterator[str]:
    """Yield what a node shows, sentence by sentence."""
    raise TypeError(type(node).__name__)


@sentences.register
def _(node: nodes.Box) -> Iterator[str]:
    copies = [f"{node.copies} of them"] if node.copies > 1 else []
    numbers = [counted(node.parameters, "parameter")] if node.parameters else []
    said = ", ".join([*copies, *node.notes, *numbers])
    yield f"{node.title}: {said}." if said else f"{node.title}."


@sentences.register
def _(node: nodes.Caption) -> Iterator[str]:
    yield f"At this point: {node.text}."


@sentences.register
def _(node: nodes.Plus) -> Iterator[str]:
    yield "Both are added."


@sentences.register
def _(node: nodes.Port) -> Iterator[str]:
    yield f"From the encoder: {node.text}."


@sentences.register
def _(node: nodes.Column | nodes.Pile) -> Iterator[str]:
    for one in node.items:
        yield from sentences(one)


@sentences.register
def _(node: nodes.Frame) -> Iterator[str]:
    name = node.title or "Layers"
    if node.times is None:
        yield f"{name}, {node.note}, which holds:" if node.kind == "own" else f"{name}:"
    else:
        yield "One layer:" if node.times == 1 else f"{node.times} layers, each of them:"
    yield from sentences(node.body)
    yield f"End of {node.title or ('the layer' if node.times == 1 else 'each layer')}."


@sentences.register
def _(node: nodes.Skip) -> Iterator[str]:
    yield "An arrow around what follows starts."
    yield from sentences(node.body)
    yield "The arrow around it ends."
    yield from sentences(node.join)


@sentences.register
def _(node: nodes.Join) -> Iterator[str]:
    for number, one in enumerate(node.branches, 1):
        yield f"Branch {number} of {len(node.branches)}."
        yield from sentences(one)
    yield "The branches meet."
    yield from sentences(node.top)


@sentences.register
def _(node: nodes.Beside) -> Iterator[str]:
    yield "From the side:"
    yield from sentences(node.side)
    yield from sentences(node.main)
