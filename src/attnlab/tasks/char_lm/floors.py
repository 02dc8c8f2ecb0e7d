"""Reference values of character prediction: chance, the n-gram ladder, best known results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from attnlab.core.contracts import Floor, Metric
from attnlab.text.ngrams import Rung

NAMES = ("unigram", "bigram", "trigram", "4-gram", "5-gram", "6-gram")
ROOM = 0.02  # nats: over twenty times what estimating bigrams from a million characters costs
ROOM_ACCURACY = 0.01  # what the position in a window, which is no character, might add
SAFETY = 10.0  # times the cost of estimating frequencies that a better estimate than Witten-Bell might save
SEED_NOISE = 0.01  # nats: four standard deviations of the validation loss over seeds known from small models
BEST_KNOWN = {
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed": (
        1.4697,
        "nanoGPT's README, shakespeare_char on a GPU: 6 layers, 6 heads, width 384, context 256, dropout 0.2, 5000 "
        "iterations; best validation loss, estimated on random windows of the last 10 % of tinyshakespeare",
    ),
}  # sha256 of a text -> nats per character when its last 10 % are held out, and the source


def character_floors(metrics: Sequence[Metric], rungs: Sequence[Rung], vocab_size: int) -> list[Floor]:
    """Chance and the n-gram ladder for one held-out part.

    Notes
    -----
    A rung's value is what a good estimate of that reach gets. Another model of that reach may do better where
    text is scarce, since it generalizes between characters. So the tolerance is `ROOM` and `SAFETY` times
    the cost of estimating the frequencies, yet no more than `ROOM` below what the held-out part's own frequencies
    would reach, which no model can know. It is tight for the bigram and wide for long contexts, where a neural model
    may well beat the n-gram. For models of larger reach a rung is no limit at all. Each rung has its own value,
    even where a longer context does worse for want of text.
    """
    loss, bits, accuracy = metrics
    chances = (math.log(vocab_size), math.log2(vocab_size), 1 / vocab_size)
    floors = [
        Floor("chance", value, metric.unit, metric.name, "chance", source=f"uniform over {vocab_size} characters")
        for metric, value in zip(metrics, chances, strict=True)
    ]
    for rung in rungs:
        room = _room(rung)
        floors += [
            _rung_floor(rung, loss, rung.loss, room),
            _rung_floor(rung, bits, rung.loss / math.log(2), room / math.log(2)),
            _rung_floor(rung, accuracy, rung.accuracy, ROOM_ACCURACY + rung.accuracy_limit - rung.accuracy),
        ]
    return floors


def loss_floors(loss: Metric, rungs: Sequence[Rung], vocab_size: int) -> list[Floor]:
    """Chance and the n-gram ladder for a loss alone, as in `character_floors`."""
    source = f"uniform over {vocab_size} characters"
    chance = Floor("chance", math.log(vocab_size), loss.unit, loss.name, "chance", source=source)
    return [chance, *(_rung_floor(rung, loss, rung.loss, _room(rung)) for rung in rungs)]


def ladder_floors(
    scales: Mapping[Metric, Callable[[float], float]], accuracy: Metric, rungs: Sequence[Rung], vocab_size: int
) -> list[Floor]:
    """Chance and the n-gram ladder of tokens, as in `character_floors`, for all metrics that follow from the loss."""
    guessing, source = math.log(vocab_size), f"uniform over {vocab_size} tokens"
    of_loss = [(metric, scale(guessing)) for metric, scale in scales.items()]
    floors = [
        Floor("chance", value, metric.unit, metric.name, "chance", source=source)
        for metric, value in (*of_loss, (accuracy, 1 / vocab_size))
    ]
    for rung in rungs:
        for metric, scale in scales.items():
            value = scale(rung.loss)
            floors.append(_rung_floor(rung, metric, value, value - scale(rung.loss - _room(rung)), sees="token"))
        room = ROOM_ACCURACY + rung.accuracy_limit - rung.accuracy
        floors.append(_rung_floor(rung, accuracy, rung.accuracy, room, sees="token"))
    return floors


def _room(rung: Rung) -> float:
    """By how many nats a model of the same reach may do better."""
    return ROOM + min(rung.loss - rung.loss_limit, SAFETY * rung.sampling_cost)


def _rung_floor(rung: Rung, metric: Metric, value: float, tolerance: float, sees: str = "character") -> Floor:
    seen = f"1 {sees}" if rung.order == 1 else f"{rung.order} {sees}s"
    return Floor(
        f"{NAMES[rung.order]} (sees {seen})", value, metric.unit, metric.name, "floor",
        reach=rung.order,
        tolerance=tolerance,
        source="interpolated Witten-Bell fitted on the training part",
    )  # fmt: skip


def best_known(sha256: str) -> tuple[Floor, ...]:
    """The best known results for a text of which the last 10 % are held out."""
    if sha256 not in BEST_KNOWN:
        return ()
    nats, source = BEST_KNOWN[sha256]
    scales = (("val_loss", "nats/character", 1.0), ("val_bits_per_character", "bits/character", math.log(2)))
    return tuple(
        Floor("best known", nats / scale, unit, metric, "best", tolerance=SEED_NOISE / scale, source=source)
        for metric, unit, scale in scales
    )
