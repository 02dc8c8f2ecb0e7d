"""Follow single elements through a tape, from a later tensor to their places in an earlier one.

Layout operations (``view``, ``transpose``, ``expand``, slices) are done again on a table of places; operations that
work element by element leave a place where it is. What mixes elements (products, sums, convolutions) ends the trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor, nn

from attnlab.inspection.tape.contractions import Operand
from attnlab.inspection.tape.tape import Event, Tape

NOWHERE = -1
"""Place of an element that comes from another tensor, such as padding."""

LAYOUT = frozenset(
    {
        *("view", "_unsafe_view", "_reshape_alias", "reshape", "transpose", "t", "permute", "expand", "clone", "alias"),
        *("select", "slice", "unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "chunk", "detach", "roll"),
        *("flip", "index_select", "repeat", "diagonal", "unfold", "index", "cat", "stack", "constant_pad_nd"),
        *("contiguous", "movedim", "narrow", "gather", "take_along_dim", "repeat_interleave"),
        *("view_as_complex", "view_as_real"),
    }
)
"""Operations that move elements without changing them."""

MIXING = frozenset(
    {
        *("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "addbmm", "sum", "mean", "var", "std", "var_mean"),
        *(
            "amax",
            "amin",
            "max",
            "min",
            "logsumexp",
            "logcumsumexp",
            "prod",
            "norm",
            "linalg_vector_norm",
            "cumsum",
            "cumprod",
            "topk",
        ),
        *("convolution", "native_layer_norm", "native_group_norm", "_fused_rms_norm", "native_batch_norm", "sort"),
        *("_native_batch_norm_legit_no_training", "_native_batch_norm_legit", "cudnn_batch_norm", "embedding"),
        *("mkldnn_rnn_layer", "avg_pool2d", "max_pool2d_with_indices", "_adaptive_avg_pool2d", "argmax", "argmin"),
        *("scatter", "scatter_add", "index_put", "index_put_", "scatter_", "as_strided", "any", "all", "fft_fft"),
        *("masked_select", "nonzero", "cdist", "_cdist_forward", "index_add", "masked_scatter", "_cummax_helper"),
    }
)
"""Operations that make an element out of several others."""

NORMALIZERS = frozenset({"_softmax", "_safe_softmax", "_log_softmax"})
"""Operations that divide by a sum; their elements stay where they are."""


def stays(event: Event) -> bool:
    """Whether each element of an event's output stands where the element of its input stood."""
    if event.call in LAYOUT or event.call in MIXING or not event.inputs:
        return False
    try:
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in event.inputs))
    except RuntimeError:
        return False
    return shape == event.output.shape


def traceable(event: Event) -> bool:
    """Whether elements can be followed through an event."""
    return event.call in LAYOUT or stays(event)


def back_to(tape: Tape, operand: Operand, *, stop: set[int]) -> set[int]:
    """The events from which an input can be traced, the trace ending at `stop` and at whatever mixes."""
    found: set[int] = set()
    waiting = list(sources_of(tape, operand))
    while waiting:
        at = waiting.pop()
        if at in found:
            continue
        found.add(at)
        event = tape.events[at]
        if at not in stop and traceable(event):
            waiting += [index for number in range(len(event.inputs)) for index in sources_of(tape, (at, number))]
    return found


def sources_of(tape: Tape, operand: Operand) -> list[int]:
    """The events an input comes from: its parent, and what it was before it was written into."""
    event = tape.events[operand[0]]
    parent, origin = event.parents[operand[1]], event.step.origins[operand[1]]
    made = None if origin is None else origin[0]
    return [index for index in dict.fromkeys((parent, made)) if index is not None]


def places_in(tape: Tape, start: int, operand: Operand) -> Int[Tensor, " *shape"] | None:
    """Where in an event's output each element of a later input comes from."""
    end, number = operand
    output = tape.events[start].output
    known: dict[int, Tensor] = {start: torch.arange(output.numel()).view(output.shape)}
    between = tape.descendants(start) & tape.ancestors(end)
    for index in sorted(between):
        event = tape.events[index]
        given = [_known(tape, known, (index, place)) for place in range(len(event.inputs))]
        places = _passed(event, given) if any(places is not None for places in given) else None
        if places is not None and places.shape == event.output.shape:
            known[index] = places
    found = _known(tape, known, (end, number))
    return None if found is None or found.is_complex() else found


def _known(tape: Tape, known: dict[int, Tensor], operand: Operand) -> Tensor | None:
    """The places of one input, if the trace has reached it; the later event counts."""
    shape = tape.events[operand[0]].inputs[operand[1]].shape
    places = [known[index] for index in sources_of(tape, operand) if index in known and known[index].shape == shape]
    return places[0] if places else None


def _passed(event: Event, given: Sequence[Tensor | None]) -> Tensor | None:
    """The places after an event."""
    if event.call in LAYOUT:
        return _moved(event, given)
    if not stays(event):
        return None
    if event.call == "copy_" and given[1] is not None:
        return given[1].expand(event.output.shape)
    widest = max((places for places in given if places is not None), key=lambda places: places.numel())
    return widest.expand(event.output.shape)


def _moved(event: Event, given: Sequence[Tensor | None]) -> Tensor | None:
    """The places after a layout operation: it is done again on places."""
    if event.call == "constant_pad_nd" and given[0] is not None:
        return nn.functional.pad(given[0], event.arguments[0], value=NOWHERE)
    if event.call in ("view", "_unsafe_view", "_reshape_alias") and given[0] is not None:
        return given[0].reshape(event.output.shape)  # tables need not have the strides of what they stand for
    if event.call == "view_as_complex" and given[0] is not None:
        return torch.view_as_complex(given[0].double().contiguous())  # a table of pairs goes on as they do
    if event.call == "view_as_real" and given[0] is not None:
        return _unpaired(given[0])
    joined = event.call in ("cat", "stack")
    if given[0] is None and not joined:
        return None
    filled = [
        torch.full(value.shape, NOWHERE) if places is None and joined else value if places is None else places
        for places, value in zip(given, event.inputs, strict=True)
    ]
    return event.step.again(filled)[event.step.output]


def _unpaired(places: Tensor) -> Tensor:
    """The places of the two parts of complex numbers; where a trace started at these, both have one place."""
    if places.is_complex():
        return torch.view_as_real(places).long()
    return places[..., None].expand(*places.shape, 2)
