"""Whole models: stacks of blocks, the encoder-decoder of the first Transformer, convolutions, LSTMs.

A model is one column, or two that stand beside each other: what the first one makes enters the second.
"""

# ruff: noqa: ARG001 -- entries of one function share its signature; not every entry needs all of it

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import nn

from attnlab.explain.drawing.blocks import ACTIVATIONS, RELU
from attnlab.explain.drawing.known import ByClass
from attnlab.explain.drawing.letters import counted
from attnlab.explain.drawing.nodes import Beside, Box, Caption, Column, Node, Plus, column, folded
from attnlab.explain.drawing.reading import Reading, parts, read
from attnlab.models.convolutional import ConvStack
from attnlab.models.encoder_decoder import EncoderDecoder
from attnlab.models.recurrent import Lstm, LstmBatchAsTime
from attnlab.models.stacks import Decoder, Encoder, Stack
from attnlab.models.token_encoder import TokenEncoder
from attnlab.models.wiring import Unmarked
from attnlab.nn.axes.positions import (
    LearnedConcatenated,
    LearnedPositions,
    SinusoidalConcatenated,
    SinusoidalPositions,
)
from attnlab.nn.key_values import AbstractMixer

SOFTMAX = Box("Softmax", ("not part of the model",), "outside")
NEXT = Caption("probabilities of the next token")


@final
@dataclass(frozen=True)
class Halves:
    """Hold a model as one column or two."""

    columns: tuple[Column, ...]  # of two the first enters the ports of the second
    bridge: str = ""  # what the first one gives to the second


@ByClass
def halves(model: nn.Module, reading: Reading) -> Halves:
    """The columns of a model, two of an encoder-decoder; one that is not known is drawn as what it holds."""
    return Halves((column(Caption("inputs"), read(model, "", reading), Caption("outputs")),))


@halves.register
def _(model: Decoder, reading: Reading) -> Halves:
    below = column(Caption("tokens"), read(model.embedding, "embedding", reading))
    return Halves((column(below, stacked(model.stack, "stack", reading), logits(model.logits, reading)),))


@halves.register
def _(model: Encoder, reading: Reading) -> Halves:
    below = column(features(model.embedding.in_features), read(model.embedding, "embedding", reading))
    above = column(read(model.output, "output", reading), features(model.output.out_features))
    return Halves((column(below, stacked(model.stack, "stack", reading), above),))


@halves.register
def _(model: TokenEncoder, reading: Reading) -> Halves:
    below = column(Caption("tokens"), read(model.embedding, "embedding", reading))
    if model.segments is not None:
        segments = embedding(model.segments, "segments", "Segments", reading)
        below = column(below, Beside(Plus(), segments))
    with reading.attending(reading.source, pads=True):
        blocks = stacked(model.stack, "stack", reading)
    if model.logits is None:
        return Halves((column(below, blocks, Caption("states")),))
    bend = Box(ACTIVATIONS[model.activation], small=True)
    transform = [*parts(model.transform, "transform", reading), bend]
    norm = parts(model.transform_norm, "transform_norm", reading)
    above = [read(model.logits, "logits", reading), SOFTMAX, Caption("probabilities of the token")]
    return Halves((column(below, blocks, transform, norm, above),))


@halves.register
def _(model: EncoderDecoder, reading: Reading) -> Halves:
    note = "" if model.scale == 1 else f"times √{model.scale**2:.6g}"
    source = embedding(model.source_embedding, "source_embedding", "Source embedding", reading, note)
    with reading.attending(reading.source, pads=True):
        encoder = column(Caption("source tokens"), source, stacked(model.encoder, "encoder", reading))
    target = embedding(model.target_embedding, "target_embedding", "Target embedding", reading, note)
    decoder = column(Caption("target tokens so far"), target, stacked(model.decoder, "decoder", reading))
    return Halves((encoder, column(decoder, logits(model.logits, reading))), "encoder's output")


