"""The parts of a person's own model by what they do, and known ones that can stand in their places."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from attnlab.nn.attention import Attention
from attnlab.nn.axes.positions import SinusoidalPositions, sinusoids
from attnlab.nn.block import Block
from attnlab.nn.changed_calls import ChangedCalls
from attnlab.nn.feedforward import ReluFeedForward
from attnlab.nn.mended import layers_of

ATTENTION, BEHIND, FEED_FORWARD, NORM, POSITIONS, LAYER = (
    "attention", "behind", "feed-forward", "norm", "positions", "layer"
)  # fmt: skip
"""Kinds of parts."""
MANY_TIMES = 1e6
"""How many times as large an input is that a norm gives at most a hundredth of that in return."""


class AbstractInPlace(nn.Module, ABC):
    """Answer to what others read of the part in whose place it stands, which is not trained itself.

    Parameters
    ----------
    before : nn.Module
        That part.
    """

    def __init__(self, before: nn.Module) -> None:
        super().__init__()
        object.__setattr__(self, "before", before)  # no part of it

    def __getattr__(self, name: str) -> Any:
        """What it has itself, else what the part before it has."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "before" not in vars(self):
                raise
            return getattr(self.before, name)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move what stood there, too."""
        self.before._apply(fn, recurse)
        return super()._apply(fn, recurse)

    @abstractmethod
    def forward(self, *given: Any, **named: Any) -> Any:
        """What stands there gives."""


@final
class StandIn(AbstractInPlace):
    """A known part that is called and answers like the one in whose place it stands.

    Parameters
    ----------
    before : nn.Module
        The part in whose place it stands.
    part : nn.Module
        Takes activations and gives as many; masks that a caller gives are left aside.
    length_first, channels_first : bool
        Whether it is called with (length, batch, d_model), or with (batch, d_model, length).
    several : bool
        Whether its output is the first of two things, as torch's attention returns its weights beside it.
    """

    batch_first = False
    """In evaluation torch's layers compute with the weights of an attention that says it is, and do not call it."""

    def __init__(
        self,
        before: nn.Module,
        part: nn.Module,
        *,
        length_first: bool = False,
        channels_first: bool = False,
        several: bool = False,
    ) -> None:
        super().__init__(before)
        self.part, self.several = part, several
        self.swapped = (0, 1) if length_first else (1, 2) if channels_first else (0, 0)

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Any:
        """What the part makes of the first thing that is given."""
        output = self.part(x.transpose(*self.swapped)).transpose(*self.swapped)
        return (output, None) if self.several else output


@final
class AddedAttention(AbstractInPlace):
    """Call a layer, and add to what it gives what attention to all positions makes of it.

    Parameters
    ----------
    layer : nn.Module
        Any that gives a vector for each position.
    d_model : int
        Width of these.
    causal : bool
        Whether a position sees itself and earlier ones only.
    channels_first : bool
        Whether the layer gives (batch, d_model, length), as convolutions do.
    """

    def __init__(self, layer: nn.Module, d_model: int, *, causal: bool = False, channels_first: bool = False) -> None:
        super().__init__(layer)
        self.layer, self.attention = layer, Attention(d_model, 1, causal=causal)
        self.channels_first = channels_first

    def forward(self, *given: Any, **named: Any) -> Tensor:
        """What the layer gives and what is seen of it, of which the places are told by sines and cosines."""
        output = self.layer(*given, **named)
        x = output.transpose(1, 2) if self.channels_first else output
        seen = self.attention(x + sinusoids(x.shape[1], x.shape[2], dtype=x.dtype, device=x.device))
        return output + (seen.transpose(1, 2) if self.channels_first else seen)


@final
class PlacesTold(AbstractInPlace):
    """Give sines and cosines where a part gives vectors of positions by themselves, which are added elsewhere.

    Parameters
    ----------
    part : nn.Module
        Gives (..., length, d_model); it is called for its shape.
    """

    def __init__(self, part: nn.Module) -> None:
        super().__init__(part)
        self.part = part

    def forward(self, *given: Any, **named: Any) -> Tensor:
        """Sines and cosines, of the shape of what the part gives."""
        with torch.no_grad():
            like: Tensor = self.part(*given, **named)
        return sinusoids(*like.shape[-2:], dtype=like.dtype, device=like.device).expand_as(like)


