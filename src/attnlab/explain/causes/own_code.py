"""Is it a bug? The doctor on every module of a person's own in a set-up, as it stands there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

from torch import nn

from attnlab.core.build import class_of, is_path, parse, prepare
from attnlab.core.constructors import signature_of
from attnlab.core.contracts import Batch, StudyTask
from attnlab.core.errors import AttnlabError
from attnlab.core.processes.apart import call_apart
from attnlab.doctor import doctor
from attnlab.explain.trials.setups import Setup
from attnlab.models import MODELS
from attnlab.nn.exchanged import ATTENTION, NORM, Slot, behind_a_layer, slots_in
from attnlab.nn.foreign_model import ForeignModel, order_of
from attnlab.nn.init import start_far_above
from attnlab.nn.mended import layers_of
from attnlab.nn.norms_behind import norms_behind
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.tasks import TASKS
from attnlab.tasks.arrays.sequences import Sequences

ELSEWHERE = frozenset({"dtype-device", "precision", "cache", "cost"})
"""Checks whose errors do not change what a run on this machine computes."""
NO_CAUSE = frozenset({"determinism"})
"""Checks whose errors may be of calls that runs make and of others: they are told, and nothing is removed for them."""
SAMPLES = 3
"""Of a batch, by which a model's parts are told; unlike most lengths."""


@final
@dataclass(frozen=True)
class Examined:
    """Hold what the doctor said of one module of a person's own."""

    name: str  # ``path.py:Class``
    place: str  # "mixer" or "model"
    verdict: str = ""  # in the doctor's words; empty where it could not be examined
    findings: list[dict[str, Any]] = field(default_factory=list)  # worst first, as plain data
    error: str = ""  # why it could not be examined
    layout_open: bool = False  # of a model: called with the length first, as samples meet otherwise; nobody says so

    @property
    def class_name(self) -> str:
        """The class without its file."""
        return self.name.rpartition(":")[2]

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The findings that are bugs in any use."""
        return self._unmeant("error")

    @property
    def errors_here(self) -> list[dict[str, Any]]:
        """Those of them that may change what a run on this machine computes."""
        return [one for one in self.errors if one["check"] not in ELSEWHERE]

    @property
    def suspect(self) -> list[dict[str, Any]]:
        """Those of these that may be a cause."""
        return [one for one in self.errors_here if one["check"] not in NO_CAUSE]

    @property
    def layout_in_question(self) -> bool:
        """Whether it reads the batch as time in one layout, and nobody says which one is meant."""
        of_mixer = self.place == "mixer" and any(one["check"] == "batch-independence" for one in self.warnings)
        return of_mixer or self.layout_open

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """The findings that are known effects or risks."""
        return self._unmeant("warning")

    def _unmeant(self, severity: str) -> list[dict[str, Any]]:
        """The findings of one severity, but those that the module's text says are meant."""
        return [one for one in self.findings if one["severity"] == severity and not one.get("accepted")]


def examine(setup: Setup) -> list[Examined]:
    """Examine every module of a person's own that a set-up names, each class once, in a process of its own."""
    if not any(own_specs(setup.model)):
        return []
    return [Examined(**found) for found in call_apart(_examine, dict(setup.task), dict(setup.model))]


