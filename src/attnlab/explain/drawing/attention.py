"""An attention layer by itself: its heads, and what happens inside each of them, in the order of its formula."""

# ruff: noqa: ARG001 -- entries of one function share its signature; not every entry needs all of it

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from attnlab.explain.drawing import masks
from attnlab.explain.drawing.known import ByClass
from attnlab.explain.drawing.letters import TIMES, counted, product
from attnlab.explain.drawing.nodes import Beside, Box, Caption, Column, Join, Node, Plus, column
from attnlab.explain.drawing.reading import Reading, Use, arrow, read
from attnlab.nn.attention import Attention
from attnlab.nn.axes import combiners, normalizers, scores
from attnlab.nn.axes.heads import AbstractHeads, AbstractPackedHeads
from attnlab.nn.axes.masks import Full
from attnlab.nn.axes.relative_positions import AbstractScorePositions, LinearBias, RelativeBias, RotaryPositions

SCORES: dict[type[scores.AbstractScore], str] = {
    scores.DotScore: "dot-product",
    scores.ScaledDotScore: "scaled dot-product",
    scores.BilinearScore: "bilinear",
    scores.AdditiveScore: "additive",
    scores.CosineScore: "cosine",
}
NORMALIZERS: dict[type[normalizers.AbstractNormalizer], tuple[str, str]] = {
    normalizers.Softmax: ("Softmax", "over the keys"),
    normalizers.SoftmaxPlusOne: ("Softmax plus one", "over the keys and one of score 0"),
    normalizers.Sparsemax: ("Sparsemax", "over the keys"),
    normalizers.Hardmax: ("Hardmax", "the key of the highest score"),
    normalizers.UniformWeights: ("Equal weights", "of all keys, whatever their scores"),
    normalizers.Sigmoid: ("Sigmoid", "of each score minus log(keys)"),
    normalizers.LinearWeights: ("No normalizer", "the scores are the weights"),
}
POSITIONS: dict[type[AbstractScorePositions], tuple[str, str]] = {
    RotaryPositions: ("Rotate", "rotary positions"),
    LinearBias: ("Linear bias", "minus slope times distance"),
    RelativeBias: ("Relative bias", "learned, by distance"),
}
"""How parts are called; one that is not here, of a person's own, by the name of its class."""

EVERYTHING = masks.in_words(Full())

Pair = tuple[Column, Column]
"""A query and a key."""


@final
@dataclass(frozen=True)
class Layer:
    """Hold the two figures of an attention layer, and where in the model it is used how."""

    title: str  # what it is called
    heads: Column  # its projections, its heads, and what becomes of them
    inside: Column  # what happens inside each head
    uses: tuple[Use, ...]  # the layers that look like this


def kind_of(layer: Attention) -> str:
    """What an attention layer is called, by its heads and its mask."""
    many = "multi-head attention" if layer.heads.n_heads > 1 else "attention"
    name = f"masked {many}" if layer.mask.blocks_future else many
    return name[:1].upper() + name[1:]


@read.register
def _(layer: Attention, path: str, reading: Reading) -> Node:
    reading.uses.append(Use(layer, path, reading.source, reading.pads))
    heads, score = layer.heads, _score_words(layer.scores)
    count = f"{counted(heads.n_heads, 'head')} {TIMES} {heads.d_head}"
    mask = "" if layer.mask.kind in ("full", "causal") else masks.in_words(layer.mask)
    known = NORMALIZERS.get(type(layer.normalizer))
    normalizer = type(layer.normalizer).__name__ if known is None else known[0].lower()
    notes = [f"{count}, {score}", mask, "" if type(layer.normalizer) is normalizers.Softmax else normalizer]
    return reading.box(kind_of(layer), notes, kind="attention", of=layer, path=path)


def layers(uses: Sequence[Use]) -> list[Layer]:
    """The attention layers of a model in the order they are met, those that differ in nothing but masks as one."""
    found: dict[tuple[Column, Column], list[Use]] = {}
    for use in uses:
        found.setdefault((_heads(use), _inside(use, [])), []).append(use)
    return [
        Layer(_title(same[0].attention), heads, _inside(same[0], _masked(same)), tuple(same))
        for (heads, _), same in found.items()
    ]


def _title(layer: Attention) -> str:
    count = layer.heads.n_heads
    return f"Multi-head attention, {count} heads" if count > 1 else "Attention, one head"


def _heads(use: Use) -> Column:
    """The layer as a whole: projections, heads, and their way back to the width of the model."""
    layer, reading = use.attention, Reading()
    score = _score_words(layer.scores)
    name = f"{score[:1].upper()}{score[1:]} attention"
    count = layer.heads.n_heads
    own, _ = reading.claim(_inner_parameters(layer), use.path)
    attend = Box(name, (), "attention", own, use.path, count, f"h = {count}" if count > 1 else "")
    below = _projected(layer.heads, f"{use.path}.heads", reading, attend)
    return column(below, _combined(layer.combiner, f"{use.path}.combiner", reading, layer.heads), Caption("output"))


