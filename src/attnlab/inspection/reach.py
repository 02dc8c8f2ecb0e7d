"""Measure which inputs an output depends on: how far back, how far ahead, and across the batch."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.core.exact import InFloat64
from attnlab.inspection.drawing.pieces import drawn, facts
from attnlab.nn.mended import register_parts

SAMPLES = 4  # sequences tried at once, so that one dead unit or chance cancellation hides nothing
MOST_CUTS = 128  # places at which the sequence is cut in two; of a longer one both ends and as many between
MOST_CALLS = MOST_CUTS // SAMPLES + 32  # of the model, roughly: bisections take the rest
ENDS = 32  # cuts at either end, one after each position
TELLING = 3  # cuts that are first made in all sequences at once
LEAKS = 3  # outputs of which it is asked how far ahead they see
ROUNDING = {torch.float64: 2.0**-44, torch.float32: 2.0**-15, torch.float16: 2.0**-7, torch.bfloat16: 2.0**-5}
"""Of the largest output: what sums differ by when a module makes them in another order."""
MOST_BATCHES = TELLING + 3  # calls of the whole batch as it runs, beside one more for as many cuts as it has sequences
PLAIN = 2.0**20  # times as much: an influence that has not faded until it is hardly seen
PROBE_SEED = 0  # the same random numbers in every forward pass, so that only the input differs


def most_sequences(batch: int) -> int:
    """How many sequences, roughly, a causal model is called with to measure its reach on a batch of so many."""
    return MOST_CALLS * SAMPLES + MOST_BATCHES * batch + max(MOST_CUTS, batch)


@final
@dataclass(frozen=True)
class Reach:
    """State how much of its input a model's output depends on.

    Parameters
    ----------
    past : int
        Positions from the farthest one that still matters up to the output's own, both included;
        0 if neither that position nor an earlier one matters.
    future : int
        Distance to the farthest later position that matters to any output; 0 for a causal model.
    mixes_batch : bool
        Whether an output depends on other sequences of the batch.
    delay : int
        Distance from the output's own position back to the nearest one that matters; 0 where its own does, or none,
        or where that one's influence is hardly seen either: then it fades towards the own one.
    ahead : int
        Distance from that output's position to the farthest later one that matters to it.
    """

    past: int
    future: int
    mixes_batch: bool
    delay: int = 0
    ahead: int = 0

    def _repr_html_(self) -> str:
        """What was found, in words."""
        others = "depends on other sequences of its batch" if self.mixes_batch else "knows its own sequence alone"
        return drawn(
            "Reach",
            facts(
                {
                    "past": f"{self.past} positions, the output's own included",
                    **({"delay": f"what stood {self.delay} earlier is the last that it sees"} if self.delay else {}),
                    "future": f"{self.future} positions ahead" if self.future else "none: it is causal",
                    "batch": f"an output {others}",
                }
            ),
        ).html


def reach(model: nn.Module, inputs: Tensor | Sequence[Tensor], position: int = -1) -> Reach:
    """Measure the reach of a model with the weights it has.

    Parameters
    ----------
    model : nn.Module
        Called as ``model(*inputs)``, answers ``(batch, length, ...)``; or, once for a whole sequence,
        ``(batch, 1, ...)`` or ``(batch, features)``: the answer of the last position, which sees nothing ahead of
        it. It is copied to float64 (where it fails in that, to float32) and evaluation mode; the original is not
        touched.
    inputs : Tensor or sequence of Tensor
        One batch. The first tensor, ``(batch, length)`` tokens or ``(batch, length, features)``, is the
        one that gets changed.
    position : int, default -1
        Output position at which the past is measured. The future is measured at all positions.

    Returns
    -------
    Reach
        Past, future, and whether the batch is mixed.

    Raises
    ------
    ModuleError
        If the output is not ``(batch, length, ...)``, or `position` lies outside it.

    Notes
    -----
    All positions up to j (or from j on) are replaced at once and j is found by bisection. For the future the sequence
    is cut in two at every place (of more than 128 positions: at the 32 first and last, and at 64 between), all behind
    the cut is replaced, and no output before it may change: a mask that is off by one shows at one cut alone. Where
    sequences do not see each other, each of 4 is cut at another place in the same forward pass; that makes some 60.
    Compared are outputs of calls of equal shapes, up to 2^-44 of the largest (2^-15 in float32): a module that
    gathers positions before it multiplies them (experts that are chosen, sequences that are packed) sums in another
    order as soon as one goes elsewhere. What is clean in float64 on 4 sequences is called once more as it runs, in its
    own format on the whole batch: a fast path may see what the reference path beside it does not. An influence that
    has decayed below that, as in a recurrent network over a hundred steps, is not seen.
    """
    with torch.random.fork_rng(devices=[]):  # leave the caller's random numbers as they are
        given = (inputs,) if isinstance(inputs, Tensor) else inputs
        probe = _Probe(model, given)
        length = probe.original.shape[1]
        if not -length <= position < length:
            raise ModuleError(f"position must lie within the {length} positions of the input; got {position}")
        mixes_batch = probe.mixes_batch()
        past, future = probe.past(position % length), probe.future(one_by_one=mixes_batch)
        if not (mixes_batch or future):
            running = _Probe(model, given, as_it_runs=True)
            mixes_batch = running.mixes_batch()
            future = 0 if mixes_batch else running.future(one_by_one=False)
        delay = probe.delay(position % length) if past else 0
        return Reach(past, future, mixes_batch, delay, probe.ahead(position % length) if future else 0)


@final
class _Probe:
    """Run a copy of a model on changed inputs and compare with the unchanged ones.

    It runs in float64 where it can and on few sequences, or as it is.
    """

    def __init__(self, model: nn.Module, inputs: Sequence[Tensor], *, as_it_runs: bool = False) -> None:
        self.original: Shaped[Tensor, "batch length *features"]
        if as_it_runs:
            self._begin(model, inputs, None)
        else:
            try:
                self._begin(model, inputs, torch.float64)
            except RuntimeError:  # what it makes by itself stays in another format
                self._begin(model, inputs, torch.float32)
        first = self.original
        self.answers = self.baseline.shape[1] if self.baseline.ndim > 1 else 0
        known = self.baseline[self.baseline.isfinite()].abs()
        self.rounding = self._coarsest() * float(known.max()) if len(known) else 0.0
        batch, length = first.shape[:2]
        if self.baseline.shape[:2] not in {(batch, length), (batch, 1)}:
            raise ModuleError(
                f"the output must be (batch, length, ...) with {tuple(first.shape[:2])} in front to measure its "
                f"reach; got {tuple(self.baseline.shape)}"
            )

    def _begin(self, model: nn.Module, inputs: Sequence[Tensor], dtype: torch.dtype | None) -> None:
        """Call a copy of the model on unchanged inputs: in a format on few of them, or as it is on all."""
        self.dtype, self.model = dtype, register_parts(copy.deepcopy(model)).eval()
        some = [_at_least_two(tensor if dtype is None else tensor[:SAMPLES]) for tensor in inputs]
        if dtype is not None:
            self.model, some = self.model.to(dtype), [_in_format(tensor, dtype) for tensor in some]
        self.original, *self.rest = some
        self.changed = _changed(self.original)
        self.baseline = self._run(self.original)

    def _coarsest(self) -> float:
        """The rounding of the format that the copy runs in; as it is, of the coarsest of its own."""
        if self.dtype is not None:
            return ROUNDING[self.dtype]
        formats = {self.baseline.dtype, *(one.dtype for one in self.model.parameters())}
        return max(ROUNDING.get(one, ROUNDING[torch.float32]) for one in formats)

    def past(self, position: int) -> int:
        """The number of positions from the farthest past one that matters up to this one."""
        return position + 1 - _first_true(lambda j: self._matters(position, range(j + 1)), position + 1)

    def delay(self, position: int) -> int:
        """The distance from one position back to the nearest that matters to it; one does."""
        found = _first_true(lambda j: self._matters(position, range(position - j, position + 1)), position + 1)
        return found if found and self._matters(position, range(position - found, position + 1), PLAIN) else 0

    def future(self, *, one_by_one: bool) -> int:
        """The distance to the farthest later position that matters to any of the first outputs that see ahead."""
        if self.answers == 1:
            return 0
        cuts = self._cuts() if one_by_one else self._suspicious(list(self._cuts()))
        seeing = itertools.islice((one for cut in cuts for one in self._see_beyond(cut)), LEAKS)
        return max(map(self.ahead, seeing), default=0)

    def ahead(self, position: int) -> int:
        """The distance to the farthest later position that matters to one output."""
        length = self.original.shape[1]
        later = 0 if self.answers == 1 else length - 1 - position
        return later - _first_true(lambda j: self._matters(position, range(length - 1 - j, length)), later)

    def _cuts(self) -> Iterator[int]:
        """Yield where to cut the sequence: first where most is told, then everywhere, or at both ends and between."""
        length = self.original.shape[1]
        between = range(1, length)
        if length > MOST_CUTS:
            spread = range(ENDS, length - ENDS, max(1, length // (MOST_CUTS - 2 * ENDS)))
            between = [*range(1, ENDS), *spread, *range(length - ENDS, length)]
        yield from dict.fromkeys(cut for cut in (1, length // 2, length - 1, *between) if 0 < cut < length)

    def _suspicious(self, cuts: list[int]) -> Iterator[int]:
        """Yield the cuts where most is told, and those at which an output of one sequence sees behind."""
        yield from cuts[:TELLING]
        places = torch.arange(self.original.shape[1], device=self.original.device)
        for first in range(TELLING, len(cuts), len(self.original)):
            some = cuts[first : first + len(self.original)]
            cut = places.new_tensor([*some, *some[-1:] * (len(self.original) - len(some))])[:, None]  # (batch, 1)
            behind = places >= cut  # (batch, length)
            mixed = torch.where(behind[..., *[None] * (self.original.ndim - 2)], self.changed, self.original)
            early = self._changes(mixed).flatten(2).any(-1) & ~behind
            yield from (one for one, sees in zip(some, early.any(1).tolist(), strict=False) if sees)

    def _see_beyond(self, cut: int) -> list[int]:
        """The first output before a cut that changes with what stands behind it, if any does."""
        differs = self._differs(range(cut, self.original.shape[1]))[:, :cut]
        seeing = differs.flatten(2).any(-1).any(0) if differs.ndim > 2 else differs.any(0)  # (cut)
        return seeing.nonzero().flatten().tolist()[:1]

    def _matters(self, position: int, replaced: range, times: float = 1.0) -> bool:
        """Whether replacing these input positions changes the output at one position, by so many times rounding."""
        return bool(self._differs(replaced, times)[:, min(position, self.answers - 1)].any())

    def _differs(self, replaced: range, times: float = 1.0) -> Bool[Tensor, "batch length *features"]:
        """Which outputs change when some input positions are replaced."""
        mixed = self.original.clone()
        mixed[:, replaced.start : replaced.stop] = self.changed[:, replaced.start : replaced.stop]
        return self._changes(mixed, times)

    def mixes_batch(self) -> bool:
        """Whether changing the first sequence changes others, or the last one does."""
        return any(self._leaks_from(sample) for sample in (0, len(self.original) - 1))

    def _leaks_from(self, sample: int) -> bool:
        mixed = self.original.clone()
        mixed[sample] = self.changed[sample]
        differs = self._changes(mixed)
        differs[sample] = False
        return bool(differs.any())

    def _changes(self, first: Tensor, times: float = 1.0) -> Bool[Tensor, "batch length *features"]:
        """Which outputs another input changes by more than so many times rounding."""
        return ~torch.isclose(self._run(first), self.baseline, rtol=0.0, atol=times * self.rounding, equal_nan=True)

    def _run(self, first: Tensor) -> Tensor:
        torch.default_generator.manual_seed(PROBE_SEED)
        with torch.no_grad(), InFloat64() if self.dtype == torch.float64 else contextlib.nullcontext():
            found: Tensor = self.model(first, *self.rest)
        if found.ndim == 2 and found.shape[1] != first.shape[1]:  # one answer for a sequence
            found = found[:, None]
        return found if found.is_floating_point() or found.is_complex() else found.double()


def _at_least_two(tensor: Shaped[Tensor, "batch ..."]) -> Shaped[Tensor, "some ..."]:
    """One sequence twice, so that mixing can show."""
    return torch.cat((tensor, tensor)) if len(tensor) == 1 else tensor


def _in_format(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _changed(original: Tensor) -> Tensor:
    """An input that differs from the original at every position."""
    if original.is_floating_point():
        return original + 1 + original.roll(1, dims=1).abs()  # more than a shift, which a norm would undo
    return _other_tokens(original)


def _other_tokens(tokens: Tensor) -> Tensor:
    """Replace each token by the next one of those that occur."""
    occurring, index = tokens.unique(return_inverse=True)
    if len(occurring) == 1:
        return torch.where(tokens == 0, 1, 0)
    return occurring[(index + 1) % len(occurring)]


def _first_true(holds: Callable[[int], bool], count: int) -> int:
    """The smallest j < count with ``holds(j)``, or count; `holds` never turns false again."""
    if count == 0 or not holds(count - 1):
        return count
    low, high = 0, count - 1  # the answer lies within; nearly always it is one of these two
    middle = low
    while low < high:
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
        middle = (low + high) // 2
    return low
