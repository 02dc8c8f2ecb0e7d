"""Search a learning rate: as far from the person's own as it takes to see it get worse again."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attnlab.core.contracts import Metric
from attnlab.explain.trials.setups import Runs, Setup
from attnlab.studies.define.rules import TUNING_SEED

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Rates that are tried first, as multiples of the person's own."""
DOWN = 10.0
"""Factor between lower rates, while no run finishes."""
FURTHER = 3.0
"""Factor between further rates, while the best lies at the edge."""
MOST_ROUNDS = 4
"""How often the search goes on beyond its edge, two rates at a time."""


def tuned(runs: Runs, setup: Setup, metric: Metric, reported: str = "last", *, fraction: float = 1.0) -> float:
    """The learning rate of a set-up with the best validation metric, by one run each that is not judged.

    It is the person's own where no run finished, and where it comes out best by a second run, too. Where runs make a
    fraction of the person's steps, they want a higher rate: of higher ones those alone are tried that are more than so
    many times as high as runs are shorter.
    """
    own = float(setup.training.get("lr", 1e-3))
    best, scores, finished = own, dict[float, float](), dict[float, float]()
    wanted = [own * (factor if factor <= 1 else factor / fraction) for factor in FACTORS]
    for _ in range(MOST_ROUNDS):
        scores |= _scores(runs, setup, metric, wanted, reported)
        finished = {rate: score for rate, score in scores.items() if math.isfinite(score)}
        if not finished:  # as far down as it takes until a run finishes
            best, wanted = own, [min(scores) / DOWN**power for power in (1, 2, 3)]
            continue
        best = _best(finished, metric)
        if best == min(scores):
            wanted = [best / FURTHER, best / FURTHER**2]
        elif best == max(scores):
            wanted = [best * FURTHER, best * FURTHER**2]
        else:
            break
    others = {rate: score for rate, score in finished.items() if rate != best}
    if best != _rounded(own) or not others:  # the runs that are judged show what another rate is worth
        return best
    again = _scores(runs, setup, metric, [own, _best(others, metric)], reported, seed=TUNING_SEED + 1)
    both = {rate: (scores[rate] + score) / 2 for rate, score in again.items() if math.isfinite(score)}
    best = _best(both or {best: 0.0}, metric)
    return own if best == _rounded(own) else best


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")


def _best(scores: Mapping[float, float], metric: Metric) -> float:
    return (min if metric.better == "lower" else max)(scores, key=lambda rate: scores[rate])


def _scores(
    runs: Runs, setup: Setup, metric: Metric, rates: list[float], reported: str, *, seed: int = TUNING_SEED
) -> dict[float, float]:
    """The metric at the end of one run for each rate."""
    rates = [_rounded(rate) for rate in rates]
    setups = {rate: Setup(f"{setup.name}, rate {rate:.3g}", setup.task, setup.model, {**setup.training, "lr": rate})
              for rate in rates}  # fmt: skip
    found = runs.of(list(setups.values()), [seed])
    return {rate: found[one.name][seed].value(metric, reported) for rate, one in setups.items()}