def _inner_parameters(layer: Attention) -> Iterator[nn.Parameter]:
    """Yield the parameters that act between projections and the heads' outputs."""
    for part in (layer.positions, layer.scores, layer.normalizer):
        yield from part.parameters()
    if layer.combiner.mixes_heads:
        yield from layer.combiner.parameters(recurse=False)


def _projected(heads: AbstractHeads, path: str, reading: Reading, attend: Box) -> Node:
    """From the inputs to the heads."""
    if not isinstance(heads, AbstractPackedHeads):
        made = reading.box(type(heads).__name__, ["queries, keys and values"], kind="own", of=heads, path=path)
        return column(Caption("input"), made, attend)
    linear, packed = heads.packed.linear, heads.packed
    branches = []
    for name, rows, count in zip("QKV", packed.rows, packed.counts, strict=True):
        width = rows // count
        size = product(count, width) if count > 1 else f"{width}"
        shared = f"each for {heads.n_heads // count} query heads" if count < heads.n_heads else ""
        numbers = rows * (linear.in_features + (linear.bias is not None))
        notes = tuple(note for note in (f"{linear.in_features} → {size}", shared) if note)
        box = Box("Linear", notes, "linear", numbers, f"{path}.packed.linear", count)
        branches.append(column(Caption(name), box))
    return Join(tuple(branches), attend)


@ByClass
def _combined(combiner: combiners.AbstractCombiner, path: str, reading: Reading, heads: AbstractHeads) -> list[Node]:
    """From the heads to the width of the model."""
    return [reading.box(type(combiner).__name__, ["of all heads"], kind="own", of=combiner, path=path)]


@_combined.register(combiners.Project)
@_combined.register(combiners.TalkingHeads)
def _(
    combiner: combiners.Project | combiners.TalkingHeads, path: str, reading: Reading, heads: AbstractHeads
) -> list[Node]:
    back = read(combiner.to_residual, f"{path}.to_residual", reading)
    return [*_concatenated(heads), back]


@_combined.register
def _(combiner: combiners.Concatenate, path: str, reading: Reading, heads: AbstractHeads) -> list[Node]:
    return _concatenated(heads)


@_combined.register
def _(combiner: combiners.Sum, path: str, reading: Reading, heads: AbstractHeads) -> list[Node]:
    return [Box("Sum over heads", small=True), read(combiner.to_residual, f"{path}.to_residual", reading)]


