"""Does it come again? What runs of a case as it was called give, and what else gives what was seen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from attnlab.core.contracts import Metric
from attnlab.explain.answer import Again
from attnlab.explain.causes.known import Known, mended, setups_of
from attnlab.explain.causes.own_code import own_model
from attnlab.explain.metrics import IN_TRAINING, limits_of, metrics_of
from attnlab.explain.possible import Allowed, Impossible, another_draw, labels_allow, leaks, readings, ways
from attnlab.explain.stages.knowing import Tell
from attnlab.explain.trials.effects import ERROR, Estimate, Values, mean_of, within_noise
from attnlab.explain.trials.measuring import Measuring
from attnlab.explain.trials.setups import ENDS_EARLIER, Setup
from attnlab.tasks.arrays.classify import OF_SUREST
from attnlab.tasks.held_out import part_of
from attnlab.training.run.evaluation import TRAIN_ACCURACY

NEAR = 0.15
"""Part of what a number lies off the runs of its case that it may lie off them in another unit."""


@final
@dataclass(frozen=True)
class Held:
    """Hold what runs of a case with all of its steps say of what was seen."""

    found: Estimate | None = None  # the number that is explained
    noise: bool | None = None  # whether what was seen lies within their noise; None where nothing says
    otherwise: Again | None = None  # what it is within that is not
    again: tuple[Again, ...] = ()  # every number that was seen
    draw: float = 0.0  # how far another draw of what is held out moves the number


def as_called(measuring: Measuring, known: Mapping[str, Known], tell: Tell) -> dict[str, Known]:
    """Variants as the person called them, where nobody says in which layout: in the one that comes nearer.

    A module that reads the batch as time, but for the layout in which it does not, may have been called in either.
    """
    called = dict(known)
    for name, one in known.items():
        open_still = one.as_meant is None and any(each.layout_in_question for each in one.examined)
        # shortened runs do not tell which layout it was given
        if not open_still or name not in measuring.case.saw or not measuring.comparable:
            continue
        given = one.setup.changed({"model": mended(one, {"swapped": True})})
        literal = replace(given, name=f"{name}, given (batch, length, d_model)")
        metric, seen = next(iter(measuring.case.saw[name].items()))
        runs = measuring.runs.of([one.setup, literal], measuring.seeds[:1])
        meant, said = (runs[each.name][0].metrics.get(metric, math.inf) for each in (one.setup, literal))
        tell(f"'{name}': {metric} {said:.4g} given (batch, length, d_model), {meant:.4g} given the other layout")
        if abs(said - seen) < abs(meant - seen):
            own = own_model(one.model) is not None
            as_meant = {"mending": {"swapped": False}} if own else {"mixer": one.model["mixer"]}
            called[name] = replace(one, setup=replace(literal, name=name), as_meant=as_meant)
    return called


def seen_again(measuring: Measuring, known: Mapping[str, Known]) -> tuple[tuple[Again, ...], str]:
    """Every number that was seen, in runs of the set-up as it was; and why runs did not finish.

    Shortened runs are not held against what was seen, and only those of the explained variants are made.
    """
    case = measuring.case
    explained = case.saw if measuring.fraction == 1 else case.quantity.variants
    seen = setups_of(known, [name for name in case.saw if name in explained])
    runs = measuring.runs.of(list(seen.values()), measuring.seeds)
    error = ERROR / sum(map(len, case.saw.values()))
    found, errors = [], []
    for name, setup in seen.items():
        errors += [run.error for run in runs[name].values() if run.error]
        metrics = metrics_of(known[name].task)
        for metric, value in case.saw[name].items():
            values = measuring.values({name: setup}, metrics[metric])[name]
            if estimate := mean_of(values, limits_of(metrics[metric])):
                draw = drawn(metrics[metric], value, known[name])
                within = None
                if measuring.comparable:
                    within = within_noise([values], value, case.runs, error=error, draw=draw)
                finished = [one for one in values.values() if math.isfinite(one)]
                single = (min(finished), max(finished)) if len(finished) > 1 else None
                found.append(Again(name, metric, value, estimate, within, single))
    return tuple(found), errors[0] if errors else ""


def ended_early(measuring: Measuring, known: Mapping[str, Known]) -> list[str]:
    """Which runs of the set-up as it was were ended by a setting before their last step."""
    found = []
    for name, setup in setups_of(known, measuring.case.quantity.variants).items():
        runs = measuring.runs.of([setup], measuring.seeds)[name].values()
        short = sorted(run.steps for run in runs if not run.error and run.steps < setup.steps)
        if short and (ends := sorted(ENDS_EARLIER & setup.training.keys())):
            after = " to ".join(map(str, dict.fromkeys([short[0], short[-1]])))
            told = f"{len(short)} of {len(runs)} runs of '{name}'"
            found.append(f"{told} ended after {after} of {setup.steps} steps: '{ends[0]}' ends them")
    return found


def with_all_seeds(measuring: Measuring, known: Mapping[str, Known], ended: Sequence[Setup]) -> Measuring:
    """It with the runs made to decide what a cause carries, where what was seen and what it ended with have them."""
    twice = range(2 * len(measuring.seeds))
    made = measuring.runs.are_made([*setups_of(known, measuring.case.saw).values(), *ended], twice)
    return replace(measuring, seeds=twice) if made else measuring


def held_as_made(measuring: Measuring, known: Mapping[str, Known]) -> Held:
    """What was seen, held against the runs with all steps that were made before others were shortened."""
    made = as_made(measuring, known)
    return held(made, known) if made else Held()


def as_made(measuring: Measuring, known: Mapping[str, Known]) -> Measuring | None:
    """It with all steps, and the seeds of which what was seen was run so before others were shortened; None of none."""
    entire, setups = replace(measuring, fraction=1.0), list(setups_of(known, measuring.case.saw).values())
    made = list(itertools.takewhile(lambda seed: entire.runs.are_made(setups, [seed]), entire.seeds))
    return replace(entire, seeds=made) if made and entire.comparable else None


def held(measuring: Measuring, known: Mapping[str, Known]) -> Held:
    """What was seen, held against runs of its size and steps."""
    quantity, base = measuring.case.quantity, setups_of(known, measuring.case.quantity.variants)
    again, _ = seen_again(measuring, known)
    values = list(measuring.values(base, quantity.metric).values())
    one = known[quantity.variant]
    share = measuring.case.saw[quantity.variant][quantity.metric.name]
    draw = 0.0 if quantity.beside else drawn(quantity.metric, share, one)  # two are judged on the same items
    noise = within_noise(values, quantity.seen, measuring.case.runs, draw=draw)
    others = (_otherwise(measuring, known[name]) for name in quantity.variants if noise is False)
    otherwise = next(filter(None, others), None)
    return Held(measuring.mean(base), noise, otherwise, again, draw)


def drawn(metric: Metric, share: float, known: Known) -> float:
    """How far an accuracy lies off for the draw of what is held out, where a person's own draw is another."""
    return another_draw(metric, share, known.task) if _is_drawn(known, metric) else 0.0


