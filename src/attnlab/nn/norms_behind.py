"""Norms that a model of a person's own has behind its parts, found by what they are given, and put before them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.exact import InFloat64

NORM_CLASSES = (nn.LayerNorm, nn.RMSNorm)


def norms_behind(model: nn.Module, inputs: Sequence[Tensor], own: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The parts of a model behind which a norm stands, each with the norm: it is given the part's input and output.

    Parameters
    ----------
    model : nn.Module
        Any model; a copy of it is called.
    inputs : sequence of Tensor
        What it reads.
    own : sequence of str
        Names of its parts that are norms of a person's own.

    Returns
    -------
    list of (str, str)
        Names of a part and its norm, in the order in which they are called. Layers of torch, which say where their
        norms stand, are left out.
    """
    exact = copy.deepcopy(model).double().eval()
    found: list[tuple[str, str]] = []
    sums: list[tuple[str, Tensor]] = []  # of the input and the output of every part that was called
    normed: list[tuple[str, Tensor]] = []  # what every norm was given

    def same(one: Tensor, other: Tensor) -> bool:
        return one.shape == other.shape and torch.allclose(one, other)

    def note(name: str, part: nn.Module, given: tuple[Any, ...], returned: Any) -> None:
        x, y = (next(iter(one), None) if isinstance(one, tuple) else one for one in (given, returned))
        if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape == y.shape and x.is_floating_point()):
            return
        if name in own or isinstance(part, NORM_CLASSES):
            before = next((one for one, total in sums if same(total, x)), None)
            found.extend([] if before is None else [(before, name)])
            normed.append((name, x))
        elif not any(one.startswith(f"{name}.") and same(given, x) for one, given in normed):  # its norm is before it
            sums.append((name, x + y))

    for name, part in exact.named_modules():
        if name and not _within_torchs_layer(exact, name):
            part.register_forward_hook(lambda part, given, returned, name=name: note(name, part, given, returned))
    with torch.no_grad(), InFloat64():
        exact(*(x.double() if x.is_floating_point() else x for x in inputs))
    return list(dict.fromkeys(found))


def put_norms_first(model: nn.Module, pairs: Sequence[Sequence[str]]) -> None:
    """Let norms act on what their parts are given; the last one acts behind its part as well, as a last norm.

    Parameters
    ----------
    model : nn.Module
        A model.
    pairs : sequence of (str, str)
        As `norms_behind` finds them.
    """
    for number, (part, norm) in enumerate(pairs, 1):
        one = model.get_submodule(norm)
        model.get_submodule(part).register_forward_pre_hook(_Normed(one))
        if number < len(pairs):
            one.register_forward_hook(_as_given)


def _as_given(_: nn.Module, given: tuple[Any, ...], __: Any) -> Any:
    return given[0]


@final
class _Normed:
    """Give a part its first argument, wherever it is given that, as a norm makes it."""

    def __init__(self, norm: nn.Module) -> None:
        self._norm = [norm]  # in a list it is no part of what holds the hook

    def __call__(self, _: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x = self._norm[0].forward(given[0])
        return tuple(x if one is given[0] else one for one in given)


def _within_torchs_layer(model: nn.Module, name: str) -> bool:
    """Whether a part is a layer of torch that says where its norms stand, or stands in one."""
    names = ["", *(name.rsplit(".", up)[0] for up in range(name.count(".") + 1))]
    return any(hasattr(model.get_submodule(one), "norm_first") for one in names)
