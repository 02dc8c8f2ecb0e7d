"""Which causes are tried of a case, which of them cannot be in its runs, and which errors of the doctor are left."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnlab.core.errors import AttnlabError
from attnlab.explain.answer import Share
from attnlab.explain.case import Case, Quantity
from attnlab.explain.causes.candidates import candidates, replaced, unequal
from attnlab.explain.causes.cause import GAINS, OVERFITTING, OWN, TINY_BATCH, TITLES, TOO_FEW_STEPS, Cause, Change
from attnlab.explain.causes.known import Known, setups_of
from attnlab.explain.causes.removals import AS_THEY_ARE, BUGS, STILL
from attnlab.explain.causes.signatures import SIGNATURES, give_the_same
from attnlab.explain.metrics import TRAIN_LOSS
from attnlab.explain.stages.knowing import Tell, measured_of
from attnlab.explain.trials.measuring import Measuring
from attnlab.explain.trials.setups import Setup
from attnlab.studies.define.study import merge, restore_study
from attnlab.studies.plan.plan import Plan, plan_study

OF_LENGTH = (TOO_FEW_STEPS, OVERFITTING, TINY_BATCH, "small batch", "small model", "constant rate", "no warm-up")
"""Causes that a shortened run has of itself."""


def suspects(quantity: Quantity, known: Mapping[str, Known], equal: Mapping[str, Change] | None) -> list[Cause]:
    """Every cause that could be removed from the variants that are explained."""
    situations = {name: known[name] for name in quantity.variants}
    too_good = quantity.beside is None and quantity.metric.improves(quantity.seen, quantity.expected)
    spared = (*GAINS, OVERFITTING) if too_good or quantity.beside is not None else ()
    spared += (AS_THEY_ARE,) if quantity.metric.name == TRAIN_LOSS else ()  # which is told as it is minimized
    causes = [one for one in candidates(situations, comparison=equal) if one.name not in spared]
    if quantity.beside is None:
        return [one for one in causes if not (too_good and one.grows)]
    # what is compared must stay what it is, and what one variant alone lacks is not why it does better than thought
    behind = quantity.worse_than_thought
    causes = [*unequal(situations, behind), *causes]
    return [one for one in causes if one.nature != OWN and (one.nature != "known effect" or behind in one.changes)]


def equal_parameters(case: Case, plan: Plan) -> Mapping[str, Change] | None:
    """What makes the compared variants' parameters equal; None where they are, or it cannot be.

    None, too, where the one that did worse than thought has more of them: for want of them it did not; and where both
    would be one model, whose difference from itself is none whatever carries it.
    """
    quantity = case.quantity
    if quantity.beside is None:
        return None
    own, other = (plan.variant(name) for name in quantity.variants)
    if abs(own.parameters / other.parameters - 1) <= 0.05:
        return None
    if plan.variant(quantity.worse_than_thought).parameters == max(own.parameters, other.parameters):
        return None
    kept = case.study.to_json()
    matching = {"rules": {"match": "parameters"}, "baseline": quantity.beside}
    with contextlib.suppress(AttnlabError):
        study = restore_study({**kept, "content": merge(kept["content"], matching)})
        matched = plan_study(study).variant(quantity.variant).model
        changed = {key: value for key, value in matched.items() if own.model.get(key) != value}
        one_model = matched == plan.variant(quantity.beside).model
        return {quantity.variant: {"model": changed}} if changed and not one_model else None
    return None


def that_length_spares(measuring: Measuring, causes: Sequence[Cause]) -> tuple[list[Cause], list[str]]:
    """Causes, but those that a run has of being shortened; and what is said of these."""
    of_length = () if measuring.fraction == 1 else OF_LENGTH
    spared = [cause for cause in causes if cause.name not in of_length]
    return spared, [f"'{cause.name}' (runs are shortened)" for cause in causes if cause.name in of_length]


def that_work(
    quantity: Quantity, causes: Sequence[Cause], known: Mapping[str, Known], tell: Tell
) -> tuple[list[Cause], list[str]]:
    """Causes, but modules as a whole where mending a bug does not reach it; and what is said of these bugs.

    Of variants that are compared it must reach the one that did worse than thought: another may lack what it has not.
    """
    needed = known if quantity.beside is None else (quantity.worse_than_thought,)
    checked, told = [], []
    for cause in causes:
        reached = _where_it_reaches(cause, known, tell)
        if reached == cause.changes or (reached and {*reached} >= {*cause.changes} & {*needed}):
            checked.append(replace(cause, changes=reached))
            continue
        told.append(f"mending '{cause.name}' (its own code is not reached)")
        if cause.name in TITLES.values():  # of attention, and not of what stands around it
            whole = replaced(cause, known)
            all_of_it = len(_where_it_reaches(whole, known, tell)) == len(whole.changes)
            checked += [whole] if whole.changes and all_of_it else []
    return checked, told


def _where_it_reaches(cause: Cause, known: Mapping[str, Known], tell: Tell) -> dict[str, Change]:
    """What removes a cause, by variant, where nothing is left of it then, as far as it is measured."""
    base = setups_of(known, cause.changes)
    fixed = {name: base[name].changed(change) for name, change in cause.changes.items()}
    if cause.name in STILL:
        left = {name for name, one in fixed.items() if STILL[cause.name](measured_of(one, tell))}
    else:
        scale = cause.name == TITLES["scale"]  # of which nothing else tells
        left = {name for name, one in fixed.items() if scale and give_the_same(base[name], one)}
    return {name: change for name, change in cause.changes.items() if name not in left}


def gone(
    effects: Mapping[str, Mapping[str, str]], shares: Sequence[Share], ended: Mapping[str, Setup], tell: Tell
) -> tuple[str, ...]:
    """Measured bugs that are not at work any more without what was removed: they came of it."""
    open_still = {name for found in effects.values() for name in found} & BUGS - {share.name for share in shares}
    if not shares or not open_still:
        return ()
    left = [measured_of(setup, tell) for setup in ended.values()]
    signs = (sign for sign in SIGNATURES if sign.name in open_still)
    return tuple(sign.name for sign in signs if all(left) and not any(map(sign.is_at_work, left)))


def errors_left(
    measuring: Measuring, known: Mapping[str, Known], causes: Sequence[Cause], shares: Sequence[Share]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The errors of the doctor that no cause removes, and those removed of which runs too short tell nothing."""
    examined = (one for name in measuring.case.quantity.variants for one in known[name].examined)
    found = (finding for one in examined for finding in one.suspect)
    errors, bugs = [one["message"].rstrip(".") for one in found], [one for one in causes if one.nature == "bug"]
    removed = tuple(one for one in errors if any(one in bug.evidence for bug in bugs))
    whole = any(bug.whole for bug in bugs)  # a module as a whole has none of its errors left
    shown = measuring.comparable or {bug.name for bug in bugs} & {share.name for share in shares}
    return () if whole else tuple(one for one in errors if one not in removed), () if shown else removed
