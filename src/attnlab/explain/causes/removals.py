"""The table of what can be removed: for each cause, what a set-up becomes without it, if it has it at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from attnlab.core.build import is_path, parse
from attnlab.core.errors import SpecError
from attnlab.explain.causes.cause import (
    ANOTHER_SOURCE,
    LEAKING,
    OVERFITTING,
    TINY_BATCH,
    TITLES,
    TOO_FEW_STEPS,
    Change,
    Nature,
)
from attnlab.explain.causes.known import Known, exchanged, mended, with_attention
from attnlab.explain.causes.own_code import forecasts, own_model, task_parameters
from attnlab.explain.causes.signatures import NAMED, Measured
from attnlab.explain.trials.setups import Setup
from attnlab.nn.exchanged import BEHIND
from attnlab.nn.mixers import MIXERS
from attnlab.studies.define.assemble import build_task
from attnlab.studies.plan.matching import width_of
from attnlab.tasks.arrays.classify import Classify
from attnlab.tasks.arrays.items import SUSPICIOUS_BESIDE, SUSPICIOUS_NEAR, SUSPICIOUS_OVERLAPPING
from attnlab.tasks.arrays.sequences import Sequences
from attnlab.tasks.char_lm.char_lm import CharLM
from attnlab.tasks.held_out import PREFIXES, SUSPICIOUS_OVERLAP
from attnlab.tasks.lm.lm import LM
from attnlab.tasks.translation.translation import Translation
from attnlab.training.recipe.recipe import Recipe
from attnlab.training.recipe.schedule import rate_factor

MORE_STEPS = 4
"""How many times as many steps, where too few may be the cause."""
TINY, USUAL_BATCH = 4, 32
"""Items of a step up to which they are few for any gradient, or statistic of a batch, and how many are tried then."""
MORE_ITEMS = 4
"""The same of the items of a step."""
LONGER = 4
"""How many times as far inputs are read that were cut."""
SOONER = 4
"""Part of the steps, as a fraction of one, after which training ends where it may have gone on too long."""
WARM_UP = 0.1
"""Part of the steps over which the rate rises, where it did not."""
LARGEST_ENTRY = 1.5
"""Size of what enters the first layer, down to which it is not large."""
LEAST_SCORES = 1e-3
"""Standard deviation of scores that are taken for larger ones when they are divided by it."""
OPEN, LEAST_ADDED = 0.5, 1e-5
"""Part of what enters a layer that it adds where it is open, and the least that rounding leaves to multiply."""
LEAST_TOLD = 1e-4
"""Part of positions that inputs are taken for when they are made as large."""
LOW, SAMPLED = 0.25, 1000
"""Mean rate over the largest, below which the rate is low for most of a run, and at how many places it is looked at."""
LONGEST_WARM_UP = 0.5
"""Part of the steps from which on a warm-up is tried without."""
SHARE = 0.1
"""Share of the training items that is held out in place of others."""
LEAK = 0.1
"""Slope of a rectifier below zero, where it was dead."""
CLIP = 1.0
"""Longest gradient, where there was no limit."""
NARROW = 16
"""Width of a head below which wider ones are tried: fewer, in the same width of the model."""
LIVING = f"layers start as torch draws them and rectifiers let {LEAK:g} of what is below zero through, or are smooth"
NO_PATH, IDENTITY = "no identity path", "every layer's input is added to its output"
CHANCE, NO_POSITIONS = "dropout in evaluation", "no positions"
FROZEN, CUT_OFF = "frozen weights", "weights without a gradient"
LATE = "late inputs"
REACH, BLIND, ATTENTION_PUT_IN = "small reach", "outputs that see nothing", "attention that sees all is put in"
STARTED, USUAL = "a large start", "matrices of weights that start above the usual size start at it"
TWICE, LARGE, BOUNDED = "a softmax before the loss", "a large entry", "bounded answers"
SMALL, CLOSED = "small answers", "closed branches"
AS_THEY_ARE = "normalize: false"
LOST, REWRITTEN = "lost levels", "weights changed on the way"
DROWNED, OVER_POSITIONS, BESIDE = "inputs that drown", "norm over positions", "layers beside each other"
_MEASURED = (FROZEN, CUT_OFF, TWICE, STARTED, REWRITTEN, DROWNED, BOUNDED, BLIND)
STILL: Mapping[str, Callable[[Measured], bool]] = {
    TITLES["causality"]: lambda m: m.get("ahead", 0.0) > 0,
    TITLES["batch-independence"]: lambda m: m.get("mixes", 0.0) > 0,
    TITLES["normalization"]: lambda m: m.get("across", 0.0) > 0,
    CHANCE: NAMED["chance in evaluation"].is_at_work,
    NO_POSITIONS: lambda m: m.get("order", 1.0) == 0.0,
    LARGE: lambda m: m.get("entry", 0.0) > LARGEST_ENTRY,
    LATE: lambda m: m.get("delay", 0.0) > 0 or m.get("ahead", 0.0) > 0,
    **{name: NAMED[name].is_at_work for name in _MEASURED},
}
"""By what is removed, what is measured of a model from which it was not removed after all."""


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
    remedy: str = ""  # what to do in a person's own code, in words, where that is not what is done
    by_training: bool = False  # whether training may bring it, where its rate is too high


def _if_said(key: str, value: Any, **change: Any) -> Callable[[Known], Change | None]:
    """A change of the model where one of its arguments has a value."""
    return lambda one: {"model": change} if one.takes(key) and one.said(key) == value else None


def _if_measured(
    sign: str, mending: str, value: Callable[[Known], Any] = lambda _: True, *, whole: bool = False
) -> Callable[[Known], Change | None]:
    """Code of a person's own, or a whole model of it, with something removed, where a known effect is at work in it."""

    def change(one: Known) -> Change | None:
        own = own_model(one.model) is not None if whole else one.is_own
        return {"model": mended(one, {mending: value(one)})} if own and one.signature(sign) else None

    return change


