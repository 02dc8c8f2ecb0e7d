"""A module with one fault removed, unchanged otherwise: what the fault alone is worth is the difference.

Its own code runs. What it passes to softmax, to fused attention and to rectifiers is changed on the way.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from attnlab.core.build import Spec
from attnlab.core.errors import SpecError, nearest
from attnlab.core.layouts import Activations, Memory, Real
from attnlab.nn.changed_calls import ChangedCalls, LastBounded, are_products, later
from attnlab.nn.init import bring_to_usual
from attnlab.nn.key_values import AbstractKeylessMixer
from attnlab.nn.norms_behind import put_norms_first
from attnlab.nn.recurrences import refuse_memory

HIDDEN = -1e4
"""Scores from which down a position counts as hidden."""
_PLAIN = list | tuple | dict
_PLUMBING = frozenset(vars(nn.Module()))  # `_parameters`, `_modules`, hooks: what every module has


@final
@dataclass(frozen=True)
class Mending:
    """Hold what is removed from a module, and call it so.

    Parameters
    ----------
    scores_times : float
        What scores are multiplied by before their softmax.
    masked : bool
        Whether scores of later positions are masked before their softmax, whatever the module masks itself.
    swapped : bool
        Whether the module is given ``(length, batch, ...)``: it reads the first axis as time.
    swapped_in : str
        Class of the parts that alone are given ``(length, batch, ...)``, whatever the module gives them.
    leak : float
        Slope of rectifiers below zero; 0 leaves them as they are.
    fresh : bool
        Whether layers of torch are drawn as torch draws them, whatever the module drew or set.
    usual_start : sequence of str
        Names of weights that start at the usual size of matrices, where the module lets them start far above it.
    over_keys : bool
        Whether the softmax of scores is over their last axis, whatever axis the module names.
    quiet : bool
        Whether dropout acts in training alone, whatever the module says.
    dropless : bool
        Whether nothing is dropped, in training either.
    settled : bool
        Whether it computes in training what it computes in evaluation; batch norms are left as they are.
    thawed : bool
        Whether every weight is trained: none is frozen or kept in a plain list, and gradients are cut off nowhere.
    kept : bool
        Whether weights are put back as they were where a call changes them (whole models).
    skips : bool
        Whether the input of every layer (`layers_of`) is added to its output.
    adds_times : float
        What every layer (`layers_of`) adds to its input is multiplied by.
    chained : bool
        Whether every layer but the first is given what the one before it gave, whatever the module gives it.
    levels : bool
        Whether what inputs hold, and have held on average, is added to the answers by a trained map (whole models).
    positions : bool
        Whether sines and cosines of positions are added where the input is taken in.
    logarithm : bool
        Whether the logarithm of its answers is given, which are probabilities.
    answers_times : float
        What its answers are multiplied by.
    unbounded : bool
        Whether its answers are given as they are before a function that does not give every number, if that comes last.
    earlier : int
        How many positions earlier every input is given; the first ones are left out.
    over_channels : bool
        Whether layer norms of (batch, channels, length) are over the channels, where they are over all positions.
    entry_times : float
        What the input is multiplied by as soon as it is embedded or mapped.
    norm_first : bool
        Whether in layers of torch, which may have them behind, norms stand before what they are for.
    norms_first : sequence of (str, str)
        Names of other parts, and of the norms behind them that are to stand before them (`norms_behind`).

    Raises
    ------
    SpecError
        If a factor is not a positive number, or the slope not below 1.
    """

    scores_times: float = 1.0
    masked: bool = False
    swapped: bool = False
    swapped_in: str = ""
    leak: float = 0.0
    fresh: bool = False
    usual_start: Sequence[str] = ()
    over_keys: bool = False
    quiet: bool = False
    dropless: bool = False
    settled: bool = False
    thawed: bool = False
    kept: bool = False
    skips: bool = False
    adds_times: float = 1.0
    chained: bool = False
    levels: bool = False
    positions: bool = False
    logarithm: bool = False
    answers_times: float = 1.0
    unbounded: bool = False
    earlier: int = 0
    over_channels: bool = False
    entry_times: float = 1.0
    norm_first: bool = False
    norms_first: Sequence[Sequence[str]] = ()

    def __post_init__(self) -> None:
        for name in ("scores_times", "entry_times", "answers_times", "adds_times"):
            factor = getattr(self, name)
            if not (math.isfinite(factor) and factor > 0):
                raise SpecError(f"{name} must be a positive number; got {factor!r}")
        if not (isinstance(self.earlier, int) and self.earlier >= 0):
            raise SpecError(f"earlier must be a whole number of positions; got {self.earlier!r}")
        if not 0 <= self.leak < 1:
            raise SpecError(f"leak must be in [0, 1); got {self.leak!r}")

    @classmethod
    def of(cls, said: Mapping[str, Any] | None) -> Mending:
        """What a specification says is removed."""
        names = [one.name for one in fields(cls)]
        unknown = [name for name in said or {} if name not in names]
        if unknown:
            raise SpecError(f"unknown mending '{unknown[0]}'; {nearest(unknown[0], names)}")
        return cls(**said or {})

    def start(self, module: nn.Module) -> nn.Module:
        """A module that starts without the fault."""
        if self.fresh:
            for layer in module.modules():
                draw = getattr(layer, "reset_parameters", None)
                if draw is not None and type(layer).__module__.startswith("torch."):
                    draw()
        bring_to_usual(module, self.usual_start)
        if self.thawed:
            register_parts(module)
            module.requires_grad_(True)
        for layer in layers_with_norm_behind(module) if self.norm_first else ():
            layer.norm_first = True  # pyrefly: ignore
        put_norms_first(module, self.norms_first)
        for part in (one for one in module.modules() if type(one).__name__ == self.swapped_in):
            part.register_forward_pre_hook(_given_swapped, with_kwargs=True)
            part.register_forward_hook(lambda _, __, output: tree_map(_swapped, output))
        if self.chained:
            _chain(layers_of(module))
        for layer in layers_of(module) if self.skips else ():
            layer.register_forward_hook(partial(_first_changed, torch.add))
        for layer in layers_of(module) if self.adds_times != 1 else ():
            layer.register_forward_hook(partial(_first_changed, partial(torch.lerp, weight=self.adds_times)))
        return module

    def settle(self, module: nn.Module) -> None:
        """Put a module that was put in training back, where it computes there what it computes in evaluation."""
        for part in module.modules() if self.settled else ():
            part.training &= isinstance(part, nn.modules.batchnorm._BatchNorm)

    def call(self, module: Callable[..., Tensor], *inputs: Tensor, training: bool = True) -> Tensor:
        """What a module gives without the fault; torch's compiler leaves it alone."""
        # not a decorator: it would import the compiler (over a second) wherever mixers are imported
        return torch.compiler.disable(self._call)(module, *inputs, training=training)

    def _call(self, module: Callable[..., Tensor], *inputs: Tensor, training: bool) -> Tensor:
        if self.earlier:
            inputs = (*inputs[:-1], torch.cat((inputs[-1][:, self.earlier :], inputs[-1][:, -self.earlier :]), dim=1))
        inputs = tuple(x.transpose(0, 1) for x in inputs) if self.swapped else inputs
        changes = ChangedCalls(
            self._scores,
            self._rectified if self.leak else None,
            over_keys=self.over_keys,
            over_channels=self.over_channels,
            dropping=not self.dropless and (training or not self.quiet),
            given=inputs[0],
            entry_times=self.entry_times,
            positions=self.positions,
            attached=self.thawed and torch.is_grad_enabled(),
            following=self.scores_times != 1,
        )
        last = LastBounded() if self.unbounded else None
        weights = list(module.parameters()) if self.kept and isinstance(module, nn.Module) else []
        before = [weight.detach().clone() for weight in weights]
        with changes, last or contextlib.nullcontext():
            output = module(*inputs)
        for weight, old in zip(weights, before, strict=True):
            weight.data = old  # gradients are still those of what was computed with
        output = last.before(output) if last else output
        if self.answers_times != 1:
            output = self.answers_times * output
        if self.logarithm:
            output = output.clamp_min(torch.finfo(output.dtype).tiny).log()
        return output.transpose(0, 1) if self.swapped else output

    def _scores(self, scores: Tensor) -> Tensor:
        """Scores as they should have been."""
        square = scores.ndim >= 2 and scores.shape[-1] == scores.shape[-2]
        if self.scores_times != 1 and (square or are_products(scores)):
            scores = scores * self.scores_times
        if not (self.masked and square):
            return scores
        hidden = scores.masked_fill(later(scores), float("-inf"))
        nothing = (hidden <= HIDDEN).all(-1, keepdim=True)  # where the module itself hides all but later positions
        return torch.where(nothing, torch.zeros_like(scores).masked_fill(later(scores), float("-inf")), hidden)

    def _rectified(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.leak)

    def __str__(self) -> str:
        """What is changed, for printing."""
        said = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        return ", ".join(f"{name}={value}" for name, value, default in said if value != default)


