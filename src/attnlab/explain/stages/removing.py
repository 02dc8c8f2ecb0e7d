"""Remove causes one after another, and see what of the surprise goes with each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from attnlab.core.contracts import Metric
from attnlab.explain.answer import CARRIES, HALF, SPOILING, Share
from attnlab.explain.causes.cause import OWN, PHASES, Cause, Change, phase_of
from attnlab.explain.causes.removals import MORE_STEPS, more_steps
from attnlab.explain.trials.effects import Estimate, effects, mean_of
from attnlab.explain.trials.measuring import Measuring
from attnlab.explain.trials.rates import FACTORS, tuned
from attnlab.explain.trials.setups import Run, Setup
from attnlab.training.keeping.diagnosis import BEFORE_UPDATES

MATTERS = 0.1
"""Part of the distance that a cause must carry to be named, and below which nothing is left to explain."""
MOST_CAUSES = 4
"""How many causes are removed one after another in one phase."""
MOST_AGAIN = 2
"""How often more of a cause is removed that there may be more of."""
FOLLOWED = 3
"""Causes of a phase that a plan expects to be worth more than a first run."""
NEARLY = 0.8
"""Part of what a person's own code carries as a whole from which a part of it carries it."""
SEEMS_MUCH = 0.3
"""Part of what is left from which a cause that is not decided gets twice the seeds."""

Removed = tuple[Cause, Mapping[str, Change]]
"""A cause with what was changed to remove it, by variant."""