def _pre_norm(one: Known) -> Change | None:
    if one.takes("norm"):
        return _if_said("norm", "post", norm="pre")(one)
    if own_model(one.model) is None:
        return None
    of_torch = {"norm_first": True} if one.measured.get("norm_behind", 0.0) > 0 else {}
    others = {"norms_first": one.exchangeable.norms_behind} if one.exchangeable.norms_behind else {}
    return {"model": mended(one, {**of_torch, **others})} if of_torch or others else None


def identity_path(one: Known) -> Change | None:
    """A path around what has none, in a person's own model or one of the lab."""
    if own_model(one.model):
        found = any(finding["check"] == "residual" for each in one.examined for finding in each.errors)
        return {"model": mended(one, {"skips": True})} if found else None
    if one.takes("block") and one.said("block") is not None and parse(one.said("block"), "block")[0] == "literal":
        return {"model": {"block": {"name": "transformer"}, "feedforward": "relu", "residual": True}}
    return {"model": {"residual": True}} if one.takes("residual") and one.said("residual") is False else None


def _positions(one: Known) -> Change | None:
    """Positions, where the model has none: learned in a model of the lab, sines in a person's own."""
    if own_model(one.model):
        return {"model": mended(one, {"positions": True})} if one.signature("missing positions") else None
    return {"model": {"positions": "learned"}} if one.takes("positions") and one.said("positions") == "none" else None