@final
class MendedMixer(AbstractKeylessMixer):
    """Call another mixer with a fault removed.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    part : Spec
        The mixer; entry of `MIXERS` or ``path.py:Class``.
    mending : mapping, optional
        What is removed: arguments of `Mending`.
    causal : bool
        Whether a position sees itself and earlier ones only.
    max_length : int, optional
        Longest sequence it meets.
    dropout : float
        Offered to the mixer.

    Raises
    ------
    SpecError
        If the mixer cannot be built, or there is no such mending.

    Notes
    -----
    Scores are what is normalized over its last axis and has two equal last axes, or was multiplied of two things that
    the mixer computed. A mixer that normalizes by code of its own (an exponential over its sum) is not reached.
    """

    same_draws_as = "part"

    def __init__(
        self,
        d_model: int,
        part: Spec = "position-wise",
        *,
        mending: Mapping[str, Any] | None = None,
        causal: bool = False,
        max_length: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        from attnlab.nn.mixers import build_mixer

        super().__init__()
        self.mending = Mending.of(mending)
        offered = {"d_model": d_model, "causal": causal, "dropout": dropout}
        offered |= {} if max_length is None else {"max_length": max_length}
        self.part = self.mending.start(build_mixer(part, offered))

    def train(self, mode: bool = True) -> Self:
        """Put it in training or evaluation; what is settled stays as it is in evaluation."""
        super().train(mode)
        self.mending.settle(self.part)
        return self

    def forward(self, x: Activations, memory: Memory | None = None, padding: Real | None = None) -> Activations:
        """What the mixer gives without the fault."""
        refuse_memory(memory, "mended")
        part = self.part if self.mending.swapped else partial(self.part, padding=padding)
        return self.mending.call(part, x, training=self.training)

    def extra_repr(self) -> str:
        """What is changed, for printing."""
        return str(self.mending)


def _given_swapped(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    """What a part is given, in the other layout."""
    return tree_map(_swapped, (given, named))


def _swapped(value: Any) -> Any:
    """Activations with their first two axes swapped; other values as they are."""
    is_activations = isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 2
    return value.transpose(0, 1) if is_activations else value


def register_parts(module: nn.Module) -> nn.Module:
    """Make modules that a module keeps in plain lists and dictionaries parts of it, which move and train with it."""
    waiting = [module]
    while waiting:
        part = waiting.pop()
        for name, value in list(vars(part).items()):
            inner = list(value.values() if isinstance(value, dict) else value) if isinstance(value, _PLAIN) else []
            if name in _PLUMBING or not inner or not all(isinstance(one, nn.Module) for one in inner):
                continue
            named = isinstance(value, dict) and all(isinstance(key, str) for key in value)
            delattr(part, name)
            setattr(part, name, nn.ModuleDict(value) if named else nn.ModuleList(inner))
        waiting += part.children()
    return module


def layers_with_norm_behind(module: nn.Module) -> list[nn.Module]:
    """The layers of torch within a module whose norms stand behind what they are for, as is torch's default."""
    return [layer for layer in module.modules() if getattr(layer, "norm_first", None) is False]


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a model: of its lists of one class the one with most weights, else the longest of any list."""
    lists = [list(part) for part in model.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    lists = [layers for layers in lists if len(layers) > 1]
    alike = [layers for layers in lists if len(set(map(type, layers))) == 1]
    if alike:
        return max(alike, key=lambda layers: sum(weight.numel() for one in layers for weight in one.parameters()))
    return max(lists, key=len, default=[])


def _chain(layers: Sequence[nn.Module]) -> None:
    """Give every layer but the first what the one before it gave."""
    given: list[Tensor] = []

    def take(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        fits = args and given and getattr(args[0], "shape", None) == given[-1].shape
        return (given[-1], *args[1:]) if fits else None

    def keep(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        given[:] = [output[0] if isinstance(output, tuple) else output]

    for number, layer in enumerate(layers):
        if number:
            layer.register_forward_pre_hook(take)
        layer.register_forward_hook(keep)


def _first_changed(
    change: Callable[[Tensor, Tensor], Tensor], _: nn.Module, given: tuple[Any, ...], output: Any
) -> Any:
    """What a layer gives, the first of it made of that and of the layer's input, where both have one shape."""
    first, *rest = output if isinstance(output, tuple) else (output,)
    if not given or getattr(given[0], "shape", None) != first.shape:
        return output
    changed = change(given[0], first)
    return (changed, *rest) if rest else changed
