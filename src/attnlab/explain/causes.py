"""Causes that can be removed: for each, what a set-up becomes without it, if it has it at all.

A cause is never believed, only tried: what it explains is the difference that its removal makes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

from attnlab.core.build import class_of, is_path, parse
from attnlab.core.constructors import signature_of
from attnlab.core.contracts import StudyTask
from attnlab.core.errors import SpecError
from attnlab.explain.own_code import Examined, Exchangeable, model_parameters, own_mixer, own_model
from attnlab.explain.rates import FACTORS
from attnlab.explain.setups import Setup
from attnlab.explain.signatures import SIGNATURES, Measured
from attnlab.nn.exchanged import ATTENTION, BEHIND, FEED_FORWARD, LAYER, NORM, POSITIONS
from attnlab.nn.mixers import MIXERS
from attnlab.studies.plan.matching import width_of
from attnlab.tasks import TASKS
from attnlab.tasks.arrays.classify import Classify
from attnlab.tasks.arrays.items import SUSPICIOUS_NEAR
from attnlab.tasks.arrays.sequences import Sequences
from attnlab.tasks.char_lm.char_lm import CharLM
from attnlab.tasks.held_out import SUSPICIOUS_OVERLAP
from attnlab.tasks.translation.translation import Translation
from attnlab.training.recipe.recipe import Recipe

Nature = Literal["bug", "known effect", "own code", "set-up"]

MORE_STEPS = 4
"""How many times as many steps, where too few may be the cause."""
MORE_ITEMS = 4
"""The same of the items of a step."""
LONGER = 4
"""How many times as far inputs are read that were cut."""
SOONER = 4
"""Part of the steps, as a fraction of one, after which training ends where it may have gone on too long."""
GAINS = ("small batch", "short context", "small model")
"""Causes without which nearly any model is better: tried last, and of no number that is too good or a difference."""
TOO_FEW_STEPS, OVERFITTING = "too few steps", "overfitting"
MAKES_UP = (TOO_FEW_STEPS, "no warm-up", "no limit of gradients", "constant rate")
"""Causes whose removal makes up for others, as another rate does."""
WARM_UP = 0.1
"""Part of the steps over which the rate rises, where it did not."""
LARGEST_ENTRY = 1.5
"""Size of what enters the first layer, down to which it is not large."""
LEAST_SCORES = 1e-3
"""Standard deviation of scores that are taken for larger ones when they are divided by it."""
LONGEST_WARM_UP = 0.5
"""Part of the steps from which on a warm-up is tried without."""
LEAK = 0.1
"""Slope of a rectifier below zero, where it was dead."""
CLIP = 1.0
"""Longest gradient, where there was no limit."""
NARROW = 16
"""Width of a head below which wider ones are tried: fewer, in the same width of the model."""
LIVING = f"layers start as torch draws them and rectifiers let {LEAK:g} of what is below zero through, or are smooth"
DEAD = ("dead-parts", "overfit")
"""Checks that find what dead rectifiers do."""
WHOLE = "the lab's attention is used instead"
EXCHANGED: Mapping[str, str] = {
    NORM: "torch's layer norm stands in its place",
    FEED_FORWARD: "two linear maps with a rectifier between them stand in its place",
    POSITIONS: "sines and cosines are added instead",
    ATTENTION: "the lab's attention stands in its place, freshly drawn",
    LAYER: "the lab's attention and feed-forward, each behind a norm and beside an identity path, stand in its place",
}
"""What stands in the place of a person's own parts, by kind."""
OWN: Nature = "own code"
MIXER, MODEL = "mixer", "model"
NO_PATH, IDENTITY = "no identity path", "every layer's input is added to its output"
_LOW_RANK = "Bhojanapalli 2020, arXiv:2002.07028"

