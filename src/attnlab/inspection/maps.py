"""Turn captured attention into data that a page can draw, and draw it for a notebook."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.files import finite
from attnlab.inspection.drawing.assets import asset, pixel_script
from attnlab.inspection.drawing.maps import one_map, small_heads
from attnlab.inspection.drawing.pieces import Drawn, drawn, paragraph
from attnlab.inspection.rank import MAP_AXES, attention_rank, rank_of
from attnlab.inspection.watch import Captured

NOTHING_SEEN = "No weights of an attention could be seen: the model makes none, or did not run"
NO_AXES: Mapping[str, tuple[int, int]] = {}
LARGEST_BYTE = 255  # one byte per weight: 8 heads of 128 x 128 take 171 KB in a page
MOST_WEIGHTS = 2**20  # below one cell of a notebook: 1.4 MB


def attention_maps(
    trace: Mapping[str, Captured],
    labels: Sequence[Sequence[str]] = (),
    *,
    axes: Mapping[str, tuple[int, int]] = NO_AXES,
    sample: int = 0,
) -> dict[str, Any]:
    """The attention weights of one sequence as JSON-ready data.

    Parameters
    ----------
    trace : mapping of str to Captured
        What `capture` recorded. Entries whose weights could not be seen, or are those of pieces of the sequence, are
        left out.
    labels : sequence of sequence of str
        For each sequence that the model reads, one text per position. Where `axes` says nothing, they are written along
        the axes of that length, unless two sequences have it.
    axes : mapping of str to tuple of int, optional
        By name of a layer which of the sequences asks, and which is looked at.
    sample : int, default 0
        Which sequence of the batch.

    Returns
    -------
    dict
        ``{"labels": [[...], ...], "layers": [{"name", "shape", "max", "weights"}]}``. ``shape`` is
        [heads, q_len, k_len]; ``weights`` is base64 of one byte per weight, row by row, where 255
        stands for ``max``, the largest weight of the layer; ``axes`` is there for the layers that have them, and
        ``rank`` for those that look at something: the fields of `attention_rank`, None for what is no number.

    Notes
    -----
    Weights that are no probabilities may be negative: their absolute value is drawn. What is not
    finite is drawn as 0. Calls of one module that ask with one query each, as a recurrent decoder does at
    each of its steps, are the rows of one map.

    Examples
    --------
    >>> attention_maps({}, [["a", "b"]])
    {'labels': [['a', 'b']], 'layers': []}
    """
    layers = [
        _layer(name, weights) | _axes(axes, name) | _ranks(trace[name], weights, sample)
        for name, weights in _weights_of_maps(trace, sample).items()
    ]
    return {"labels": [list(one) for one in labels], "layers": layers}


def draw_attention(
    trace: Mapping[str, Captured],
    *labels: Sequence[str],
    axes: Mapping[str, tuple[int, int]] = NO_AXES,
    sample: int = 0,
) -> Drawn:
    """Draw the attention weights of one sequence for a notebook: all heads small, the chosen one large.

    Parameters
    ----------
    trace : mapping of str to Captured
        As `attention_maps` takes it.
    *labels : sequence of str
        For each sequence that the model reads, one text per position.
    axes, sample
        As `attention_maps` takes them.

    Returns
    -------
    Drawn
        What a notebook shows as the value of a cell. Layers, heads and positions are named as `ablate` takes them.

    Notes
    -----
    A piece of a page with its own styles and script, which needs nothing from elsewhere; without its script all heads
    are seen, small. Of more than 1,048,576 weights a cell of a map is the largest of a square of weights.
    """
    weights = _weights_of_maps(trace, sample)
    if not weights:
        return drawn("Attention", f"{NOTHING_SEEN}.")
    block = math.ceil(math.sqrt(sum(one.numel() for one in weights.values()) / MOST_WEIGHTS))
    layers = [_layer(name, _coarse(one, block)) | _axes(axes, name) for name, one in weights.items()]
    names = labels if block == 1 else _ranges({size for one in weights.values() for size in one.shape[1:]}, block)
    data = {"labels": [list(one) for one in names], "layers": layers}
    note = f"A cell is the largest of {block} x {block} weights. " if block > 1 else ""
    return drawn(
        f"Attention: {len(layers)} layer{'s' if len(layers) > 1 else ''}, sequence {sample}",
        one_map("", data, small_heads(data)),
        paragraph(f"{note}Rows are queries, columns keys; a map shows what is mixed, and is no explanation.", "note"),
        kind="attention",
        rules=asset("maps.css"),
        script=pixel_script() + asset("maps.js"),
    )


@final
class AttentionTrace(dict[str, Captured]):
    """Hold what `capture` recorded, by name of the attention; a notebook shows its maps.

    Parameters
    ----------
    weightless : iterable of str
        What mixes positions and makes no weights.
    """

    def __init__(self, weightless: Iterable[str] = ()) -> None:
        super().__init__()
        self._weightless = ", ".join(weightless)

    def __repr__(self) -> str:
        shapes = {name: one.weights if one.weights is None else tuple(one.weights.shape) for name, one in self.items()}
        found = f"Attention weights (batch, heads, q_len, k_len): {shapes}" if shapes else NOTHING_SEEN
        return found + (f"; without weights: {self._weightless}" if self._weightless else "")

    def __missing__(self, name: str) -> Captured:
        raise KeyError(f"no attention '{name}' was seen. {self!r}")

    def _repr_html_(self) -> str:
        """The maps of the first sequence."""
        return draw_attention(self).html if self or not self._weightless else drawn("Attention", repr(self)).html


def _weights_of_maps(trace: Mapping[str, Captured], sample: int) -> dict[str, Float[Tensor, "heads q_len k_len"]]:
    maps = {
        name: one.weights for name, one in trace.items() if one.weights is not None and one.weights.ndim == MAP_AXES
    }
    seen = {name: weights[sample] for name, weights in maps.items()}
    return {name: torch.cat([seen[call] for call in calls], dim=1) for name, calls in calls_of_maps(seen).items()}


def _axes(axes: Mapping[str, tuple[int, int]], name: str) -> dict[str, list[int]]:
    return {"axes": list(axes[name])} if name in axes else {}


def _coarse(weights: Float[Tensor, "heads q_len k_len"], block: int) -> Float[Tensor, "heads rows columns"]:
    """The largest of every square of weights."""
    if block == 1:
        return weights
    return nn.functional.max_pool2d(weights.detach().double().abs(), block, ceil_mode=True)


def _ranges(lengths: set[int], block: int) -> list[list[str]]:
    """What positions a row or a column stands for, for each length of a sequence."""
    return [[f"{at}-{min(at + block, length) - 1}" for at in range(0, length, block)] for length in sorted(lengths)]


def calls_of_maps(weights: Mapping[str, Float[Tensor, "heads q_len k_len"]]) -> dict[str, list[str]]:
    """By name of a map the calls that are its rows: those of one module that ask with one query each are one map."""
    calls: dict[str, list[str]] = {}
    for name in weights:
        calls.setdefault(name.partition("#")[0], []).append(name)
    maps: dict[str, list[str]] = {}
    for several in calls.values():
        shapes = {weights[name].shape for name in several}
        are_steps = len(shapes) == 1 and next(iter(shapes))[1] == 1
        maps |= {several[0]: several} if are_steps else {name: [name] for name in several}
    return {name: maps[name] for name in weights if name in maps}


def _ranks(captured: Captured, weights: Float[Tensor, "heads q_len k_len"], sample: int) -> dict[str, Any]:
    """The ranks of a layer; of steps that were joined, whose scores are apart, those of the weights."""
    joined = captured.weights is None or weights.shape != captured.weights.shape[1:]
    found = rank_of(weights, None, d_head=None) if joined else attention_rank(captured, sample=sample)
    if found is None:
        return {}
    return {"rank": finite(asdict(found))}


def _layer(name: str, weights: Float[Tensor, "heads q_len k_len"]) -> dict[str, Any]:
    """One layer's weights as bytes."""
    magnitude = weights.detach().cpu().double().abs().nan_to_num(nan=0.0, posinf=0.0)
    largest = float(magnitude.max())
    steps = (magnitude * (LARGEST_BYTE / largest)).round() if largest > 0 else magnitude
    return {
        "name": name,
        "shape": list(weights.shape),
        "max": largest,
        "weights": base64.b64encode(steps.byte().contiguous().numpy().tobytes()).decode("ascii"),
    }
