"""Tell what kind of head a head is: where its weights go, compared with untrained models.

For self-attention over tokens. How many directions the weights use is measured in `rank`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.errors import DataError, SpecError
from attnlab.core.layouts import Real, Scores
from attnlab.core.sizes import check_positive
from attnlab.inspection.watch import Captured

SHIFTS = (2, 3)
"""Distances to earlier tokens, beside the one just before."""
WINDOW = 5
"""Distance up to which a token is near."""
SHARE = 0.05
SHORTEST_REPETITION = 4  # the first token of a half has no announcement: one that has must follow
ROUNDING = 1e-9  # a share of 0.05 of 20 models is one model
NOWHERE = -1
"""In place of a word that is looked at: all weight lies on the word itself or on tokens of no word."""


@final
@dataclass(frozen=True)
class HeadScores:
    """Hold where the weights of one head go, and how they are spread: one row of a table.

    Parameters
    ----------
    layer : str
        Name of the attention, as `capture` has it.
    head : int
        Counted from 0.
    patterns : mapping of str to float
        By name of a pattern the share of the weight that goes where it says, from 0 to 1; NaN where no query has it.
    measures : mapping of str to float
        ``entropy`` in nats, ``relative-entropy`` (1: equal weights), ``mean-distance`` in positions, and ``diversity``:
        the mean Jensen-Shannon distance to the other heads of the layer, from 0 (all alike) to 1; NaN where there is
        nothing to measure. The diversity of a layer is the mean over its heads.
    """

    layer: str
    head: int
    patterns: Mapping[str, float]
    measures: Mapping[str, float]

    @property
    def place(self) -> str:
        """The head in a text that `ablate` takes."""
        return f"{self.layer}:{self.head}"


@final
@dataclass(frozen=True)
class Thresholds:
    """Hold what scores of untrained models rarely exceed.

    Parameters
    ----------
    values : dict of str to float
        By name of a pattern; those that no query had are left out.
    levels : dict of str to float
        Probability with which any head of one more untrained model exceeds the value, at most.
    places : tuple of str
        The heads of each of the models.
    """

    values: dict[str, float]
    levels: dict[str, float]
    places: tuple[str, ...]


@final
@dataclass(frozen=True)
class RepeatedLoss:
    """Hold the loss on tokens before and after they repeat, in nats per token.

    Parameters
    ----------
    first : float
        Mean loss in the first half.
    second : float
        Mean loss on the same tokens in the second half.
    """

    first: float
    second: float

    @property
    def gain(self) -> float:
        """What the model gains from having seen the tokens in its context."""
        return self.first - self.second


def head_scores(
    trace: Mapping[str, Captured],
    tokens: Int[Tensor, "batch length"],
    *,
    delimiters: Collection[int] = (),
    real: Real | None = None,
) -> tuple[HeadScores, ...]:
    """Measure for every head how much of its weight goes where a pattern says, and how it is spread.

    Parameters
    ----------
    trace : mapping of str to Captured
        What `capture` recorded. Attention that is not over these tokens, or whose weights could not be seen, is left
        out.
    tokens : Tensor
        What the model read.
    delimiters : collection of int, optional
        Tokens that separate others: spaces, line breaks, punctuation.
    real : Tensor, optional
        Padding: True at the tokens that count; all of them if left out.

    Returns
    -------
    tuple of HeadScores
        In the order of the trace, head by head.

    Raises
    ------
    DataError
        If no attention of the trace is over these tokens, or the padding is of other tokens.

    Notes
    -----
    ========================== ===================================================================
    ``previous-token``         the token before; ``shifted-2``, ``shifted-3``: that many before
    ``next-token``             the token after
    ``same-position``          the token itself
    ``first-token``            the first token that is real
    ``duplicate-token``        earlier occurrences of the same token
    ``induction``              tokens after an earlier occurrence of the same token [1]_
    ``delimiter``              `delimiters` [2]_
    ``rare-token``             the token of its sequence that occurs least often in all sequences given [3]_
    ``local``                  at most 5 positions away [3]_
    ========================== ===================================================================

    A score is the mean, over the queries that have a choice, of the share of their weight: some keys that they may look
    at are of the pattern, others are not. A layer that gives no later key any weight is taken to be causal. Shares are
    of the absolute weight that a query gives to real tokens; queries that give none are left out.

    Time O(layers * heads * (patterns + heads) * batch * length^2), memory O((patterns + heads) * batch * length^2).

    References
    ----------
    .. [1] Olsson et al., 2022, arXiv:2209.11895 (there "prefix matching").
    .. [2] Clark et al., 2019, arXiv:1906.04341, section 3 (also positions and entropy).
    .. [3] Voita et al., 2019, arXiv:1905.09418 (positional heads, and heads that look at rare words).

    Examples
    --------
    >>> before = torch.eye(5).roll(-1, 1)[None, None]
    >>> (row,) = head_scores({"mixer": Captured(weights=before.tril())}, torch.tensor([[3, 1, 4, 1, 5]]))
    >>> row.place, row.patterns["previous-token"], row.measures["mean-distance"]
    ('mixer:0', 1.0, 1.0)
    """
    tokens = tokens.cpu()
    real = real_or_all(real, tokens.shape)
    over = (*tokens.shape, tokens.shape[-1])
    seen = {name: weights for name, weights in weights_of(trace).items() if reads(weights) == over}
    if not seen:
        raise DataError(
            f"none of the {len(trace)} attentions captured has weights from and to tokens of (batch, length) = "
            f"{tuple(tokens.shape)}: give the tokens that the model read in this call"
        )
    patterns = _patterns(tokens, real, delimiters)
    return tuple(
        row for name, weights in seen.items() for row in _rows(name, shares_of(weights, real, real), patterns, real)
    )


def thresholds(untrained: Sequence[Sequence[HeadScores]], share: float = SHARE) -> Thresholds:
    """Find for each pattern a score that untrained models rarely exceed with any of their heads.

    Parameters
    ----------
    untrained : sequence of sequence of HeadScores
        Of each of several untrained models: `head_scores` of a model of the form to be judged, with a seed of its own,
        on the tokens that it will be judged by.
    share : float, default 0.05
        Of untrained models, those that may exceed the value with a head.

    Returns
    -------
    Thresholds
        With the level that is reached: with fewer than ``1 / share - 1`` models it is larger than `share`.

    Raises
    ------
    SpecError
        If the share is not between 0 and 1.
    DataError
        If there is no model, or not all have the same heads.

    Notes
    -----
    The highest score of all heads and layers of a model is one draw [1]_. One more draw exceeds the k-th highest of n
    with probability k / (n + 1) at most [2]_: 19 models, and their highest score, give 0.05. This holds for each
    pattern by itself.

    References
    ----------
    .. [1] Westfall, Young, 1993, "Resampling-based multiple testing", chapter 2 (the largest of several statistics).
    .. [2] Phipson, Smyth, 2010, "Permutation p-values should never be zero", section 3.
    """
    if not 0 < share < 1:
        raise SpecError(f"share must be between 0 and 1; got {share}")
    places = {tuple(row.place for row in rows) for rows in untrained}
    if len(places) != 1:
        raise DataError(
            f"thresholds are those of untrained models with the same heads; got {len(untrained)} models with "
            f"{len(places)} sets of heads"
        )
    values, levels = {}, {}
    for pattern in untrained[0][0].patterns:
        known = [[row.patterns[pattern] for row in rows if not math.isnan(row.patterns[pattern])] for rows in untrained]
        highest = sorted((max(scores) for scores in known if scores), reverse=True)
        if highest:
            rank = max(1, math.floor(share * (len(highest) + 1) + ROUNDING))
            values[pattern], levels[pattern] = highest[rank - 1], rank / (len(highest) + 1)
    return Thresholds(values, levels, *places)


def kinds(scores: Sequence[HeadScores], thresholds: Thresholds) -> dict[str, dict[str, float]]:
    """Name for each head the patterns that it follows more than heads of untrained models do.

    Parameters
    ----------
    scores : sequence of HeadScores
        Of one model, from `head_scores`; other seeds of the model can be judged by the same thresholds.
    thresholds : Thresholds
        Of untrained models of the same form, on the same tokens.

    Returns
    -------
    dict of str to dict of str to float
        By place of the head, none left out: the patterns that exceed their threshold, and by how much, most first.

    Raises
    ------
    DataError
        If the thresholds are of other heads.

    Notes
    -----
    A head that looks one token back is also local. Untrained heads score less on the narrower pattern, so that it
    exceeds its threshold by more. Untrained weights are nearly equal, and what exceeds them surely may still be little:
    read the excess too. Heads of two seeds with the same number have nothing in common: count kinds over seeds, or find
    partners with `match_heads`.
    """
    if tuple(row.place for row in scores) != thresholds.places:
        raise DataError(
            f"thresholds must be those of a model with the same {len(scores)} heads; got those of "
            f"{len(thresholds.places)}: {', '.join(thresholds.places)}"
        )
    excess = {
        row.place: {name: row.patterns[name] - value for name, value in thresholds.values.items()} for row in scores
    }
    return {
        place: {name: by[name] for name in sorted(by, key=by.__getitem__, reverse=True) if by[name] > 0}
        for place, by in excess.items()
    }


def repeated_tokens(
    vocab_size: int, length: int, *, batch: int, generator: torch.Generator | None = None
) -> Int[Tensor, "batch length"]:
    """Draw random tokens, and repeat them once: nothing but copying from the context helps to predict the second half.

    Parameters
    ----------
    vocab_size : int
        Number of distinct tokens, each as likely as any other.
    length : int
        Of both halves together: even, 4 at least.
    batch : int
        Number of sequences.
    generator : torch.Generator, optional
        Where random numbers come from; torch's own if left out.

    Returns
    -------
    Tensor
        On the CPU, in int64.

    Raises
    ------
    SpecError
        If a size is not positive, or the length cannot be halved so that something is to be predicted.

    Notes
    -----
    Both halves are of one length: a head that looks ``length / 2 - 1`` back whatever stands there scores as induction.
    Only a model that was trained on such tokens has reason to; repetitions of other lengths tell them apart.

    References
    ----------
    .. [1] Olsson et al., 2022, arXiv:2209.11895 (repeated random sequences).

    Examples
    --------
    >>> repeated_tokens(7, 10, batch=2).unflatten(1, (2, 5)).diff(dim=1).any().item()
    False
    """
    check_positive({"vocab_size": vocab_size, "batch": batch})
    if length % 2 or length < SHORTEST_REPETITION:
        raise SpecError(f"length must be even and at least {SHORTEST_REPETITION}, two equal halves; got {length}")
    return torch.randint(vocab_size, (batch, length // 2), generator=generator).repeat(1, 2)


def repeated_loss(logits: Float[Tensor, "batch length vocab"], tokens: Int[Tensor, "batch length"]) -> RepeatedLoss:
    """Measure the loss on tokens that repeat, before and after: an induction head makes the difference.

    Parameters
    ----------
    logits : Tensor
        Of the next token, at every position, by a model that sees no later one.
    tokens : Tensor
        What the model read, from `repeated_tokens`.

    Returns
    -------
    RepeatedLoss
        Means over the same tokens. The first token of a half is in neither: nothing announces that the tokens repeat.

    Raises
    ------
    DataError
        If the tokens do not repeat, or the logits are of others.

    References
    ----------
    .. [1] Olsson et al., 2022, arXiv:2209.11895 (loss of repeated random sequences by position).
    """
    half = tokens.shape[-1] // 2
    if tokens.shape[-1] < SHORTEST_REPETITION or not torch.equal(tokens[..., :half], tokens[..., half:]):
        raise DataError("the second half of the tokens must repeat the first: take them from repeated_tokens")
    if logits.shape[:2] != tokens.shape:
        raise DataError(
            f"logits must be of the {tuple(tokens.shape)} tokens that the model read; got {tuple(logits.shape)}"
        )
    predicted = logits[:, :-1].detach().cpu().double().transpose(1, 2)  # (batch, vocab, length - 1)
    losses = nn.functional.cross_entropy(predicted, tokens[:, 1:].cpu(), reduction="none")  # (batch, length - 1)
    return RepeatedLoss(losses[:, : half - 1].mean().item(), losses[:, half:].mean().item())


def most_looked_at(
    trace: Mapping[str, Captured], words: Sequence[Sequence[int]], *, sample: int = 0
) -> dict[str, Int[Tensor, "heads words"]]:
    """Find the other word that every head looks at most from each word.

    Parameters
    ----------
    trace : mapping of str to Captured
        What `capture` recorded: self-attention over the tokens that the words are made of, others left out by you.
    words : sequence of sequence of int
        Positions of the tokens of each word.
    sample : int, default 0
        Which sequence of the batch.

    Returns
    -------
    dict of str to Tensor
        By attention the number of a word, -1 where all weight lies on the word itself or on tokens of no word.

    Raises
    ------
    DataError
        If a word has no token, or one that is not there.

    Notes
    -----
    A word looks as its tokens do on average; its look at another is the sum over the tokens of that one [1]_.

    References
    ----------
    .. [1] Clark et al., 2019, arXiv:1906.04341, section 4.1.

    Examples
    --------
    >>> weights = torch.eye(4).roll(-1, 1)[None, None]  # each of four tokens looks at the one before
    >>> most_looked_at({"mixer": Captured(weights=weights)}, [[0], [1, 2], [3]])
    {'mixer': tensor([[2, 0, 1]])}
    """
    found = {}
    for name, weights in weights_of(trace).items():
        length = weights.shape[-1]
        if weights.shape[-2] != length or any(not word or max(word) >= length or min(word) < 0 for word in words):
            raise DataError(
                f"{name} looks from {weights.shape[-2]} to {length} tokens; every word must have tokens of these"
            )
        belongs = torch.zeros(length, len(words), dtype=torch.float64)
        for number, word in enumerate(words):
            belongs[list(word), number] = 1
        looks = (belongs / belongs.sum(dim=0)).T @ weights[sample].detach().cpu().double().abs() @ belongs
        others = looks.nan_to_num(0).masked_fill(torch.eye(len(words), dtype=torch.bool), 0)  # (heads, words, words)
        most, which = others.max(dim=-1)
        found[name] = torch.where(most > 0, which, NOWHERE)
    return found


def weights_of(trace: Mapping[str, Captured]) -> dict[str, Tensor]:
    """The weights by name of the attention."""
    return {name: captured.weights for name, captured in trace.items() if captured.weights is not None}


def reads(weights: Tensor) -> tuple[int, ...]:
    """What a layer reads: samples, queries, keys."""
    return (weights.shape[0], *weights.shape[2:])  # (batch, q_len, k_len)


def real_or_all(real: Real | None, shape: tuple[int, ...]) -> Real:
    """Which tokens count."""
    if real is None:
        return torch.ones(shape, dtype=torch.bool)
    if real.shape != shape:
        raise DataError(f"padding must be that of the tokens, {tuple(shape)}; got {tuple(real.shape)}")
    return real.cpu()


def _patterns(tokens: Tensor, real: Tensor, delimiters: Collection[int]) -> dict[str, Tensor]:
    """By name of a pattern the keys that each query should look at, as far as it may: (batch or 1, q_len, k_len)."""
    place = torch.arange(tokens.shape[1])
    back = (place[:, None] - place)[None]  # how far a key lies before its query
    same = (tokens[:, :, None] == tokens[:, None]) & real[:, :, None] & real[:, None] & (back > 0)
    first = place == real.int().argmax(dim=1, keepdim=True)  # (batch, k_len)
    _, which, counts = torch.unique(torch.where(real, tokens, -1), return_inverse=True, return_counts=True)
    often = torch.where(real, counts[which], tokens.numel() + 1)  # (batch, k_len)
    return {
        "previous-token": back == 1,
        **{f"shifted-{shift}": back == shift for shift in SHIFTS},
        "next-token": back == -1,
        "same-position": back == 0,
        "first-token": first[:, None],
        "duplicate-token": same,
        "induction": same.roll(1, dims=-1) & (back > 0),  # the last key comes before no query: nothing goes round
        "delimiter": torch.isin(tokens, torch.tensor(sorted(delimiters), dtype=tokens.dtype))[:, None],
        "rare-token": (often == often.amin(dim=1, keepdim=True))[:, None],
        "local": back.abs() <= WINDOW,
    }


def shares_of(weights: Scores, queries: Real, keys: Real) -> Scores:
    """What part of its weight each query gives each key, in float64; NaN for padding and queries that give none."""
    sizes = weights.detach().cpu().double().abs() * keys[:, None, None]
    total = sizes.sum(dim=-1, keepdim=True)
    return torch.where(total.isfinite() & (total > 0) & queries[:, None, :, None], sizes / total, torch.nan)


def _rows(layer: str, shares: Scores, patterns: Mapping[str, Tensor], real: Real) -> list[HeadScores]:
    """The rows of the heads of a layer."""
    causal = not bool((shares.triu(1) > 0).any())
    square = torch.ones(shares.shape[-2:], dtype=torch.bool)
    visible = real[:, None] & (square.tril() if causal else square)  # (batch, q_len, k_len)
    scores = {name: _share_of(shares, pattern & visible, visible).tolist() for name, pattern in patterns.items()}
    measures = {name: values.tolist() for name, values in _measures(shares, visible).items()}
    return [
        HeadScores(layer, head, *({name: values[head] for name, values in part.items()} for part in (scores, measures)))
        for head in range(shares.shape[1])
    ]


def _share_of(shares: Scores, pattern: Tensor, visible: Tensor) -> Float[Tensor, " heads"]:
    """The mean share that goes to keys of a pattern, over queries that may look at some of them and at others."""
    choice = pattern.any(dim=-1) & (visible & ~pattern).any(dim=-1)  # (batch, q_len)
    given = (shares * pattern[:, None]).sum(dim=-1).masked_fill(~choice[:, None], torch.nan)  # (batch, heads, q_len)
    return given.nanmean(dim=(0, 2)).clamp(max=1)


def _measures(shares: Scores, visible: Tensor) -> dict[str, Float[Tensor, " heads"]]:
    entropy = _entropy(shares)
    equal = visible.sum(dim=-1)[:, None].double().log()  # 0 where there is one key: 0 / 0, no number
    place = torch.arange(shares.shape[-1])
    spread = {
        "entropy": entropy,
        "relative-entropy": (entropy / equal).clamp(max=1),
        "mean-distance": (shares * (place[:, None] - place).abs()).sum(dim=-1),
    }  # (batch, heads, q_len) each
    others = head_distances(shares, shares).fill_diagonal_(torch.nan).nanmean(dim=1)
    return {name: by_query.nanmean(dim=(0, 2)) for name, by_query in spread.items()} | {"diversity": others}


def _entropy(shares: Tensor) -> Float[Tensor, "batch heads q_len"]:
    return torch.special.entr(shares).sum(dim=-1)


def head_distances(first: Scores, second: Scores) -> Float[Tensor, "first_heads second_heads"]:
    """The mean Jensen-Shannon distance between the rows of heads."""
    alone, others = _entropy(first), _entropy(second)
    divergences = (
        _entropy((first[:, [head]] + second) / 2) - (alone[:, [head]] + others) / 2 for head in range(first.shape[1])
    )  # (batch, second_heads, q_len) each, in nats
    return torch.stack([(one / math.log(2)).clamp(0, 1).sqrt().nanmean(dim=(0, 2)) for one in divergences])
