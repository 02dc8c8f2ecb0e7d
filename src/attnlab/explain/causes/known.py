"""What is known of a variant before anything is removed, and its model with something otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from attnlab.core.build import is_path, parse
from attnlab.core.contracts import StudyTask
from attnlab.explain.causes.own_code import Examined, Exchangeable, forecasts, model_parameters, own_mixer, own_model
from attnlab.explain.causes.signatures import NAMED, Measured
from attnlab.explain.trials.setups import Setup
from attnlab.nn.exchanged import ATTENTION


@final
@dataclass(frozen=True)
class Known:
    """Hold what is known of one variant before anything is removed."""

    setup: Setup  # as the person ran it, or shorter
    task: StudyTask  # its task
    examined: Sequence[Examined] = ()  # what the doctor said of its own modules
    measured: Measured = field(default_factory=dict)  # what the table of signatures reads, before training
    trained: Measured = field(default_factory=dict)  # the same of one run of it, after training
    as_meant: Mapping[str, Any] | None = None
    """What of the model is otherwise, its mixer given the layout in which it does not read the batch as time."""
    exchangeable: Exchangeable = field(default_factory=Exchangeable)
    """What can stand in the place of a whole model of a person's own, or of its parts."""

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

    def signature(self, name: str, *, trained: bool = True) -> str:
        """The evidence of a known effect, before training or else, if that counts, after it; empty where it is none."""
        one = NAMED[name]
        after = one.of(self.trained) if trained else ""
        return one.of(self.measured) or (f"after training {after}" if after else "")


def setups_of(known: Mapping[str, Known], names: Iterable[str]) -> dict[str, Setup]:
    """The set-ups of some variants."""
    return {name: known[name].setup for name in names}


def mended(situation: Known, mending: Mapping[str, Any], path: str | None = None) -> dict[str, Any]:
    """A person's own model or mixers, or those of one class, without a fault and what was removed before."""

    def without(spec: Any) -> dict[str, Any]:
        known = spec if isinstance(spec, Mapping) and spec.get("name") == "mended" else {"part": spec}
        return {**known, "name": "mended", "mending": {**known.get("mending", {}), **mending}}

    def of_mixer(mixer: Any) -> Any:
        own = own_mixer(mixer)
        return mixer if own is None or path not in (None, parse(own, "mixer")[0]) else without(mixer)

    if own_model(situation.model):
        return without(situation.model)
    mixers = situation.model["mixer"]
    return {"mixer": [of_mixer(one) for one in mixers] if isinstance(mixers, list) else of_mixer(mixers)}


def exchanged(situation: Known, kind: str, *, places: bool = True) -> dict[str, Any] | None:
    """A person's own model with known parts in the places of its own of one kind; None where it has none.

    Where order is invisible, what attends there tells `places`.
    """
    slots = situation.exchangeable.of(kind)
    if places and situation.signature("missing positions"):
        slots = {name: {**slot, "rotary": True} for name, slot in slots.items()}
    return {**mended(situation, {}), "slots": slots} if slots else None


def with_attention(situation: Known, *, places: bool = True) -> dict[str, Any] | None:
    """The lab's attention in the place of a person's own mixer, or of the attention within a person's own model.

    Where order is invisible to such a model, it tells `places`.
    """
    if own_model(situation.model):
        return exchanged(situation, ATTENTION, places=places)
    if not is_path(situation.mixer) or forecasts(situation.task):
        return None
    _, arguments = parse(situation.model["mixer"], "mixer")
    heads = next((arguments[key] for key in ("n_heads", "num_heads", "heads", "nhead") if key in arguments), 1)
    told = situation.said("positions") == "none" and situation.measured.get("order") == 1.0  # by the mixer itself
    return {"mixer": {"name": "attention", "n_heads": heads}, **({"positions": "learned"} if told else {})}
