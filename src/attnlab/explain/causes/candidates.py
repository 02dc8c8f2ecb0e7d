"""Every cause that could be removed from some variants: what the doctor found, the table, own code, what was chosen."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnlab.core.build import class_of, parse
from attnlab.core.constructors import signature_of
from attnlab.doctor.findings import SCRAMBLED_HEADS
from attnlab.explain.causes.cause import OWN, TITLES, WHOLE, Cause, Change
from attnlab.explain.causes.known import Known, exchanged, mended, with_attention
from attnlab.explain.causes.own_code import Examined, forecasts, model_parameters, own_mixer, own_model, task_parameters
from attnlab.explain.causes.removals import (
    IDENTITY,
    LIVING,
    NO_PATH,
    REMOVALS,
    STARTED,
    STILL,
    USUAL,
    identity_path,
    living_rectifiers,
    usual_start,
)
from attnlab.explain.trials.rates import FACTORS
from attnlab.nn.exchanged import ATTENTION, FEED_FORWARD, LAYER, NORM, POSITIONS
from attnlab.nn.mixers import MIXERS
from attnlab.training.recipe.recipe import Recipe

DEAD = ("dead-parts", "overfit")
"""Checks that find what dead rectifiers do."""
EXCHANGED: Mapping[str, str] = {
    NORM: "torch's layer norm stands in its place",
    FEED_FORWARD: "two linear maps with a rectifier between them stand in its place",
    POSITIONS: "sines and cosines are added instead",
    ATTENTION: "the lab's attention stands in its place, freshly drawn",
    LAYER: "the lab's attention and feed-forward, each behind a norm and beside an identity path, stand in its place",
}
"""What stands in the place of a person's own parts, by kind."""
MIXER, MODEL = "mixer", "model"
OF_OTHER_PARTS = frozenset({"dead-parts", "positions", "overfit", "norm-placement"})
"""Checks whose errors in a whole model need not be of its attention."""
MENDINGS: Mapping[str, Mapping[str, Any]] = {
    "causality": {"masked": True},
    "batch-independence": {"swapped": True},
    "normalization": {"over_keys": True},
}
"""By the doctor's check, how a mixer is called without the fault; a wrong scale brings its factor with it."""
MEANT = re.compile(r"; if \w+ is meant|, or declare ")
"""What the doctor's remedies go on with where an error may be accepted, which mends nothing here."""
CALLED = {"positions": "wrong positions", "padding": "padding that has an influence"}
"""By the doctor's check, what its error is called that alone is wrong and has no name, where attention is exchanged."""
KEPT_OTHERWISE: Sequence[tuple[Sequence[str], str, str, Callable[[Known], Change | None]]] = (
    (("residual",), NO_PATH, IDENTITY, identity_path),
    (DEAD, "dead rectifiers", LIVING, living_rectifiers),
    (("scale",), STARTED, USUAL, usual_start),
)
"""By the doctor's checks, what is removed from a module that else stays as it is: its name, how, and the change."""
_OTHERWISE = """
name budget lr weight_decay schedule warmup clip label_smoothing dropout norm positions residual drop_copies split
evaluate_every checkpoint_every compile watch devices sharding normalize
"""
REMOVED_OTHERWISE = frozenset(_OTHERWISE.split())
"""Settings that are no cause, or have a removal of their own."""


def candidates(situations: Mapping[str, Known], *, comparison: Mapping[str, Change] | None = None) -> list[Cause]:
    """Every cause that could be removed from some variant: what the doctor found, the table, what is searched.

    `comparison` has by variant what makes the parameters of those that are compared equal.
    """
    found = [*_bugs(situations)]
    for removal in REMOVALS:
        changes = {name: change for name, one in situations.items() if (change := removal.change(one)) is not None}
        if changes and removal.name not in {cause.name for cause in found}:
            told = [one.signature(sign) for one in situations.values() for sign in removal.signatures]
            evidence = "; ".join(dict.fromkeys(filter(None, told)))
            before = [one.signature(sign, trained=False) for one in situations.values() for sign in removal.signatures]
            began = removal.by_training and not any(before)
            remedy = removal.remedy if all(situations[name].is_own for name in changes) else ""
            fields = (removal.name, removal.nature, removal.removed, changes, evidence, removal.source, remedy)
            found.append(Cause(*fields, costs=removal.costs, grows=removal.grows, began=began))
    if comparison:
        words = "the width is changed until both have as many parameters"
        found.append(Cause("unequal parameters", "set-up", words, comparison, source="Narang 2021, arXiv:2102.11972"))
    found += _chosen(situations)
    tried = [cause.changes for cause in found]
    found += [cause for cause in _own_code(situations) if cause.changes not in tried]
    rates: dict[str, Change] = {name: {} for name in situations}
    source = "Bouthillier 2021, arXiv:2103.03098; Narang 2021, arXiv:2102.11972"
    tuning = {"source": source, "tunes": True, "costs": len(FACTORS) + 1}
    return [*found, Cause("untuned rate", "set-up", "the learning rate is searched", rates, **tuning)]


