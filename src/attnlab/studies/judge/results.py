"""What a study has found so far, as plain data: read from its run folder, consumed by statistics and report.

Nothing here trains or draws. A study that is still running, or that lost cells, has the same shape.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, final

from attnlab.core.contracts import Floor, Metric
from attnlab.inspection.drawing.pieces import drawn, table
from attnlab.studies.define.study import Contrast
from attnlab.studies.judge.claims import Claim, Target
from attnlab.studies.judge.luck import Tuned
from attnlab.studies.judge.verdicts import Look, Verdict, exploratory, verdicts
from attnlab.training.recipe.target import SECONDS_TO_TARGET

if TYPE_CHECKING:
    from attnlab.studies.judge.worth import PartsJudged

MOST_DRAWN = 24
"""Variants in a chart: of more, none is told from its neighbor, and the small panels of 200 take minutes to draw."""
MOST_SEEDS = 50
"""Seeds of a variant whose curves and differences are drawn: they hold some hundred numbers each."""
UNBELIEVABLE = ("causality", "batch", "floor", "best known")
"""Alarms that say that a number cannot be true, or is one of another task."""


@final
@dataclass(frozen=True)
class CellResults:
    """Hold what one variant reached with one seed."""

    seed: int  # seed of initialization and data order; cells of different variants pair over it
    status: Literal["done", "failed", "missing"]  # whether the cell finished, stopped with an error, or has not run
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Final value of every metric of the task; empty unless done."""
    seconds: float | None = None  # wall-clock training time, with the time spent on choosing how to compute
    written_per_second: float = 0.0  # sentences that the model wrote in a second when it was judged; 0 if none
    setting: str | None = None  # how its steps were computed, as ``bf16, compiled``
    device: str = ""  # what it was computed on: ``cpu``, or the name of an accelerator
    together: int = 1  # with how many runs, itself included, it was trained as one program
    together_note: str = ""  # why not with all it might have been trained with
    curve: Sequence[Mapping[str, Any]] = ()
    """Lines of the cell's ``metrics.jsonl``: step, tokens, seconds, train_loss, and metrics where evaluated; those of a
    folder are read when they are first asked for."""
    steps: int | None = None  # updates made; None unless done
    tokens: int | None = None  # that were trained on; None unless done, or where it also wrote some itself
    error: str | None = None  # why a failed cell stopped
    predictions: Mapping[str, Any] | None = None
    """What the task's ``examples`` returned: ``{"kind": "series", "items": [{"input", "target", "prediction"}]}`` or
    ``{"kind": "text", "text", "loss", "predicted"}`` or ``{"kind": "pairs", "pairs": [{"source", "target", "predicted",
    "translation"}]}``."""
    attention: Mapping[str, Any] | None = None
    """``{"labels": [[...], ...], "layers": [{"name", "shape": [heads, q_len, k_len], "max", "weights", "rank"}]}`` as
    `attnlab.inspection.attention_maps` returns it; runs of earlier versions have no ``rank``."""
    reach: Mapping[str, Any] | None = None
    """``past``, ``future`` and ``mixes_batch`` of the trained model, where it was looked into."""
    surface: Mapping[str, Any] | None = None
    """``at`` and ``loss`` of the trained model, as in `attnlab.inspection.Surface`, where it was looked into."""


