"""The lab's attention in the place of the attention within a whole model of a person's own, or behind a layer of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, final

from torch import Tensor, nn

from attnlab.nn.attention import Attention
from attnlab.nn.axes.positions import sinusoids
from attnlab.nn.changed_calls import ChangedCalls
from attnlab.nn.mended import layers_of


@final
class ReplacedAttention(nn.Module):
    """Attend as the lab does, called and answering like the part that stood there.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    n_heads : int
        Number of heads.
    causal : bool
        Whether a position sees itself and earlier ones only; masks that a caller gives are left aside.
    length_first : bool
        Whether it is called with (length, batch, d_model).
    several : bool
        Whether its output is the first of two things, as torch's attention returns its weights beside it.
    """

    batch_first = False
    """In evaluation torch's layers compute with the weights of an attention that says it is, and do not call it."""

    def __init__(
        self, d_model: int, n_heads: int = 1, *, causal: bool = False, length_first: bool = False, several: bool = False
    ) -> None:
        super().__init__()
        self.attention = Attention(d_model, n_heads, causal=causal)
        self.length_first, self.several = length_first, several

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Any:
        """What the lab's attention makes of the first thing that is given."""
        output = self.attention(x.transpose(0, 1)).transpose(0, 1) if self.length_first else self.attention(x)
        return (output, None) if self.several else output


@final
class AddedAttention(nn.Module):
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
        super().__init__()
        self.layer, self.attention = layer, Attention(d_model, 1, causal=causal)
        self.channels_first = channels_first

    def forward(self, *given: Any, **named: Any) -> Tensor:
        """What the layer gives and what is seen of it, of which the places are told by sines and cosines."""
        output = self.layer(*given, **named)
        x = output.transpose(1, 2) if self.channels_first else output
        seen = self.attention(x + sinusoids(x.shape[1], x.shape[2], dtype=x.dtype, device=x.device))
        return output + (seen.transpose(1, 2) if self.channels_first else seen)


def attention_in(model: nn.Module, inputs: Sequence[Tensor], *, causal: bool) -> dict[str, dict[str, Any]]:
    """The parts of a model that attend and do nothing else, by name, as arguments of a `ReplacedAttention`.

    Such a part takes activations and returns as many, within it scores of all pairs are normalized, and no part of it
    does the same; one with a norm in it, which is a whole layer, is left out, and so is one that looks at another
    sequence.

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
    with ChangedCalls(watched.note_scores, None):
        watched.model(*inputs)
    batch, length = inputs[-1].shape[:2]
    found = {name: how for name, one in watched.calls.items() if (how := _as_given(one, batch, length)) is not None}
    inner = {name for name in found if not any(other.startswith(f"{name}.") for other in found)}
    return {name: {**how, "causal": causal} for name, how in found.items() if name in inner}


def behind_a_layer(model: nn.Module, inputs: Sequence[Tensor], *, causal: bool) -> dict[str, dict[str, Any]]:
    """The first layer of a model that gives a vector for each position, by name, as arguments of an `AddedAttention`.

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
            return {name: {"behind": True, "d_model": width, "causal": causal, "channels_first": first}}
    return {}


def put_in(model: nn.Module, attention: Mapping[str, Mapping[str, Any]]) -> None:
    """Let the lab's attention stand where `attention_in` found another, or behind a layer."""
    for name, how in attention.items():
        said = {key: value for key, value in how.items() if key != "behind"}
        layer = AddedAttention(model.get_submodule(name), **said) if "behind" in how else ReplacedAttention(**said)
        model.set_submodule(name, layer, strict=True)


@final
class _Call:
    """The first call of a part: what it is given and returns, and the sizes of the scores that are normalized in it."""

    def __init__(self, part: nn.Module, given: tuple[Any, ...]) -> None:
        self.part, self.given = part, given
        self.returned: Any = None
        self.scores: list[Tensor] = []


@final
class _Watched:
    """Note the first call of every part of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.calls: dict[str, _Call] = {}
        self._running: list[_Call] = []
        for name, part in model.named_modules():
            if name:
                part.register_forward_pre_hook(lambda part, given, name=name: self._begin(name, part, given))
                part.register_forward_hook(lambda _part, _given, returned: self._end(returned))

    def note_scores(self, scores: Tensor) -> Tensor:
        """Note scores in all parts that are running."""
        for call in self._running:
            call.scores.append(scores)
        return scores

    def _begin(self, name: str, part: nn.Module, given: tuple[Any, ...]) -> None:
        call = _Call(part, given)
        self.calls.setdefault(name, call)
        self._running.append(call)

    def _end(self, returned: Any) -> None:
        self._running.pop().returned = returned


def _as_given(call: _Call, batch: int, length: int) -> dict[str, Any] | None:
    """The arguments of what could stand in a part's place; None where it is no attention by itself."""
    several = isinstance(call.returned, tuple)
    x, y = next(iter(call.given), None), call.returned[0] if several else call.returned
    over_pairs = [one for one in call.scores if one.ndim >= 3 and one.shape[-2:] == (length, length)]
    if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.ndim == 3 and x.shape == y.shape and over_pairs):
        return None
    others = [one for one in call.given[1:] if isinstance(one, Tensor) and one.is_floating_point() and one is not x]
    if any(one.shape[-1] == x.shape[-1] and one.ndim == 3 for one in others) or _has_norm(call.part):
        return None
    heads = sum(one.numel() // (batch * length * length) for one in over_pairs)
    length_first = x.shape[:2] == (length, batch) and length != batch
    fitting = heads if heads and x.shape[-1] % heads == 0 else 1
    return {"d_model": x.shape[-1], "n_heads": fitting, "length_first": length_first, "several": several}


def _has_norm(part: nn.Module) -> bool:
    return any("norm" in type(one).__name__.lower() for one in part.modules())