MENDINGS: Mapping[str, Mapping[str, Any]] = {
    "causality": {"masked": True},
    "batch-independence": {"swapped": True},
    "normalization": {"over_keys": True},
}
"""By the doctor's check, how a mixer is called without the fault; a wrong scale brings its factor with it."""
ELSEWHERE = frozenset({"dtype-device", "precision", "determinism", "cache", "cost"})
"""Checks whose errors do not change what a run on this machine computes."""
TITLES = {
    "scale": "wrong scale of the scores",
    "causality": "outputs that see ahead",
    "batch-independence": "the batch read as time",
    "normalization": "a softmax over another axis",
}
"""What these faults are called."""
CHANCE, NO_POSITIONS = "dropout in evaluation", "no positions"
FROZEN, CUT_OFF = "frozen weights", "weights without a gradient"
TWICE, LARGE, BOUNDED = "a softmax before the loss", "a large entry", "bounded answers"
REMOVED_OTHERWISE = frozenset(
    {
        "name",
        "budget",
        "lr",
        "weight_decay",
        "schedule",
        "warmup",
        "clip",
        "label_smoothing",
        "dropout",
        "norm",
        "positions",
    }
    | {
        "residual",
        "drop_copies",
        "split",
        "evaluate_every",
        "checkpoint_every",
        "compile",
        "watch",
        "devices",
        "sharding",
    }
)
"""Settings that are no cause, or have a removal of their own."""
STILL: Mapping[str, Callable[[Measured], bool]] = {
    TITLES["causality"]: lambda m: m.get("ahead", 0.0) > 0,
    TITLES["batch-independence"]: lambda m: m.get("mixes", 0.0) > 0,
    TITLES["normalization"]: lambda m: m.get("across", 0.0) > 0,
    CHANCE: lambda m: m.get("chance", 0.0) > 0,
    NO_POSITIONS: lambda m: m.get("order", 1.0) == 0.0,
    FROZEN: lambda m: m.get("frozen", 0.0) > 0,
    CUT_OFF: lambda m: m.get("cut_off", 0.0) > 0,
    TWICE: lambda m: m.get("probabilities", 0.0) > 0,
    LARGE: lambda m: m.get("entry", 0.0) > LARGEST_ENTRY,
    BOUNDED: lambda m: m.get("beyond", 0.0) > 0,
}
"""By what is removed, what is measured of a model from which it was not removed after all."""


@final
@dataclass(frozen=True)
class Known:
    """Hold what is known of one variant before anything is removed.

    Parameters
    ----------
    setup : Setup
        As the person ran it.
    task : StudyTask
        Its task.
    examined : sequence of Examined
        What the doctor said of its own modules.
    measured : mapping
        What the table of signatures reads, before training.
    trained : mapping
        The same of one run of it, after training.
    as_meant : mapping, optional
        What of the model is otherwise where its mixer is given the layout in which it does not read the batch as time.
    exchangeable : Exchangeable
        What can stand in the place of a whole model of a person's own, or of its parts.
    """

    setup: Setup
    task: StudyTask
    examined: Sequence[Examined] = ()
    measured: Measured = field(default_factory=dict)
    trained: Measured = field(default_factory=dict)
    as_meant: Mapping[str, Any] | None = None
    exchangeable: Exchangeable = field(default_factory=Exchangeable)

    @property
    def model(self) -> Mapping[str, Any]:
        """The model's specification."""
        return self.setup.model

    def said(self, key: str) -> Any:
        """An argument of a model of the lab: as it was said, else its default; None for one it does not take."""
        parameters = model_parameters(self.model)
        return self.model.get(key, parameters[key].default) if key in parameters else None

    def takes(self, key: str) -> bool:
        """Whether the model has such an argument."""
        return key in model_parameters(self.model)

    @property
    def is_own(self) -> bool:
        """Whether its model or its mixer is code of a person's own."""
        return own_model(self.model) is not None or is_path(self.mixer)

    @property
    def mixer(self) -> str:
        """The name of the mixer; empty where the model has none, or several."""
        mixer = self.said("mixer")
        return "" if mixer is None or isinstance(mixer, list) else parse(mixer, "mixer")[0]

    def signature(self, name: str) -> str:
        """The evidence of a known effect, before training or else after it; empty where it is not at work."""
        one = next(one for one in SIGNATURES if one.name == name)
        after = one.of(self.trained)
        return one.of(self.measured) or (f"after training {after}" if after else "")


Change = Mapping[str, Mapping[str, Any]]
"""What is merged over a set-up, by ``task``, ``model`` and ``training``."""