def _wider_heads(one: Known) -> Change | None:
    width, mixer = one.said("d_model"), one.model.get("mixer")
    heads = mixer.get("n_heads") if isinstance(mixer, Mapping) else None
    if one.mixer not in MIXERS or not isinstance(heads, int) or not isinstance(width, int) or width // heads >= NARROW:
        return None
    fewer = next((n for n in range(heads - 1, 0, -1) if width % n == 0 and width // n >= NARROW), 1)
    return {"model": {"mixer": {"n_heads": fewer}}} if fewer < heads else None


def living_rectifiers(one: Known) -> Change | None:
    """Rectifiers that let something through, where they are dead."""
    if not one.signature("dead rectifiers"):
        return None
    if one.is_own:
        return {"model": mended(one, {"leak": LEAK, "fresh": True})}
    return {"model": {"feedforward": "gelu"}} if one.said("feedforward") == "relu" else None


def _thawed(one: Known, *signs: str) -> Change | None:
    if not any(one.signature(sign) for sign in signs):
        return None
    if own_model(one.model) or (is_path(one.mixer) and one.said("cross") is None):
        return {"model": mended(one, {"thawed": True})}
    whole = {"name": "mended", "part": one.model, "mending": {"thawed": True}}
    return {"model": whole}  # attention to another sequence is no mixer


def _smaller_entry(one: Known) -> Change | None:
    own = own_model(one.model) and one.signature(LARGE) and STILL[LARGE](one.measured)
    return {"model": mended(one, {"entry_times": round(1 / one.measured["entry"], 6)})} if own else None


def _times(size: float, least: float) -> float:
    """What makes a size one; what is next to nothing is taken for the least."""
    return round(1 / max(size, least), 6)


def _opening(one: Known) -> float:
    """What layers must add more, to add half as much as they are given."""
    return float(f"{OPEN / max(one.measured['adds'], LEAST_ADDED):.3g}")


def usual_start(one: Known) -> Change | None:
    """Matrices of a person's own that start as large as is usual, where they start far above."""
    names = one.exchangeable.far_above if one.is_own and one.signature(STARTED) else ()
    return {"model": mended(one, {"usual_start": [*names]})} if names else None


def _sequences_as_time(one: Known) -> Change | None:
    kept = {key: one.model[key] for key in ("hidden", "n_layers") if key in one.model}
    return {"model": {"name": "lstm", **kept}} if one.model["name"] == "lstm-batch-as-time" else None


def _sees_all(sign: str, one: Known) -> Change | None:
    """Attention to everything in a model that sees a part of its input, or nothing of it."""
    if not one.signature(sign) or one.signature("dead rectifiers"):  # what is dead passes nothing on
        return None
    if forecasts(one.task) or _thawed(one, FROZEN, CUT_OFF):  # nor may what is not trained, which is removed by itself
        return None
    mixer = one.said("mixer")
    if isinstance(mixer, Mapping) and mixer.get("masks"):
        return {"model": {"mixer": {"masks": []}}}
    own = with_attention(one) or exchanged(one, BEHIND)
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
    windows = one.task.overlapping if isinstance(one.task, Classify | Sequences) else {}
    if split != "contiguous" and any(share >= SUSPICIOUS_OVERLAPPING for share in windows.values()):
        return {"task": {"split": "contiguous"}}
    if one.task.drop_copies != "near" and any(share >= SUSPICIOUS_NEAR for share in near.values()):
        return {"task": {"drop_copies": "near"}}
    if not one.task.drop_copies and any((share or 0) >= SUSPICIOUS_OVERLAP for share in one.task.overlaps.values()):
        return {"task": {"drop_copies": True}}
    together = isinstance(one.task, Classify | Sequences) and one.task.alike_beside >= SUSPICIOUS_BESIDE
    return {"task": {"split": "contiguous"}} if together else None


def _same_source(one: Known) -> Change | None:
    """A part of the training items held out in place of other files, where no drawn part would be memory."""
    said = one.setup.task
    held = {part: SHARE for part in PREFIXES if isinstance(said.get(part), str | list)}
    if not held or not isinstance(one.task, Classify | Sequences | LM):
        return None
    drawn = build_task({**said, **held})
    memory = any((share or 0) >= SUSPICIOUS_OVERLAP for share in getattr(drawn, "overlaps", {}).values())
    return None if memory or _clean(replace(one, task=drawn)) else {"task": held}


def _normalized(one: Known) -> Change | None:
    """Numbers of mean 0 and standard deviation 1, errors of which are told in the units that they had."""
    how = "internally" if isinstance(one.task, Sequences) else True
    return {"task": {"normalize": how}} if one.setup.task.get("normalize") is False else None


def _trained(key: str, is_wrong: Callable[[Any, int], bool], value: Any) -> Callable[[Known], Change | None]:
    """A change of the recipe where it says something else of a setting, in a run of some steps."""

    def change(one: Known) -> Change | None:
        said = one.setup.training
        return {"training": {key: value}} if key in said and is_wrong(said[key], one.setup.steps) else None

    return change


def _soon_low(one: Known) -> Change | None:
    """Another schedule, where the rate is low for most of the run, and not as it rises."""
    said, steps = one.setup.training, one.setup.steps
    if "schedule" not in said or _rises_long(said.get("warmup", 0), steps):
        return None
    recipe = Recipe.parse(said, "training")
    schedule, warmup = recipe.build_schedule(), recipe.warmup_fraction(steps)
    mean = sum(rate_factor(schedule, (step + 0.5) / SAMPLED, warmup) for step in range(SAMPLED)) / SAMPLED
    return {"training": {"schedule": "cosine", "warmup": WARM_UP}} if mean < LOW else None


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
    """No dropout: that of the lab's parts, and what code of a person's own drops by torch's functions or its own."""
    said = _zero("model", "dropout")(one) or {"model": {}}
    dropless = {"dropless": True} if one.measured.get("dropped", 0.0) > 0 else {}
    settled = {"settled": True} if one.signature("chance of its own") else {}
    own = one.is_own and (dropless or settled)
    change = {**said["model"], **(mended(one, {**dropless, **settled}) if own else {})}
    return {"model": change} if change else None


def _task_said(one: Known, key: str) -> int | None:
    """A whole number that the task of a set-up was given, or has by default; None for one it does not take."""
    parameters = task_parameters(one.setup.task)
    value = one.setup.task.get(key, parameters[key].default if key in parameters else None)
    return value if isinstance(value, int) else None


def _usual_batch(one: Known) -> Change | None:
    return {"task": {"batch": USUAL_BATCH}} if 0 < (_task_said(one, "batch") or 0) <= TINY else None


def _larger_batch(one: Known) -> Change | None:
    key = next((key for key in ("batch", "batch_tokens") if _task_said(one, key)), None)
    return None if key is None or _usual_batch(one) else {"task": {key: MORE_ITEMS * (_task_said(one, key) or 1)}}


def _uncut(one: Known) -> Change | None:
    """Inputs that are cut, read further; to their end where that comes before."""
    if isinstance(one.task, Classify) and one.task.cut:
        return {"task": {"length": LONGER * one.task.length}}
    return None


def _longer_context(one: Known) -> Change | None:
    context = _task_said(one, "context")
    return None if context is None else {"task": {"context": 2 * context}}


def _wider(one: Known) -> Change | None:
    with contextlib.suppress(SpecError):
        width, value = width_of(one.model)
        return {"model": {width: 2 * value}}
    return None


def _fewer_steps(one: Known) -> Change:
    return {"training": {"budget": {"steps": max(1, one.setup.steps // SOONER)}}}


def more_steps(setup: Setup) -> Change:
    """A longer run."""
    return {"training": {"budget": {"steps": MORE_STEPS * setup.steps}}}


REMOVALS: tuple[Removal, ...] = (
    Removal(LEAKING, "set-up", "what is held out shares nothing with what is trained on", _clean,
        remedy="hold out whole stretches, sources or groups, before anything is cut, copied or balanced"),
    Removal(ANOTHER_SOURCE, "set-up", "a part of the items of training is held out in their place", _same_source),
    Removal(AS_THEY_ARE, "set-up", "a model reads and answers numbers of mean 0 and standard deviation 1", _normalized),
    Removal(NO_PATH, "known effect", IDENTITY, identity_path,
        ("signal shrink", "rank collapse"), "He 2023, arXiv:2302.10322; Dong 2021, arXiv:2103.03404",
        remedy="add to what each layer gives what it was given"),
    Removal(TITLES["batch-independence"], "bug", "the LSTM reads positions as time", _sequences_as_time),
    Removal(CHANCE, "bug", "dropout acts in training alone", _if_measured("chance in evaluation", "quiet"),
        ("chance in evaluation",), "Srivastava 2014, JMLR 15, section 4"),
    Removal("dead rectifiers", "known effect", LIVING,
        living_rectifiers, ("dead rectifiers",), "Maas 2013, ICML workshop on deep learning for speech",
        by_training=True, remedy="start weights and biases as torch draws them, or use GELU or a rectifier that leaks"),
    Removal("saturated units", "known effect", "layers start as torch draws them",
        _if_measured("saturated units", "fresh"), ("saturated units",), "Glorot, Bengio 2010, AISTATS"),
    Removal(STARTED, "known effect", USUAL, usual_start, (STARTED,), "Glorot, Bengio 2010, AISTATS"),
    Removal("flat attention", "known effect", "scores are multiplied until their standard deviation is one",
        _if_measured("flat attention", "scores_times", lambda one: _times(one.trained["scores"], LEAST_SCORES)),
        ("flat attention",), "Henry 2020, arXiv:2010.04245; Liu 2022, arXiv:2111.09883, section 3.3"),
    Removal(FROZEN, "known effect", "all weights are trained", lambda one: _thawed(one, FROZEN), (FROZEN,)),
    Removal(CUT_OFF, "bug", "all weights are trained", lambda one: _thawed(one, CUT_OFF), (CUT_OFF,)),
    Removal(REWRITTEN, "known effect", "what the model's own code changes of its weights is put back after each call",
        _if_measured(REWRITTEN, "kept", whole=True), (REWRITTEN,)),
    Removal(LARGE, "known effect", "what enters the first layer is scaled to a size of one", _smaller_entry, (LARGE,),
        "Vaswani 2017, arXiv:1706.03762, section 3.4"),
    Removal(
        BESIDE, "bug", "every layer is given what the one before it gave", _if_measured(BESIDE, "chained"), (BESIDE,)),
    Removal(OVER_POSITIONS, "known effect", "layer norms are over the channels of each position",
        _if_measured(OVER_POSITIONS, "over_channels"), (OVER_POSITIONS,), "Ba 2016, arXiv:1607.06450, section 3"),
    Removal(
        DROWNED, "known effect", "what is read is scaled until it differs as much from input to input as by position",
        _if_measured(DROWNED, "entry_times", lambda one: _times(one.measured["told"], LEAST_TOLD), whole=True),
        (DROWNED,), "Vaswani 2017, arXiv:1706.03762, section 3.4"),
    Removal(
        LOST, "known effect", "what inputs hold, and have held on average, is added to the answers by a trained map",
        _if_measured(LOST, "levels", whole=True), (LOST,), "Kim 2022, ICLR (reversible instance normalization)"),
    Removal(TWICE, "bug", "the loss is given the logarithm of the answers",
        _if_measured(TWICE, "logarithm", whole=True), (TWICE,)),
    Removal(LATE, "bug", "the model is given what stands later, so that an output sees what stands at its own position",
        _if_measured(LATE, "earlier", lambda one: int(one.measured["delay"]), whole=True), (LATE,),
        remedy="give layers the input as it is: targets are what comes next already, and nothing need be shifted"),
    Removal(CLOSED, "known effect", "what layers add to their inputs is multiplied until it is half as large as these",
        _if_measured(CLOSED, "adds_times", _opening, whole=True), (CLOSED,),
        "Bachlechner 2020, arXiv:2003.04887; Touvron 2021, arXiv:2103.17239"),
    Removal(SMALL, "known effect", "answers are multiplied by what training could not give them",
        _if_measured(SMALL, "answers_times", lambda one: one.trained["sharper"], whole=True), (SMALL,),
        "Guo 2017, arXiv:1706.04599, section 4.2"),
    Removal(BOUNDED, "bug", "answers are given as they are before what bounds them",
        _if_measured(BOUNDED, "unbounded", whole=True), (BOUNDED,)),
    Removal(NO_POSITIONS, "known effect", "positions are added", _positions, ("missing positions",),
        "Haviv 2022, arXiv:2203.16634; Kazemnejad 2023, arXiv:2305.19466",
        remedy="add positions to what is embedded, or turn or bias queries and keys by them"),
    Removal(REACH, "known effect", ATTENTION_PUT_IN, partial(_sees_all, REACH), (REACH,),
        remedy="let outputs see further, by attention, larger or dilated kernels, or more layers"),
    Removal(BLIND, "bug", ATTENTION_PUT_IN, partial(_sees_all, BLIND), (BLIND,)),
    Removal("post-norm", "known effect", "the norm stands before each part", _pre_norm,
        ("gradient by depth",), "Xiong 2020, arXiv:2002.04745; Liu 2020, arXiv:2004.08249",
        remedy="put norms before each part, as norm_first=True of torch's layers does, or let the rate rise slowly"),
    Removal("no norm", "known effect", "a norm stands before each part", _if_said("norm", "none", norm="pre"),
        ("signal growth", "logit growth", "entropy collapse"), "Xiong 2020, arXiv:2002.04745"),
    Removal("narrow heads", "known effect", "fewer and wider heads", _wider_heads,
        (), "Bhojanapalli 2020, arXiv:2002.07028"),
    Removal("no warm-up", "set-up", "the rate rises over a tenth of the steps",
        _trained("warmup", lambda said, _: said == 0, WARM_UP), ("gradient by depth",), "Xiong 2020, arXiv:2002.04745"),
    Removal("no limit of gradients", "set-up", f"gradients are cut at {CLIP:g}",
        _trained("clip", lambda said, _: said is None, CLIP), ("signal growth", "logit growth")),
    Removal("constant rate", "set-up", "the rate falls to zero",
        _trained("schedule", lambda said, _: said == "constant", "cosine")),
    Removal("a rate that soon is low", "set-up", "the rate falls as a cosine behind a warm-up",
        _soon_low, (), "Vaswani 2017, arXiv:1706.03762, section 5.3 (a warm-up of 4000 steps)"),
    Removal("a long warm-up", "set-up", f"the rate rises over {WARM_UP:.0%} of the steps",
        _trained("warmup", _rises_long, WARM_UP)),
    Removal("a low limit of gradients", "set-up", f"gradients are cut at {CLIP:g}",
        _trained("clip", lambda said, _: said is not None and said < CLIP, CLIP)),
    Removal("dropout", "set-up", "nothing is dropped", _dropless, ("heavy dropout", "chance of its own")),
    Removal("weight decay", "set-up",
        "weights do not decay; before, matrices did alone, where optimizers of torch let norms and biases decay, too",
        _zero("training", "weight_decay")),
    Removal(TINY_BATCH, "set-up", f"{USUAL_BATCH} items a step", _usual_batch, (),
        "Ioffe 2017, arXiv:1702.03275, section 1 (batch norm of few items)", costs=USUAL_BATCH // TINY),
    Removal("cut inputs", "set-up", f"{LONGER} times as much is read of what was cut", _uncut, costs=LONGER),
    Removal("label smoothing", "set-up", "targets are not smoothed", _zero("training", "label_smoothing")),
    Removal(OVERFITTING, "set-up", f"training ends after 1/{SOONER} of the steps", _fewer_steps),
    Removal(TOO_FEW_STEPS, "set-up", f"{MORE_STEPS} times as many steps", lambda one: more_steps(one.setup),
        costs=MORE_STEPS, grows=True),
    Removal("small batch", "set-up", f"{MORE_ITEMS} times as many items a step", _larger_batch, costs=MORE_ITEMS),
    Removal("short context", "set-up", "twice as long a context", _longer_context, costs=2),
    Removal("small model", "set-up", "the model is twice as wide", _wider, costs=2),
)  # fmt: skip
"""What is tried of every case; bugs come from the doctor, and the rate is searched for each variant."""
BUGS = frozenset(sign for one in REMOVALS if one.nature == "bug" for sign in one.signatures)
"""Effects that are bugs wherever they are measured."""