@_combined.register
def _(combiner: combiners.Convolution, path: str, reading: Reading, heads: AbstractHeads) -> list[Node]:
    convolutions, count = combiner.convolutions, heads.n_heads
    each = arrow(convolutions.in_channels // count, convolutions.out_channels // count)
    numbers, _ = reading.claim(combiner.parameters(), path)
    box = Box(
        "Convolution", (f"kernel {convolutions.kernel_size[0]}, {each}",), "convolution", numbers, path, copies=count
    )
    return [box, *_concatenated(heads)]


@_combined.register
def _(combiner: combiners.AttentionOverHeads, path: str, reading: Reading, heads: AbstractHeads) -> list[Node]:
    numbers, _ = reading.claim([combiner.queries], f"{path}.queries")
    box = Box("Attention over heads", ("a learned query for each",), "attention", numbers, f"{path}.queries")
    return [box, *_concatenated(heads), read(combiner.to_residual, f"{path}.to_residual", reading)]


def _concatenated(heads: AbstractHeads) -> list[Node]:
    return [Box("Concat", small=True)] if heads.n_heads > 1 else []


def _inside(use: Use, mask: Sequence[Node]) -> Column:
    """One head, from its query, key and value to its output."""
    layer, reading = use.attention, Reading()
    scored = _scored(layer.scores, f"{use.path}.scores", reading, _turned(layer), layer.heads.d_head)
    weights = column(scored, _biased(layer, use.path, reading), _mixed(layer.combiner, "scores", use.path, reading))
    weights = column(weights, mask, _normalized(layer.normalizer, use.path, reading))
    weights = column(weights, _mixed(layer.combiner, "weights", use.path, reading))
    if layer.dropout:
        weights = column(weights, Box(f"Dropout {layer.dropout:g}", small=True))
    return column(Join((weights, Caption("V")), Box("MatMul", ("weights times values",))), Caption("output of a head"))


def _turned(layer: Attention) -> Pair:
    """Query and key, with what positions do to them."""
    q, k = (torch.empty(1, layer.heads.n_heads, 2, layer.heads.d_head, device="meta") for _ in range(2))
    turned = layer.positions.rotate(q, k)
    title, note = _position_words(layer.positions)
    step = Box(title, (note,) if note else (), "embedding")
    both = zip("QK", turned, (q, k), strict=True)
    q_column, k_column = (column(Caption(name), [step] if after is not before else []) for name, after, before in both)
    return q_column, k_column


def _position_words(positions: AbstractScorePositions) -> tuple[str, str]:
    return POSITIONS.get(type(positions), (type(positions).__name__, "positions of its own"))


def _score_words(score: scores.AbstractScore) -> str:
    """What scores are called; a dot product that is divided by one is called as one that is not divided."""
    unscaled = type(score) is scores.ScaledDotScore and score.scale == 1
    return SCORES.get(scores.DotScore if unscaled else type(score), type(score).__name__)


@ByClass
def _scored(score: scores.AbstractScore, path: str, reading: Reading, pair: Pair, d_head: int) -> Node:
    """From a query and a key of `d_head` numbers each to one number."""
    name = type(score).__name__
    return Join(pair, reading.box(name, ["a number for every pair"], kind="own", of=score, path=path))


def _multiplied(q: Column, k: Column) -> Join:
    return Join((q, k), Box("MatMul", ("queries times keys",)))


@_scored.register
def _(score: scores.DotScore, path: str, reading: Reading, pair: Pair, d_head: int) -> Node:
    return _multiplied(*pair)


@_scored.register
def _(score: scores.ScaledDotScore, path: str, reading: Reading, pair: Pair, d_head: int) -> Node:
    return column(_multiplied(*pair), _scaled(score.scale, d_head))


@_scored.register
def _(score: scores.BilinearScore, path: str, reading: Reading, pair: Pair, d_head: int) -> Node:
    heads, width, _ = score.weight.shape
    numbers, _ = reading.claim([score.weight], path)
    box = Box("Linear", (f"{arrow(width, width)}, each head its own",), "linear", numbers, path, copies=heads)
    return column(_multiplied(column(pair[0], box), pair[1]), _scaled(score.scale, d_head))


@_scored.register
def _(score: scores.AdditiveScore, path: str, reading: Reading, pair: Pair, d_head: int) -> Node:
    q = column(pair[0], read(score.from_q, f"{path}.from_q", reading))
    k = column(pair[1], read(score.from_k, f"{path}.from_k", reading))
    added = Join((q, k), Box("Add", ("every query to every key",)))
    return column(added, Box("Tanh", small=True), read(score.to_score, f"{path}.to_score", reading))


@_scored.register
def _(score: scores.CosineScore, path: str, reading: Reading, pair: Pair, d_head: int) -> Node:
    length = Box("To length 1", small=True)
    numbers, _ = reading.claim(score.parameters(), path)
    factor = Box("Scale", ("times a learned factor",), "plain", numbers, path)
    return column(_multiplied(*(column(one, length) for one in pair)), factor)


def _scaled(scale: float, d_head: int) -> list[Node]:
    """The factor of scores as one over a power of their width, nothing where it is one."""
    if scale == 1:
        return []
    power = -math.log(scale, d_head)
    roots = {0.5: f"√{d_head}", 1.0: f"{d_head}"}
    return [Box("Scale", (f"1 / {roots.get(round(power, 6), f'{d_head}^{power:.3g}')}",))]


def _biased(layer: Attention, path: str, reading: Reading) -> list[Node]:
    """What positions add to the scores."""
    bias = layer.positions.bias(slice(0, 2), slice(0, 2), dtype=torch.float32, device=torch.device("meta"))
    if bias is None:
        return []
    title, note = _position_words(layer.positions)
    box = reading.box(title, [note], kind="embedding", of=layer.positions, path=f"{path}.positions")
    return [Beside(Plus(), box)]


def _mixed(combiner: combiners.AbstractCombiner, what: str, path: str, reading: Reading) -> list[Node]:
    """What heads do to each other's scores or weights."""
    if not combiner.mixes_heads:
        return []
    name = {"scores": "score_mixing", "weights": "weight_mixing"}[what]
    held = [one for key, one in combiner.named_parameters(recurse=False) if key == name]
    numbers, _ = reading.claim(held, f"{path}.combiner.{name}")
    return [Box(f"Mix {what}", ("linear over heads",), "linear", numbers, f"{path}.combiner.{name}")]


def _masked(uses: Sequence[Use]) -> list[Node]:
    """Which keys are left; where the layers differ in that, one box for all."""
    seen = {seen_by(use): None for use in uses}
    if len(seen) > 1:
        return [Box("Mask", ("as listed below",))]
    return [] if set(seen) == {EVERYTHING} else [Box("Mask", tuple(seen))]


def seen_by(use: Use) -> str:
    """Which keys a layer sees, in words."""
    what = masks.in_words(use.attention.mask)
    return f"{what}, no padding" if use.pads else what


def _normalized(normalizer: normalizers.AbstractNormalizer, path: str, reading: Reading) -> list[Node]:
    """From scores to weights."""
    known = NORMALIZERS.get(type(normalizer))
    if known is None:
        name = type(normalizer).__name__
        return [reading.box(name, ["scores to weights"], kind="own", of=normalizer, path=f"{path}.normalizer")]
    return [Box(known[0], (known[1],), "softmax")]
