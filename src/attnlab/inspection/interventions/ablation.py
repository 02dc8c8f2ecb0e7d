"""Switch parts of a model off, to see what it loses without them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.core.sizes import require_known
from attnlab.inspection.interventions.changing import changing
from attnlab.inspection.interventions.patching import recording
from attnlab.inspection.interventions.places import Changed, Place, places

How = Literal["zero", "mean", "resample", "skip", "hide", "uniform", "permute"]


@contextlib.contextmanager
def ablate(
    model: nn.Module,
    where: str | Place | Sequence[str | Place],
    how: How = "zero",
    *,
    reference: Callable[[], Any] | None = None,
) -> Iterator[None]:
    """Switch parts of a model off while the context is open.

    Parameters
    ----------
    model : nn.Module
        Any module.
    where : str, Place, or sequence of them
        What is switched off, as `Place.parse` reads it: ``"stack.blocks.0.mixer"`` (what a module returns),
        ``"stack.blocks.0.mixer:2"`` (a head), ``"stack.blocks.0.mixer:2:5->3"`` (what query 5 takes from key 3),
        ``"stack.blocks.0@5"`` (what a module returns at position 5).
    how : {"zero", "mean", "resample", "skip", "hide", "uniform", "permute"}
        What stands in its place. "zero": nothing. "mean": its mean over samples and positions. "resample": what it is
        for the next sample of the batch. "skip", of modules: what they are given. "hide", of edges: nothing, and the
        other keys of the query share what it looks at, as if a mask hid this one. "uniform" and "permute", of all that
        queries look at (``NAME:*:*->*``): as much of every key that a query looks at at all; or its weights in another
        order among these keys, drawn at random, the same in every call.
    reference : callable, optional
        Calls the model on other inputs, from which "mean" and "resample" are taken; on each batch itself unless given.

    Raises
    ------
    SpecError
        If a place or a way is unknown, does not fit the other, or the model has no such place; where heads and
        positions are concerned, when the model is called.

    Notes
    -----
    A head is switched off behind its weighted values, before heads are joined. The mean is that of the batch at hand,
    or of the reference, padding included. See `changing` for what cannot be changed.

    References
    ----------
    .. [1] Michel et al., 2019, arXiv:1905.10650, section 2.3 (zero).
    .. [2] Chan et al., 2022, "Causal scrubbing" (resample); Geva et al., 2023, arXiv:2304.14767, section 3 (hide).
    .. [3] Jain, Wallace, 2019, arXiv:1902.10186, section 4.2.1 (permute).

    Examples
    --------
    >>> layer = nn.MultiheadAttention(4, 2, bias=False, batch_first=True)
    >>> x = torch.ones(1, 3, 4)
    >>> with ablate(layer, ["model:0", "model:1"]):
    ...     print(layer(x, x, x)[0].abs().max().item())
    0.0
    """
    require_known("how", how, get_args(How))
    wanted = places(where)
    for place in wanted:
        _check(place, how)
    if reference is None:
        values = {}
    else:
        with torch.no_grad(), recording(model, wanted) as values:
            reference()
    with contextlib.ExitStack() as stack:
        if how == "skip":
            for place in wanted:
                stack.enter_context(_skipped(model, place))
        else:
            stack.enter_context(changing(model, [_change(place, how, values.get(place)) for place in wanted]))
        yield


def _check(place: Place, how: How) -> None:
    if how == "skip" and (place.step != "output" or place.query is not None):
        raise SpecError(f"only a whole module can be skipped; got {place}")
    if how == "hide" and (place.step != "weights" or place.key is None):
        raise SpecError(f"only an edge to a key can be hidden; got {place}")
    if how in _REARRANGED and (place.step != "weights" or place.key is not None):
        raise SpecError(f"only all that queries look at can be changed by '{how}': NAME:*:*->*; got {place}")


def _change(place: Place, how: How, other: Tensor | None) -> Changed:
    if how == "hide" and place.key is not None:
        return Place(place.module, "weights", place.head, place.query), functools.partial(_hidden, key=place.key)
    if how == "zero":
        return place, torch.zeros_like
    if how in _REARRANGED:
        return place, _REARRANGED[how]
    return place, functools.partial(_mean if how == "mean" else _resampled, place=place, other=other)


def _hidden(weights: Tensor, *, key: int) -> Tensor:
    """Rows of weights without one key, the others as large as all were."""
    if not -weights.shape[-1] <= key < weights.shape[-1]:
        raise SpecError(f"there is no key {key}, only {weights.shape[-1]}, counted from 0")
    left = weights.clone()
    left[..., key] = 0
    share = weights.sum(-1, keepdim=True) / left.sum(-1, keepdim=True)
    return left * torch.where(share.isfinite(), share, 0.0)


def _uniform(weights: Tensor) -> Tensor:
    looked_at = weights != 0
    share = weights.sum(-1, keepdim=True) / looked_at.sum(-1, keepdim=True).clamp(min=1)
    return looked_at * share


def _permuted(weights: Tensor) -> Tensor:
    looked_at = weights != 0
    generator = torch.Generator(weights.device).manual_seed(0)
    drawn = torch.rand(weights.shape, generator=generator, device=weights.device).masked_fill(~looked_at, 2.0)
    keys = torch.argsort(looked_at, dim=-1, descending=True, stable=True)  # those looked at first, as they stand
    return torch.zeros_like(weights).scatter(-1, keys, weights.gather(-1, drawn.argsort(dim=-1)))


_REARRANGED: dict[str, Callable[[Tensor], Tensor]] = {"uniform": _uniform, "permute": _permuted}


def _mean(value: Tensor, *, place: Place, other: Tensor | None) -> Tensor:
    """The mean over samples and positions; over samples alone of what is between two positions."""
    source = value if other is None else other
    axes = tuple(range(source.ndim - 1)) if place.step == "output" else (0, 2)
    axes = (0,) if place.step in ("scores", "weights") else axes
    return source.mean(axes, keepdim=True).expand_as(value)


def _resampled(value: Tensor, *, place: Place, other: Tensor | None) -> Tensor:
    if other is None:
        if len(value) < 2:
            raise SpecError(f"{place} cannot be taken from another sample: the batch has one; give a reference")
        return value.roll(1, 0)
    if other.shape != value.shape:
        raise SpecError(
            f"{place} cannot be taken from the reference: its shape there is {tuple(other.shape)}, here "
            f"{tuple(value.shape)}"
        )
    return other


@contextlib.contextmanager
def _skipped(model: nn.Module, place: Place) -> Iterator[None]:
    modules = {name or "model": module for name, module in model.named_modules()}
    given: list[Tensor] = []

    def keep(_module: nn.Module, positional: Any, named: Any) -> None:
        given[:] = [one for one in (*positional, *named.values()) if isinstance(one, Tensor)][:1]

    def instead(value: Tensor) -> Tensor:
        if not given or given[0].shape != value.shape:
            raise SpecError(f"{place} cannot be skipped: it returns another shape than it is given")
        return given[0]

    with contextlib.ExitStack() as stack:
        stack.enter_context(changing(model, [(place, instead)]))
        stack.callback(modules[place.module].register_forward_pre_hook(keep, with_kwargs=True).remove)
        yield