def unequal(situations: Mapping[str, Known], behind: str) -> list[Cause]:
    """Settings of task and training of the variant that did worse that are others of the one it is compared with.

    None where their models are one: then a setting is what is compared.
    """
    own, other = situations[behind].setup, next(one.setup for name, one in situations.items() if name != behind)
    if own.model == other.model:
        return []
    unsaid = {"task": task_parameters(own.task), "training": Recipe.model_fields}
    found = []
    for where, said, wanted in (("task", own.task, other.task), ("training", own.training, other.training)):
        for key in sorted({*said, *wanted} - {"name"}):
            default = unsaid[where][key].default if key in unsaid[where] else None
            mine, its = said.get(key, default), wanted.get(key, default)
            if mine != its:
                title = f"{key}: {_in_yaml(mine)} against {_in_yaml(its)}"
                words = f"both variants are given the same {key}"
                found.append(Cause(title, "set-up", words, {behind: {where: {key: its}}}))
    return found


def _bugs(situations: Mapping[str, Known]) -> Iterator[Cause]:
    """A cause for every error that the doctor found and a mended mixer removes; else the module as a whole."""
    meant = {name: {"model": one.as_meant} for name, one in situations.items() if one.as_meant}
    if meant:
        warnings = [one for name in meant for each in situations[name].examined for one in each.warnings]
        said = (one["message"] for one in warnings if one["check"] == "batch-independence")
        evidence = next(said, "given (batch, length, d_model), samples of a batch see each other")
        source = "PyTorch documentation, nn.LSTM and nn.MultiheadAttention, batch_first; pytorch#25100"
        yield Cause(TITLES["batch-independence"], "bug", _done({"swapped": True}), meant, evidence, source)
    found, called = dict[str, Cause](), dict[str, set[str]]()
    for name, situation in situations.items():
        for one, finding in ((each, finding) for each in situation.examined for finding in each.suspect):
            title, removed, change = _remedy(situation, one, finding)
            if change:
                before = found.get(title, Cause(title, "bug", removed, {}))
                message = f"{one.class_name}: {finding['message'].rstrip('.')}"
                told = [part for part in (before.evidence, message) if part]
                words = {"evidence": "; ".join(dict.fromkeys(told)), "source": before.source or finding["source"]}
                words["remedy"] = before.remedy or _remedy_of(finding)
                found[title] = replace(before, changes={**before.changes, name: {"model": change}}, **words)
                called.setdefault(title, set()).add(finding.get("called") or CALLED.get(finding["check"], title))
    named = {title: next(iter(names)) if len(names) == 1 else title for title, names in called.items()}
    for title, cause in found.items():  # of two modules with the same error each keeps the name of its own
        once = cause.whole and list(named.values()).count(named[title]) == 1
        yield replace(cause, name=named[title] if once else title)


def _remedy(situation: Known, one: Examined, finding: Mapping[str, Any]) -> tuple[str, str, Mapping[str, Any] | None]:
    """What an error of the doctor is called, how it is removed in words, and what of the model is otherwise then."""
    if mending := _mending(situation, finding):
        return TITLES[finding["check"]], _done(mending), mended(situation, mending, one.name)
    for checks, title, removed, remove in KEPT_OTHERWISE:
        if finding["check"] in checks and (without := remove(situation)):
            return title, removed, without["model"]
    attends = one.place == "mixer" or finding["check"] not in OF_OTHER_PARTS
    change = with_attention(situation, places=False) if attends else None  # missing ones are another cause
    if finding["check"] == "positions" and situation.signature("missing positions"):
        change = next(filter(None, (exchanged(situation, kind) for kind in (ATTENTION, LAYER))), None)
    return f"bug in {one.class_name}", WHOLE, change


def _remedy_of(finding: Mapping[str, Any]) -> str:
    """What the doctor says to do about an error; nothing where it sends to another one."""
    if finding["check"] == "causality" and finding.get("called") == SCRAMBLED_HEADS:
        return ""
    return MEANT.split(finding.get("remedy", ""))[0]