@final
@dataclass(frozen=True)
class Slot:
    """Hold where a known part may stand, and how it is made and called.

    Parameters
    ----------
    kind : str
        What stands there: one of the kinds of parts.
    d_model : int
        Width of the activations.
    of : str
        Name of the class that stands there.
    n_heads : int
        Of attention.
    d_ff : int
        Hidden width of a feed-forward part.
    causal : bool
        Whether a position sees itself and earlier ones only.
    length_first, channels_first, several : bool
        As of `StandIn` and `AddedAttention`.
    rotary : bool
        Whether attention turns queries and keys by their places, where heads have an even width.
    by_themselves : bool
        Whether vectors of positions are given by themselves, and not added to what is read.
    """

    kind: str
    d_model: int
    of: str = ""
    n_heads: int = 1
    d_ff: int = 0
    causal: bool = False
    length_first: bool = False
    several: bool = False
    channels_first: bool = False
    rotary: bool = False
    by_themselves: bool = False

    def filled(self, before: nn.Module) -> nn.Module:
        """What stands there instead of what stood there before."""
        if self.kind == BEHIND:
            return AddedAttention(before, self.d_model, causal=self.causal, channels_first=self.channels_first)
        if self.by_themselves:
            return PlacesTold(before)
        turned = self.rotary and self.d_model // self.n_heads % 2 == 0
        how = {"n_heads": self.n_heads, "positions": "rotary" if turned else "none"}
        made: Mapping[str, Callable[[], nn.Module]] = {
            ATTENTION: lambda: Attention(self.d_model, **how, causal=self.causal),
            FEED_FORWARD: lambda: ReluFeedForward(self.d_model, d_ff=self.d_ff),
            NORM: lambda: nn.LayerNorm(self.d_model),
            POSITIONS: SinusoidalPositions,
            LAYER: lambda: Block(self.d_model, {"name": "attention", **how}, context={"causal": self.causal}),
        }
        called = {"length_first": self.length_first, "channels_first": self.channels_first, "several": self.several}
        return StandIn(before, made[self.kind](), **called)


def put_in(model: nn.Module, slots: Mapping[str, Mapping[str, Any]]) -> None:
    """Let known parts stand in some places of a model, each given as the arguments of its `Slot`."""
    _unpacked(model)
    for name in sorted(slots, key=lambda one: -one.count(".")):  # what stands within a layer before the layer
        model.set_submodule(name, Slot(**slots[name]).filled(model.get_submodule(name)), strict=True)


def _unpacked(model: nn.Module) -> nn.Module:
    """A model whose encoders of torch give their layers whole tensors, in evaluation with padding, too."""
    for part in model.modules():
        if isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False
    return model


def slots_in(model: nn.Module, inputs: Sequence[Tensor], *, causal: bool) -> dict[str, Slot]:
    """The parts of a model in whose places known ones can stand: they take activations and return as many.

    Attention is what normalizes scores of all pairs of positions, or of items of the batch in their stead, perhaps of
    more keys, holds no norm, and looks at one sequence; a layer one of a list that does so, or lets positions see each
    other otherwise, and holds a norm. Of classes of a person's own, a feed-forward part has weights and maps every
    position by itself; positions are what adds the same to any input, or gives the same vectors whatever is read; a
    norm has no matrix and gives little more for an input that is much larger.

    Parameters
    ----------
    model : nn.Module
        Any model; a copy of it is called.
    inputs : sequence of Tensor
        What it reads, batch first; of two of one length it is not known which of them a part attends to.
    causal : bool
        Whether positions of the last of them may see none after them.
    """
    watched = _Watched(copy.deepcopy(model).train())
    with ChangedCalls(watched.note_scores, None):
        watched.model(*inputs)
    lengths = [one.shape[1] for one in inputs]
    calls = {name: call for name, call in watched.calls.items() if call.maps(len(inputs[0]), lengths)}
    found: dict[str, Slot] = {}
    attend = (
        [(ATTENTION, _attention), (LAYER, _layers_among(watched.model))] if len(set(lengths)) == len(lengths) else []
    )
    for kind, place in (*attend, (POSITIONS, _positions), (FEED_FORWARD, _feed_forward), (NORM, _norm)):
        fields = {name: how for name, call in calls.items() if name not in found and (how := place(call)) is not None}
        within = [name for name in fields if any(name.startswith(f"{other}.") for other in fields)]
        around = [name for name in fields if any(other.startswith(f"{name}.") for other in fields)]
        left_out = around if kind in (ATTENTION, LAYER) else within  # what is around attention may do more
        kept = [name for name in fields if name not in left_out]
        for name in kept:
            written = len(lengths) == 1 or calls[name].length == lengths[-1]
            found[name] = calls[name].slot(kind, causal and written, fields[name])
    return found | _places(model, inputs, {call.width for call in calls.values()})