@final
@dataclass
class Removing:
    """Remove causes from the set-ups of the variants that are explained."""

    measuring: Measuring  # measures what is explained
    base: Mapping[str, Setup]  # the set-ups as they were, by variant
    tuned_by: Metric  # what the search of a rate looks at
    tell: Callable[[str], None]  # told of each thing that is found
    shares: list[Share] = field(default_factory=list)  # what each cause carries that was removed, in this order
    applied: list[Removed] = field(default_factory=list)  # how each of them was removed
    without_effect: list[str] = field(default_factory=list)  # what was removed and changed nothing that is decided
    worse: dict[str, Estimate] = field(default_factory=dict)  # what runs are further off without, and by how much
    alone: dict[str, Estimate] = field(default_factory=dict)  # what carries a part by itself, and none beside the rest
    undecided: dict[str, Estimate] = field(default_factory=dict)  # what of these seemed to carry much, and how much
    not_tried: list[str] = field(default_factory=list)  # what there was no time for
    came: dict[str, Estimate] = field(default_factory=dict)  # what runs gave without each cause, as looked at last
    begun: float | None = None  # how far the number lay from what was expected before anything was removed

    def carry(self, causes: Sequence[Cause]) -> None:
        """Remove causes, phase by phase; within one those that carry most first."""
        begun = self.begun = self._left()
        for number in range(PHASES):
            phase = [cause for cause in causes if phase_of(cause) == number]
            left = self._left()
            most = begun and any(one.amount.mean / begun >= HALF for one in self.shares)
            if number == PHASES - 1 and begun and most and (left or 0.0) / begun < CARRIES:
                self.not_tried += [f"'{cause.name}' (something else carries most)" for cause in phase]
            elif phase and left is not None:
                self._remove(phase)
        self._removed_last()

    def _left(self) -> float | None:
        """How far the number still lies from what was expected; None where nothing is left that matters."""
        now = self.measuring.mean(self._with(self.applied))
        if now is None or not self.measuring.case.quantity.distance:
            return None
        left, distance = now.mean - self.measuring.case.quantity.expected, self.measuring.case.quantity.distance
        toward = math.copysign(1.0, distance or left)
        whole = distance if self.measuring.comparable else self.begun or left
        return left if left * toward > MATTERS * abs(whole) else None

    def _remove(self, phase: Sequence[Cause]) -> None:
        """Remove each cause of a phase alone, then those that help one after another."""
        left = self._left()
        if left is None:
            return
        tried, planned = dict[str, Removed](), list[Setup]()
        for cause in sorted(phase, key=lambda one: (not one.evidence, not one.tunes)):  # likely ones, should time end
            if (changes := self._changes(cause, planned)) is not None:
                tried[cause.name] = cause, changes
                planned += self._with([*self.applied, (cause, changes)]).values()
        least = HALF if phase[0].nature == OWN else MATTERS
        alone = self._alone(tried, left, least)
        helping = [name for name, one in alone.items() if one.excludes_zero and one.mean / left > least]
        helping = [name for name in helping if self._helps_who_is_behind(tried[name], alone[name].mean)]
        open_still = {n: one for n, one in alone.items() if one.runs > 1 and not one.excludes_zero}
        self.undecided |= {name: one for name, one in open_still.items() if one.mean / left > SEEMS_MUCH}
        self.worse |= {
            name: one
            for name, one in alone.items()
            if one.mean / left < -MATTERS and (one.excludes_zero or one.runs == 1)
        }
        once = [name for name, one in alone.items() if one.runs == 1 and one.mean / left > MATTERS]
        told = {*helping, *self.undecided, *self.worse, *once}
        self.without_effect += [name for name in alone if name not in told]
        self.not_tried += [f"'{name}' (one run alone)" for name in once]
        self.not_tried += [f"'{name}' ({self._why_not(one)})" for name, one in tried.items() if name not in alone]
        for name, one in alone.items():
            sure = f"[{-one.high:.3g}, {-one.low:.3g}]" if one.runs > 1 else "in one run, and was left at that"
            self.tell(f"without '{name}': {0.0 - one.mean:+.3g} {sure}")
        begun = len(self.applied)
        helping.sort(key=lambda one: -abs(alone[one].mean))
        if phase[0].nature == OWN and helping:  # one part, and a smaller one before what holds it
            much = NEARLY * abs(alone[helping[0]].mean)
            near = [name for name in helping if abs(alone[name].mean) >= much]
            helping = [next(cause.name for cause in phase if cause.name in near)]
        for name in helping[:MOST_CAUSES]:
            if self._left() is None:
                break
            first = len(self.applied) == begun
            cause, changes = tried[name]
            changes = changes if first else self._changes(cause)
            if changes is None:
                alone.pop(name)
            else:
                self._accept(cause, changes, alone[name], first=first)
        if phase[0].nature != OWN:
            removed = {share.name for share in self.shares}
            self.alone |= {name: alone[name] for name in helping[:MOST_CAUSES] if name in alone and name not in removed}

    def _helps_who_is_behind(self, one: Removed, closes: float) -> bool:
        """Whether at least half of what a cause that is no bug changes is that the variant behind becomes better.

        It is the one that did worse than thought. Where the other becomes worse, a difference becomes smaller, too;
        and rightly so where a bug made that one too good, or numbers of both tell nothing.
        """
        quantity = self.measuring.case.quantity
        if quantity.beside is None or one[0].nature == "bug" or one[0].name in SPOILING:
            return True
        behind = quantity.worse_than_thought
        setups = {"before": self._with(self.applied)[behind], "after": self._with([*self.applied, one])[behind]}
        found = self.measuring.values(setups, quantity.metric)
        before, after = (mean_of(found[when]) for when in setups)
        if before is None or after is None:
            return True
        gained = abs(after.mean - before.mean) if quantity.metric.improves(after.mean, before.mean) else 0.0
        return gained >= HALF * abs(closes) and gained > 0

    def _why_not(self, one: Removed) -> str:
        """Why there are no results without a cause: the error of a run, where one failed."""
        runs, setups = self.measuring.runs, list(self._with([*self.applied, one]).values())
        seeds = [seed for seed in self.measuring.seeds if runs.are_made(setups, [seed])]
        errors = [run.error for made in runs.of(setups, seeds).values() for run in made.values() if run.error]
        return f"its run failed: {errors[0]}" if errors else "its runs did not finish, or not in time"

    def _alone(self, tried: Mapping[str, Removed], left: float, least: float) -> dict[str, Estimate]:
        """What each cause changes by itself: with one seed, where that matters with all, with twice as many where open.

        It matters from a part of what is `left` on, the `least`.

        Causes are named that change the number toward what was expected, which half of those do that miss zero by
        chance: with two looks the share of phases in which one is named without any effect is that of one call.
        """
        now = self.measuring.quantity(self._with(self.applied))
        first = next(seed for seed, value in now.items() if math.isfinite(value))
        setups = {name: self._with([*self.applied, one]) for name, one in tried.items()}
        every = [setup for these in setups.values() for setup in these.values()]
        at_once = self.measuring.at_once(every)
        once = self._side_by_side(setups, list(dict.fromkeys([first, *at_once]))[: len(at_once)])
        gained = {name: now[first] - values[first] for name, values in once.items()}
        alone = {name: Estimate(one, -math.inf, math.inf, 1) for name, one in gained.items() if math.isfinite(one)}
        little = {name: one for name, one in alone.items() if one.mean / left <= least}
        matter = self._in_time({name: setups[name] for name in alone if name not in little}, alone)
        after = self._side_by_side(matter, self.measuring.seeds)
        found = little | effects(dict.fromkeys(matter, now), after, among=len(tried))
        wanting = {n: setups[n] for n, one in found.items()
                   if n in matter and not one.excludes_zero and one.mean / left > SEEMS_MUCH}  # fmt: skip
        more, open_ones = self._more_seeds(dict(sorted(wanting.items(), key=lambda one: -abs(found[one[0]].mean))))
        if not open_ones:
            return found
        after |= self._side_by_side({name: setups[name] for name in open_ones}, more)
        now = self.measuring.quantity(self._with(self.applied), more)
        second = effects(dict.fromkeys(matter, now), after, among=len(tried))
        return found | {name: second[name] for name in open_ones if name in second}

    def _more_seeds(self, setups: Mapping[str, Mapping[str, Setup]]) -> tuple[range, list[str]]:
        """Twice the seeds, and how many causes from the first on there is time for; fewer seeds where for none."""
        few = len(self.measuring.seeds)
        for count in range(2 * few, few, -1):
            kept, planned = list[str](), list(self._with(self.applied).values())
            for name, without in setups.items():
                planned += without.values()
                if self.measuring.late(planned, range(count)):
                    break
                kept.append(name)
            if kept:
                return range(count), kept
        return range(few), []

    def _in_time(
        self, setups: Mapping[str, Mapping[str, Setup]], alone: Mapping[str, Estimate]
    ) -> dict[str, Mapping[str, Setup]]:
        """The set-ups by cause for which all seeds fit the time, those that gain most before others; one at least."""
        kept, planned = {}, list[Setup]()
        for name in sorted(setups, key=lambda one: -abs(alone[one].mean)):
            planned += setups[name].values()
            if not kept or not self.measuring.late(planned):
                kept[name] = setups[name]
        return kept

    def _side_by_side(
        self, setups: Mapping[str, Mapping[str, Setup]], seeds: Sequence[int]
    ) -> dict[str, dict[int, float]]:
        """The number that is explained, by cause and seed, from runs made at one time."""
        self.measuring.runs.of([setup for these in setups.values() for setup in these.values()], seeds)
        found = {name: self.measuring.quantity(these, seeds) for name, these in setups.items()}
        limits = self.measuring.case.quantity.limits
        self.came |= {name: mean for name, values in found.items() if (mean := mean_of(values, limits))}
        return found

    @property
    def nearest(self) -> tuple[str, Estimate] | None:
        """Without which cause runs came nearest to what was expected, and what they gave; one run only for want."""
        several = {name: one for name, one in self.came.items() if one.runs > 1} or self.came
        expected = self.measuring.case.quantity.expected
        return min(several.items(), key=lambda one: abs(one[1].mean - expected), default=None)

    def _accept(self, cause: Cause, changes: Mapping[str, Change], alone: Estimate, *, first: bool) -> None:
        """Remove a cause for good, if it still carries something beside those before it in its phase."""
        before = self.measuring.quantity(self._with(self.applied))
        after = self.measuring.quantity(self._with([*self.applied, (cause, changes)]))
        amount = alone if first else effects({cause.name: before}, {cause.name: after}).get(cause.name)
        if amount is None or amount.mean * alone.mean <= 0 or not amount.excludes_zero:
            return
        self.applied.append((cause, changes))
        words = {"evidence": cause.evidence, "source": cause.source, "remedy": cause.remedy}
        words["detail"] = _chosen(changes, self.base)
        where = tuple(changes) if len(changes) < len(self.base) else ()
        self.shares.append(Share(cause.name, cause.nature, cause.removed, amount, alone, where=where, **words))
        self.tell(f"removed '{cause.name}': it carries {self._carried(amount):+.3g}")
        if cause.grows:
            self._remove_more(cause, before)

    def _remove_more(self, cause: Cause, before: Mapping[int, float]) -> None:
        """Remove more of a cause, as long as that helps and there is time."""
        for times in range(2, MOST_AGAIN + 2):
            now, left = self._with(self.applied), self._left()
            changes = {name: more_steps(setup) for name, setup in now.items()}
            longer = self._with([*self.applied, (cause, changes)])
            if left is None or self.measuring.late(list(longer.values())):
                return
            after = self.measuring.quantity(longer)
            gained = effects({cause.name: self.measuring.quantity(now)}, {cause.name: after}).get(cause.name)
            if gained is None or not gained.excludes_zero or gained.mean * left <= MATTERS * left**2:
                return
            amount = effects({cause.name: before}, {cause.name: after})[cause.name]
            self.applied[-1] = (cause, changes)
            words = {"removed": f"{MORE_STEPS**times} times as many steps", "detail": _chosen(changes, self.base)}
            self.shares[-1] = replace(self.shares[-1], amount=amount, **words)
            self.tell(f"removed more of '{cause.name}': it carries {self._carried(amount):+.3g}")

    def _carried(self, amount: Estimate) -> float:
        """What a cause changes, positive where it carries a part of the distance."""
        return math.copysign(1.0, self.measuring.case.quantity.distance) * amount.mean

    def _removed_last(self) -> None:
        """What each cause carries when all others are gone: another amount where causes interact."""
        if len(self.applied) < 2:
            return
        end = self.measuring.quantity(self._with(self.applied))
        for number, (cause, _) in enumerate(self.applied):
            others = [one for one in self.applied if one[0] is not cause]
            setups = self._with(others)
            if self.measuring.late(list(setups.values())):
                self.not_tried.append(f"'{cause.name}' removed last (no time)")
                continue
            last = effects({cause.name: self.measuring.quantity(setups)}, {cause.name: end}).get(cause.name)
            self.shares[number] = replace(self.shares[number], last=last)

    def _changes(self, cause: Cause, planned: Sequence[Setup] = ()) -> Mapping[str, Change] | None:
        """What removing a cause changes, searched where it is a rate; None without time beside what is planned."""
        setups = self._with([*self.applied, (cause, cause.changes)])
        searched, first = list(setups.values()) if cause.tunes else [], self.measuring.seeds[:1]
        if self.measuring.late([*planned, *setups.values(), *searched * len(FACTORS)], first):
            self.not_tried.append(f"'{cause.name}' (no time)")
            return None
        if not cause.tunes:
            return cause.changes
        runs, reported = self.measuring.runs, self.measuring.case.reported
        how = {"reported": reported, "fraction": self.measuring.fraction}
        found = {name: tuned(runs, setup, self.tuned_by, **how) for name, setup in setups.items()}
        return {name: {"training": {"lr": rate}} for name, rate in found.items()}

    def _with(self, applied: Sequence[Removed]) -> dict[str, Setup]:
        """The set-ups with causes removed, named after what was removed."""
        return without(self.base, applied)

    @property
    def _failed(self) -> list[Run]:
        """The runs of the set-ups as they were that did not finish."""
        made = self.measuring.runs.of(list(self.base.values()), self.measuring.seeds)
        return [run for runs in made.values() for run in runs.values() if run.error]

    @property
    def raised(self) -> bool:
        """Whether one of them ended in code, and not in a number that is not finite."""
        return any(run.raised for run in self._failed)

    def cures(self, causes: Sequence[Cause]) -> list[Cause]:
        """The causes without any one of which runs finish that do not finish with it; none where code raises."""
        cured = []
        if self.raised:
            return []
        if all(BEFORE_UPDATES in run.error for run in self._failed):
            causes = [one for one in causes if not one.of_training]
        for cause in sorted(causes, key=phase_of):
            changes = self._changes(cause)
            if changes is not None and self.measuring.mean(self._with([(cause, changes)])):
                self.tell(f"without '{cause.name}' it trains")
                cured.append(cause)
        return cured

    @property
    def bugs_carry_all(self) -> bool:
        """Whether bugs were removed, and nothing is left that matters."""
        return any(one.nature == "bug" for one in self.shares) and self._left() is None

    @property
    def ended(self) -> dict[str, Setup]:
        """The set-ups with all causes removed that carry something."""
        return self._with(self.applied)


def without(base: Mapping[str, Setup], applied: Sequence[Removed]) -> dict[str, Setup]:
    """Set-ups with causes removed, named after what was removed."""
    changed = dict(base)
    for cause, changes in applied:
        for name, change in changes.items():
            before, gone = changed[name].name, f", {cause.name} removed"
            title = f"{before}{f'{gone} again' if gone in before else gone}"
            changed[name] = replace(changed[name].changed(change), name=title)
    return changed


def _chosen(changes: Mapping[str, Change], base: Mapping[str, Setup]) -> str:
    """Settings that were chosen for each variant, in words, and the rates and steps that they stand in place of."""
    told = []
    for name, change in changes.items():
        training, before = change.get("training", {}), base[name].training
        other = training.get("lr") != before.get("lr")
        said = f" instead of {before['lr']:.2g}" if "lr" in before and other else ""
        told += [f"{name}: rate {training['lr']:.2g}{said}"] if "lr" in training else []
        budget = "budget" in training and training["budget"]["steps"]
        told += [f"{name}: {budget} steps instead of {base[name].steps}"] if budget else []
        task = change.get("task", {})
        told += [f"{name}: {key}: {str(task[key]).lower()}" for key in ("split", "drop_copies") if key in task]
    return "; ".join(told)
