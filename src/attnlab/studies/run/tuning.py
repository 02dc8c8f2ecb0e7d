"""Which settings a variant gets: the best of its tuning runs, fixed once a judged run has begun with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from attnlab.core.files import read_json, write_json
from attnlab.studies.define.rules import at_edge
from attnlab.studies.define.study import slug
from attnlab.studies.plan.plan import Plan

TUNING = "tuning.json"
"""File of a study with what tuning tried and chose."""


def record_tuning(plan: Plan, out: Path) -> dict[str, dict[str, int | float]]:
    """Choose each variant's settings from the tuning runs, and write down what was tried."""
    scores = read_scores(plan, out)
    chosen = _chosen(plan, out, scores)
    if plan.tuning_cells():
        record = {v.name: _tuning_record(plan, v.name, scores[v.name], chosen[v.name]) for v in plan.variants}
        write_json(out / TUNING, record)
    return chosen


def chosen_settings(plan: Plan, out: Path) -> dict[str, dict[str, int | float]]:
    """The settings of every variant: those tuning chose, fixed once a judged run has begun with them."""
    return _chosen(plan, out, read_scores(plan, out))


def _chosen(
    plan: Plan, out: Path, scores: Mapping[str, Mapping[str, float | None]]
) -> dict[str, dict[str, int | float]]:
    written = read_json(out / TUNING) if (out / TUNING).exists() else {}
    begun = {v.name for v in plan.variants if any((out / slug(v.name)).glob("seed-*/spec.json"))}
    fixed = {name: record["settings"] for name, record in written.items() if name in begun}
    return choose(plan, scores) | fixed


def read_scores(plan: Plan, out: Path) -> dict[str, dict[str, float | None]]:
    """The tuning metric of every combination of settings, as a mean over its runs."""
    found: dict[str, dict[str, list[float | None]]] = {variant.name: {} for variant in plan.variants}
    for cell in plan.tuning_cells():
        result = out / cell.folder / "result.json"
        value = read_json(result)["metrics"].get(plan.tune_metric.name) if result.exists() else None
        found[cell.variant].setdefault(setting_key(cell.tuned), []).append(value)
    return {name: {key: _mean(values) for key, values in of.items()} for name, of in found.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of values; None where one is missing."""
    there = [value for value in values if value is not None]
    return fmean(there) if len(there) == len(values) else None


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


def _tuning_record(
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
