"""Which settings a variant gets: the best of its tuning runs, and whether a better one may lie outside the grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnlab.studies.define.rules import at_edge
from attnlab.studies.plan.plan import Plan


def choose(plan: Plan, scores: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, int | float]]:
    """For each variant the settings with the best tuning score."""
    grid = list(plan.study.rules.grid())
    chosen = {}
    for variant in plan.variants:
        best = grid[0]
        best_score = None
        for setting in grid:
            score = scores.get(variant.name, {}).get(setting_key(setting))
            if score is not None and (best_score is None or plan.tune_metric.improves(score, best_score)):
                best, best_score = setting, score
        chosen[variant.name] = best
    return chosen


def setting_key(setting: Mapping[str, int | float]) -> str:
    """Tuned settings as text: the value alone where one setting is tuned."""
    if len(setting) == 1:
        return f"{next(iter(setting.values())):g}"
    return ", ".join(f"{key} {value:g}" for key, value in setting.items())


def tuning_record(
    plan: Plan, variant: str, scores: Mapping[str, float | None], chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """What tuning tried and chose for a variant, as it is saved and reported."""
    finished = any(score is not None for score in scores.values())
    return {
        "setting": ", ".join(plan.study.rules.tune),
        "scores": dict(scores),
        "metric": plan.tune_metric.name,
        "seeds": plan.study.rules.tune_seeds,
        "chosen": setting_key(chosen),
        "settings": dict(chosen),
        "at_edge": at_edge(plan.study.rules, chosen) or not finished,
        "failed": [setting for setting, score in scores.items() if score is None],
        "variant": variant,
    }
