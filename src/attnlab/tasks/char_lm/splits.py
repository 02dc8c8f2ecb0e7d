"""What of a text is trained on and what is held out: cut apart as it should be, and as it often is by mistake."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np
from jaxtyping import Bool, Int64

from attnlab.core.errors import DataError

HowSplit = Literal["contiguous", "windows", "inside"]
Predicted = Literal["each", "last"]
PER_CONTEXT = 32  # windows of held-out text that begin within one context, where each predicts one character only
USUAL_SEED = 0  # of which windows are held out, where no other is given

Starts = Int64[np.ndarray, " count"]


@final
@dataclass(frozen=True)
class SplitText:
    """Hold the parts of a text, the one that is trained on first."""

    parts: Mapping[str, str]  # by name: "train", "validation", perhaps "test"
    starts: Starts | None = None  # where training windows begin in "train"; None: wherever one fits
    piece: int | None = None  # held-out parts are pieces of so many characters in a row; None: of one piece
    shared: Mapping[str, float] = field(default_factory=dict)
    """By held-out part, the fraction of its predicted characters that training windows predict at the same place of the
    text; measured where windows are cut first."""


def hop(context: int, predict: Predicted) -> int:
    """How far apart held-out windows begin."""
    return context if predict == "each" else max(1, context // PER_CONTEXT)


def split_by(
    how: HowSplit,
    text: str,
    contiguous: Mapping[str, str],
    *,
    context: int,
    stride: int,
    seed: int | None,
    predict: Predicted,
) -> SplitText:
    """Split a text in one of three ways, given its contiguous parts."""
    if how == "windows":
        return _windows(text, contiguous, context=context, stride=stride, seed=seed, predict=predict)
    return SplitText({**contiguous, "train": text} if how == "inside" else contiguous)


def _windows(
    text: str, contiguous: Mapping[str, str], *, context: int, stride: int, seed: int | None, predict: Predicted
) -> SplitText:
    """Cut a text into windows first, then hold out a random tenth of them.

    Of a held-out part, about as many windows are kept as of the contiguous part. The
    training text is what training windows cover, each character once, so that a window is one piece of it.
    """
    starts = np.arange(0, len(text) - context, stride)
    names = [part for part in contiguous if part != "train"]
    held = len(starts) - len(starts) * 9 // 10
    if held < len(names) or held == len(starts):
        raise DataError(
            f"the text is too short: it has {len(starts)} windows (context {context}, stride {stride}), of which a "
            "tenth is held out, and every part needs one; take a longer text, or a smaller context or stride"
        )
    order = np.random.default_rng(USUAL_SEED if seed is None else seed).permutation(starts)
    trained = np.sort(order[held:])
    covered = _covered(trained, context + 1, len(text))
    first = 1 if predict == "each" else context
    predicted = _covered(trained + first, context + 1 - first, len(text))
    parts, shared = {"train": "".join(itertools.compress(text, covered.tolist()))}, {}
    for part, group in zip(names, np.array_split(order[:held], len(names)), strict=True):
        chosen = np.sort(group[: max(1, len(contiguous[part]) // hop(context, predict))])
        parts[part] = "".join(text[start : start + context + 1] for start in chosen.tolist())
        shared[part] = float(predicted[chosen[:, None] + np.arange(first, context + 1)].mean())
    return SplitText(parts, starts=np.cumsum(covered)[trained] - 1, piece=context + 1, shared=shared)


def _covered(starts: Starts, length: int, size: int) -> Bool[np.ndarray, " size"]:
    """Which of `size` positions lie in a stretch of this length from one of the starts."""
    edges = np.bincount(starts, minlength=size + 1) - np.bincount(starts + length, minlength=size + 1)
    return np.cumsum(edges[:size]) > 0
