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
from attnlab.nn.key_values import AbstractKeylessMixer
from attnlab.nn.recurrences import refuse_memory

SOFTMAX = frozenset({torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax})
RECTIFIERS = frozenset({torch.relu, F.relu, Tensor.relu, torch.relu_, Tensor.relu_})
_FUSED = F.scaled_dot_product_attention
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

    Raises
    ------
    SpecError
        If a factor is not a positive number.
    """

    def __init__(self, *, scores_times: float, masked: bool, swapped: bool, leak: float, fresh: bool) -> None:
        if not (math.isfinite(scores_times) and scores_times > 0):
            raise SpecError(f"scores_times must be a positive number; got {scores_times!r}")
        if not 0 <= leak < 1:
            raise SpecError(f"leak must be in [0, 1); got {leak!r}")
        self.scores_times, self.masked, self.swapped = scores_times, masked, swapped
        self.leak, self.fresh = leak, fresh

    def start(self, module: nn.Module) -> nn.Module:
        """A module that starts without the fault."""
        if self.fresh:
            for layer in module.modules():
                draw = getattr(layer, "reset_parameters", None)
                if draw is not None and type(layer).__module__.startswith("torch."):
                    draw()
        return module

    def call(self, module: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """What a module gives without the fault."""
        with ChangedCalls(self._scores, self._rectified if self.leak else None):
            if self.swapped:
                return module(*(x.transpose(0, 1) for x in inputs)).transpose(0, 1)
            return module(*inputs)

    def _scores(self, scores: Tensor) -> Tensor:
        """Scores as they should have been."""
        if scores.ndim < 2 or scores.shape[-1] != scores.shape[-2]:
            return scores
        scores = scores * self.scores_times
        return scores.masked_fill(later(scores), float("-inf")) if self.masked else scores

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
    scores_times, masked, swapped, leak, fresh
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
        causal: bool = False,
        max_length: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        from attnlab.nn.mixers import build_mixer

        super().__init__()
        self.mending = Mending(scores_times=scores_times, masked=masked, swapped=swapped, leak=leak, fresh=fresh)
        offered = {"d_model": d_model, "causal": causal, "dropout": dropout}
        offered |= {} if max_length is None else {"max_length": max_length}
        self.part = self.mending.start(build_mixer(part, offered))

    @torch.compiler.disable
    def forward(self, x: Activations, memory: Memory | None = None, padding: Real | None = None) -> Activations:
        """What the mixer gives without the fault."""
        refuse_memory(memory, "mended")
        return self.mending.call(self.part if self.mending.swapped else partial(self.part, padding=padding), x)

    def extra_repr(self) -> str:
        """What is changed, for printing."""
        return repr(self.mending)


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
    """

    def __init__(self, scores: Callable[[Tensor], Tensor], rectified: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self._scores, self._rectified = scores, rectified

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch with what it should have been given."""
        given = dict(kwargs or {})
        if func in WITH_INNER_CALLS:
            with _in_place_of("softmax", self._softmax), _in_place_of("scaled_dot_product_attention", self._fused):
                return func(*args, **given)
        if func in SOFTMAX:
            x = args or (given.pop("input"),)
            return self._softmax(*x, **given)
        if func is F.scaled_dot_product_attention:
            return self._fused(*args, **given)
        if func in RECTIFIERS and self._rectified:
            return self._rectified(args[0] if args else given["input"])
        return func(*args, **given)

    def _softmax(self, x: Tensor, dim: int | None = None, *rest: Any, **named: Any) -> Tensor:
        """Softmax, of changed scores where it is over the last axis."""
        if dim is None:  # which axis that is depends on the number of axes: left as it is
            return F.softmax(x, dim, *rest, **named)
        dtype = next((one for one in rest if isinstance(one, torch.dtype)), named.get("dtype"))
        return torch.softmax(self._scores(x) if dim in (-1, x.ndim - 1) else x, dim, dtype=dtype)

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
        return torch.dropout(weights, dropped, train=True) @ value if dropped else weights @ value


@contextlib.contextmanager
def _in_place_of(name: str, function: Callable[..., Tensor]) -> Iterator[None]:
    """Let functions of `torch.nn.functional` call another function by a name of theirs."""
    original = getattr(F, name)
    setattr(F, name, function)
    try:
        yield
    finally:
        setattr(F, name, original)
