"""Attention layers against fused attention called by hand: time, peak memory, and how both grow with the length.

`bench_attention` measures every score, mask, normalizer and heads layout. `bench_layer`, `bench_window` and
`bench_additive_memory` look closer at what the lab claims: its layer costs no more than the call by hand, windows
are linear in the length, and so is the memory of the additive score.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import nn

from attnlab.benchmarks.attention_table import AttentionTable, LayerRow, Measured
from attnlab.benchmarks.contenders.by_hand import SdpaByHand
from attnlab.benchmarks.measuring.growth import GrowthReport, GrowthRow, GrowthTable
from attnlab.benchmarks.measuring.passes import MIB, Footprint, Limits, Passes, compare_passes, warm_up
from attnlab.benchmarks.measuring.turns import PairedTimes
from attnlab.core.errors import AttnlabError
from attnlab.core.machine import environment
from attnlab.nn.attention import Attention
from attnlab.nn.axes.heads import HEADS
from attnlab.nn.axes.normalizers import NORMALIZERS
from attnlab.nn.axes.scores import SCORES

LENGTHS = (128, 512, 2048, 8192)
WIDTH, N_HEADS = 128, 4
WINDOW = 128
ADDITIVE_LENGTHS = (256, 512, 1024, 2048, 4096)
ADDITIVE_SECONDS = 60.0  # each length runs once
ROUNDS, DETAILED_ROUNDS = 3, 9
DEFAULT = {"scores": "scaled-dot", "masks": "none", "normalizers": "softmax", "heads": "split"}
"""The layer that every other one differs from in one part."""

BANDED_MASKS: dict[str, dict[str, Any]] = {
    f"window {WINDOW}": {"masks": {"name": "window", "width": WINDOW}},
    f"causal & window {WINDOW}": {"masks": {"name": "window", "width": WINDOW}, "causal": True},
    "dilated 32 x 4": {"masks": {"name": "dilated", "width": 32, "dilation": 4}},
}
"""Masks of finite reach, all of about the same."""

BY_HAND = "SDPA by hand"
PROBE_LENGTH = 512  # every layer bears it, and the profiler's own time is small beside that of the pass

Make = Callable[[int], Passes]
"""From a length to passes of one layer."""


@final
@dataclass(frozen=True)
class Group:
    """Name layers that are measured in turn with one call by hand of the same heads and mask."""

    name: str  # what they share
    shared: Mapping[str, Any]  # arguments of `Attention` for heads and mask
    layers: Mapping[str, Mapping[str, Any]]  # for each layer, the arguments beside the shared ones


def groups() -> list[Group]:
    """Every score, mask, normalizer and heads layout, one change at a time."""
    axes = (("score", "scores", SCORES), ("normalizer", "normalizers", NORMALIZERS))
    changed = {
        f"{axis} {name}": {argument: name}
        for axis, argument, table in axes
        for name in table
        if name != DEFAULT[argument]
    }
    masks = {"causal": {"causal": True}, **BANDED_MASKS}
    heads = {f"heads {name}": {"heads": name} for name in HEADS if name != DEFAULT["heads"]}
    return [
        Group("all keys", {}, {"all keys": {}, **changed}),
        *(Group(name, shared, {name: {}}) for name, shared in (masks | heads).items()),
    ]


def bench_attention(
    *,
    lengths: Sequence[int] = LENGTHS,
    device: str = "cpu",
    precision: str = "float32",
    rounds: int = ROUNDS,
    limits: Limits | None = None,
    only: Sequence[Group] | None = None,
) -> AttentionTable:
    """Measure every score, mask, normalizer and heads layout against fused attention called by hand."""
    if list(lengths) != sorted(set(lengths)) or not lengths:
        raise AttnlabError(f"lengths must rise; got {', '.join(map(str, lengths)) or 'none'}")
    maker, chosen = _Maker(device, precision), groups() if only is None else only
    measure = partial(_measure_group, maker=maker, lengths=lengths, rounds=rounds, limits=limits or Limits.of(device))
    setting = f"{maker.setting()}; {rounds} rounds in turn"
    return AttentionTable(setting, tuple(row for group in chosen for row in measure(group)), environment(device))


def bench_layer(
    *,
    lengths: Sequence[int] = LENGTHS,
    device: str = "cpu",
    precision: str = "float32",
    rounds: int = DETAILED_ROUNDS,
) -> Iterator[PairedTimes]:
    """Measure what the lab's attention layer costs beside the same projections around fused attention."""
    maker = _Maker(device, precision)
    warm_up(device)
    for length in lengths:
        passes = {"attnlab": maker.layer(length, {}), BY_HAND: maker.by_hand(length, {})}
        title = f"attention layer, forward + backward, n = {length}; {maker.setting()}"
        yield compare_passes(title, passes, reference=BY_HAND, rounds=rounds)


