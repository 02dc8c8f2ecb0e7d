"""What a figure is made of, without any size: boxes, and how they stand over, in and beside each other.

Everything is read from the bottom to the top, as in the figures of the first Transformer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

Kind = Literal[
    "embedding", "attention", "feedforward", "norm", "linear", "convolution", "recurrent", "softmax",
    "plain", "own", "outside",
]  # fmt: skip
"""What a box stands for: its color. What is "own" was not written here; what is "outside" is no part of the model."""


@final
@dataclass(frozen=True)
class Box:
    """Stand for one module, or for one step of a computation."""

    title: str  # first line
    notes: tuple[str, ...] = ()  # smaller lines below it
    kind: Kind = "plain"  # its color
    parameters: int = 0  # trainable ones that no earlier box has
    path: str = field(default="", compare=False)  # of the module, in the model; empty for a step without one
    copies: int = 1  # how many stand behind each other, each with its share of the parameters
    aside: str = ""  # what is written at its side
    small: bool = False  # whether it is a step that has no weights worth naming


@final
@dataclass(frozen=True)
class Caption:
    """Name what goes in or comes out."""

    text: str  # what is written


@final
@dataclass(frozen=True)
class Plus:
    """Add what arrives."""


@final
@dataclass(frozen=True)
class Port:
    """Let the output of the model's other half in."""

    text: str  # what enters there


@final
@dataclass(frozen=True)
class Column:
    """Pass what comes in from each to the next."""

    items: tuple[Node, ...]  # from the first to the last


@final
@dataclass(frozen=True)
class Pile:
    """Show what something holds, without saying in which order it is used."""

    items: tuple[Node, ...]  # what it holds


@final
@dataclass(frozen=True)
class Frame:
    """Enclose what belongs together."""

    body: Node  # what is inside
    times: int | None = None  # how many of it follow each other; None where it is no layer
    title: str = ""  # what it is called
    note: str = ""  # a smaller line below that
    kind: Literal["layers", "own"] = "layers"  # its color
    path: str = field(default="", compare=False)  # of the module, in the model


@final
@dataclass(frozen=True)
class Skip:
    """Lead what comes in past the body too, and join both."""

    body: Node  # what is gone around
    join: Plus | Box = field(default_factory=Plus)  # where both meet


@final
@dataclass(frozen=True)
class Join:
    """Lead several branches into one node."""

    branches: tuple[Node, ...]  # from left to right
    top: Box  # where they meet


@final
@dataclass(frozen=True)
class Beside:
    """Lead something from the side into a node."""

    main: Node  # what stands in the column
    side: Node  # what enters it
    inward: bool = False  # whether it comes from the side of the model's other half


Node: TypeAlias = Box | Caption | Plus | Port | Column | Pile | Frame | Skip | Join | Beside


def children(node: Node) -> Iterator[Node]:
    """Yield the nodes that a node is made of."""
    for one in dataclasses.fields(node):
        value = getattr(node, one.name)
        yield from (
            item for item in (value if isinstance(value, tuple) else (value,)) if dataclasses.is_dataclass(item)
        )


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all within it."""
    yield node
    for child in children(node):
        yield from walk(child)


def parameters_in(node: Node) -> int:
    """How many parameters all boxes within a node have, each layer of a frame counted."""
    own, times = getattr(node, "parameters", 0), getattr(node, "times", None) or 1
    return own + times * sum(parameters_in(child) for child in children(node))


def column(*items: Node | Iterable[Node]) -> Column:
    """A column of nodes and of lists of nodes; columns within it are opened."""
    flat: list[Node] = []
    for item in items:
        for one in [item] if dataclasses.is_dataclass(item) else item:  # type: ignore[union-attr]
            flat.extend(getattr(one, "items", ()) if type(one) is Column else [one])
    return Column(tuple(flat))


def with_paths(node: Node, rename: Callable[[str], str]) -> Any:
    """A node with other paths."""
    changed: dict[str, Any] = {}
    for one in dataclasses.fields(node):
        value = getattr(node, one.name)
        if one.name == "path":
            changed["path"] = rename(value)
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            changed[one.name] = tuple(with_paths(item, rename) for item in value)
        elif dataclasses.is_dataclass(value):
            changed[one.name] = with_paths(value, rename)  # type: ignore[arg-type]
    return dataclasses.replace(node, **changed)


def folded(layers: Sequence[Node], path: str, *, framed: bool = True) -> list[Node]:
    """Layers that follow each other, equal ones drawn once in a frame that says how many there are.

    Paths within a layer begin with `path`, a dot, and its number. Where several layers are repeated as a whole, one
    frame holds them; `framed` says whether one without an equal neighbor gets a frame too.
    """
    period = _period(layers)
    repeated = 1 < period < len(layers)
    parts = _runs(layers[:period] if repeated else layers)
    inside = [node for part in parts for node in _shown(layers, part, path, framed=framed)]
    return [Frame(column(inside), len(layers) // period, path=path)] if repeated else inside


def _period(layers: Sequence[Node]) -> int:
    """After how many layers they begin anew."""
    count = len(layers)
    whole = (size for size in range(1, count) if count % size == 0)
    return next((size for size in whole if all(layers[i] == layers[i % size] for i in range(count))), count)


def _runs(layers: Sequence[Node]) -> list[range]:
    """Where equal layers follow each other."""
    starts = [i for i in range(len(layers)) if i == 0 or layers[i] != layers[i - 1]]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(layers)], strict=True)]


def _shown(layers: Sequence[Node], part: range, path: str, *, framed: bool) -> list[Node]:
    """Equal layers, in a frame where there are several or where each is to have one."""
    first, last = part[0], part[-1]
    if first == last and not framed:
        return [layers[first]]
    number = f"{path}.{first}" if first == last else f"{path}.{first}-{last}"
    body = with_paths(layers[first], lambda old: old.replace(f"{path}.{first}", number, 1))
    return [Frame(body, len(part), path=number)]
