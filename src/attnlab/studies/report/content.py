"""The machine-readable report: the dictionary behind ``report.json``, with stable keys.

Keys: ``study``, ``question``, ``task``, ``rules`` (with ``hash``), ``floors``, ``complete``, ``variants`` (``name``,
``parameters``, ``flops_per_token``, ``training_flops``, ``activation_bytes``, ``seconds``, ``written_per_second``,
``settings``, ``spec``, ``tuning``, ``metrics``: name to ``mean``, ``std``, ``values``),
``verdicts`` (``variant``, ``baseline``, ``metric``, ``difference``, ``low``, ``high``, ``p_adjusted``, ``verdict``,
``seeds_needed``, ``look``, ``failures``, ``median``, ``better_share``, ``reason``), ``claims`` (that variants reach a
target of time: ``variant``, ``state``, ``look``, ``mean``, ``p``, ``reason``), ``alarms`` (``check``, ``variant``,
``message``), ``environment``, ``heads`` (by variant what ``attnlab heads`` measured, as in
`attnlab.studies.judge.worth.PartsJudged`).

Every number is finite or null. ``values`` has one entry per seed in the order of the rules, null for a seed that did
not finish, so that values of two variants at one index belong together. ``training_flops`` (of a whole run),
``seconds`` and ``written_per_second`` (sentences, null where none are written) are means over finished seeds.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from statistics import fmean
from typing import Any

from attnlab.core.files import finite
from attnlab.studies.judge.results import StudyResults, VariantResults
from attnlab.studies.judge.verdicts import Verdict
from attnlab.studies.report.numbers import mean_and_deviation
from attnlab.studies.report.words import mean_seconds

FLOOR_KEYS = ("name", "value", "unit", "metric", "kind", "reach", "source")
"""What a floor says in the report; its tolerance is a matter of the alarms."""

VERDICT_KEYS = (
    *("variant", "baseline", "metric", "difference", "low", "high", "p_adjusted", "verdict", "seeds_needed"),
    *("look", "failures", "median", "better_share", "reason"),
)
"""What a verdict and its comparison say in the report."""


def report(results: StudyResults) -> dict[str, Any]:
    """The machine-readable report of a study.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far.

    Returns
    -------
    dict
        JSON types only; every number finite or None.
    """
    return finite(
        {
            "study": results.study,
            "question": results.question,
            "task": results.task,
            "rules": results.rules,
            "floors": [{key: asdict(floor)[key] for key in FLOOR_KEYS} for floor in results.floors],
            "complete": results.complete,
            "variants": [_variant(variant, results) for variant in results.variants],
            "verdicts": [_verdict(one) for one in (*results.verdicts, *results.exploratory)],
            "claims": [asdict(claim) for claim in results.claims.values()],
            "alarms": [asdict(alarm) for alarm in results.alarms],
            "environment": results.environment,
            "heads": [asdict(one) for one in results.heads],
        }
    )


def _variant(variant: VariantResults, results: StudyResults) -> dict[str, Any]:
    return {
        "name": variant.name,
        "parameters": variant.parameters,
        "flops_per_token": variant.flops_per_token,
        "training_flops": variant.training_flops,
        "activation_bytes": variant.activation_bytes,
        "seconds": mean_seconds(variant),
        "written_per_second": fmean(speeds) if (speeds := variant.written_per_second) else None,
        "settings": variant.settings,
        "spec": variant.spec,
        "tuning": variant.tuning,
        "metrics": {metric.name: _summary(variant, metric.name) for metric in results.metrics},
    }


def _summary(variant: VariantResults, metric: str) -> dict[str, Any]:
    """Mean, standard deviation and values of one metric."""
    by_seed = {seed: value for seed, value in variant.values(metric).items() if math.isfinite(value)}
    mean, std = mean_and_deviation([*by_seed.values()])
    return {"mean": mean, "std": std, "values": [by_seed.get(cell.seed) for cell in variant.cells]}


def _verdict(one: Verdict) -> dict[str, Any]:
    said = vars(one.comparison) | vars(one)
    return {key: said[key] for key in VERDICT_KEYS}