@final
@dataclass(frozen=True)
class Cause:
    """Hold one thing that may have made a number what it is, and the same without it.

    Parameters
    ----------
    name : str
        What it is called; equal for all variants that have it.
    nature : {"bug", "known effect", "own code", "set-up"}
        What it would be, were it the cause; of a person's own code that a known part does better nothing says whether
        that is a bug, or what it is made for.
    removed : str
        What was done to remove it, in words.
    changes : mapping
        By variant what is merged over its set-up; variants that do not have it are not there.
    evidence : str
        What else speaks for it; empty if nothing does.
    source : str
        Where it is described.
    tunes : bool
        Whether the rate of each variant is searched instead.
    costs : int
        How many runs of the set-up one without it takes as long as.
    grows : bool
        Whether there may be more of it: it is removed again and again, as long as that helps.
    """

    name: str
    nature: Nature
    removed: str
    changes: Mapping[str, Change]
    evidence: str = ""
    source: str = ""
    tunes: bool = False
    costs: int = 1
    grows: bool = False

    @property
    def whole(self) -> bool:
        """Whether a module is replaced as a whole, which removes more than what was found."""
        return self.removed == WHOLE


PHASES = 6
"""How many there are of what `phase_of` says."""


def phase_of(cause: Cause) -> int:
    """When a cause is removed: bugs, modules with one, effects and what was chosen, own code, rate and steps, gains.

    What is measured with a bug in it says little about what comes after, a module that is replaced as a whole little
    about the bug, and a longer run with another rate, which makes up for much, little about what it makes up for.
    """
    if cause.whole:
        return 1
    if cause.nature == "bug":
        return 0
    if cause.nature == OWN:
        return 3
    return 5 if cause.name in GAINS else 4 if cause.tunes or cause.name in MAKES_UP else 2


@final
@dataclass(frozen=True)
class Removal:
    """Hold how one cause is removed from a variant that has it."""

    name: str  # what the cause is called
    nature: Nature  # what it would be
    removed: str  # what is done, in words
    change: Callable[[Known], Change | None]  # what is merged over a set-up; None where there is nothing to remove
    signatures: tuple[str, ...] = ()  # known effects that speak for it
    source: str = ""  # where the effect is described
    costs: int = 1  # how many runs of the set-up one without it takes as long as
    grows: bool = False  # whether there may be more of it


def candidates(situations: Mapping[str, Known], *, comparison: Mapping[str, Change] | None = None) -> list[Cause]:
    """Every cause that could be removed from some variant.

    Parameters
    ----------
    situations : mapping
        What is known, by variant.
    comparison : mapping, optional
        What makes the parameters of the compared variants equal, by variant.

    Returns
    -------
    list of Cause
        What the doctor found, then the table, then what is solved or searched for each variant.
    """
    found = [*_bugs(situations)]
    for removal in REMOVALS:
        changes = {name: change for name, one in situations.items() if (change := removal.change(one)) is not None}
        if changes and removal.name not in {cause.name for cause in found}:
            told = [one.signature(sign) for one in situations.values() for sign in removal.signatures]
            evidence = "; ".join(dict.fromkeys(filter(None, told)))
            fields = (removal.name, removal.nature, removal.removed, changes, evidence, removal.source)
            found.append(Cause(*fields, costs=removal.costs, grows=removal.grows))
    if comparison:
        words = "the width is changed until both have as many parameters"
        found.append(Cause("unequal parameters", "set-up", words, comparison, source="Narang 2021, arXiv:2102.11972"))
    found += _chosen(situations)
    tried = [cause.changes for cause in found]
    found += [cause for cause in _own_code(situations) if cause.changes not in tried]
    rates: dict[str, Change] = {name: {} for name in situations}
    source = "Bouthillier 2021, arXiv:2103.03098; Narang 2021, arXiv:2102.11972"
    costs = len(FACTORS) + 1
    found.append(
        Cause("untuned rate", "set-up", "the learning rate is searched", rates, source=source, tunes=True, costs=costs)
    )
    return found