def bench_window(
    *, length: int = LENGTHS[-1], device: str = "cpu", precision: str = "float32", rounds: int = DETAILED_ROUNDS
) -> PairedTimes:
    """Measure attention to a window beside fused attention with the same window as a mask."""
    warm_up(device)
    maker, window = _Maker(device, precision), BANDED_MASKS[f"window {WINDOW}"]
    masked = f"{BY_HAND}, (n, n) mask"
    passes = {
        f"attnlab, window {WINDOW}": maker.layer(length, window),
        masked: maker.by_hand(length, window),
        f"{BY_HAND}, all keys": maker.by_hand(length, {}),
    }
    title = f"attention to a window of {WINDOW}, forward + backward, n = {length}; {maker.setting()}"
    return compare_passes(title, passes, reference=masked, rounds=rounds)


def bench_additive_memory(
    *,
    lengths: Sequence[int] = ADDITIVE_LENGTHS,
    device: str = "cpu",
    precision: str = "float32",
    limits: Limits | None = None,
) -> GrowthReport:
    """Measure how the memory of the additive score grows with the length, forward and backward."""
    maker, limits = _Maker(device, precision), limits or replace(Limits.of(device), seconds=ADDITIVE_SECONDS)
    rows = []
    for name, path in (("path auto", "auto"), ("path readable", "readable")):
        make = partial(maker.layer, arguments={"scores": "additive", "path": path})
        feet, missing = _footprints(make, lengths, limits)
        rows.append(GrowthRow(name, {n: (foot.peak_bytes / MIB,) for n, foot in feet.items()}, missing))
    table = GrowthTable("Peak memory in MiB, weights and input left out", "n", tuple(rows))
    return GrowthReport(
        f"additive score, forward + backward; {maker.setting()}", (table,), environment=environment(device)
    )


def _footprints(make: Make, lengths: Sequence[int], limits: Limits) -> tuple[dict[int, Footprint], dict[int, str]]:
    """What one pass takes at each length, and why it was not run at others."""
    known, measured, missing = _probe(make, lengths), {}, {}
    for length in lengths:
        if reason := limits.excess(length, known):
            missing[length] = reason
        else:
            known = measured[length] = make(length).footprint()
    return measured, missing


@final
@dataclass(frozen=True)
class _Maker:
    """Make what is measured."""

    device: str
    precision: str

    def setting(self) -> str:
        """Sizes and precision in words."""
        return f"batch 1, width {WIDTH}, {N_HEADS} heads, {self.precision}"

    def layer(self, length: int, arguments: Mapping[str, Any]) -> Passes:
        """Passes of an attention layer."""
        return self._passes(_attention(length, arguments), length)

    def by_hand(self, length: int, arguments: Mapping[str, Any]) -> Passes:
        """Passes of fused attention called by hand, with the heads and the mask of an attention layer."""
        return self._passes(SdpaByHand(_attention(length, arguments), length), length)

    def _passes(self, layer: nn.Module, length: int) -> Passes:
        return Passes(layer, length, WIDTH, device=self.device, precision=self.precision)


def _attention(length: int, arguments: Mapping[str, Any]) -> Attention:
    torch.manual_seed(0)
    return Attention(WIDTH, N_HEADS, max_length=length, **arguments)


def _measure_group(
    group: Group, *, maker: _Maker, lengths: Sequence[int], rounds: int, limits: Limits
) -> list[LayerRow]:
    """Measure the layers of a group and their reference in turn, length by length."""
    reference = f"SDPA, {group.name}"
    makes: dict[str, Make] = {reference: partial(maker.by_hand, arguments=group.shared)}
    makes |= {name: partial(maker.layer, arguments={**group.shared, **own}) for name, own in group.layers.items()}
    known = {name: _probe(make, lengths) for name, make in makes.items()}
    measured: dict[str, dict[int, Measured]] = {name: {} for name in makes}
    missing: dict[str, dict[int, str]] = {name: {} for name in makes}
    for length in lengths:
        reasons = _reasons(length, known, reference, limits)
        for name, reason in reasons.items():
            missing[name][length] = reason
        passes = {name: make(length) for name, make in makes.items() if name not in reasons}
        for name, found in _measured(passes, reference, rounds).items():
            measured[name][length] = found
            known[name] = Footprint(length, statistics.median(found.milliseconds) / 1e3, found.peak_bytes)
    return [LayerRow(name, group.name, name == reference, measured[name], missing[name]) for name in makes]


def _probe(make: Make, lengths: Sequence[int]) -> Footprint:
    """What a pass takes at a length that every layer can bear; the first one of a process takes longer."""
    passes = make(min(PROBE_LENGTH, *lengths))
    passes.footprint()
    return passes.footprint()


def _reasons(length: int, known: Mapping[str, Footprint], reference: str, limits: Limits) -> dict[str, str]:
    """Which layers are not to be run at a length, and why."""
    reasons = {name: reason for name, footprint in known.items() if (reason := limits.excess(length, footprint))}
    if reference in reasons:
        return dict.fromkeys(known, f"{reference}, {reasons[reference]}") | reasons
    return reasons


def _measured(passes: Mapping[str, Passes], reference: str, rounds: int) -> dict[str, Measured]:
    """Time and memory of layers that are measured in turn."""
    if not passes:
        return {}
    comparison = compare_passes("", passes, reference=reference, rounds=rounds)
    return {name: Measured(times, comparison.details[name]["peak_bytes"]) for name, times in comparison.rows.items()}
