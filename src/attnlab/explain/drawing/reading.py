"""From modules to nodes: the layers of torch, and whatever nobody here knows.

`read` has an entry for every class that can be drawn as what it does; the other files of this room add theirs. What has
none is drawn as what it holds, with its name and its parameters, and without arrows: its code is its own affair.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from torch import Tensor, nn

from attnlab.explain.drawing.known import ByClass
from attnlab.explain.drawing.letters import TIMES, counted, product
from attnlab.explain.drawing.nodes import Box, Frame, Kind, Node, Pile, column, folded, parameters_in
from attnlab.nn.attention import Attention
from attnlab.nn.kernels.dropout import Dropout

MOST_HELD = 8
"""Modules that are shown of one that is not known; the others are counted."""
DEEPEST = 3
"""How many modules that are not known are opened within each other."""
LONGEST_SIZES = 60
"""Characters of what a module says of its sizes."""


@final
@dataclass(frozen=True)
class Use:
    """Remember an attention layer that was met, to draw it by itself."""

    attention: Attention  # the layer
    path: str  # where it stands in the model
    source: str  # where its keys and values come from
    pads: bool  # whether it is told which keys are padding


@final
@dataclass
class Reading:
    """Hold what was met so far: whose the parameters are, and which attention layers there are."""

    uses: list[Use] = field(default_factory=list)  # in the order they were met
    source: str = "its own input"  # where an attention that is met next has its keys and values from
    pads: bool = False  # whether it is told which of them are padding
    depth: int = 0  # how many modules that are not known are around
    _owners: dict[int, str] = field(default_factory=dict, init=False)  # paths by parameter

    def box(
        self,
        title: str,
        notes: Iterable[str] = (),
        *,
        kind: Kind = "plain",
        of: nn.Module | Iterable[nn.Module] = (),
        path: str = "",
        small: bool = False,
    ) -> Box:
        """A box that owns those parameters of modules that no earlier one has, and says whose the others are."""
        modules = [of] if isinstance(of, nn.Module) else list(of)
        own, others = self.claim((one for module in modules for one in module.parameters()), path)
        shared = [f"the weights of {other}" for other in others]
        return Box(title, (*(note for note in notes if note), *shared), kind, own, path, small=small)

    def claim(self, parameters: Iterable[Tensor], path: str) -> tuple[int, list[str]]:
        """How many numbers are new in parameters that stand at a path, and where the others stand."""
        own, others = 0, []
        for parameter in parameters:
            own += 0 if id(parameter) in self._owners else parameter.numel()
            others.append(self._owners.setdefault(id(parameter), path))
        return own, [owner for owner in dict.fromkeys(others) if owner != path]

    @contextlib.contextmanager
    def attending(self, source: str, *, pads: bool) -> Iterator[None]:
        """Say where the attention layers that are met meanwhile have their keys and values from."""
        before = self.source, self.pads
        self.source, self.pads = source, pads
        try:
            yield
        finally:
            self.source, self.pads = before


@ByClass
def read(module: nn.Module, path: str, reading: Reading) -> Node:
    """What a module is drawn as; one that is not known as what it holds."""
    title = type(module).__name__
    if reading.depth == DEEPEST or not any(True for _ in module.children()):
        box = reading.box(title, [_sizes(module)], kind="own", of=module, path=path)
        return dataclasses.replace(box, notes=(*box.notes, _numbers(box))) if box.parameters else box
    reading.depth += 1
    held = [_named(read(child, _below(path, name), reading), name) for name, child in module.named_children()]
    held += [_own_parameter(name, one, path, reading) for name, one in module.named_parameters(recurse=False)]
    reading.depth -= 1
    pile = Pile(tuple(_not_too_many(held, path)))
    return Frame(pile, title=title, note=_numbers(pile), kind="own", path=path)


def parts(module: nn.Module, path: str, reading: Reading) -> list[Node]:
    """What a module is drawn as, or nothing where it does nothing."""
    if isinstance(module, nn.Identity) or (isinstance(module, nn.Dropout) and module.p == 0):
        return []
    return [read(module, path, reading)]


def _below(path: str, name: str) -> str:
    """Where what a module holds stands in the model."""
    return f"{path}.{name}" if path else name


def _numbers(node: Node) -> str:
    return counted(parameters_in(node), "parameter")


def _named(node: Node, name: str) -> Node:
    """What a module is drawn as, with the name that it has in the one that holds it."""
    title = getattr(node, "title", "")
    if type(node) is Box:
        return dataclasses.replace(node, notes=(f"'{name}'", *node.notes))
    if type(node) is Frame:
        return dataclasses.replace(node, title=f"'{name}': {title}" if title else f"'{name}'")
    if type(node) is Pile and len(node.items) == 1:
        return _named(node.items[0], name)
    return Frame(node, title=f"'{name}'")


def _own_parameter(name: str, parameter: nn.Parameter, path: str, reading: Reading) -> Box:
    """A parameter that a module holds itself."""
    sizes = product(*parameter.shape) or "1"
    count, _ = reading.claim([parameter], _below(path, name))
    return Box(name, (f"parameter of size {sizes}",), "own", count, _below(path, name))


def _not_too_many(held: Sequence[Node], path: str) -> list[Node]:
    """What a module holds, what is too much as one box."""
    if len(held) <= MOST_HELD:
        return list(held)
    shown, rest = held[: MOST_HELD - 1], held[MOST_HELD - 1 :]
    return [*shown, Box(f"{len(rest)} more", (), "own", sum(map(parameters_in, rest)), path)]


def _sizes(module: nn.Module) -> str:
    """What a module says of its sizes."""
    said = module.extra_repr()
    return said if len(said) <= LONGEST_SIZES else f"{said[:LONGEST_SIZES]}…"


@read.register
def _(module: nn.Sequential, path: str, reading: Reading) -> Node:
    return column(*(parts(child, _below(path, name), reading) for name, child in module.named_children()))


@read.register
def _(module: nn.ModuleList, path: str, reading: Reading) -> Node:
    nodes = [read(child, _below(path, name), reading) for name, child in module.named_children()]
    return Pile(tuple(_not_too_many(folded(nodes, path, framed=False), path)))


@read.register
def _(module: nn.Linear, path: str, reading: Reading) -> Node:
    return reading.box("Linear", [arrow(module.in_features, module.out_features)], kind="linear", of=module, path=path)


@read.register
def _(module: nn.Embedding, path: str, reading: Reading) -> Node:
    notes = [f"{module.num_embeddings:,} vectors of width {module.embedding_dim}"]
    return reading.box("Embedding", notes, kind="embedding", of=module, path=path)


@read.register
def _(module: nn.LayerNorm, path: str, reading: Reading) -> Node:
    return reading.box("Layer norm", kind="norm", of=module, path=path)


@read.register
def _(module: nn.RMSNorm, path: str, reading: Reading) -> Node:
    return reading.box("RMS norm", kind="norm", of=module, path=path)


@read.register(nn.Dropout)
@read.register(Dropout)
def _(module: nn.Dropout, path: str, reading: Reading) -> Node:
    return reading.box(f"Dropout {module.p:g}", path=path, small=True)


@read.register
def _(module: nn.Conv1d, path: str, reading: Reading) -> Node:
    spread = f", dilation {module.dilation[0]}" if module.dilation[0] > 1 else ""
    notes = [f"kernel {module.kernel_size[0]}{spread}", arrow(module.in_channels, module.out_channels)]
    return reading.box("Convolution", notes, kind="convolution", of=module, path=path)


@read.register(nn.LSTM)
@read.register(nn.GRU)
def _(module: nn.LSTM | nn.GRU, path: str, reading: Reading) -> Node:
    directions = "both directions" if module.bidirectional else "one direction"
    layers = f"{module.num_layers} on top of each other" if module.num_layers > 1 else ""
    between = f"dropout {module.dropout:g} between them" if module.dropout and module.num_layers > 1 else ""
    notes = [f"{arrow(module.input_size, module.hidden_size)}, {directions}", layers, between]
    return reading.box(module.mode, notes, kind="recurrent", of=module, path=path)


@read.register
def _(module: nn.MultiheadAttention, path: str, reading: Reading) -> Node:
    notes = [f"{module.num_heads} heads {TIMES} {module.head_dim}", "attention of torch"]
    return reading.box("Multi-head attention", notes, kind="attention", of=module, path=path)


def arrow(before: int, after: int) -> str:
    """Two widths, from which to which."""
    return f"{before:,} → {after:,}"