def _is_drawn(known: Known, metric: Metric) -> bool:
    """Whether what is held out for a metric is drawn from the items that there are."""
    said = known.setup.task
    return said.get("split", "random") == "random" and not isinstance(said.get(part_of(metric.name)), str | list)


def of_labels(measuring: Measuring, known: Mapping[str, Known], ended: Mapping[str, Setup]) -> Allowed | None:
    """The most that labels allow, as the ends of runs tell; None where held-out items are of other sources."""
    quantity = measuring.case.quantity
    one, metrics = known[quantity.variant], metrics_of(known[quantity.variant].task)
    names = (quantity.metric.name, f"{quantity.metric.name}{OF_SUREST}", TRAIN_ACCURACY)
    drawn = _is_drawn(one, quantity.metric) and "groups" not in one.setup.task
    if not metrics.keys() >= {*names} or quantity.beside is not None or not drawn:
        return None
    setup = ended[quantity.variant]
    runs = measuring.runs.of([setup], measuring.seeds)[setup.name]
    found = [mean_of({seed: run.value(metrics[name], "last") for seed, run in runs.items()}) for name in names]
    right, surest, trained = (math.nan if each is None else each.mean for each in found)
    return labels_allow(quantity, right, surest, trained, one.task) if math.isfinite(right + surest + trained) else None


