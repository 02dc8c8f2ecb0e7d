"""Blocks and what stands in them: wirings, mixers beside attention, feed-forward parts."""

# ruff: noqa: ARG001 -- entries of one function share its signature; not every entry needs all of it

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import nn

from attnlab.explain.drawing.letters import TIMES
from attnlab.explain.drawing.nodes import Beside, Box, Node, Port, Skip, column
from attnlab.explain.drawing.reading import Reading, arrow, parts, read
from attnlab.nn import feedforward
from attnlab.nn.block import Block, LiteralBlock, Wiring
from attnlab.nn.foreign import ForeignMixer
from attnlab.nn.mixers import ConvolutionMixer, NoMixer, PositionWise
from attnlab.nn.recurrences import Fastformer, LinearAttention, LstmMixer

ACTIVATIONS: dict[str, str] = {"relu": "ReLU", "gelu": "GELU", "gelu-tanh": "GELU by tanh", "silu": "SiLU"}
TWO_LAYERS: dict[type[feedforward.AbstractTwoLayers], str] = {
    feedforward.ReluFeedForward: ACTIVATIONS["relu"],
    feedforward.SquaredReluFeedForward: "squared ReLU",
    feedforward.GeluFeedForward: ACTIVATIONS["gelu"],
    feedforward.GeluTanhFeedForward: ACTIVATIONS["gelu-tanh"],
    feedforward.SiluFeedForward: ACTIVATIONS["silu"],
}
RELU = Box("ReLU", small=True)


def wired(wiring: Wiring, inside: Sequence[Node], path: str, reading: Reading) -> Node:
    """A part as it is wired into the stream: norm before or after, gone around or not."""
    before = parts(wiring.before, f"{path}.before", reading)
    body = column(before, inside, parts(wiring.drop, f"{path}.drop", reading))
    after = parts(wiring.after, f"{path}.after", reading)
    return column(Skip(body) if wiring.residual else body, after)


def _wired_mixer(block: Block | LiteralBlock, path: str, reading: Reading) -> Node:
    """The sublayer of the mixer."""
    inside = parts(cast(nn.Module, block.mixer), f"{path}.mixer", reading)
    return wired(block.around_mixer, inside, f"{path}.around_mixer", reading)


@read.register
def _(block: Block, path: str, reading: Reading) -> Node:
    steps: list[Node] = []
    if block.mixer is not None:
        steps.append(_wired_mixer(block, path, reading))
    if block.cross is not None:
        with reading.attending("the encoder's output", pads=True):
            look = read(block.cross, f"{path}.cross", reading)
        entering = Beside(look, Port("K, V"), inward=True)
        steps.append(wired(block.around_cross, [entering], f"{path}.around_cross", reading))
    if block.feedforward is not None:
        inside = parts(block.feedforward, f"{path}.feedforward", reading)
        steps.append(wired(block.around_feedforward, inside, f"{path}.around_feedforward", reading))
    return column(steps)


@read.register
def _(block: LiteralBlock, path: str, reading: Reading) -> Node:
    mixed = [] if block.mixer is None else [_wired_mixer(block, path, reading)]
    return column(
        mixed, read(block.linear, f"{path}.linear", reading), RELU, parts(block.drop, f"{path}.drop", reading)
    )


@read.register
def _(mixer: ForeignMixer, path: str, reading: Reading) -> Node:
    return read(mixer.module, f"{path}.module", reading)


@read.register
def _(mixer: NoMixer, path: str, reading: Reading) -> Node:
    return Box("No mixer", small=True, path=path)


@read.register
def _(mixer: PositionWise, path: str, reading: Reading) -> Node:
    return column(read(mixer.linear, f"{path}.linear", reading), RELU)


@read.register
def _(mixer: ConvolutionMixer, path: str, reading: Reading) -> Node:
    box = cast(Box, read(mixer.convolution, f"{path}.convolution", reading))
    before, after = mixer.pad
    return Box(box.title, (*box.notes, sees(before, after)), box.kind, box.parameters, box.path)


def sees(before: int, after: int) -> str:
    """How far a convolution sees, in words."""
    if not (before or after):
        return "sees its own position"
    return f"sees {before} back and {after} ahead" if after else f"sees {before} back, none ahead"


@read.register
def _(mixer: LstmMixer, path: str, reading: Reading) -> Node:
    reader = mixer.rightward
    back = "from left to right" if mixer.leftward is None else "from left to right, and back"
    readers = [one for one in (reader, mixer.leftward) if one is not None]
    notes = [arrow(reader.input_size, reader.hidden_size), back]
    states = reading.box("LSTM", notes, kind="recurrent", of=readers, path=f"{path}.rightward")
    return column(states, read(mixer.to_residual, f"{path}.to_residual", reading))


@read.register
def _(mixer: LinearAttention, path: str, reading: Reading) -> Node:
    notes = [f"{mixer.heads.n_heads} heads {TIMES} {mixer.heads.d_head}", "Q and K by elu + 1, sums over keys"]
    title = "Masked linear attention" if mixer.causal else "Linear attention"
    return reading.box(title, notes, kind="attention", of=mixer, path=path)


@read.register
def _(mixer: Fastformer, path: str, reading: Reading) -> Node:
    notes = [f"{mixer.heads.n_heads} heads {TIMES} {mixer.heads.d_head}", "means of queries, then of keys"]
    return reading.box("Fastformer", notes, kind="attention", of=mixer, path=path)


@read.register
def _(part: feedforward.AbstractTwoLayers, path: str, reading: Reading) -> Node:
    activation = TWO_LAYERS.get(type(part), type(part).__name__)
    return reading.box("Feed forward", _two_layers(part, activation), kind="feedforward", of=part, path=path)


def _two_layers(part: feedforward.AbstractTwoLayers, activation: str) -> list[str]:
    widen, narrow = part.widen, part.to_residual
    wide = f"Linear {arrow(widen.in_features, widen.out_features)}, {activation}"
    return [wide, *_dropped(part.drop), f"Linear {arrow(narrow.in_features, narrow.out_features)}"]


def _dropped(drop: nn.Dropout) -> list[str]:
    return [f"dropout {drop.p:g}"] if drop.p else []


@read.register
def _(part: feedforward.GatedFeedForward, path: str, reading: Reading) -> Node:
    d_model, d_ff = part.widen.in_features, part.to_residual.in_features
    notes = [
        f"two Linear {arrow(d_model, d_ff)}",
        f"{ACTIVATIONS[part.gate]} of one times the other",
        *_dropped(part.drop),
    ]
    notes.append(f"Linear {arrow(d_ff, part.to_residual.out_features)}")
    return reading.box("Gated feed forward", notes, kind="feedforward", of=part, path=path)


@read.register
def _(part: feedforward.AbstractExperts, path: str, reading: Reading) -> Node:
    first, count = cast(feedforward.ReluFeedForward, part.experts[0]), len(part.experts)
    router = f"Linear {arrow(first.widen.in_features, count)}"
    notes = [f"{count} experts, {part.top_k} for each position", f"router: {router}"]
    if isinstance(part, feedforward.NoisyMixtureOfExperts):
        notes.append(f"its noise in training: {router}")
    notes += ["each expert:", *_two_layers(first, "ReLU")]
    return reading.box("Mixture of experts", notes, kind="feedforward", of=part, path=path)
