"""What n-gram models reach on a text: the ladder that a model's loss is held against.

A character model that sees ``k`` characters is an estimate of the next character's distribution
given the last ``k``. Interpolated Witten-Bell is a strong plain estimate; what no estimate can beat is
the held-out part's own distribution given the last ``k``, the limit stated beside it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int

from attnlab.core.storage.cache import keep_result, read_result

HIGHEST_ORDER = 5  # characters seen; beyond, a text of a million characters has too few repetitions
LARGEST = 10_000_000  # characters of a part that are looked at; more take minutes and gigabytes, for little
VERSION = 1  # of what is computed here; a kept result of another version is not used

TrainTokens = Int[np.ndarray, " n_train"]
HeldOutTokens = Int[np.ndarray, " n_held_out"]
AllTokens = Int[np.ndarray, " length"]


@final
@dataclass(frozen=True)
class Rung:
    """State what a model that sees `order` characters reaches on a held-out part."""

    order: int  # characters seen
    loss: float  # interpolated Witten-Bell, fitted on the training part, in nats per character
    accuracy: float  # how often its most likely character is right, a fraction
    loss_limit: float  # the loss of the held-out part's own frequencies: no function of `order` characters is below
    accuracy_limit: float  # the accuracy of the held-out part's own most frequent continuations
    sampling_cost: float
    """What estimating from so little text costs, in nats: distinct grams over twice the training characters."""


def ladder(train: TrainTokens, held_out: HeldOutTokens, vocab_size: int) -> list[Rung]:
    """Judge n-gram models that see 0, 1, ... characters, reading a kept result where there is one."""
    train, held_out = train[-LARGEST:], held_out[:LARGEST]
    digest = hashlib.sha256(f"{vocab_size} {len(train)} {HIGHEST_ORDER} ".encode())
    for part in (train, held_out):
        digest.update(np.ascontiguousarray(part, dtype="<i4").tobytes())
    name = f"ngrams-{VERSION}-{digest.hexdigest()}"
    kept = _rungs(read_result(name))
    if kept is not None:
        return kept
    rungs = compute_ladder(train, held_out, vocab_size)
    keep_result(name, [dataclasses.asdict(rung) for rung in rungs])
    return rungs


def _rungs(kept: object) -> list[Rung] | None:
    """Rungs from JSON, or None if it is anything else."""
    try:
        rungs = [Rung(**rung) for rung in kept]  # pyrefly: ignore
    except TypeError:
        return None
    return rungs if len(rungs) == HIGHEST_ORDER + 1 else None


def compute_ladder(
    train: TrainTokens, held_out: HeldOutTokens, vocab_size: int, highest_order: int = HIGHEST_ORDER
) -> list[Rung]:
    """Fit n-gram models and judge them; `ladder` without keeping the result.

    Notes
    -----
    ``p_k(w | c) = (n(cw) + t(c) p_{k-1}(w | c')) / (n(c) + t(c))``, where c is the last k characters, c' the last
    k-1, n counts in the training part, t(c) is the number of distinct characters seen after c, and ``p_{-1}`` is
    uniform [1]_. Near the beginning of the held-out part, where fewer than k characters are known, ``p_k`` is the
    model of the highest order they allow. Estimating m free frequencies from n observations costs about m / 2n
    nats; that is `Rung.sampling_cost`. Time O(order * n log n), about 150 bytes per character.

    References
    ----------
    .. [1] Witten, Bell, 1991, IEEE Transactions on Information Theory 37(4), method C; interpolated as in
       Chen, Goodman, 1999, Computer Speech and Language 13(4), section 2.
    """
    tokens = np.concatenate((train, held_out)).astype(np.int64)
    level = _Level.empty(len(tokens), vocab_size)
    judge = _Judge(len(train), len(held_out))
    rungs = []
    for order in range(highest_order + 1):
        level = level.longer(tokens, len(train), vocab_size)
        rungs.append(judge.rung(order, level, tokens))
    return rungs


@final
@dataclass(frozen=True)
class _Level:
    """Hold the model of one order: grams of `size` characters, the last given the ones before.

    Grams and contexts have dense numbers, each array below has one entry per gram or per context.
    `ids[j]` is the gram at positions j to j + size - 1 of training and held-out part in a row, `contexts[j]` its
    context; `n_seen` counts the training part's grams. `probabilities` and `shorter` (the gram without its first
    character) go by gram, `best` (the most likely next character) and `best_probability` by context.
    """

    size: int
    n_seen: int
    ids: Int[np.ndarray, " positions"]
    contexts: Int[np.ndarray, " positions"]
    probabilities: Float[np.ndarray, " grams"]
    shorter: Int[np.ndarray, " grams"]
    best: Int[np.ndarray, " contexts"]
    best_probability: Float[np.ndarray, " contexts"]

    @classmethod
    def empty(cls, length: int, vocab_size: int) -> _Level:
        """The level below order 0, which knows nothing but the size of the vocabulary."""
        zero, uniform = np.zeros(1, dtype=np.int64), np.full(1, 1 / vocab_size)
        nowhere = np.zeros(length + 1, dtype=np.int64)
        return cls(0, 0, nowhere, nowhere, uniform, zero, zero, uniform)

    def longer(self, tokens: AllTokens, n_train: int, vocab_size: int) -> _Level:
        """The level whose contexts are this level's grams."""
        keys = self.ids[:-1] * vocab_size + tokens[self.size :]
        _, first, ids = np.unique(keys, return_index=True, return_inverse=True)
        context, shorter, last = self.ids[first], self.ids[first + 1], tokens[first + self.size]
        counts = np.bincount(ids[: max(n_train - self.size, 0)], minlength=len(first))
        seen = counts > 0
        totals = np.bincount(context, weights=counts, minlength=len(self.probabilities))
        types = np.bincount(context[seen], minlength=len(self.probabilities))
        known = np.maximum(totals + types, 1)
        backoff = np.where(totals > 0, types / known, 1.0)  # by context: the weight of the order below
        probabilities = counts / known[context] + backoff[context] * self.probabilities[shorter]
        best, best_probability = self._best(context[seen], last[seen], probabilities[seen], backoff)
        return _Level(
            self.size + 1, int(seen.sum()), ids, self.ids[:-1], probabilities, shorter, best, best_probability
        )

    def _best(
        self,
        context: Int[np.ndarray, " seen"],
        last: Int[np.ndarray, " seen"],
        probabilities: Float[np.ndarray, " seen"],
        backoff: Float[np.ndarray, " contexts"],
    ) -> tuple[Int[np.ndarray, " contexts"], Float[np.ndarray, " contexts"]]:
        """The most likely next character of each context, and its probability.

        It was either seen after the context or is the one of the next shorter context: among the unseen,
        probabilities are those of the order below times a constant.
        """
        best = self.best[self.shorter]
        best_probability = backoff * self.best_probability[self.shorter]
        order = np.lexsort((probabilities, context))
        ends = np.append(context[order][1:] != context[order][:-1], True)[: len(order)]
        top = order[ends]  # the likeliest of each context
        top = top[probabilities[top] >= best_probability[context[top]]]
        best[context[top]], best_probability[context[top]] = last[top], probabilities[top]
        return best, best_probability


@final
class _Judge:
    """Keep what is known of each held-out character while the order rises."""

    def __init__(self, n_train: int, n_held_out: int) -> None:
        self.n_train = n_train
        self.log_probabilities = np.zeros(n_held_out - 1)
        self.correct = np.zeros(n_held_out - 1, dtype=bool)

    def rung(self, order: int, level: _Level, tokens: AllTokens) -> Rung:
        """Judge one level on the characters that have enough before them; the others stay as they were."""
        skipped = max(order - 1, 0)  # the first character is not predicted at any order
        begin = self.n_train + max(1 - order, 0)
        ids, contexts = level.ids[begin:], level.contexts[begin:]
        self.log_probabilities[skipped:] = np.log(level.probabilities[ids])
        self.correct[skipped:] = level.best[contexts] == tokens[self.n_train + 1 + skipped :]
        loss_limit, correct_limit = _own_limits(ids, contexts)
        count = len(self.correct)
        return Rung(
            order=order,
            loss=float(-self.log_probabilities.mean()),
            accuracy=float(self.correct.mean()),
            loss_limit=loss_limit / count,
            accuracy_limit=(correct_limit + min(skipped, count)) / count,
            sampling_cost=level.n_seen / (2 * self.n_train),
        )


def _own_limits(ids: Int[np.ndarray, " positions"], contexts: Int[np.ndarray, " positions"]) -> tuple[float, int]:
    """The summed loss and the correct guesses of the held-out part's own frequencies."""
    grams, first, counts = np.unique(ids, return_index=True, return_counts=True)
    if not len(grams):
        return 0.0, 0
    _, context = np.unique(contexts[first], return_inverse=True)
    totals = np.bincount(context, weights=counts)
    most = np.zeros(len(totals), dtype=np.int64)
    np.maximum.at(most, context, counts)
    return float(-(counts * np.log(counts / totals[context])).sum()), int(most.sum())
