"""Turn captured attention into data that a page can draw."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.core.files import finite
from attnlab.inspection.rank import attention_rank, rank_of
from attnlab.inspection.watch import Captured

NO_AXES: Mapping[str, tuple[int, int]] = {}
LARGEST_BYTE = 255  # one byte per weight: 8 heads of 128 x 128 take 171 KB in a page


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
        What `capture` recorded. Entries whose weights could not be seen are left out.
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
    seen = {name: captured.weights[sample] for name, captured in trace.items() if captured.weights is not None}
    layers = [
        _layer(name, weights)
        | ({"axes": list(axes[name])} if name in axes else {})
        | _ranks(trace[name], weights, sample)
        for name, calls in calls_of_maps(seen).items()
        for weights in [torch.cat([seen[call] for call in calls], dim=1)]
    ]
    return {"labels": [list(one) for one in labels], "layers": layers}


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