def _mending(situation: Known, finding: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if finding["check"] == "scale" and finding.get("scores_times"):
        return {"scores_times": round(float(finding["scores_times"]), 6)}
    if finding["check"] == "causality" and finding.get("called") == SCRAMBLED_HEADS:
        return None  # a mask of the scores does not reach it
    if finding.get("samples_meet_in"):
        return {"swapped_in": finding["samples_meet_in"]}
    if finding["check"] == "normalization" and not STILL[TITLES["normalization"]](situation.measured):
        return None  # it is something else about the weights
    return MENDINGS.get(finding["check"])


def _done(mending: Mapping[str, Any]) -> str:
    """What is done to remove a bug, in words."""
    words = {
        "scores_times": "the scores are multiplied by {value:.3g} before the softmax",
        "masked": "scores of later positions are masked before the softmax",
        "swapped": "it is given (length, batch, d_model)",
        "swapped_in": "{value} is given (length, batch, d_model)",
        "over_keys": "scores are normalized over the keys",
    }
    return "; ".join(words[key].format(value=value) for key, value in mending.items())


def replaced(cause: Cause, situations: Mapping[str, Known]) -> Cause:
    """A cause whose mending does not reach the fault: the lab's attention stands in the module's place instead."""
    with_it = {name: with_attention(situations[name], places=False) for name in cause.changes}
    found = {name: change for name, change in with_it.items() if change is not None}
    changes: dict[str, Change] = {name: {"model": change} for name, change in found.items()}
    return replace(cause, removed=WHOLE, changes=changes)


def _own_code(situations: Mapping[str, Known]) -> Iterator[Cause]:
    """A person's own mixers, models and parts of these, in whose place known ones stand; smaller parts first."""
    for kind, removed in EXCHANGED.items():
        found = {name: change for name, one in situations.items() if (change := exchanged(one, kind))}
        classes = [slot["of"] for name in found for slot in situations[name].exchangeable.of(kind).values()]
        yield from _of_own(kind, removed, found, classes)
    own = {name: own_mixer(one.said("mixer")) for name, one in situations.items() if one.takes("mixer")}
    mixers = {name: change for name in own if own[name] and (change := with_attention(situations[name]))}
    yield from _of_own(MIXER, EXCHANGED[ATTENTION], mixers, [parse(own[name], "mixer")[0] for name in mixers])
    models = {name: dict(one.exchangeable.standard) for name, one in situations.items() if one.exchangeable.standard}
    classes = [parse(own_model(situations[name].model), "model")[0] for name in models]
    yield from _of_own(MODEL, "a model of the lab, as wide and as deep, is trained instead", models, classes)


def _of_own(
    kind: str, removed: str, models: Mapping[str, Mapping[str, Any]], classes: Sequence[str]
) -> Iterator[Cause]:
    """The cause that code of a person's own of one kind is, if a variant has any."""
    if models:
        where = " and ".join(dict.fromkeys(one.rpartition(":")[2] for one in classes))
        changes: dict[str, Change] = {name: {"model": model} for name, model in models.items()}
        yield Cause(f"own {kind}", OWN, removed, changes, f"{where}: a bug, or what it is made for")


def _chosen(situations: Mapping[str, Known]) -> Iterator[Cause]:
    """Settings that all variants say otherwise than they are by default; one that some say is what is compared."""
    found: dict[str, Cause] = {}
    for name, one in situations.items():
        for where, path, said, default in _choices(one):
            change: Any = default
            for key in reversed(path):
                change = {key: change}
            title = f"{'.'.join(path)}: {_in_yaml(said)}"
            before = found.get(title, Cause(title, "set-up", f"it is {_in_yaml(default)}, as it is by default", {}))
            found[title] = replace(before, changes={**before.changes, name: {where: change}})
    yield from (one for one in found.values() if len(one.changes) == len(situations))


def _choices(one: Known) -> Iterator[tuple[str, tuple[str, ...], Any, Any]]:
    """Where and what a set-up says otherwise, and what it would be; not sizes, parts, nor what is removed by itself."""
    for key, said in one.setup.training.items():
        if key not in REMOVED_OTHERWISE and key in Recipe.model_fields:
            default = Recipe.model_fields[key].default
            if said != default and not (isinstance(said, Mapping) and dict(said) == {"name": default}):
                yield "training", (key,), said, default
    yield from _plain(("task",), task_parameters(one.setup.task), one.setup.task, bool)
    if own_model(one.model) is None:
        kinds = float | str if forecasts(one.task) else bool | float | str  # who looks both ways sees its target
        yield from _plain(("model",), model_parameters(one.model), one.model, kinds)
        mixer = one.model.get("mixer")
        if isinstance(mixer, Mapping) and mixer.get("name") in MIXERS:
            of_mixer = signature_of(class_of(mixer, MIXERS, "mixer"))
            yield from _plain(("model", "mixer"), of_mixer, mixer, kinds)


def _plain(
    place: tuple[str, ...], parameters: Mapping[str, Any], said: Mapping[str, Any], kinds: Any
) -> Iterator[tuple[str, tuple[str, ...], Any, Any]]:
    """Arguments of some kinds that are said otherwise than they are by default."""
    where, *within = place
    for key, value in said.items():
        default = parameters[key].default if key in parameters else value
        known = default is None or isinstance(default, kinds)
        if key not in REMOVED_OTHERWISE and isinstance(value, kinds) and known and value != default:
            yield where, (*within, key), value, default


def _in_yaml(value: Any) -> str:
    """A setting as a file of a case has it."""
    return "null" if value is None else json.dumps(value) if isinstance(value, bool | Mapping | list) else str(value)