@final
@dataclass(frozen=True)
class VariantResults:
    """Hold one variant: what it is, what it costs, and its cells."""

    name: str  # name in the study file; text of the user's
    spec: Mapping[str, Any]
    """All that was set of it, merged: ``task``, ``model`` and ``training``, with what tuning chose."""
    parameters: int  # number of trainable parameters
    flops_per_token: float  # training FLOPs (forward and backward) per token, a multiply-add counted as two
    activation_bytes: int  # memory the activations of one training batch take
    notes: tuple[str, ...] = ()  # what planning chose or corrected, in words
    tuning: Mapping[str, Any] | None = None
    """``setting`` (what was tuned), ``scores`` (value tried, as text, to the mean of ``metric`` over ``seeds`` runs),
    ``chosen`` (one of these texts), ``at_edge``; None where nothing was tuned."""
    cells: tuple[CellResults, ...] = ()  # one per seed, in the order of the rules

    @property
    def done(self) -> tuple[CellResults, ...]:
        """Cells that finished, in seed order."""
        return tuple(cell for cell in self.cells if cell.status == "done")

    @property
    def failed(self) -> tuple[CellResults, ...]:
        """Cells that stopped with an error, in seed order."""
        return tuple(cell for cell in self.cells if cell.status == "failed")

    @property
    def drawn(self) -> tuple[CellResults, ...]:
        """The cells that charts have room for: the first seeds."""
        return tuple(cell for cell in self.cells[:MOST_SEEDS] if cell.status != "missing")

    @property
    def untuned(self) -> bool:
        """Whether the best setting lay at the edge of its grid, so that a better one may lie outside."""
        return bool(self.tuning and self.tuning.get("at_edge"))

    @property
    def attention(self) -> Mapping[str, Any] | None:
        """The attention maps of the first seed that kept some."""
        return next((cell.attention for cell in self.done if cell.attention and cell.attention.get("layers")), None)

    @property
    def written_per_second(self) -> tuple[float, ...]:
        """How many sentences the model of each finished cell that was judged by what it writes wrote in a second."""
        return tuple(cell.written_per_second for cell in self.done if cell.written_per_second)

    @property
    def training_flops(self) -> float | None:
        """What training took, by what a token takes: the mean over finished cells, if there are any."""
        tokens = [cell.tokens for cell in self.done if cell.tokens is not None]
        return fmean(tokens) * self.flops_per_token if tokens else None

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings in which the cells that finished were computed, each once."""
        return tuple(dict.fromkeys(cell.setting for cell in self.done if cell.setting))

    def settled(self, metric: str) -> dict[int, float | None]:
        """The value of a metric by seed; None for a cell that failed or never measured it, nothing for one to come."""
        return {cell.seed: cell.metrics.get(metric) for cell in self.cells if cell.status != "missing"}

    def values(self, metric: str) -> dict[int, float]:
        """The value of a metric by seed, for the cells that finished and measured it."""
        return {cell.seed: cell.metrics[metric] for cell in self.done if metric in cell.metrics}

    def finite(self, metric: str) -> list[float]:
        """The values of a metric that are finite, in seed order."""
        return [value for value in self.values(metric).values() if math.isfinite(value)]


@final
@dataclass(frozen=True)
class Alarm:
    """State one thing about a study that a reader must know before believing it."""

    check: str  # which check fired, in a word or two: ``floor``, ``best known``, ``overlap``, ``untuned``
    variant: str | None  # the variant it concerns; None for the whole study
    message: str  # what was seen and what it suggests


@final
@dataclass(frozen=True)
class StudyResults:
    """Hold everything a report of one study says.

    Parameters
    ----------
    study : str
        Name of the study.
    question : str
        What it asks, in words.
    task : mapping
        What identifies the data (the task's ``describe``).
    metric : Metric
        The metric that the verdicts are about.
    metrics : tuple of Metric
        All metrics of the task.
    floors : tuple of Floor
        Reference values of the task.
    rules : mapping
        The rules fixed beforehand, with their ``hash``.
    baseline : str
        Name of the variant that the others are compared with.
    contrasts : tuple of Contrast
        The comparisons that are judged.
    scale : str or None
        Name of the scale the study ran at.
    variants : tuple of VariantResults
        In the order of the study file; comparisons of others that are not here are not judged.
    alarms : tuple of Alarm
        What fired.
    environment : mapping
        Versions and hardware.
    complete : bool
        Whether every cell has finished or failed.
    answer : str or None
        A known answer to show beside the verdict, where the study file gives one.
    heads : tuple of PartsJudged
        What heads, sublayers and layers are worth, by name of the variant, where ``attnlab heads`` measured it.
    """

    study: str
    question: str
    task: Mapping[str, Any]
    metric: Metric
    metrics: tuple[Metric, ...]
    floors: tuple[Floor, ...]
    rules: Mapping[str, Any]
    baseline: str
    contrasts: tuple[Contrast, ...]
    scale: str | None
    variants: tuple[VariantResults, ...]
    alarms: tuple[Alarm, ...]
    environment: Mapping[str, Any]
    complete: bool
    answer: str | None = None
    heads: tuple[PartsJudged, ...] = ()

    @functools.cached_property
    def charted(self) -> tuple[VariantResults, ...]:
        """The variants that charts have room for: all, or the baseline and the best others, in the study's order."""
        if len(self.variants) <= MOST_DRAWN:
            return self.variants
        sign = 1 if self.metric.better == "lower" else -1

        def place(variant: VariantResults) -> tuple[bool, float]:
            found = variant.finite(self.metric.name)
            return variant.name != self.baseline, sign * fmean(found) if found else math.inf

        kept = {variant.name for variant in sorted(self.variants, key=place)[:MOST_DRAWN]}
        return tuple(variant for variant in self.variants if variant.name in kept)

    def _repr_html_(self) -> str:
        """What each variant reached and what is concluded of it, with the alarms before."""
        measured = f"{self.metric.name} ({self.metric.unit})"
        head = ("variant", measured, "seeds", "against", "difference", "interval", "verdict")
        rows = [
            (variant.name, *_reached(variant.finite(self.metric.name)), *(_concluded(one) if one else ("",) * 4))
            for variant in self.variants
            for one in self.concluded(variant.name) or (None,)
        ]
        alarms = [
            f"{alarm.check}{f' ({alarm.variant})' * bool(alarm.variant)}: {alarm.message}" for alarm in self.alarms
        ]
        title = f"{self.study}: {self.question}"
        return drawn(title, *alarms, table(head, rows, numbers=(1, 2, 4, 5))).html

    @functools.cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What the rules conclude, one verdict a comparison: computed once, read by every form of the report."""
        runs = self._runs
        return verdicts(
            runs,
            [one for one in self.contrasts if {*one} <= runs.keys()],
            comparisons=len(self.contrasts),
            metric=self.metric,
            smallest_effect=self.smallest_effect,
            looks=self.looks,
            confidence=self.confidence,
            untuned={variant.name for variant in self.variants if variant.untuned},
            suspect={alarm.variant for alarm in self.alarms if alarm.variant and alarm.check in UNBELIEVABLE},
            target=self._target,
            tuned={variant.name: tuned for variant in self.variants if (tuned := self._tuned(variant))},
        )

    def _tuned(self, variant: VariantResults) -> Tuned | None:
        """What tuning tried for a variant; none where it looked at something that the verdict is not about."""
        tuning = variant.tuning or {}
        metric = next((metric for metric in self.metrics if metric.name == tuning.get("metric")), None)
        if metric is None or metric.unit != self.metric.unit or "runs" not in tuning:
            return None
        return Tuned(tuning["chosen"], tuning["scores"], tuning["runs"], variant.values(metric.name), metric.better)

    @functools.cached_property
    def _target(self) -> Target | None:
        """What a variant must reach before its time counts; none where time is not judged, or by earlier rules."""
        levels = self.rules.get("claim_levels")
        if levels is None or self.metric.name != SECONDS_TO_TARGET:
            return None
        ((name, value),) = self.rules["target"].items()
        metric = next(metric for metric in self.metrics if metric.name == name)
        runs = {variant.name: variant.settled(name) for variant in self.variants}
        return Target(metric, value, runs, tuple(look.seeds for look in self.looks), tuple(levels))

    @functools.cached_property
    def claims(self) -> Mapping[str, Claim]:
        """Of every variant whether its runs are shown to reach the target; nothing where time is not judged."""
        target = self._target
        return {} if target is None else {variant.name: target.claim(variant.name) for variant in self.variants}

    def left_open(self, seeds: int) -> set[str]:
        """The variants that need more runs after a look at so many seeds: those of comparisons that it left open.

        So does a baseline that is neither shown to reach the target nor to miss it: it is what times are compared with.
        """
        names = {
            name
            for one in self.verdicts
            if not one.settled and one.look == seeds
            for name in (one.variant, one.baseline)
        }
        claim = self.claims.get(self.baseline)
        return names | {self.baseline} if claim and (claim.state, claim.look) == ("open", seeds) else names

    @property
    def draws_data(self) -> bool:
        """Whether every seed has data of its own."""
        return bool(self.rules.get("split"))

    @functools.cached_property
    def exploratory(self) -> tuple[Verdict, ...]:
        """Variants that the rules compare with nothing, beside the baseline: nothing is concluded of them."""
        judged = {self.baseline, *(variant for variant, _ in self.contrasts)}
        judged |= {other for variant, other in self.contrasts if variant == self.baseline}
        beside = [(variant.name, self.baseline) for variant in self.variants if variant.name not in judged]
        return exploratory(self._runs, beside, metric=self.metric, confidence=self.confidence)

    def concluded(self, variant: str) -> tuple[Verdict, ...]:
        """What is concluded of a variant, or its exploratory comparison; nothing for one that is only compared with."""
        return tuple(one for one in (*self.verdicts, *self.exploratory) if one.variant == variant)

    @property
    def _runs(self) -> dict[str, dict[int, float | None]]:
        return {variant.name: variant.settled(self.metric.name) for variant in self.variants}

    @property
    def looks(self) -> tuple[Look, ...]:
        """The looks that the rules fixed; those of earlier versions had one, of all variants alike."""
        levels = self.rules.get("levels", [(1 - self.confidence) / max(1, len(self.contrasts))])
        return tuple(Look(seeds, float(level)) for seeds, level in zip(looks_in(self.rules), levels, strict=True))

    @property
    def smallest_effect(self) -> float:
        """The smallest effect of interest the rules name, in the unit of the metric; 0 for none."""
        return float(self.rules.get("smallest_effect") or 0.0)

    @property
    def confidence(self) -> float:
        """The coverage of intervals the rules ask for; 0.95 unless they say otherwise."""
        return float(self.rules.get("confidence") or 0.95)

    def variant(self, name: str) -> VariantResults:
        """The variant of a name."""
        return {variant.name: variant for variant in self.variants}[name]


def looks_in(rules: Mapping[str, Any]) -> tuple[int, ...]:
    """After how many seeds each look is taken by rules as they were written; those of earlier versions had one."""
    return tuple(map(int, rules.get("looks", [rules["seeds"]])))


def _reached(finite: Sequence[float]) -> tuple[str, str]:
    """A metric's mean and standard deviation over seeds, and how many there are."""
    spread = f" \u00b1 {stdev(finite):.2g}" if len(finite) > 1 else ""
    return f"{fmean(finite):.4g}{spread}" if finite else "", str(len(finite))


def _concluded(one: Verdict) -> tuple[str, str, str, str]:
    """What a variant is compared with, the difference, its interval and the verdict."""
    compared = one.comparison
    difference = "" if compared.difference is None else f"{compared.difference:+.4g}"
    between = "" if compared.low is None or compared.high is None else f"{compared.low:+.4g} to {compared.high:+.4g}"
    return one.baseline, difference, between, one.verdict
