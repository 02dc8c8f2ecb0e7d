"""A person's own module in the place of a mixer, unchanged.

The calling convention is learned once, on a small instance on the CPU, and kept; the instance that is
trained is then built wherever the lab builds, the meta device included.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnlab.core.build import Order, Spec, opened, parse, path_of, prepare
from attnlab.core.constructors import glossary_word, is_required, signature_of
from attnlab.core.errors import ModuleError, SpecError
from attnlab.nn.key_values import AbstractKeylessMixer
from attnlab.strangers.calling.convention import Convention, Label, label_of, wrong_output
from attnlab.strangers.containment import quiet
from attnlab.strangers.patient import twin_of
from attnlab.strangers.trying.interview import learn

_LEARNED: dict[tuple[Any, ...], Convention] = {}
"""Conventions by file, time of its last change, arguments and place."""


class AbstractForeign(nn.Module):
    """Hold a person's own module, and copy it as deeply as it wants to be.

    Parameters
    ----------
    module : nn.Module
        The person's module; its weights are under ``module.`` in the state dict.
    name : str, optional
        What the person called it, for error texts; the name of its class if left out.
    """

    def __init__(self, module: nn.Module, *, name: str | None = None) -> None:
        super().__init__()
        self.module = module
        self.label = label_of(module, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        memo[id(self.module)] = twin_of(self.module)
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin


@final
class ForeignMixer(AbstractForeign, AbstractKeylessMixer):
    """Call a person's own module like every other mixer.

    Parameters
    ----------
    module : nn.Module
        The person's module; its weights are under ``module.`` in the state dict.
    convention : Convention
        How it wants to be called.
    name : str, optional
        What the person called it, for error texts; the name of its class if left out.

    Notes
    -----
    ``convention.notes`` says what a reader of results should know: that the module sees the future, that
    padding cannot be told to it, in which layout it was taken to read. Where padding is merged into a mask,
    a padded position sees itself, so that no row is left without anything to look at.
    """

    starts_itself = True

    def __init__(self, module: nn.Module, convention: Convention, *, name: str | None = None) -> None:
        super().__init__(module, name=name)
        self.convention = convention

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        memory: Float[Tensor, "batch k_len d_model"] | None = None,
        padding: Bool[Tensor, "batch k_len"] | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """The module's output in the lab's layout."""
        if memory is not None and not self.convention.takes_memory:
            raise ModuleError(
                f"{self.label.name}: forward takes one sequence, so it cannot look at another"
                " (hint: let it take q, k, v, or x and memory)"
            )
        told = padding if self.convention.key_mask is not None else None
        with where_tensors_are_made(x):
            returned = self.convention.returned(self.module, x, memory=memory, padding=told, label=self.label)
            output = self.convention.output_in(returned, x, label=self.label)
        if output.shape != x.shape:
            raise wrong_output(returned, x, self.convention, label=self.label)
        return output

    def extra_repr(self) -> str:
        """How the module is called, for printing."""
        return str(self.convention)


def where_tensors_are_made(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Let masks that a module makes itself, on the default device, be as weightless as its input on meta."""
    return torch.device("meta") if x.is_meta else contextlib.nullcontext()


def build_foreign(spec: Spec, offered: Mapping[str, Any]) -> ForeignMixer:
    """Build a mixer from a person's own class.

    Parameters
    ----------
    spec : str or mapping
        ``path.py:Class``, or a mapping with that as ``name`` and constructor arguments.
    offered : mapping
        What the place can give: ``d_model`` (required), ``n_heads``, ``dropout``, ``causal``, ``max_length``.

    Returns
    -------
    ForeignMixer
        On the current default device.

    Raises
    ------
    SpecError
        If the file, the class or an argument is missing or wrong.
    ModuleError
        If the class raises, returns another shape or NaN, or cannot be made causal by its own mask.

    Notes
    -----
    The class is built twice: once on the CPU to learn how to call it, which leaves the random state as it
    was, and once for use. The first is skipped for a class, file and arguments that were met before.
    """
    if not isinstance(offered.get("d_model"), int):
        raise SpecError(f"a mixer of your own needs d_model as an integer; got {offered.get('d_model')!r}")
    _refuse_model(spec)
    order = prepare(spec, {}, axis="mixer", offered=offered)
    convention = _learned(parse(spec, "mixer")[0], order, offered)
    return ForeignMixer(module_of(order), convention, name=order.where)


def _refuse_model(spec: Spec) -> None:
    """Say where a model goes, if a class asks for what a model alone is given."""
    name, factory, arguments = opened(spec, {}, "mixer")
    wanted = (one for one, parameter in signature_of(factory).items() if is_required(parameter))
    for one in wanted:
        if one not in arguments and glossary_word(one) == "vocab_size":
            raise SpecError(
                f"mixer '{name}': it asks for '{one}', a number of tokens, so it looks like a whole model; a model "
                f"is given as model (or as a variant): {{name: {name}}}"
            )


def _learned(name: str, order: Order, offered: Mapping[str, Any]) -> Convention:
    """The convention of a class, from memory where it was learned before."""
    key = key_of(name, order, [offered.get(size) for size in ("d_model", "causal", "max_length")])
    if key not in _LEARNED:
        with quiet():
            probe = module_of(order)
        _LEARNED[key] = learn(
            probe,
            d_model=offered["d_model"],
            causal=bool(offered.get("causal", False)),
            max_length=offered.get("max_length"),
            label=label_of(probe, order.where),
        )
    return _LEARNED[key]


def key_of(name: str, order: Order, place: Sequence[Any]) -> tuple[Any, ...]:
    """What tells a class in its place from any other, and from itself before its file was changed."""
    path = path_of(name)
    return name, str(path), path.stat().st_mtime_ns, repr(sorted(order.arguments.items())), repr(place)


def module_of(order: Order) -> nn.Module:
    """Call the constructor and insist on a module."""
    module = order.make()
    if not isinstance(module, nn.Module):
        raise ModuleError(f"{order.where}: it must be a torch.nn.Module; got {type(module).__name__}")
    return module


def adapt(
    module: nn.Module,
    *,
    d_model: int,
    causal: bool = False,
    max_length: int | None = None,
    name: str | None = None,
    convention: Convention | None = None,
) -> ForeignMixer:
    """Wrap a ready instance of a person's own module.

    Parameters
    ----------
    module : nn.Module
        The instance; it is used as it is, a copy of it on the CPU is called to learn how.
    d_model : int
        Width of what goes in and must come out.
    causal : bool
        Whether a position may see none after it.
    max_length : int, optional
        Longest sequence it will meet.
    name : str, optional
        What to call it in error texts; the name of its class if left out.
    convention : Convention, optional
        How to call it, where that is known; nothing is learned then.

    Returns
    -------
    ForeignMixer
        Around the instance itself.

    Raises
    ------
    ModuleError
        If it raises, returns another shape or NaN, lies on the meta device, or cannot be made causal by its own mask.
    """
    label = label_of(module, name)
    if convention is None:
        twin = _probe_of(module, label)
        convention = learn(twin, d_model=d_model, causal=causal, label=label, max_length=max_length)
    return ForeignMixer(module, convention, name=name)


def _probe_of(module: nn.Module, label: Label) -> nn.Module:
    """A copy of a module on the CPU."""
    if any(parameter.is_meta for parameter in module.parameters()):
        raise ModuleError(
            f"{label.name}: it lies on the meta device, where nothing can be learned by calling it"
            " (hint: build it on the CPU, or give the convention)"
        )
    return nn.Module.to(twin_of(module), "cpu")  # its own `to` may return nothing