def _bugs(situations: Mapping[str, Known]) -> Iterator[Cause]:
    """A cause for every error that the doctor found and a mended mixer removes; else the module as a whole."""
    meant = {name: {"model": one.as_meant} for name, one in situations.items() if one.as_meant}
    if meant:
        warnings = [one for name in meant for each in situations[name].examined for one in each.warnings]
        evidence = next(one["message"] for one in warnings if one["check"] == "batch-independence")
        source = "PyTorch documentation, nn.LSTM and nn.MultiheadAttention, batch_first; pytorch#25100"
        yield Cause(TITLES["batch-independence"], "bug", _done({"swapped": True}), meant, evidence, source)
    found: dict[str, Cause] = {}
    for name, situation in situations.items():
        errors = ((one, finding) for one in situation.examined for finding in one.errors)
        found_here = ((one, finding) for one, finding in errors if finding["check"] not in ELSEWHERE)
        for one, finding in found_here:
            title, removed, change = _remedy(situation, one, finding)
            if change:
                before = found.get(title, Cause(title, "bug", removed, {}))
                told = [part for part in (before.evidence, finding["message"].rstrip(".")) if part]
                changes, source = {**before.changes, name: {"model": change}}, before.source or finding["source"]
                found[title] = replace(before, changes=changes, evidence="; ".join(dict.fromkeys(told)), source=source)
    yield from found.values()


def _remedy(situation: Known, one: Examined, finding: Mapping[str, Any]) -> tuple[str, str, Mapping[str, Any] | None]:
    """What an error of the doctor is called, how it is removed in words, and what of the model is otherwise then."""
    if mending := _mending(situation, finding):
        return TITLES[finding["check"]], _done(mending), _mended(situation, mending, one.name)
    path = _identity_path(situation) if finding["check"] == "residual" else None
    if path:
        return NO_PATH, IDENTITY, path["model"]
    rectifiers = _living_rectifiers(situation) if finding["check"] in DEAD else None
    if rectifiers:
        return "dead rectifiers", LIVING, rectifiers["model"]
    return f"bug in {one.name.rpartition(':')[2]}", WHOLE, _replaced(situation)


