"""What a second sequence is: a memory of its own for a decoder, the input itself for bare cross-attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from attnlab.strangers.calling.masks_learned import with_masks
from attnlab.strangers.calling.roles import Parameter, seems_over_pairs
from attnlab.strangers.calling.seeing import sight_of
from attnlab.strangers.calling.sources import MEMORY_LENGTH, Argument
from attnlab.strangers.calling.trial import Trial
from attnlab.strangers.usage import Usage

_SWAPPED = {"x": "memory", "memory": "x"}
_SWAPPED_TOKENS = {"x": "memory tokens", "memory tokens": "x"}


def with_memory(trial: Trial, usage: Usage) -> Usage:
    """The usage in which the input is its own memory, where the module mixes nothing but the memory."""
    if not any(one.source == "memory" for one in usage.arguments) or sight_of(trial, usage) != "itself":
        return usage
    arguments = tuple(replace(one, source="x") if one.source == "memory" else one for one in usage.arguments)
    itself = replace(usage, arguments=arguments)
    return itself if trial.runs(itself) else usage


def is_its_own_memory(usage: Usage, parameters: Sequence[Parameter]) -> bool:
    """Whether the input is given as the memory too, by the names of what is given."""
    memories = {one.name for one in parameters if one.role == "memory"}
    return any(one.parameter in memories and one.source == "x" for one in usage.arguments)


def of_own_memory(parameters: Sequence[Parameter]) -> Iterator[Parameter]:
    """The parameters with masks over the memory as masks over the input, for an input that is its own memory."""
    for one in parameters:
        yield replace(one, role="mask" if seems_over_pairs(one.name) else "key mask") if _of_memory(one) else one


def _of_memory(one: Parameter) -> bool:
    return one.role == "memory mask"


def over_memory(trial: Trial, usage: Usage, parameters: Sequence[Parameter]) -> Usage | None:
    """How the module is called with the memory as its input, beside a fixed sequence that asks."""
    swapped = _SWAPPED if usage.takes == "embeddings" else _SWAPPED_TOKENS
    sources = {one.source for one in usage.arguments}
    if not sources >= set(swapped) or not any(map(_of_memory, parameters)):
        return None
    given = tuple(replace(one, source=swapped.get(one.source, one.source)) for one in usage.arguments)
    needed = {mask.parameter for mask in usage.masks if mask.required}
    view = replace(
        usage,
        arguments=(*given, *(Argument(name, "constant") for name in sorted(needed))),
        masks=(),
        pooled=True,
        slots=MEMORY_LENGTH,
        d_out=MEMORY_LENGTH * usage.d_out,
        causal=False,
        causal_by="",
        causal_means="nothing",
    )
    masks = [replace(one, role="key mask") for one in parameters if _of_memory(one)]
    learned = with_masks(trial, view, masks) if trial.runs(view) else view
    return learned if learned.key_mask is not None else None
