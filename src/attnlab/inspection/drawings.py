"""Results that are plain numbers, drawn for a notebook: tokens by a score, a logit lens, heads, what a change does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.core.errors import DataError
from attnlab.inspection.behaviour import HeadScores
from attnlab.inspection.drawing.pieces import Cell, Drawn, drawn, grid, table, tokens

MOST_CHANGED = 12
"""Positions whose predictions are told, those that change most."""


def draw_tokens(
    scores: Float[Tensor, " length"], labels: Sequence[str] = (), *, title: str = "A score for each position"
) -> Drawn:
    """Draw tokens in the color of a score each: orange where it is positive, blue where it is negative.

    Parameters
    ----------
    scores : Tensor
        Of one sequence, for example of an `InputAttribution`, or a row of a rollout.
    labels : sequence of str, optional
        The tokens; their positions if left out.
    title : str, optional
        What is shown.

    Returns
    -------
    Drawn
        What a notebook shows as the value of a cell.

    Raises
    ------
    DataError
        If there is not one label for each position.
    """
    names = _labels(labels, len(scores))
    return drawn(title, tokens(names, scores.detach().cpu().tolist()))


def draw_lens(
    logits: Float[Tensor, "streams batch length vocab_size"],
    labels: Sequence[str] = (),
    *,
    vocabulary: Sequence[str] = (),
    sample: int = 0,
) -> Drawn:
    """Draw what each layer would predict at each position, in the color of its probability.

    Parameters
    ----------
    logits : Tensor
        What `logit_lens` returned.
    labels : sequence of str, optional
        The tokens that were read; their positions if left out.
    vocabulary : sequence of str, optional
        The text of each token that may be predicted; its number if left out.
    sample : int, default 0
        Which sequence of the batch.

    Returns
    -------
    Drawn
        What a notebook shows as the value of a cell.

    Raises
    ------
    DataError
        If there is not one label for each position, or not one text for each token.
    """
    streams, _, length, size = logits.shape
    names, texts = _labels(labels, length), _labels(vocabulary, size, "token of the vocabulary")
    likely, chosen = logits[:, sample].detach().cpu().softmax(-1).max(-1)  # (streams, length) each
    rows: dict[str, list[Cell]] = {
        f"after {stream} layer{'' if stream == 1 else 's'}" if stream else "embedding": [
            (texts[token], part, f"{texts[token]!r}: {part:.2f}")
            for token, part in zip(chosen[stream].tolist(), likely[stream].tolist(), strict=True)
        ]
        for stream in range(streams)
    }
    return drawn("What the stream would predict", grid([one.strip() or repr(one) for one in names], rows))


def draw_heads(scores: Sequence[HeadScores], kinds: Mapping[str, Mapping[str, float]] | None = None) -> Drawn:
    """Draw for every head how much of its weight goes where a pattern says.

    Parameters
    ----------
    scores : sequence of HeadScores
        From `head_scores`.
    kinds : mapping, optional
        From `kinds` of the same heads: patterns that a head follows more than untrained ones are set off.

    Returns
    -------
    Drawn
        What a notebook shows as the value of a cell.
    """
    patterns = list(scores[0].patterns) if scores else []
    known = kinds or {}

    def cell(row: HeadScores, pattern: str) -> Cell:
        value = row.patterns[pattern]
        text = "" if math.isnan(value) else f"{value:.2f}{' ●' if pattern in known.get(row.place, {}) else ''}"
        return text, value, f"{row.place}, {pattern}"

    rows = {row.place: [cell(row, pattern) for pattern in patterns] for row in scores}
    note = ["● more than heads of untrained models"] if kinds is not None else []
    return drawn("Where the weight of each head goes, from 0 to 1", grid(patterns, rows), *note)


def draw_change(
    clean: Float[Tensor, "batch length size"],
    changed: Float[Tensor, "batch length size"],
    labels: Sequence[str] = (),
    *,
    vocabulary: Sequence[str] = (),
    sample: int = 0,
) -> Drawn:
    """Draw what an intervention changes in the output of a model, position by position.

    Parameters
    ----------
    clean : Tensor
        The output without it.
    changed : Tensor
        The output with it, of the same shape.
    labels : sequence of str, optional
        One text per position; its number if left out.
    vocabulary : sequence of str, optional
        The text of each token, where the outputs are logits: predictions before and after are told as well.
    sample : int, default 0
        Which sequence of the batch.

    Returns
    -------
    Drawn
        What a notebook shows as the value of a cell.

    Raises
    ------
    DataError
        If the shapes differ, or there is not one label for each position or one text for each token.

    Notes
    -----
    A change is the norm of the difference over that of the clean output; of logits the Kullback-Leibler divergence of
    the predictions after from those before, in nats.
    """
    if clean.shape != changed.shape:
        raise DataError(f"both outputs must be of one shape; got {tuple(clean.shape)} and {tuple(changed.shape)}")
    before, after = (one[sample].detach().cpu().double() for one in (clean, changed))  # (length, size) each
    names = _labels(labels, len(before))
    if not vocabulary:
        sizes = (after - before).norm(dim=-1) / before.norm(dim=-1)
        return drawn("What changes, relative to the clean output", tokens(names, sizes.tolist()))
    texts = _labels(vocabulary, before.shape[-1], "token of the vocabulary")
    one, other = before.log_softmax(-1), after.log_softmax(-1)
    nats = (one.exp() * (one - other)).sum(-1)  # (length)
    most = nats.argsort(descending=True)[:MOST_CHANGED].sort().values.tolist()
    rows = [
        (f"{at}", repr(names[at]), _best(one[at], texts), _best(other[at], texts), f"{nats[at]:.3f}") for at in most
    ]
    head = ("position", "after", "clean prediction", "changed prediction", "change in nats")
    return drawn("What changes in the predictions", tokens(names, nats.tolist()), table(head, rows, numbers=(0, 4)))


def _labels(labels: Sequence[str], count: int, what: str = "position") -> Sequence[str]:
    if labels and len(labels) != count:
        raise DataError(f"there must be one text for each {what}, {count}; got {len(labels)}")
    return labels or [f"{at}" + (" " if what == "position" else "") for at in range(count)]


def _best(log_probabilities: Float[Tensor, " vocab_size"], texts: Sequence[str]) -> str:
    token = int(torch.argmax(log_probabilities))
    return f"{texts[token]!r} {log_probabilities[token].exp():.2f}"