def _places(model: nn.Module, inputs: Sequence[Tensor], widths: set[int]) -> dict[str, Slot]:
    """The parts that give vectors of positions, of some widths, which do not depend on what is read."""
    both = []
    for given in (inputs, [one.roll(1, 0).flip(1) for one in inputs]):
        watched = _Watched(copy.deepcopy(model).eval())
        with torch.no_grad():
            watched.model(*given)
        both.append(watched.calls)
    lengths, found = {one.shape[1] for one in inputs}, dict[str, Slot]()
    for name, call in both[0].items():
        y, again = call.returned, both[1][name].returned if name in both[1] else None
        if not (isinstance(y, Tensor) and isinstance(again, Tensor) and y.is_floating_point() and y.ndim in (2, 3)):
            continue
        of_positions = y.shape[-2] in lengths and y.shape[-1] in widths - lengths and torch.equal(y, again)
        if of_positions and not any(name.startswith(f"{other}.") for other in found):
            found[name] = Slot(POSITIONS, y.shape[-1], type(call.part).__name__, by_themselves=True)
    return found


def behind_a_layer(model: nn.Module, inputs: Sequence[Tensor], *, causal: bool) -> dict[str, Slot]:
    """The first layer of a model that gives a vector for each position, behind which attention may stand.

    Parameters
    ----------
    model : nn.Module
        Any model; a copy of it is called.
    inputs : sequence of Tensor
        What it reads, batch first.
    causal : bool
        Whether its positions may see none after them.
    """
    watched = _Watched(copy.deepcopy(model).train())
    watched.model(*inputs)
    layers = [name for layer in layers_of(watched.model) for name, one in watched.model.named_modules() if one is layer]
    batch, length = inputs[-1].shape[:2]
    for name in (name for name in layers if name in watched.calls):
        given = watched.calls[name].returned
        if isinstance(given, Tensor) and given.ndim == 3 and len(given) == batch and length in given.shape[1:]:
            first = given.shape[1] != length
            width = given.shape[1] if first else given.shape[2]
            return {
                name: Slot(BEHIND, width, type(watched.calls[name].part).__name__, causal=causal, channels_first=first)
            }
    return {}


@final
@dataclass
class _Call:
    """The first call of a part: what it is given and returns, and the scores of all pairs that it normalizes."""

    part: nn.Module
    given: tuple[Any, ...]
    named: Mapping[str, Any]
    returned: Any = None
    noted: list[Tensor] = field(default_factory=list)
    batch: int = 0
    length: int = 0
    swapped: tuple[int, int] = (0, 0)  # the axes by which it differs from (batch, length, d_model)

    def maps(self, batch: int, lengths: Sequence[int]) -> bool:
        """Whether it takes activations of so many items, and returns as many; channels are first if positions are last.

        Of which lengths the inputs are tells where positions are.
        """
        x, y = next(iter(self.given), None), self.first(self.returned)
        if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.ndim == 3 and x.is_floating_point()):
            return False
        channels_first = x.shape[2] in lengths and not {*x.shape[:2]} & {*lengths}
        self.swapped = (0, 1) if len(x) != batch else (1, 2) if channels_first else (0, 0)
        self.batch, self.length = batch, self.x.shape[1]
        return x.shape == y.shape and self.x.shape[0] == batch

    @staticmethod
    def first(returned: Any) -> Any:
        """The first of what was returned."""
        return returned[0] if isinstance(returned, tuple) and returned else returned

    @property
    def x(self) -> Tensor:
        """The activations that it took, (batch, length, d_model)."""
        return self.given[0].detach().transpose(*self.swapped)

    @property
    def width(self) -> int:
        """Their width."""
        return self.x.shape[2]

    @property
    def scores(self) -> list[Tensor]:
        """Scores of all pairs of positions, of more keys than these, or of items that were taken for positions."""
        return [one for one in self.noted if one.ndim >= 3 and self._are_of_pairs(*one.shape[-2:])]

    def _are_of_pairs(self, queries: int, keys: int) -> bool:
        return (queries == self.length and keys >= self.length) or queries == keys == self.batch

    @property
    def looks_elsewhere(self) -> bool:
        """Whether it is given other activations, too."""
        others = (
            one
            for one in (*self.given[1:], *self.named.values())
            if isinstance(one, Tensor) and one is not self.given[0]
        )
        return any(one.is_floating_point() and one.ndim == 3 and self.width in one.shape[1:] for one in others)

    @property
    def is_own(self) -> bool:
        """Whether it is a person's own code, or a row of torch's layers that they wrote down."""
        return isinstance(self.part, nn.Sequential) or not type(self.part).__module__.startswith("torch.")

    @torch.no_grad()
    def again(self, x: Tensor, *, training: bool = False) -> Tensor:
        """What it returns for other activations."""
        given = x.transpose(*self.swapped), *self.given[1:]
        return self.first(self.part.train(training)(*given, **self.named)).transpose(*self.swapped)

    def slot(self, kind: str, causal: bool, fields: Mapping[str, Any]) -> Slot:
        """Where something else may stand instead."""
        of, several = type(self.part).__name__, isinstance(self.returned, tuple)
        called = {"length_first": self.swapped == (0, 1), "channels_first": self.swapped == (1, 2), "several": several}
        return Slot(kind, self.width, of, causal=causal, **called, **fields)


