"""A module with one fault removed, unchanged otherwise: what the fault alone is worth is the difference.

Its own code runs. What it passes to softmax, to fused attention and to rectifiers is changed on the way.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnlab.core.build import Spec
from attnlab.core.errors import SpecError
from attnlab.core.layouts import Activations, Memory, Real
from attnlab.nn.axes.positions import sinusoids
from attnlab.nn.key_values import AbstractKeylessMixer
from attnlab.nn.recurrences import refuse_memory

SOFTMAX = frozenset({torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax})
RECTIFIERS = frozenset({torch.relu, F.relu, Tensor.relu, torch.relu_, Tensor.relu_})
DROPOUTS = frozenset({F.dropout, torch.dropout})
ENTRIES = frozenset({F.embedding, F.linear})
"""Functions that take a model's input in."""
_FUSED = F.scaled_dot_product_attention
DETACHING = frozenset({Tensor.detach, torch.detach})
HIDDEN = -1e4
"""Scores from which down a position counts as hidden."""
_PLAIN = list | tuple | dict
_PLUMBING = frozenset(vars(nn.Module()))  # `_parameters`, `_modules`, hooks: what every module has
WITH_INNER_CALLS = (F.multi_head_attention_forward,)
"""Functions in Python whose calls within are what is changed."""


@final
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
    leak : float
        Slope of rectifiers below zero; 0 leaves them as they are.
    fresh : bool
        Whether layers of torch are drawn as torch draws them, whatever the module drew or set.
    over_keys : bool
        Whether the softmax of scores is over their last axis, whatever axis the module names.
    quiet : bool
        Whether dropout acts in training alone, whatever the module says.
    dropless : bool
        Whether nothing is dropped, in training either.
    thawed : bool
        Whether every weight is trained: none is frozen or kept in a plain list, and gradients are cut off nowhere.
    skips : bool
        Whether the input of every layer (`layers_of`) is added to its output.
    positions : bool
        Whether sines and cosines of positions are added where the input is taken in.
    logarithm : bool
        Whether the logarithm of its answers is given, which are probabilities.
    entry_times : float
        What the input is multiplied by as soon as it is embedded or mapped.

    Raises
    ------
    SpecError
        If a factor is not a positive number.
    """

    def __init__(
        self,
        *,
        scores_times: float,
        masked: bool,
        swapped: bool,
        leak: float,
        fresh: bool,
        over_keys: bool = False,
        quiet: bool = False,
        dropless: bool = False,
        thawed: bool = False,
        skips: bool = False,
        positions: bool = False,
        logarithm: bool = False,
        entry_times: float = 1.0,
    ) -> None:
        for name, factor in (("scores_times", scores_times), ("entry_times", entry_times)):
            if not (math.isfinite(factor) and factor > 0):
                raise SpecError(f"{name} must be a positive number; got {factor!r}")
        if not 0 <= leak < 1:
            raise SpecError(f"leak must be in [0, 1); got {leak!r}")
        self.scores_times, self.masked, self.swapped = scores_times, masked, swapped
        self.leak, self.fresh = leak, fresh
        self.over_keys, self.quiet, self.dropless, self.thawed = over_keys, quiet, dropless, thawed
        self.skips, self.positions, self.logarithm, self.entry_times = skips, positions, logarithm, entry_times

    def start(self, module: nn.Module) -> nn.Module:
        """A module that starts without the fault."""
        if self.fresh:
            for layer in module.modules():
                draw = getattr(layer, "reset_parameters", None)
                if draw is not None and type(layer).__module__.startswith("torch."):
                    draw()
        if self.thawed:
            register_parts(module)
            module.requires_grad_(True)
        for layer in layers_of(module) if self.skips else ():
            layer.register_forward_hook(_with_input)
        return module

    def call(self, module: Callable[..., Tensor], *inputs: Tensor, training: bool = True) -> Tensor:
        """What a module gives without the fault; torch's compiler leaves it alone."""
        # not a decorator: it would import the compiler (over a second) wherever mixers are imported
        return torch.compiler.disable(self._call)(module, *inputs, training=training)

    def _call(self, module: Callable[..., Tensor], *inputs: Tensor, training: bool) -> Tensor:
        inputs = tuple(x.transpose(0, 1) for x in inputs) if self.swapped else inputs
        changes = ChangedCalls(
            self._scores,
            self._rectified if self.leak else None,
            over_keys=self.over_keys,
            dropping=not self.dropless and (training or not self.quiet),
            given=inputs[0],
            entry_times=self.entry_times,
            positions=self.positions,
            attached=self.thawed and torch.is_grad_enabled(),
        )
        with changes:
            output = module(*inputs)
        if self.logarithm:
            output = output.clamp_min(torch.finfo(output.dtype).tiny).log()
        return output.transpose(0, 1) if self.swapped else output

    def _scores(self, scores: Tensor) -> Tensor:
        """Scores as they should have been."""
        if scores.ndim < 2 or scores.shape[-1] != scores.shape[-2]:
            return scores
        scores = scores * self.scores_times
        if not self.masked:
            return scores
        hidden = scores.masked_fill(later(scores), float("-inf"))
        nothing = (hidden <= HIDDEN).all(-1, keepdim=True)  # where the module itself hides all but later positions
        return torch.where(nothing, torch.zeros_like(scores).masked_fill(later(scores), float("-inf")), hidden)

    def _rectified(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.leak)

    def __repr__(self) -> str:
        """What is changed, for printing."""
        return ", ".join(f"{name}={value}" for name, value in vars(self).items())


