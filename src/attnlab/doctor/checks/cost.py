"""What a call costs: how time and memory grow with length, and how far it is from a fused attention of its sizes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnlab.core.machine import one_thread
from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding, FindingText
from attnlab.inspection.tape.attentions import TapedAttention, attentions

CHECK = "cost"
LONGEST = 512  # where the square of the length outweighs a width of 64
SHORTEST = 8  # of the lengths measured at
COUNTED_AT = (8, 16)  # lengths at which operations are counted: a loop over pairs of positions must not take long
REPEATS = 4  # the fastest counts: what disturbs only adds
BUDGET_S = 0.8  # for all timed calls
TOO_SHORT = 64  # up to this length what a call costs anyway hides what grows
GROWN = 5.0  # times as much time; of less, most is what a call costs anyway
STEP_BY_STEP = 0.5  # growth of the number of operations with length, as an exponent: a loop over positions has 1

TEXTS: Mapping[str, FindingText] = {
    "loop": FindingText(
        "warning",
        "it works position by position: the number of operations grows with length, and each waits for the last.",
        "compute all positions in one matrix product (or scan in parallel) where the method allows it",
        "Dao et al. 2022, arXiv:2205.14135; PyTorch documentation, scaled_dot_product_attention",
    ),
    "memory grows": FindingText(
        "info", "its largest tensor grows with about the power {memory:.1f} of the length, its time hardly."
    ),
    "time grows": FindingText(
        "info",
        "its time grows with about the power {time:.1f} of the length, its largest tensor with {memory:.1f}.",
    ),
}
"""What -> its text; braces are filled with what was measured."""


def check_cost(exam: Examination) -> Iterator[Finding]:
    """Yield how time and memory grow with length.

    Notes
    -----
    Exponents are slopes of logarithms: of time between the longest length and a quarter of it, of the largest tensor
    between the longest and half of it. The number of operations and the largest tensor do not depend on the machine.
    """
    longest = min(exam.convention.longest or LONGEST, LONGEST)
    lengths = [length for length in (longest // 8, longest // 4, longest // 2, longest) if length >= SHORTEST]
    if len(lengths) < 2 or not exam.convention.any_length:
        return
    module = exam.copy(dtype=torch.float32)
    counts = [_metered(exam, module, length).calls for length in COUNTED_AT]
    steps = any(isinstance(part, nn.RNNBase | nn.RNNCellBase) for part in module.modules())  # one each by nature
    if _exponent(COUNTED_AT, counts) > STEP_BY_STEP and not steps:
        evidence = f"{counts[0]} operations at length {COUNTED_AT[0]}, {counts[1]} at length {COUNTED_AT[1]}"
        yield TEXTS["loop"].finding(CHECK, evidence)
    with one_thread():  # several that wait for a busy core take many times as long, and at random
        seconds = dict(_timed(exam, module, lengths))
        factor = _factor(exam, *list(seconds.items())[-1])
    if len(seconds) > 1 and list(seconds)[-2] > TOO_SHORT:
        sizes = {length: _metered(exam, module, length).largest for length in list(seconds)[-2:]}
        yield _growth(seconds, sizes, factor)


# Operations and tensors


@final
class Meter(TorchDispatchMode):
    """Count the operations of a call and keep the size of the largest tensor that one of them makes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count one operation."""
        del types
        output = func(*args, **(kwargs or {}))
        self.calls += 1
        made = [each.untyped_storage().nbytes() for each in tree_leaves(output) if isinstance(each, Tensor)]
        self.largest = max(self.largest, *made, 0)
        return output


def _metered(exam: Examination, module: nn.Module, length: int) -> Meter:
    x = exam.inputs(batch=1, length=length, dtype=torch.float32)
    with Meter() as meter:
        exam.run(x, module=module)
    return meter


# Time


def _timed(exam: Examination, module: nn.Module, lengths: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Yield rising lengths, each with the seconds of the fastest call, while they fit into the budget."""
    end = time.thread_time() + BUDGET_S
    for length in lengths:
        x = exam.inputs(batch=1, length=length, dtype=torch.float32)
        seconds = _fastest(lambda x=x: exam.run(x, module=module))
        yield length, seconds
        growing = 4 * seconds * (REPEATS + 1)  # twice the length costs at most this, for what grows with its square
        if time.thread_time() + growing > end:
            return


def _fastest(call: Callable[[], Tensor]) -> float:
    """The seconds of the fastest of some calls, after one that does not count."""
    call()
    seconds = []
    for _ in range(REPEATS):
        before = time.thread_time()  # of this thread alone: other programs do not count
        call()
        seconds.append(time.thread_time() - before)
    return min(seconds)


def _factor(exam: Examination, length: int, seconds: float) -> float | None:
    """How many times slower a single attention layer is than projections and a fused attention of its sizes."""
    found = [each for each in attentions(exam.usual_tape, exam.convention) if each.normalizer == "softmax"]
    if exam.convention.kind != "layer" or len(found) != 1 or exam.convention.takes == "tokens":
        return None
    with torch.no_grad():
        return seconds / _fastest(_fused(exam, found[0], length))


def _fused(exam: Examination, attention: TapedAttention, length: int) -> Callable[[], Tensor]:
    """A call of a fused attention with projections, at the sizes of the one found."""
    heads, d_v = attention.head_outputs.shape[1], attention.head_outputs.shape[-1]
    d_head = attention.q.shape[-1] if attention.q is not None else d_v
    sizes = [heads * d_head, heads * d_head, heads * d_v]
    packed = nn.Linear(exam.convention.d_in, sum(sizes))
    out = nn.Linear(heads * d_v, exam.convention.d_out)
    x = exam.inputs(batch=1, length=length, dtype=torch.float32)

    def call() -> Tensor:
        parts = packed(x).split(sizes, dim=-1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)  # (batch, heads, length, size)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(exam.convention.causal))
        return out(mixed.transpose(1, 2).flatten(2))  # (batch, length, d_out)

    return call


# How both grow


def _growth(seconds: Mapping[int, float], sizes: Mapping[int, int], factor: float | None) -> Finding:
    """By which power of the length a call grows; of time only where most of it is what grows."""
    lengths = list(seconds)
    judged = [length for length in lengths[-3:] if length > TOO_SHORT]
    words = {
        "time": _exponent(judged, [seconds[length] for length in judged]),
        "memory": _exponent(list(sizes), list(sizes.values())),
    }
    shortest, longest = lengths[0], lengths[-1]
    fast, slow, n_bytes = seconds[shortest], seconds[longest], sizes[longest]
    size = f"{n_bytes / 1024:.3g} KiB" if n_bytes < 1000 * 1024 else f"{n_bytes / 1024**2:.3g} MiB"
    fused = "" if factor is None else f" ({float(f'{factor:.2g}'):g} times scaled_dot_product_attention of its sizes)"
    evidence = (
        f"one sample, one thread, no gradients: {fast * 1e3:.3g} ms at length {shortest},"
        f" {slow * 1e3:.3g} ms at length {longest}{fused}; largest tensor {size} at length {longest}"
    )
    return TEXTS["memory grows" if slow < GROWN * fast else "time grows"].finding(CHECK, evidence, words)


def _exponent(lengths: Sequence[int], amounts: Sequence[int] | Sequence[float]) -> float:
    """By which power of the length an amount grows from the first to the last."""
    if min(amounts) <= 0:
        return 0.0
    return math.log(amounts[-1] / amounts[0]) / math.log(lengths[-1] / lengths[0])
