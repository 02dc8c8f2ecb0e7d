"""Change attention that a person wrote by hand: its operations are recorded, its steps found, and others put in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from attnlab.core.errors import ModuleError, SpecError
from attnlab.inspection.interventions.places import Changed, Function, Place
from attnlab.inspection.tape.attentions import TapedAttention, attentions
from attnlab.inspection.tape.contractions import Operand
from attnlab.inspection.tape.dependence import Dependence
from attnlab.inspection.tape.replacing import replacing
from attnlab.inspection.tape.tape import Inside, Tape, record, tensors_in
from attnlab.inspection.watch import open_recorders, unrecorded
from attnlab.strangers.calling.convention import Convention


@final
@dataclass(frozen=True)
class _Plan:
    """Hold where on the tape of a call the changed values are."""

    inputs: Mapping[Operand, Inside]  # what an operation is given instead
    outputs: Mapping[int, Inside]
    """What it is taken to have made instead."""
    calls: Mapping[int, str]  # names of these operations
    used: Mapping[str, Tensor]  # weights of the attentions that are changed, by name, in the last call


@contextlib.contextmanager
def changing_taped(model: nn.Module, changes: Sequence[Changed], begin: Callable[[], None]) -> Iterator[None]:
    """Change steps of attention that the model computes by hand, while the context is open.

    Parameters
    ----------
    model : nn.Module
        Any module, which is called as a whole.
    changes : sequence of (Place, callable)
        As `changing` takes them.
    begin : callable
        Called before each forward pass.
    """
    own = vars(model).get("forward")
    if isinstance(own, _Taped):  # one more context around the same model
        with own.also(changes):
            yield
        return
    model.forward = _Taped(model, changes, begin)
    try:
        yield
    finally:
        del model.forward
        if own is not None:
            model.forward = own


@final
class _Taped:
    """Stand in the place of a model's `forward`, and change what it computes."""

    def __init__(self, model: nn.Module, changes: Sequence[Changed], begin: Callable[[], None]) -> None:
        self.model = model
        self.forward = model.forward
        self.begin = begin
        self.changes = list(changes)
        self.plans: dict[Any, _Plan] = {}  # by the shapes of what the model is given, and whether gradients are wanted

    @contextlib.contextmanager
    def also(self, changes: Sequence[Changed]) -> Iterator[None]:
        """Make more changes while a context is open."""
        before = self.changes, self.plans
        self.changes, self.plans = [*self.changes, *changes], {}
        try:
            yield
        finally:
            self.changes, self.plans = before

    def __call__(self, *positional: Any, **named: Any) -> Any:
        given = tensors_in((positional, named))
        key = torch.is_grad_enabled(), *((one.shape, one.dtype) for one in given)
        if key not in self.plans:
            with unrecorded(), _disable_current_modes(), torch.random.fork_rng(devices=[]):
                tape = record(self.model, lambda: _first(self.forward(*positional, **named)))
            self.begin()
            self.plans[key] = _plan(tape, given, self.changes)
        plan = self.plans[key]
        watching = [(recorder, len(recorder.trace)) for recorder in open_recorders()]
        start = torch.get_rng_state()
        with replacing(plan.inputs, plan.outputs, plan.calls) as replaced:
            returned = self.forward(*positional, **named)
        if replaced.keeps:
            torch.set_rng_state(start)
            with unrecorded(), _disable_current_modes():
                returned = replaced.with_gradients(returned)
        for recorder, before in watching:
            recorder.correct(plan.used, since=before)
        return returned


def _first(returned: Any) -> Tensor:
    tensors = tensors_in(returned)
    if not tensors:
        raise ModuleError("the model returns no tensor, so that nothing of it can be followed")
    return tensors[0]