@final
class MendedMixer(AbstractKeylessMixer):
    """Call another mixer with a fault removed.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    part : Spec
        The mixer; entry of `MIXERS` or ``path.py:Class``.
    scores_times, masked, swapped, leak, fresh, over_keys, quiet, dropless, thawed
        What is removed, as in `Mending`.
    causal : bool
        Whether a position sees itself and earlier ones only.
    max_length : int, optional
        Longest sequence it meets.
    dropout : float
        Offered to the mixer.

    Raises
    ------
    SpecError
        If the mixer cannot be built, or a factor is not a positive number.

    Notes
    -----
    Scores are what is normalized over its last axis and has two equal last axes. A mixer that normalizes by code of its
    own (an exponential over its sum) is not reached.
    """

    same_draws_as = "part"

    def __init__(
        self,
        d_model: int,
        part: Spec = "position-wise",
        *,
        scores_times: float = 1.0,
        masked: bool = False,
        swapped: bool = False,
        leak: float = 0.0,
        fresh: bool = False,
        over_keys: bool = False,
        quiet: bool = False,
        dropless: bool = False,
        thawed: bool = False,
        causal: bool = False,
        max_length: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        from attnlab.nn.mixers import build_mixer

        super().__init__()
        self.mending = Mending(
            scores_times=scores_times, masked=masked, swapped=swapped, leak=leak, fresh=fresh,
            over_keys=over_keys, quiet=quiet, dropless=dropless, thawed=thawed,
        )  # fmt: skip
        offered = {"d_model": d_model, "causal": causal, "dropout": dropout}
        offered |= {} if max_length is None else {"max_length": max_length}
        self.part = self.mending.start(build_mixer(part, offered))

    def forward(self, x: Activations, memory: Memory | None = None, padding: Real | None = None) -> Activations:
        """What the mixer gives without the fault."""
        refuse_memory(memory, "mended")
        part = self.part if self.mending.swapped else partial(self.part, padding=padding)
        return self.mending.call(part, x, training=self.training)

    def extra_repr(self) -> str:
        """What is changed, for printing."""
        return repr(self.mending)


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


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a model: of its lists of one class the one with most weights, else the longest of any list."""
    lists = [list(part) for part in model.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    lists = [layers for layers in lists if len(layers) > 1]
    alike = [layers for layers in lists if len(set(map(type, layers))) == 1]
    if alike:
        return max(alike, key=lambda layers: sum(weight.numel() for one in layers for weight in one.parameters()))
    return max(lists, key=len, default=[])


def _with_input(_: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
    """The output of a layer and its input, where both have one shape."""
    first, *rest = output if isinstance(output, tuple) else (output,)
    if not given or getattr(given[0], "shape", None) != first.shape:
        return output
    return (first + given[0], *rest) if rest else first + given[0]


def later(scores: Tensor) -> Tensor:
    """Where a key stands behind its query, as bool (length, length)."""
    length = scores.shape[-1]
    return torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)


@final
class ChangedCalls(TorchFunctionMode):
    """Change scores and what is rectified in every call of torch within.

    Parameters
    ----------
    scores : callable
        What is normalized over its last axis, to what is normalized instead.
    rectified : callable, optional
        What is rectified, to the result; None leaves rectifiers as they are.
    over_keys : bool
        Whether scores are normalized over their last axis, whatever axis is named.
    dropping : bool
        Whether dropout acts.
    given : Tensor, optional
        What the module was given.
    entry_times : float
        What it is multiplied by as soon as it is embedded or mapped.
    positions : bool
        Whether positions are added to it then.
    attached : bool
        Whether gradients pass where the code within cuts them off.
    """

    def __init__(
        self,
        scores: Callable[[Tensor], Tensor],
        rectified: Callable[[Tensor], Tensor] | None,
        *,
        over_keys: bool = False,
        dropping: bool = True,
        given: Tensor | None = None,
        entry_times: float = 1.0,
        positions: bool = False,
        attached: bool = False,
    ) -> None:
        super().__init__()
        self._entry_times, self._positions = entry_times, positions
        self._scores, self._rectified = scores, rectified
        self._over_keys, self._dropping, self._given, self._attached = over_keys, dropping, given, attached
        self.across = False  # whether scores were normalized over another axis than their last
        self.dropped = 0.0  # the largest share that was dropped at once

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch with what it should have been given."""
        given = dict(kwargs or {})
        if func in WITH_INNER_CALLS:
            changed = {"softmax": self._softmax, "scaled_dot_product_attention": self._fused, "dropout": self._dropout}
            with _in_place_of(changed):
                return func(*args, **given)
        if func in SOFTMAX:
            x = args or (given.pop("input"),)
            return self._softmax(*x, **given)
        if func is F.scaled_dot_product_attention:
            return self._fused(*args, **given)
        first: Any = args[0] if args else given.get("input")
        if func in RECTIFIERS and self._rectified:
            return self._rectified(first)
        if func in DROPOUTS:
            return self._dropout(*args, **given)
        result = self._result(func, first, args, given)
        return self._entered(result) if func in ENTRIES and first is self._given and result.ndim == 3 else result

    def _entered(self, x: Tensor) -> Tensor:
        """The input, embedded or mapped, as it should have been."""
        x = x if self._entry_times == 1 else x * self._entry_times
        return x + sinusoids(x.shape[1], x.shape[2], dtype=x.dtype, device=x.device) if self._positions else x

    def _result(self, func: Any, first: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
        """What a function gives, with its gradient where gradients are cut off nowhere."""
        if not self._attached:
            return func(*args, **given)
        if func in DETACHING:
            return first
        with torch.enable_grad():
            return func(*args, **given)

    def _softmax(self, x: Tensor, dim: int | None = None, *rest: Any, **named: Any) -> Tensor:
        """Softmax, of changed scores where it is over the last axis."""
        if dim is None:  # which axis that is depends on the number of axes: left as it is
            return F.softmax(x, dim, *rest, **named)
        dtype = next((one for one in rest if isinstance(one, torch.dtype)), named.get("dtype"))
        if dim not in (-1, x.ndim - 1) and x.ndim > 2 and x.shape[-1] == x.shape[-2]:
            self.across, dim = True, -1 if self._over_keys else dim
        return torch.softmax(self._scores(x) if dim in (-1, x.ndim - 1) else x, dim, dtype=dtype)

    def _dropout(self, input: Tensor, p: float = 0.5, *rest: Any, **named: Any) -> Tensor:  # noqa: A002 - torch's name
        """Dropout, where it acts."""
        acts = rest[0] if rest else named.get("training", named.get("train", True))
        if not acts:
            return input
        self.dropped = max(self.dropped, p)
        return self._result(torch.dropout, input, (input, p, True), {}) if self._dropping else input

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Tensor:
        """Fused attention with changed scores: in plain steps, which may be changed."""
        if query.shape[-2] != key.shape[-2]:  # looks at another sequence: nothing is known to be wrong
            return _FUSED(query, key, value, *rest, **named)
        given = dict(zip(("attn_mask", "dropout_p", "is_causal"), rest, strict=False)) | named
        if given.get("enable_gqa"):
            group = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
        scale, mask, dropped = given.get("scale"), given.get("attn_mask"), given.get("dropout_p", 0.0)
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if given.get("is_causal"):
            scores = scores.masked_fill(later(scores), float("-inf"))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        weights = torch.softmax(self._scores(scores), -1).nan_to_num(0.0)  # as torch has it, where nothing is allowed
        return self._dropout(weights, dropped) @ value if dropped else weights @ value


@contextlib.contextmanager
def _in_place_of(functions: Mapping[str, Callable[..., Tensor]]) -> Iterator[None]:
    """Let functions of `torch.nn.functional` call others by names of theirs."""
    originals = {name: getattr(F, name) for name in functions}
    vars(F).update(functions)
    try:
        yield
    finally:
        vars(F).update(originals)