@final
class _Watched:
    """Note the first call of every part of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = _unpacked(model)
        self.calls: dict[str, _Call] = {}
        self._running: list[_Call] = []
        for name, part in model.named_modules():
            if name:
                part.register_forward_pre_hook(
                    lambda part, given, named, name=name: self._begin(name, _Call(part, given, named)), with_kwargs=True
                )
                part.register_forward_hook(lambda _part, _given, returned: self._end(returned))

    def note_scores(self, scores: Tensor) -> Tensor:
        """Note scores in all parts that are running."""
        for call in self._running:
            call.noted.append(scores)
        return scores

    def _begin(self, name: str, call: _Call) -> None:
        self.calls.setdefault(name, call)
        self._running.append(call)

    def _end(self, returned: Any) -> None:
        self._running.pop().returned = returned


def _attention(call: _Call) -> dict[str, Any] | None:
    attends = call.scores and not call.looks_elsewhere and not _has_norm(call.part)
    return {"n_heads": _heads(call)} if attends else None


def _layers_among(model: nn.Module) -> Callable[[_Call], dict[str, Any] | None]:
    """Which calls are of layers that attend, or let positions see each other otherwise."""
    layers = layers_of(model)

    def place(call: _Call) -> dict[str, Any] | None:
        is_layer = any(call.part is one for one in layers) and _has_norm(call.part) and not call.looks_elsewhere
        return {"n_heads": _heads(call)} if is_layer and (call.scores or not _by_position(call)) else None

    return place


def _heads(call: _Call) -> int:
    heads = sum(one[..., 0].numel() // (call.batch * call.length) for one in call.scores)
    return heads if heads and call.width % heads == 0 else 1


def _feed_forward(call: _Call) -> dict[str, Any] | None:
    width = call.width
    matrices = sum(one.numel() for one in call.part.parameters() if one.ndim > 1)
    if not call.is_own or call.scores or matrices < 2 * width or _has_norm(call.part) or not _by_position(call):
        return None
    return {"d_ff": max(matrices // (2 * width), 2 * width)}  # one that is narrow may be what is wrong


def _by_position(call: _Call) -> bool:
    """Whether what is returned for a position depends on that position alone."""
    other = call.x.clone()
    other[:, call.length // 2] += torch.randn_like(other[:, call.length // 2])
    changed = (call.again(other) != call.again(call.x)).any(-1).any(0)
    return changed.nonzero().flatten().tolist() == [call.length // 2]


def _positions(call: _Call) -> dict[str, Any] | None:
    """Nothing more to say of what adds the same to any input, and something else to each position."""
    if not call.is_own or call.scores:
        return None
    x = call.x
    one, other = call.again(x) - x, call.again(torch.zeros_like(x))
    same = torch.allclose(one, other, atol=1e-4 * float(x.abs().max()))
    return {} if same and float(other.std(1).max()) > 0 else None


def _norm(call: _Call) -> dict[str, Any] | None:
    if not call.is_own or call.scores or any(one.ndim > 1 for one in call.part.parameters()):
        return None
    x = call.x
    one, larger = (call.again(times * x, training=True) for times in (1.0, MANY_TIMES))  # by the batch it is seen there
    grows = float(larger.std()) > MANY_TIMES / 100 * max(float(one.std()), 1e-6)
    return None if grows or torch.equal(one, x) else {}


def _has_norm(part: nn.Module) -> bool:
    return any("norm" in type(one).__name__.lower() for one in part.modules())