def attentions_by_name(tape: Tape, given: Sequence[Tensor]) -> dict[str, TapedAttention]:
    """The attentions of a recorded call by the names that `capture` gives them."""
    inputs = _sequences(given)
    if not inputs or tape.output.ndim == 0:
        return {}
    whole = not inputs[0].is_floating_point()
    convention = Convention(
        kind="model",
        takes="tokens" if whole else "embeddings",
        d_in=0 if whole else inputs[0].shape[-1],
        d_out=tape.output.shape[-1],
        length=inputs[0].shape[1],
    )
    tape.known["dependence"] = Dependence(tape, convention, inputs)
    found: dict[str, TapedAttention] = {}
    for one in attentions(tape, convention):
        name = one.where or "model"
        number = 1 + sum(known.partition("#")[0] == name for known in found)
        found[name if number == 1 else f"{name}#{number}"] = one
    return found


def _sequences(given: Sequence[Tensor]) -> list[Tensor]:
    """The inputs that are sequences of tokens, or of vectors where there are no tokens; masks are left out."""
    whole = [one for one in given if one.ndim == 2 and not one.is_floating_point() and one.dtype != torch.bool]
    tokens = [one for one in whole if one.max() > 1] or whole
    return tokens or [one for one in given if one.ndim >= 2 and one.is_floating_point()]


def _plan(tape: Tape, given: Sequence[Tensor], changes: Sequence[Changed]) -> _Plan:
    found = attentions_by_name(tape, given)
    inputs: dict[Operand, Inside] = {}
    outputs: dict[int, Inside] = {}
    used: dict[str, Tensor] = {}
    changed: dict[str, TapedAttention] = {}
    for place, function in changes:
        meant = {name: one for name, one in found.items() if place.module in (name, name.partition("#")[0])}
        if not meant:
            known = ", ".join(found) or "none that could be found"
            raise SpecError(f"'{place.module}' computes no attention; those of the model: {known}")
        changed |= meant
        for attention in meant.values():
            at, places = _where(attention, place)
            held: dict[Any, Inside] = outputs if isinstance(at, int) else inputs
            held[at] = _after(held.get(at), place, function, places)
    for name, attention in changed.items():
        at, places = attention.sources.weights, attention.sources.weight_places
        if at is not None and places is not None:
            inputs[at] = _noted(inputs.get(at), places, used, name)
    events = {at if isinstance(at, int) else at[0] for at in (*inputs, *outputs)}
    calls = {index: tape.events[index].step.operation._schema.name for index in events}
    return _Plan(inputs, outputs, calls, used)


def _where(attention: TapedAttention, place: Place) -> tuple[Operand | int, Int[Tensor, "batch heads rows columns"]]:
    """The operand or output that holds a step, and where in it its canonical elements lie."""
    sources, pairing = attention.sources, attention.sources.pairing
    if place.step == "head_outputs":
        return attention.outputs_index, attention.output_places
    held: Mapping[str, tuple[Operand | None, Tensor | None]] = {
        "weights": (sources.weights, sources.weight_places),
        "v": (sources.values, sources.value_places),
        "scores": (pairing.scores, pairing.score_places),
        "q": (pairing.queries, pairing.query_places),
        "k": (pairing.keys, pairing.key_places),
    }
    operand, places = held[place.step]
    if operand is None or places is None:
        raise SpecError(f"the {place.step} of '{place.module}' could not be followed; its head_outputs can be changed")
    return operand, places


def _noted(before: Inside | None, places: Tensor, used: dict[str, Tensor], name: str) -> Inside:
    """What notes the weights that an operation is given, after they were changed."""

    def noted(value: Tensor) -> Tensor:
        weights = value if before is None else before(value)
        used[name] = weights.flatten()[places]  # (batch, heads, q_len, k_len)
        return weights

    return noted


def _after(before: Inside | None, place: Place, function: Function, places: Tensor) -> Inside:
    """What changes the canonical elements at a place, after what was to be changed before."""
    index = place.index(places)

    def changed(value: Tensor) -> Tensor:
        flat = (value if before is None else before(value)).flatten()  # of a copy
        wanted = places[index]
        flat[wanted] = function(flat[wanted]).to(flat.dtype)
        return flat.view(value.shape)

    return changed
