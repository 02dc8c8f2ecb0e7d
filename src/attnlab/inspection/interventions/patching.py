"""Put activations of one input into the run of another, to see which of them carry the difference."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.inspection.capture import capture
from attnlab.inspection.interventions.changing import changing
from attnlab.inspection.interventions.places import Changed, Place, places

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]
"""What a model is called with: one tensor, positional arguments, or arguments by name."""


def activations(model: nn.Module, inputs: Inputs, where: str | Place | Sequence[str | Place]) -> dict[Place, Tensor]:
    """What a model computes at some places.

    Parameters
    ----------
    model : nn.Module
        Any module; it runs as it is, without gradients.
    inputs : Tensor, sequence or mapping
        One tensor, positional arguments, or arguments by name.
    where : str, Place, or sequence of them
        As `ablate` takes it.

    Returns
    -------
    dict of Place to Tensor
        The part of the value that the place names, all axes kept; of a place that is met several times, the last.

    Raises
    ------
    SpecError
        If the model has no such place.
    """
    wanted = places(where)
    with torch.no_grad(), recording(model, wanted) as values:
        call(model, inputs)
    return values


@contextlib.contextmanager
def recording(model: nn.Module, wanted: Sequence[Place]) -> Iterator[dict[Place, Tensor]]:
    """Keep what a model computes at some places while the context is open."""
    values: dict[Place, Tensor] = {}
    with changing(model, [_kept(place, values) for place in wanted]):
        yield values


def _kept(place: Place, values: dict[Place, Tensor]) -> Changed:
    def keep(value: Tensor) -> Tensor:
        values[place] = value.detach().clone()
        return value

    return place, keep


def patch(model: nn.Module, source: Inputs, target: Inputs, where: str | Place | Sequence[str | Place]) -> Any:
    """What a model returns for one input with activations of another in their places.

    Parameters
    ----------
    model : nn.Module
        Any module.
    source : Tensor, sequence or mapping
        The input whose activations are taken: one tensor, positional arguments, or arguments by name.
    target : Tensor, sequence or mapping
        The input that the model runs on.
    where : str, Place, or sequence of them
        Whose activations, as `ablate` takes it; `Place` can name ``q``, ``k``, ``v`` and ``scores`` too.

    Returns
    -------
    Any
        What the model returns.

    Raises
    ------
    SpecError
        If the model has no such place, or it has another shape in the two runs.

    References
    ----------
    .. [1] Vig et al., 2020, arXiv:2004.12265; Meng et al., 2022, arXiv:2202.05262, section 2.
    """
    found = activations(model, source, where)
    with changing(model, [_instead(place, value) for place, value in found.items()]):
        return call(model, target)


def patch_path(model: nn.Module, source: Inputs, target: Inputs, sender: str | Place, receiver: str | Place) -> Any:
    """What a model returns for one input if a head sends another what it sends for a second input, and nobody else.

    Parameters
    ----------
    model : nn.Module
        Any module whose attentions `capture` sees.
    source : Tensor, sequence or mapping
        The input for which the sender's activation is taken.
    target : Tensor, sequence or mapping
        The input that the model runs on; of the same shape.
    sender : str or Place
        A head, or whatever else stands before the receiver.
    receiver : str or Place
        What is to receive it: ``Place(module, "q", head)``, or ``"k"`` or ``"v"``, or what a module returns.

    Returns
    -------
    Any
        What the model returns.

    Raises
    ------
    SpecError
        As `patch`; or if the receiver can receive nothing: it is what an attention writes, which stays as it is, or the
        sender does not come before it.

    Notes
    -----
    Three runs: the sender's value for the source; the target with that value and all attention heads but the sender as
    they are for the target, which gives the receiver's value; the target with this value. What is no attention, such as
    feed-forward parts, passes the message on.

    References
    ----------
    .. [1] Wang et al., 2022, arXiv:2211.00593, section 3.1 and appendix B.
    """
    (start,), (end,) = places(sender), places(receiver)
    with torch.no_grad(), capture(model) as trace:
        call(model, target)
    _check_path(start, end, list(trace))
    as_they_are = activations(model, target, [Place(name, "head_outputs") for name in trace])
    message, received = activations(model, source, start), {}
    sent = [_instead(place, value) for place, value in (*as_they_are.items(), *message.items())]
    with torch.no_grad(), changing(model, [*sent, _kept(end, received)]):
        call(model, target)
    with changing(model, [_instead(place, value) for place, value in received.items()]):
        return call(model, target)


def _check_path(sender: Place, receiver: Place, attentions: Sequence[str]) -> None:
    """Check that something of the sender can reach the receiver, as far as the order of the attentions tells."""
    held = receiver.step == "head_outputs" or (receiver.step == "output" and receiver.module != sender.module)
    if held and receiver.module in attentions:
        raise SpecError(
            f"{receiver} receives nothing: what attentions write is held as it is but for the sender; name its q, k or "
            "v"
        )
    both = [place.module for place in (sender, receiver) if place.module in attentions]
    written = sender.step in ("head_outputs", "output") and receiver.step != "output"
    if len(both) == 2 and written and attentions.index(both[0]) >= attentions.index(both[1]):
        raise SpecError(f"{receiver} receives nothing of {sender}, which does not come before it")


def _instead(place: Place, value: Tensor) -> Changed:
    def put_in(there: Tensor) -> Tensor:
        if there.shape != value.shape:
            raise SpecError(
                f"{place} cannot be put in: it is {tuple(value.shape)} for the one input and {tuple(there.shape)} for "
                "the other"
            )
        return value

    return place, put_in


def call(model: nn.Module, inputs: Inputs) -> Any:
    """Call a model with what it is to be called with."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