def own_specs(model: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Where a model's specification names a person's own class, as "model" or "mixer", and how."""
    if own := own_model(model):
        yield "model", own
    mixers = model.get("mixer")
    for mixer in mixers if isinstance(mixers, list) else [mixers]:
        if own := own_mixer(mixer):
            yield "mixer", own


def own_model(model: Any) -> Any:
    """The specification of a person's own model, mended or not; None where it is one of the lab."""
    return _own(model, "model")


def own_mixer(mixer: Any) -> Any:
    """The specification of a person's own mixer, mended or not; None where it is one of the lab."""
    return _own(mixer, "mixer")


def _own(spec: Any, axis: str) -> Any:
    while isinstance(spec, Mapping) and spec.get("name") == "mended":
        spec = spec.get("part")
    return spec if spec is not None and is_path(parse(spec, axis)[0]) else None


def _examine(task_spec: Any, model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Examine the own modules of a model, each class once."""
    task = build_task(task_spec)
    found: dict[str, Examined] = {}
    for place, spec in own_specs(model):
        name, _ = parse(spec, place)
        try:
            if place == "model":
                order = order_of(spec, task.model_arguments())
            else:
                order = prepare(spec, {}, axis=place, offered=_offered_by(model, task))
            first, said = _length_first(build_model(spec, task)) if place == "model" else (False, True)
            layout = None if place == "mixer" else "length first" if first else "batch first"  # a mixer's is any
            causal = task.causal or None  # where outputs may see all of the input, they need not
            whole = place == "model"
            diagnosis = doctor(name, arguments=dict(order.arguments), causal=causal, layout=layout, whole=whole)
            findings = [finding.to_json() for finding in diagnosis.findings]
            found[name] = Examined(name, place, diagnosis.verdict, findings, layout_open=first and not said)
        except AttnlabError as error:
            found[name] = Examined(name, place, error=str(error))
    return [asdict(one) for one in found.values()]


def _length_first(model: nn.Module) -> tuple[bool, bool]:
    """Whether tasks call a model with the length first, and whether it says in which layout it is called."""
    convention = model.convention if isinstance(model, ForeignModel) else None
    if convention is None:
        return False, True
    return convention.layout == "sequence-first", bool(convention.layout_by)


@final
@dataclass(frozen=True)
class Exchangeable:
    """Hold what can stand in the place of a person's own model, or of parts of it."""

    slots: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by name of its part, arguments of a `Slot`
    standard: Mapping[str, Any] | None = None  # a model of the lab, as wide and as deep, that answers as it does
    norms_behind: Sequence[Sequence[str]] = ()  # pairs of names: its parts, and the norms that stand behind them
    far_above: Sequence[str] = ()  # names of weights, around a mixer of theirs too, that start far above usual

    def of(self, *kinds: str) -> dict[str, Mapping[str, Any]]:
        """The slots of some kinds."""
        return {name: slot for name, slot in self.slots.items() if slot["kind"] in kinds}


def exchangeable(setup: Setup) -> Exchangeable:
    """What can stand in the place of a person's own model or of its parts, measured in a process of its own.

    Where none of its parts attends, one of the slots is behind the first of its layers.
    """
    found = call_apart(_exchangeable, dict(setup.task), dict(setup.model)) if any(own_specs(setup.model)) else {}
    return Exchangeable(**found)


def _exchangeable(task_spec: Any, model: Mapping[str, Any]) -> dict[str, Any]:
    task = build_task(task_spec)
    batch = task.train_batch(0, 0).rows(0, SAMPLES)
    built, two = build_model(own_model(model) or model, task), len(batch.inputs) > 1
    found: dict[str, Any] = {"far_above": [*start_far_above(built, batch.inputs)]}
    return found | (_places_in(built, task, batch, two=two) if own_model(model) else {})


def _places_in(built: nn.Module, task: StudyTask, batch: Batch, *, two: bool) -> dict[str, Any]:
    """What can stand in the place of a model or of its parts."""
    causal = task.causal or forecasts(task)
    slots = slots_in(built, batch.inputs, causal=causal)
    attention = [slot for slot in slots.values() if slot.kind == ATTENTION]
    if not attention and not two:
        slots |= behind_a_layer(built, batch.inputs, causal=causal)
    norms = norms_behind(built, batch.inputs, [name for name, slot in slots.items() if slot.kind == NORM])
    found: dict[str, Any] = {"norms_behind": norms, "slots": {name: asdict(slot) for name, slot in slots.items()}}
    if forecasts(task):  # the model of the lab would see the targets
        return found
    standard = {
        "name": "encoder-decoder" if two else "decoder" if task.causal else "encoder",
        "d_model": _width(built, slots),
        "n_layers": max(1, (len(attention) or len(layers_of(built))) // (2 if two else 1)),
        "mixer": {"name": "attention", "n_heads": attention[0].n_heads if attention else 1},
    }
    try:
        task.loss(build_model(standard, task)(*batch.inputs), batch)
    except AttnlabError:  # the task wants a model of its own
        return found
    return {**found, "standard": standard}


def _width(model: nn.Module, slots: Mapping[str, Slot]) -> int:
    """The width of a model: that of most parts in whose places others may stand, else the commonest of its weights."""
    widths = [slot.d_model for slot in slots.values()]
    widths = widths or [size for weight in model.parameters() for size in weight.shape]
    return Counter(widths).most_common(1)[0][0] if widths else 1


def model_parameters(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of the constructor of a model of the lab, by name; none for a person's own."""
    name = str(model["name"])
    return {} if is_path(name) else signature_of(class_of(name, MODELS, "model"))


def task_parameters(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of the constructor of a task of the lab, by name; none for a person's own."""
    name = str(task["name"])
    return {} if is_path(name) else signature_of(class_of(name, TASKS, "task"))


def forecasts(task: StudyTask) -> bool:
    """Whether the inputs show the targets at later positions: what sees more than it did may copy them."""
    return isinstance(task, Sequences) and task.shown_later > 0


def _offered_by(model: Mapping[str, Any], task: StudyTask) -> dict[str, Any]:
    """What a model offers to a mixer within it."""
    signature = model_parameters(model)
    width = next((key for key in ("d_model", "channels") if key in signature), "d_model")
    given = model.get(width, signature[width].default if width in signature else None)
    longest = {key: value for key, value in task.model_arguments().items() if key == "max_length"}
    return {"d_model": given, "causal": task.causal, "dropout": model.get("dropout", 0.0), **longest}