def _otherwise(measuring: Measuring, known: Known) -> Again | None:
    """What a number outside the noise of runs is within: the nearest of what they give read otherwise, or leaking.

    Of a difference it is one of the two numbers of which it is.
    """
    quantity, name = measuring.case.quantity, known.setup.name
    seen, limits = measuring.case.saw[name][quantity.metric.name], limits_of(quantity.metric)
    found = measuring.values({name: known.setup}, quantity.metric)[name]
    if quantity.beside and within_noise([found], seen, measuring.case.runs) is not False:
        return None
    usual = mean_of(found)
    if usual is None:
        return None
    for others in (_read_otherwise, _leaking):
        fits: list[tuple[float, Again]] = []
        for title, values in others(measuring, known, found, seen):
            estimate = mean_of(values, limits)
            near = estimate is not None and abs(seen - estimate.mean) <= NEAR * abs(seen - usual.mean)
            if estimate and near and within_noise([values], seen, measuring.case.runs):
                whose = f" (of '{name}')" if quantity.beside else ""
                again = Again(f"{title}{whose}", quantity.metric.name, seen, estimate, True)
                fits.append((min(abs(seen - value) for value in values.values()), again))  # it was seen of one run
        if fits:
            return min(fits, key=lambda one: one[0])[1]
    return None


def _read_otherwise(measuring: Measuring, known: Known, found: Values, _seen: float) -> Iterator[tuple[str, Values]]:
    """Yield what runs give read in another unit, and in training."""
    quantity, name = measuring.case.quantity, known.setup.name
    for title, read in readings(quantity.metric, known.task):
        yield title, {seed: read(value) for seed, value in found.items()}
    for trained in (one for one in metrics_of(known.task).values() if one.name in IN_TRAINING):
        if quantity.metric.unit == trained.unit and quantity.metric.name not in IN_TRAINING:
            kind = trained.name.removeprefix("train_")
            reached = measuring.values({name: known.setup}, trained)[name]
            yield f"the {kind} in training, told for that of held-out data", reached


def _leaking(measuring: Measuring, known: Known, found: Values, seen: float) -> Iterator[tuple[str, Values]]:
    """Yield what leaking splits give, where runs do worse than was seen."""
    metric = measuring.case.quantity.metric
    leaking = leaks(known.setup) if all(metric.improves(seen, value) for value in found.values()) else []
    if leaking and not measuring.late(leaking):
        yield from measuring.values({one.name: one for one in leaking}, metric).items()


def made_otherwise(
    measuring: Measuring, known: Mapping[str, Known], impossibles: Sequence[Impossible], tell: Tell
) -> tuple[tuple[Again, ...], list[str]]:
    """What other set-ups give for the numbers that cannot be, one run each; and what there was no time for."""
    found, not_tried, first = [], [], measuring.seeds[:1]
    for one in (one for one in impossibles if one.kind != "unlearned"):
        others = ways(known[one.variant].setup, one)
        if not others or measuring.late(others, first):
            not_tried += [f"{setup.name} (no time)" for setup in others]
            continue
        metric = metrics_of(known[one.variant].task)[one.metric]
        for name, values in measuring.values({setup.name: setup for setup in others}, metric, first).items():
            if once := mean_of(values):
                found.append(Again(name, one.metric, one.value, once, None))
                tell(f"made: {name}: {one.metric} {once.mean:.4g} (seen {one.value:.4g})")
    return tuple(found), not_tried