def _mending(situation: Known, finding: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if finding["check"] == "scale" and finding.get("scores_times"):
        return {"scores_times": round(float(finding["scores_times"]), 6)}
    if finding["check"] == "normalization" and not STILL[TITLES["normalization"]](situation.measured):
        return None  # it is something else about the weights
    return MENDINGS.get(finding["check"])


def _done(mending: Mapping[str, Any]) -> str:
    """What is done to remove a bug, in words."""
    words = {
        "scores_times": "the scores are multiplied by {value:.3g} before the softmax",
        "masked": "scores of later positions are masked before the softmax",
        "swapped": "it is given (length, batch, d_model)",
        "over_keys": "scores are normalized over the keys",
    }
    return "; ".join(words[key].format(value=value) for key, value in mending.items())


def _mended(situation: Known, mending: Mapping[str, Any], path: str | None = None) -> dict[str, Any]:
    """A person's own model or mixers, or those of one class, without a fault and what was removed before."""

    def without(spec: Any) -> dict[str, Any]:
        known = spec if isinstance(spec, Mapping) and spec.get("name") == "mended" else {"part": spec}
        return {**known, "name": "mended", "mending": {**known.get("mending", {}), **mending}}

    def mended(mixer: Any) -> Any:
        own = own_mixer(mixer)
        return mixer if own is None or path not in (None, parse(own, "mixer")[0]) else without(mixer)

    if own_model(situation.model):
        return without(situation.model)
    mixers = situation.model["mixer"]
    return {"mixer": [mended(one) for one in mixers] if isinstance(mixers, list) else mended(mixers)}


def swapped(situation: Known) -> dict[str, Any]:
    """A person's own mixers given the other layout of batch and length."""
    return _mended(situation, {"swapped": True})


def replaced(cause: Cause, situations: Mapping[str, Known]) -> Cause:
    """A cause whose mending does not reach the fault: the lab's attention stands in the module's place instead."""
    found = {name: change for name in cause.changes if (change := _replaced(situations[name])) is not None}
    changes: dict[str, Change] = {name: {"model": change} for name, change in found.items()}
    return replace(cause, removed=WHOLE, changes=changes)


def _replaced(situation: Known) -> dict[str, Any] | None:
    """The lab's attention in the place of a person's own mixer, or of the attention within a person's own model."""
    if own_model(situation.model):
        return _exchanged(situation, ATTENTION)
    if not is_path(situation.mixer):
        return None
    _, arguments = parse(situation.model["mixer"], "mixer")
    heads = next((arguments[key] for key in ("n_heads", "num_heads", "heads", "nhead") if key in arguments), 1)
    told = situation.said("positions") == "none" and situation.measured.get("order") == 1.0  # by the mixer itself
    return {"mixer": {"name": "attention", "n_heads": heads}, **({"positions": "learned"} if told else {})}


def _exchanged(situation: Known, kind: str) -> dict[str, Any] | None:
    """A person's own model with known parts in the places of its own of one kind; None where it has none."""
    slots = situation.exchangeable.of(kind)
    return {**_mended(situation, {}), "slots": slots} if slots else None


def _own_code(situations: Mapping[str, Known]) -> Iterator[Cause]:
    """A person's own mixers, models and parts of these, in whose place known ones stand; smaller parts first."""
    for kind, removed in EXCHANGED.items():
        found = {name: change for name, one in situations.items() if (change := _exchanged(one, kind))}
        classes = [slot["of"] for name in found for slot in situations[name].exchangeable.of(kind).values()]
        yield from _of_own(kind, removed, found, classes)
    own = {name: own_mixer(one.said("mixer")) for name, one in situations.items() if one.takes("mixer")}
    mixers = {name: change for name in own if own[name] and (change := _replaced(situations[name]))}
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


# Known effects and set-ups


def _if_said(key: str, value: Any, **change: Any) -> Callable[[Known], Change | None]:
    """A change of the model where one of its arguments has a value."""
    return lambda one: {"model": change} if one.takes(key) and one.said(key) == value else None


def _if_measured(sign: str, mending: str) -> Callable[[Known], Change | None]:
    """Code of a person's own with something removed, where a known effect is at work in it."""
    return lambda one: {"model": _mended(one, {mending: True})} if one.is_own and one.signature(sign) else None


def _pre_norm(one: Known) -> Change | None:
    if one.takes("norm"):
        return _if_said("norm", "post", norm="pre")(one)
    own = own_model(one.model) and one.measured.get("norm_behind", 0.0) > 0
    return {"model": _mended(one, {"norm_first": True})} if own else None


def _identity_path(one: Known) -> Change | None:
    if own_model(one.model):
        found = any(finding["check"] == "residual" for each in one.examined for finding in each.errors)
        return {"model": _mended(one, {"skips": True})} if found else None
    if one.takes("block") and one.said("block") is not None and parse(one.said("block"), "block")[0] == "literal":
        return {"model": {"block": {"name": "transformer"}, "feedforward": "relu", "residual": True}}
    return {"model": {"residual": True}} if one.takes("residual") and one.said("residual") is False else None


def _positions(one: Known) -> Change | None:
    """Positions, where the model has none: learned in a model of the lab, sines in a person's own."""
    if own_model(one.model):
        return {"model": _mended(one, {"positions": True})} if one.signature("missing positions") else None
    return {"model": {"positions": "learned"}} if one.takes("positions") and one.said("positions") == "none" else None


def _sharper(one: Known) -> Change | None:
    """Larger scores in code of a person's own, where training left them small."""
    if not (one.is_own and one.signature("flat attention")):
        return None
    return {"model": _mended(one, {"scores_times": round(1 / max(one.trained["scores"], LEAST_SCORES), 6)})}


def _wider_heads(one: Known) -> Change | None:
    width, mixer = one.said("d_model"), one.model.get("mixer")
    heads = mixer.get("n_heads") if isinstance(mixer, Mapping) else None
    if one.mixer not in MIXERS or not isinstance(heads, int) or not isinstance(width, int) or width // heads >= NARROW:
        return None
    fewer = next((n for n in range(heads - 1, 0, -1) if width % n == 0 and width // n >= NARROW), 1)
    return {"model": {"mixer": {"n_heads": fewer}}} if fewer < heads else None


def _living_rectifiers(one: Known) -> Change | None:
    if not one.signature("dead rectifiers"):
        return None
    if one.is_own:
        return {"model": _mended(one, {"leak": LEAK, "fresh": True})}
    return {"model": {"feedforward": "gelu"}} if one.said("feedforward") == "relu" else None


def _thawed(one: Known, *signs: str) -> Change | None:
    if not any(one.signature(sign) for sign in signs):
        return None
    if own_model(one.model) or (is_path(one.mixer) and one.said("cross") is None):
        return {"model": _mended(one, {"thawed": True})}
    whole = {"name": "mended", "part": one.model, "mending": {"thawed": True}}
    return {"model": whole}  # attention to another sequence is no mixer


def _logits(one: Known) -> Change | None:
    own = own_model(one.model) and one.signature(TWICE)
    return {"model": _mended(one, {"logarithm": True})} if own else None


def _unbounded(one: Known) -> Change | None:
    own = own_model(one.model) and one.signature(BOUNDED)
    return {"model": _mended(one, {"unbounded": True})} if own else None


def _smaller_entry(one: Known) -> Change | None:
    own = own_model(one.model) and one.signature(LARGE) and STILL[LARGE](one.measured)
    return {"model": _mended(one, {"entry_times": round(1 / one.measured["entry"], 6)})} if own else None


def _sequences_as_time(one: Known) -> Change | None:
    kept = {key: one.model[key] for key in ("hidden", "n_layers") if key in one.model}
    return {"model": {"name": "lstm", **kept}} if one.model["name"] == "lstm-batch-as-time" else None


def _sees_all(one: Known) -> Change | None:
    """Attention to everything in a model that sees a part of its input."""
    if not one.signature("small reach") or one.signature("dead rectifiers"):  # what is dead passes nothing on
        return None
    if _thawed(one, FROZEN, CUT_OFF):  # nor may what is not trained, which is removed by itself
        return None
    mixer = one.said("mixer")
    if isinstance(mixer, Mapping) and mixer.get("masks"):
        return {"model": {"mixer": {"masks": []}}}
    own = _replaced(one)
    own = own or _exchanged(one, BEHIND)
    if own is not None:
        return {"model": own}
    if one.takes("mixer_at") and one.said("mixer") is None:
        return {"model": {"mixer": {"name": "attention", "n_heads": 1}, "mixer_at": one.said("n_layers") // 2}}
    attention = {"name": "attention", "n_heads": 4}
    return {"model": {"mixer": attention}} if one.mixer in MIXERS and one.mixer not in {"attention", "none"} else None


def _clean(one: Known) -> Change | None:
    """The task's own split, where another one was named; a training part without copies, where it has many."""
    name, split = str(one.setup.task["name"]), one.setup.task.get("split")
    clean = {"char-lm": "contiguous", "shapes": "separate"}.get(name)
    if split is not None and clean is not None and split != clean:
        return {"task": {"split": clean, "stride": 1} if "stride" in one.setup.task else {"split": clean}}
    if not isinstance(one.task, CharLM | Classify | Sequences | Translation):
        return None
    near = one.task.near_overlaps if isinstance(one.task, Classify | Sequences) else {}
    if one.task.drop_copies != "near" and any(share >= SUSPICIOUS_NEAR for share in near.values()):
        return {"task": {"drop_copies": "near"}}
    if one.task.drop_copies:
        return None
    suspicious = any((share or 0) >= SUSPICIOUS_OVERLAP for share in one.task.overlaps.values())
    return {"task": {"drop_copies": True}} if suspicious else None


def _trained(key: str, is_wrong: Callable[[Any, int], bool], value: Any) -> Callable[[Known], Change | None]:
    """A change of the recipe where it says something else of a setting, in a run of some steps."""

    def change(one: Known) -> Change | None:
        said = one.setup.training
        return {"training": {key: value}} if key in said and is_wrong(said[key], one.setup.steps) else None

    return change


def _rises_long(said: Any, steps: int) -> bool:
    """Whether a warm-up, in steps or as a part of them, takes most of a run."""
    return isinstance(said, int | float) and (said if said >= 1 else said * steps) > LONGEST_WARM_UP * steps


def _zero(where: str, key: str) -> Callable[[Known], Change | None]:
    """A setting taken away, where it was said to be above zero."""

    def change(one: Known) -> Change | None:
        said = one.setup.training.get(key) if where == "training" else one.said(key)
        return {where: {key: 0.0}} if isinstance(said, int | float) and said > 0 else None

    return change


def _dropless(one: Known) -> Change | None:
    """No dropout: that of the lab's parts, and what code of a person's own drops by torch's functions."""
    said = _zero("model", "dropout")(one) or {"model": {}}
    own = one.is_own and one.measured.get("dropped", 0.0) > 0
    change = {**said["model"], **(_mended(one, {"dropless": True}) if own else {})}
    return {"model": change} if change else None


def _task_said(one: Known, key: str) -> int | None:
    """A whole number that the task of a set-up was given, or has by default; None for one it does not take."""
    name = str(one.setup.task["name"])
    parameters = {} if is_path(name) else signature_of(class_of(name, TASKS, "task"))
    value = one.setup.task.get(key, parameters[key].default if key in parameters else None)
    return value if isinstance(value, int) else None


def _larger_batch(one: Known) -> Change | None:
    key = next((key for key in ("batch", "batch_tokens") if _task_said(one, key)), None)
    return None if key is None else {"task": {key: MORE_ITEMS * (_task_said(one, key) or 1)}}


def _uncut(one: Known) -> Change | None:
    """Inputs that are cut, read further; to their end where that comes before."""
    if isinstance(one.task, Classify) and one.task.cut:
        return {"task": {"length": LONGER * one.task.length}}
    return None


def _longer_context(one: Known) -> Change | None:
    context = _task_said(one, "context")
    return None if context is None else {"task": {"context": 2 * context}}


def _chosen(situations: Mapping[str, Known]) -> Iterator[Cause]:
    """Settings that were said otherwise than they are by default, each for all variants that say it so."""
    found: dict[str, Cause] = {}
    for name, one in situations.items():
        for where, path, said, default in _choices(one):
            change: Any = default
            for key in reversed(path):
                change = {key: change}
            title = f"{'.'.join(path)}: {_in_yaml(said)}"
            before = found.get(title, Cause(title, "set-up", f"it is {_in_yaml(default)}, as it is by default", {}))
            found[title] = replace(before, changes={**before.changes, name: {where: change}})
    yield from found.values()


def _choices(one: Known) -> Iterator[tuple[str, tuple[str, ...], Any, Any]]:
    """Where and what a set-up says otherwise, and what it would be; not sizes, parts, nor what is removed by itself."""
    for key, said in one.setup.training.items():
        if key not in REMOVED_OTHERWISE and key in Recipe.model_fields:
            default = Recipe.model_fields[key].default
            if said != default and not (isinstance(said, Mapping) and dict(said) == {"name": default}):
                yield "training", (key,), said, default
    name = str(one.setup.task["name"])
    yield from _plain(
        ("task",), {} if is_path(name) else signature_of(class_of(name, TASKS, "task")), one.setup.task, bool
    )
    if own_model(one.model) is None:
        yield from _plain(("model",), model_parameters(one.model), one.model, bool | float | str)
        mixer = one.model.get("mixer")
        if isinstance(mixer, Mapping) and mixer.get("name") in MIXERS:
            of_mixer = signature_of(class_of(mixer, MIXERS, "mixer"))
            yield from _plain(("model", "mixer"), of_mixer, mixer, bool | float | str)


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


def _wider(one: Known) -> Change | None:
    with contextlib.suppress(SpecError):
        width, value = width_of(one.model)
        return {"model": {width: 2 * value}}
    return None


def _fewer_steps(one: Known) -> Change:
    return {"training": {"budget": {"steps": max(1, one.setup.steps // SOONER)}}}


def _more_steps(one: Known) -> Change:
    return more_steps(one.setup)


def more_steps(setup: Setup) -> Change:
    """A longer run."""
    return {"training": {"budget": {"steps": MORE_STEPS * setup.steps}}}


REMOVALS: tuple[Removal, ...] = (
    Removal("leaking split", "set-up", "what is held out shares nothing with what is trained on", _clean),
    Removal(
        NO_PATH, "known effect", IDENTITY, _identity_path,
        ("signal shrink", "rank collapse"), "He 2023, arXiv:2302.10322; Dong 2021, arXiv:2103.03404",
    ),
    Removal(TITLES["batch-independence"], "bug", "the LSTM reads positions as time", _sequences_as_time),
    Removal(
        CHANCE, "bug", "dropout acts in training alone", _if_measured("chance in evaluation", "quiet"),
        ("chance in evaluation",), "Srivastava 2014, JMLR 15, section 4",
    ),
    Removal(
        "dead rectifiers", "known effect", LIVING,
        _living_rectifiers, ("dead rectifiers",), "Maas 2013, ICML workshop on deep learning for speech",
    ),
    Removal(
        "saturated units", "known effect", "layers start as torch draws them",
        _if_measured("saturated units", "fresh"), ("saturated units",), "Glorot, Bengio 2010, AISTATS",
    ),
    Removal(
        "flat attention", "known effect", "scores are multiplied until their standard deviation is one", _sharper,
        ("flat attention",), "Henry 2020, arXiv:2010.04245; Liu 2022, arXiv:2111.09883, section 3.3",
    ),
    Removal(FROZEN, "known effect", "all weights are trained", lambda one: _thawed(one, FROZEN), (FROZEN,)),
    Removal(CUT_OFF, "bug", "all weights are trained", lambda one: _thawed(one, CUT_OFF), (CUT_OFF,)),
    Removal(
        LARGE, "known effect", "what enters the first layer is scaled to a size of one", _smaller_entry, (LARGE,),
        "Vaswani 2017, arXiv:1706.03762, section 3.4",
    ),
    Removal(TWICE, "bug", "the loss is given the logarithm of the answers", _logits, (TWICE,)),
    Removal(BOUNDED, "bug", "answers are given as they are before what bounds them", _unbounded, (BOUNDED,)),
    Removal(
        NO_POSITIONS, "known effect", "positions are added", _positions, ("missing positions",),
        "Haviv 2022, arXiv:2203.16634; Kazemnejad 2023, arXiv:2305.19466",
    ),
    Removal(
        "small reach", "known effect", "attention that sees all is put in",
        _sees_all, ("small reach",),
    ),
    Removal(
        "post-norm", "known effect", "the norm stands before each part", _pre_norm,
        ("gradient by depth",), "Xiong 2020, arXiv:2002.04745; Liu 2020, arXiv:2004.08249",
    ),
    Removal(
        "no norm", "known effect", "a norm stands before each part", _if_said("norm", "none", norm="pre"),
        ("signal growth", "logit growth", "entropy collapse"), "Xiong 2020, arXiv:2002.04745",
    ),
    Removal(
        "narrow heads", "known effect", "fewer and wider heads", _wider_heads, (), _LOW_RANK,
    ),
    Removal(
        "no warm-up", "set-up", "the rate rises over a tenth of the steps",
        _trained("warmup", lambda said, _: said == 0, WARM_UP), ("gradient by depth",), "Xiong 2020, arXiv:2002.04745",
    ),
    Removal(
        "no limit of gradients", "set-up", f"gradients are cut at {CLIP:g}",
        _trained("clip", lambda said, _: said is None, CLIP), ("signal growth", "logit growth"),
    ),
    Removal(
        "constant rate", "set-up", "the rate falls to zero",
        _trained("schedule", lambda said, _: said == "constant", "cosine"),
    ),
    Removal(
        "a long warm-up", "set-up", f"the rate rises over {WARM_UP:.0%} of the steps",
        _trained("warmup", _rises_long, WARM_UP),
    ),
    Removal(
        "a low limit of gradients", "set-up", f"gradients are cut at {CLIP:g}",
        _trained("clip", lambda said, _: said is not None and said < CLIP, CLIP),
    ),
    Removal("dropout", "set-up", "nothing is dropped", _dropless, ("heavy dropout",)),
    Removal("weight decay", "set-up", "weights do not decay", _zero("training", "weight_decay")),
    Removal("cut inputs", "set-up", f"{LONGER} times as much is read of what was cut", _uncut, costs=LONGER),
    Removal("label smoothing", "set-up", "targets are not smoothed", _zero("training", "label_smoothing")),
    Removal(OVERFITTING, "set-up", f"training ends after 1/{SOONER} of the steps", _fewer_steps),
    Removal(TOO_FEW_STEPS, "set-up", f"{MORE_STEPS} times as many steps", _more_steps, costs=MORE_STEPS, grows=True),
    Removal("small batch", "set-up", f"{MORE_ITEMS} times as many items a step", _larger_batch, costs=MORE_ITEMS),
    Removal("short context", "set-up", "twice as long a context", _longer_context, costs=2),
    Removal("small model", "set-up", "the model is twice as wide", _wider, costs=2),
)  # fmt: skip
"""What is tried of every case; bugs come from the doctor, and the rate is searched for each variant."""
