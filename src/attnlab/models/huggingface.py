"""A person's own attention in models of Hugging Face's transformers, through its attention interface."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnlab.core.build import Spec, describe_exception, is_ready
from attnlab.core.errors import ModuleError, SpecError
from attnlab.core.layouts import Keys, Queries
from attnlab.nn.attention import Attention
from attnlab.nn.axes.heads import repeat_heads

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From q, k, v per head, and where a query may attend, to the heads' outputs."""

_COUNT = itertools.count(1)  # of attentions that nobody named

UNKNOWN = ("softcap", "s_aux", "position_bias", "head_mask")
"""What some models give to attention beside q, k, v and the mask, and what would change their numbers."""


@final
class PlainAttend:
    """Attend as a layer of the lab does between its projections.

    Parameters
    ----------
    axes : mapping
        Arguments of the lab's `Attention`.
    """

    def __init__(self, axes: Mapping[str, Any]) -> None:
        self._axes = axes
        self._layers: dict[tuple[int, int], Attention] = {}

    def __call__(
        self,
        q: Queries,
        k: Keys,
        v: Float[Tensor, "batch heads k_len d_v"],
        allowed: Bool[Tensor, "*more q_len k_len"],
    ) -> Float[Tensor, "batch heads q_len d_v"]:
        """The weighted values."""
        layer = self._layer(q.shape[1], q.shape[-1])
        scores = layer.combiner.mix_scores(layer.scores(q, k))  # (batch, heads, q_len, k_len)
        return layer.combiner.mix_weights(layer.normalizer(scores, allowed)) @ v

    def _layer(self, n_heads: int, d_head: int) -> Attention:
        if (n_heads, d_head) not in self._layers:
            layer = Attention(n_heads * d_head, n_heads, **self._axes)
            for part in (layer.scores, layer.normalizer):
                _check_weightless(part)
            if layer.combiner.mixes_heads:
                _check_weightless(layer.combiner)
            self._layers[n_heads, d_head] = layer
        return self._layers[n_heads, d_head]


def as_huggingface(attention: Spec | Attend, *, name: str | None = None) -> str:
    """Let models of transformers attend by one's own attention, between their projections.

    Parameters
    ----------
    attention : callable, class or mapping
        What is called as ``attention(q, k, v, allowed)`` with q (batch, n_heads, q_len, d_head), k and v
        (batch, n_heads, k_len, d_head) and `allowed` (batch, 1, q_len, k_len), bool, True where a query may attend, and
        returns the heads' outputs (batch, n_heads, q_len, d_head). A class is built once, without arguments. A mapping
        has arguments of the lab's `Attention`: ``{"normalizers": "sparsemax"}``.
    name : str, optional
        What transformers is to call it; by default ``attnlab-1``, ``attnlab-2`` and so on. A name that is used again
        stands for the new attention, in models that have it already, too.

    Returns
    -------
    str
        The name, to be given as ``attn_implementation=name`` or to ``model.set_attn_implementation(name)``.

    Raises
    ------
    SpecError
        If transformers is not installed, or the attention has weights, which the model would neither train nor save.
    ModuleError
        When a model calls it: if it raises or returns another shape, or the model asks for something it is not told of.

    Notes
    -----
    Padding and causality are in `allowed`. A query of padding that may attend to nothing is shown all keys, so that a
    softmax has something to divide by, and its output is made zero; nothing real looks at it. Rotary positions are in q
    and k already. Keys and values that several heads share come once per head. Scaling of scores is the attention's own
    affair: for a model that divides by another number than ``sqrt(d_head)``, q is multiplied so that dividing by that
    root gives the model's scores. The model's dropout of weights is left out.

    Examples
    --------
    ``AutoModelForCausalLM.from_pretrained("gpt2", attn_implementation=attnlab.as_huggingface(MyAttention))``
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    except ImportError as error:
        raise SpecError(f"as_huggingface needs a newer transformers: pip install -U transformers ({error})") from error
    if isinstance(attention, str):
        raise SpecError(f"the attention must be a callable, a class or a mapping of axes; got '{attention}'")
    attend = PlainAttend(attention) if isinstance(attention, Mapping) else attention
    if inspect.isclass(attend):
        attend = attend()
    if is_ready(attend) and isinstance(attend, nn.Module):
        _check_weightless(attend)

    name = name or f"attnlab-{next(_COUNT)}"

    def forward(
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        *,
        scaling: float | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        if asked := [one for one in UNKNOWN if others.get(one) is not None]:
            raise ModuleError(
                f"{type(module).__name__} gives {', '.join(asked)} to its attention, which '{name}' is not told"
            )
        own = 1.0 if scaling is None else scaling * q.shape[-1] ** 0.5
        q = q if math.isclose(own, 1.0) else q * own
        return _called(attend, q, k, v, mask=mask, name=name).transpose(1, 2), None

    def _whole_mask(*sizes: Any, **options: Any) -> Tensor | None:
        options["allow_is_causal_skip"] = False
        return sdpa_mask(*sizes, **options)

    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, _whole_mask)
    return name


def _called(attend: Any, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, name: str) -> Tensor:
    """What the attention gives, of the right shape."""
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    mask = torch.ones(len(q), 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device) if mask is None else mask
    allowed = mask if mask.dtype == torch.bool else mask == 0
    empty = ~allowed.any(-1, keepdim=True)  # (batch, 1, q_len, 1)
    allowed = allowed | empty
    try:
        found = attend(q, k, v, allowed)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ModuleError(f"the attention '{name}' raised {describe_exception(error)}") from error
    wanted = (*q.shape[:-1], v.shape[-1])
    if not isinstance(found, Tensor) or found.shape != wanted:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ModuleError(f"the attention '{name}' must return the heads' outputs, {tuple(wanted)}; got {got}")
    return found.masked_fill(empty, 0.0)


def _check_weightless(part: nn.Module) -> None:
    if any(True for _ in part.parameters()):
        raise SpecError(
            f"{type(part).__name__} has weights, which a model of transformers would neither train nor save; make it "
            "weightless, or load the checkpoint here and give it as the mixer of a 'pretrained' model"
        )
