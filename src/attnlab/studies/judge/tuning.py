"""Which settings a variant gets: the best of its tuning runs, fixed once a judged run has begun with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from attnlab.core.files import read_sealed, sealed, write_json
from attnlab.studies.define.metrics import SHORTEST
from attnlab.studies.define.rules import LENGTH, at_edge
from attnlab.studies.define.study import slug
from attnlab.studies.plan.plan import CellPlan, Plan
from attnlab.studies.run.folder import is_sealed
from attnlab.studies.run.index import index_of
from attnlab.training.recipe.target import is_reached

TUNING = "tuning.json"
"""File of a study with what tuning tried and chose."""

Runs = Mapping[str, Mapping[str, Sequence[float | None]]]
"""By variant and setting the metric of each tuning run, in the order of seeds; None for one that has no such number."""


def cells_again(plan: Plan, out: Path, names: Collection[str] | None = None) -> list[CellPlan]:
    """One more run of the best settings of some variants, or of all: the luck of one seed chooses less."""
    first = _read(plan, out, plan.tuning_cells(names))
    ranked = {name: _ranked(plan, of) for name, of in first.items()}
    return plan.tuning_cells_again({name: settings[: plan.tried_again] for name, settings in ranked.items()})


def record_tuning(plan: Plan, out: Path, names: Collection[str] | None = None) -> dict[str, dict[str, int | float]]:
    """Choose the settings of some variants, or of all, from the tuning runs, and write down what was tried."""
    runs = _all_runs(plan, out, names)
    chosen = _chosen(plan, out, runs)
    if plan.study.rules.tuning_runs:
        record = read_tuning(out) | {name: record_of(plan, name, of, chosen[name]) for name, of in runs.items()}
        write_json(out / TUNING, sealed({v.name: record[v.name] for v in plan.variants if v.name in record}))
    return chosen


def chosen_settings(plan: Plan, out: Path) -> dict[str, dict[str, int | float]]:
    """The settings of every variant: those tuning chose, fixed once a judged run has begun with them."""
    return _chosen(plan, out, _all_runs(plan, out))


def _chosen(plan: Plan, out: Path, runs: Runs) -> dict[str, dict[str, int | float]]:
    written = read_tuning(out)
    begun = {name for name in runs if any((out / slug(name)).glob("seed-*/spec.json"))}
    fixed = {name: record["settings"] for name, record in written.items() if name in begun}
    return {name: choose(plan, of) for name, of in runs.items()} | fixed


def read_tuning(out: Path) -> dict[str, Any]:
    """What tuning tried and chose, by variant; nothing before it ended."""
    return read_sealed(out / TUNING, required=is_sealed(out)) if (out / TUNING).exists() else {}


def _all_runs(plan: Plan, out: Path, names: Collection[str] | None = None) -> Runs:
    """What the tuning runs of some variants reached, or of all, those of the best settings again included."""
    found = _read(plan, out, [*plan.tuning_cells(names), *cells_again(plan, out, names)])
    return {
        variant.name: found.get(variant.name, {}) for variant in plan.variants if names is None or variant.name in names
    }


def _read(plan: Plan, out: Path, cells: Sequence[CellPlan]) -> Runs:
    found: dict[str, dict[str, list[float | None]]] = {}
    index, required = index_of(out), is_sealed(out)
    for cell in cells:
        result = index.result(cell, required=required)
        value = None if result is None else _value(plan, cell, result["metrics"])
        found.setdefault(cell.variant, {}).setdefault(setting_key(cell.tuned), []).append(value)
    return found


def _value(plan: Plan, cell: CellPlan, metrics: Mapping[str, float]) -> float | None:
    """The metric that tuning looks at, or the length of a run that reached the target."""
    if plan.tune_metric != SHORTEST:
        return metrics.get(plan.tune_metric.name)
    return float(cell.tuned[LENGTH]) if is_reached(plan.study.rules.target or {}, plan.metrics, metrics) else None


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of values; None where one is missing."""
    there = [value for value in values if value is not None]
    return fmean(there) if there and len(there) == len(values) else None


def _ranked(plan: Plan, runs: Mapping[str, Sequence[float | None]]) -> list[dict[str, int | float]]:
    """The settings that have a mean, the best first."""
    means = [(setting, _mean(runs.get(setting_key(setting), ()))) for setting in plan.study.rules.grid()]
    there = [(mean, setting) for setting, mean in means if mean is not None]
    there.sort(key=lambda each: each[0], reverse=plan.tune_metric.better == "higher")
    return [setting for _, setting in there]


def choose(plan: Plan, runs: Mapping[str, Sequence[float | None]]) -> dict[str, int | float]:
    """The settings of one variant with the best mean, of those with the most runs.

    If none has a mean, the first: of the longest, where none of several lengths reached a target.
    """
    most = max((len(values) for values in runs.values() if _mean(values) is not None), default=0)
    tried = {key: values for key, values in runs.items() if len(values) == most}
    untried = max(plan.study.rules.grid(), key=lambda setting: setting.get(LENGTH, 1))
    return next(iter(_ranked(plan, tried)), untried)


def setting_key(setting: Mapping[str, int | float]) -> str:
    """Tuned settings as text: the value alone where one setting is tuned."""
    if len(setting) == 1:
        return f"{next(iter(setting.values())):g}"
    return ", ".join(f"{key} {value:g}" for key, value in setting.items())


def record_of(
    plan: Plan, variant: str, runs: Mapping[str, Sequence[float | None]], chosen: Mapping[str, int | float]
) -> dict[str, Any]:
    """What tuning tried and chose for a variant, as it is saved and reported."""
    scores = {key: _mean(values) for key, values in runs.items()}
    inside = at_edge(plan.study.rules, chosen)
    as_good = [setting_key(other) for other in inside if _as_good(plan, runs, chosen, other)]
    return {
        "setting": ", ".join(plan.study.rules.tune),
        "scores": scores,
        "metric": plan.tune_metric.name,
        "runs": {key: len(values) for key, values in runs.items()},
        "chosen": setting_key(chosen),
        "settings": dict(chosen),
        "at_edge": len(as_good) < len(inside) or all(score is None for score in scores.values()),
        "as_good": as_good,
        "failed": [setting for setting, score in scores.items() if score is None],
        "variant": variant,
    }


def _as_good(
    plan: Plan,
    runs: Mapping[str, Sequence[float | None]],
    chosen: Mapping[str, int | float],
    other: Mapping[str, int | float],
) -> bool:
    """Whether a setting further inside the grid is as good as the best: by less than matters, or by what seeds say.

    The best value then lies on a plateau, which its edge of the grid may cut, and not on a slope.
    """
    pairs = zip(runs[setting_key(chosen)], runs.get(setting_key(other), ()), strict=False)
    apart = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    if not apart:
        return False
    matters = plan.study.rules.smallest_effect if plan.tune_metric.unit == plan.metric.unit else 0.0
    return abs(fmean(apart)) < matters or min(apart) < 0 < max(apart)