@halves.register
def _(model: ConvStack, reading: Reading) -> Halves:
    first, *others = model.layers
    start = convolution(first, "layers.0", reading)
    marked = positions(model.positions, "positions", reading)
    later = [column(RELU, convolution(layer, f"layers.{i}", reading)) for i, layer in enumerate(others, 1)]
    later[:1] = [column(RELU, marked, later[0].items[1:])] if later else []
    into = model.layers[0].get_submodule("convolution").get_parameter("weight").shape[1]
    out = model.layers[-1].get_submodule("convolution").get_parameter("weight").shape[0]
    return Halves((column(features(into), start, folded(later, "layers", framed=False), features(out)),))


def convolution(layer: nn.Module, path: str, reading: Reading) -> Node:
    """A layer of a stack of convolutions: one of them, or the mixer in its place."""
    if isinstance(layer, AbstractMixer):
        return read(layer, path, reading)
    return read(layer.get_submodule("convolution"), f"{path}.convolution", reading)


@halves.register
def _(model: Lstm, reading: Reading) -> Halves:
    below = column(features(model.lstm.input_size), read(model.lstm, "lstm", reading))
    return Halves((column(below, read(model.output, "output", reading), features(model.output.out_features)),))


@halves.register
def _(model: LstmBatchAsTime, reading: Reading) -> Halves:
    turned = Box("Transpose", ("features and positions",))
    lstm = read(model.lstm, "lstm", reading)
    mistaken = dataclasses.replace(lstm, notes=(*lstm.notes, "takes the batch for time"))  # type: ignore[type-var]
    output = read(model.output, "output", reading)
    return Halves((column(Caption("a sequence"), turned, mistaken, output, turned, Caption("a sequence")),))


def features(count: int) -> Caption:
    """What a position of a sequence of vectors holds."""
    return Caption(f"{counted(count, 'number')} at each position")


def embedding(table: nn.Module, path: str, title: str, reading: Reading, note: str = "") -> Box:
    """A table of embeddings with a name of its own."""
    sizes = (
        [f"{table.num_embeddings:,} vectors of width {table.embedding_dim}"] if isinstance(table, nn.Embedding) else []
    )
    return reading.box(title, [*sizes, note], kind="embedding", of=table, path=path)


def logits(layer: nn.Module, reading: Reading) -> list[Node]:
    """The last layer of a model of tokens, and what is made of its numbers."""
    return [read(layer, "logits", reading), SOFTMAX, NEXT]


def stacked(stack: Stack, path: str, reading: Reading) -> list[Node]:
    """Positions, blocks, and the norm behind them."""
    blocks = [read(block, f"{path}.blocks.{i}", reading) for i, block in enumerate(stack.blocks)]
    return [
        *positions(stack.positions, f"{path}.positions", reading),
        *parts(stack.input_norm, f"{path}.input_norm", reading),
        *parts(stack.dropout, f"{path}.dropout", reading),
        *folded(blocks, f"{path}.blocks"),
        *parts(stack.norm, f"{path}.norm", reading),
    ]


@ByClass
def positions(marks: nn.Module, path: str, reading: Reading) -> Sequence[Node]:
    """What marks positions on the input."""
    return parts(marks, path, reading)


@positions.register
def _(marks: Unmarked, path: str, reading: Reading) -> Sequence[Node]:
    return []


@positions.register
def _(marks: SinusoidalPositions, path: str, reading: Reading) -> Sequence[Node]:
    return [Beside(Plus(), reading.box("Positions", ["sines and cosines"], kind="embedding", path=path))]


@positions.register
def _(marks: LearnedPositions, path: str, reading: Reading) -> Sequence[Node]:
    return [Beside(Plus(), _learned(marks.table, path, reading))]


@positions.register
def _(marks: SinusoidalConcatenated, path: str, reading: Reading) -> Sequence[Node]:
    side = reading.box("Positions", ["sines and cosines"], kind="embedding", path=path)
    return [Beside(Box("Concat", small=True), side), read(marks.to_model, f"{path}.to_model", reading)]


@positions.register
def _(marks: LearnedConcatenated, path: str, reading: Reading) -> Sequence[Node]:
    side = _learned(marks.table, path, reading)
    return [Beside(Box("Concat", small=True), side), read(marks.to_model, f"{path}.to_model", reading)]


def _learned(table: nn.Embedding, path: str, reading: Reading) -> Box:
    notes = [f"learned, {table.num_embeddings:,} places"]
    return reading.box("Positions", notes, kind="embedding", of=table, path=f"{path}.table")
