"""How much each output changes when each input is replaced: the one measurement that the checks of this room read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.influence.differences import LEAK, Leakage, difference, largest, size_of
from attnlab.doctor.influence.steady import call_seeded
from attnlab.inspection.tape.tape import ModuleCall

_NEARLY = 0.9  # of what is seen on the other side: a finite mask that leaks here and there is no mask that is missing
_SEED = 1  # of what samples are replaced by; any
_TIMES_NOISE = 10.0  # what two equal calls differ by, another two may differ by some times that
_LONG = 100  # more than any stack of a few small convolutions sees
_PAIR = 2  # samples of a long call: they tell a sample's own positions from those of others
_LONG_SEED = 50  # of long inputs; any


@final
@dataclass(frozen=True)
class Influence:
    """Hold how much each output position changes with each input position."""

    sizes: Float[Tensor, "batch q_len k_len"]  # changes, (batch, q_len, k_len)
    noise: float  # changes up to this are rounding, or what two equal calls differ by

    @functools.cached_property
    def seen(self) -> Bool[Tensor, "batch q_len k_len"]:
        """Which changes are more than rounding."""
        return self.sizes > max(self.noise, LEAK * float(self.sizes.nan_to_num(posinf=0.0).max()))

    @property
    def ahead(self) -> Bool[Tensor, "batch q_len k_len"]:
        """Which later positions are seen."""
        return self.seen.triu(1)

    @property
    def past(self) -> Bool[Tensor, "batch q_len k_len"]:
        """Which earlier positions are seen."""
        return self.seen.tril(-1)

    @property
    def is_one_sided(self) -> bool:
        """Whether earlier positions are seen and later ones are not."""
        return bool(self.past.any() and not self.ahead.any())

    @property
    def rows_ahead(self) -> set[int]:
        """The output positions that see later ones."""
        return set(self.ahead.any(0).nonzero()[:, 0].tolist())

    @property
    def ratio(self) -> float:
        """The largest influence of a later position as a part of the largest of an earlier or the same one."""
        rest = float(self.sizes.tril().max())
        return float(self.sizes.triu(1).max()) / rest if rest > 0 else float("inf")

    @property
    def clean_samples(self) -> list[int]:
        """The samples that see nothing ahead while others see nearly as much ahead as back."""
        ahead, back = self.ahead.sum((1, 2)), self.past.sum((1, 2))
        clean, open_ = ahead == 0, ahead >= _NEARLY * back
        return clean.nonzero()[:, 0].tolist() if clean.any() and bool((clean | open_).all()) and open_.any() else []

    @property
    def blocks(self) -> list[range]:
        """The runs of positions that see each other, ahead too, and nothing behind them.

        A prefix, or chunks: every position sees up to the end of its run, and there is more than one run. None where
        it is no such mask.
        """
        length = self.sizes.size(-1)
        seen = self.ahead.any(0)
        horizons = [max([row, *seen[row].nonzero()[:, 0].tolist()]) for row in range(length)]
        ends = sorted(set(horizons))
        starts = [0, *(end + 1 for end in ends[:-1])]
        runs = [range(start, end + 1) for start, end in zip(starts, ends, strict=True)]
        whole = all(horizons[row] == run[-1] for run in runs for row in run)
        full = all(bool(seen[row, row + 1 : run[-1] + 1].all()) for run in runs for row in run)
        return [run for run in runs if len(run) > 1] if whole and full and len(runs) > 1 else []

    def worst(self) -> tuple[int, int, int]:
        """Sample, output position and later input position of the largest leak."""
        flat = int(self.sizes.triu(1).argmax())
        _, rows, columns = self.sizes.shape
        return flat // (rows * columns), flat // columns % rows, flat % columns

    def steps(self, seen: Bool[Tensor, "batch q_len k_len"]) -> set[int]:
        """How far from the output the positions are that are seen; positive: ahead."""
        rows, columns = seen.any(0).nonzero(as_tuple=True)
        return set((columns - rows).tolist())

    def mean(self, *, ahead: bool) -> float:
        """The mean influence of later or of earlier positions."""
        length = self.sizes.size(-1)
        pairs = torch.ones(length, length, dtype=torch.bool)
        return float(self.sizes[:, pairs.triu(1) if ahead else pairs.tril(-1)].mean())


def influence(
    exam: Examination, *, causal: bool | None = None, length: int | None = None, train: bool = False
) -> Influence:
    """The influence of ordinary inputs; every condition is measured once."""
    key = ("influence", causal, length, train)
    if key not in exam.known:
        exam.known[key] = _measured(exam, exam.fresh(train=True) if train else exam.eval_module, causal, length)
    return exam.known[key]


def _measured(exam: Examination, module: nn.Module, causal: bool | None, length: int | None) -> Influence:
    """The influence on what a module returns."""
    return of_calls(exam, lambda x: exam.run(x, module=module, causal=causal), exam.inputs(length=length))


def of_calls(exam: Examination, call: Callable[[Tensor], Tensor], x: Tensor) -> Influence:
    """The influence of each position, replaced in all samples at once, whatever makes the outputs."""
    before, again = call(x), call(x)
    moved = [call(exam.change(x, position)) for position in range(x.size(1))]
    sizes = torch.stack([difference(before, after) for after in moved], -1)  # (batch, q_len, k_len)
    noise = difference(before, again).nan_to_num(posinf=0.0)
    return Influence(sizes, max(exam.tolerance * size_of(before), _TIMES_NOISE * largest(noise)))


def of_hidden(exam: Examination) -> tuple[str, Influence] | None:
    """The submodule that returns a vector for each position last, and the influence on these.

    So what returns its last position alone is examined too. None where there is no such submodule.
    """
    x = exam.inputs()
    calls = [call for call in exam.usual_tape.calls if call.name and _by_position_in(call, x) is not None]
    if not calls:
        return None
    name, times = calls[-1].name, sum(call.name == calls[-1].name for call in calls)

    def hidden(x: Tensor) -> Tensor:
        found = [call for call in exam.tape(x).calls if call.name == name][:times]
        output = _by_position_in(found[-1], x) if found else None
        if output is None:
            raise ModuleError(f"`{name}` returns a vector for each position for some inputs alone")
        return output

    return name, of_calls(exam, hidden, x)


def _by_position_in(call: ModuleCall, x: Tensor) -> Tensor | None:
    """What a call returned for each position, None if it did not."""
    like = (tensor for tensor in call.returned if tensor.dim() == 3 and tensor.is_floating_point())
    return next((tensor for tensor in like if tensor.shape[:2] == x.shape[:2]), None)


def of_samples(exam: Examination, *, train: bool = False) -> Leakage:
    """What replacing the first and what replacing the last sample does to the others; measured once."""
    key = ("samples", train)
    if key not in exam.known:
        x = exam.inputs()
        before = call_seeded(exam, exam.fresh(train=train), x, _SEED)
        leak = signal = 0.0
        for sample in (0, BATCH - 1):
            moved = exam.change(x, slice(None), samples=sample)
            apart = difference(before, call_seeded(exam, exam.fresh(train=train), moved, _SEED))
            others = [other for other in range(BATCH) if other != sample]
            leak, signal = max(leak, largest(apart[others])), max(signal, largest(apart[sample]))
        exam.known[key] = Leakage(leak, signal, exam.tolerance * size_of(before))
    return exam.known[key]


def of_future(exam: Examination, call: Callable[[Tensor], Tensor], x: Tensor, cuts: Iterable[int]) -> Leakage:
    """What replacing everything from a cut on does before it and after it, whatever makes the outputs."""
    before = call(x)
    leak = signal = 0.0
    for cut in cuts:
        moved = difference(before, call(exam.change(x, slice(cut, None))))
        moved = moved.masked_fill(moved.isinf(), 0.0)
        leak, signal = max(leak, largest(moved[:, :cut])), max(signal, largest(moved[:, cut:]))
    return Leakage(leak, signal, exam.tolerance * size_of(before))


def some_cuts(length: int) -> list[int]:
    """Where to cut a sequence: everywhere if it is short, else at both ends and in the middle."""
    return list(range(1, length)) if length <= 5 else sorted({1, length // 2, length - 1})


# A long input


@final
@dataclass(frozen=True)
class Field:
    """Say what one output position sees of its own sample, and whether it sees other samples."""

    length: int  # length of the input
    position: int  # the output position; of a pooled output, the one it stands for
    seen: Bool[Tensor, " length"]  # which input positions it depends on
    meets_others: bool  # whether it depends on other samples of the batch

    @property
    def count(self) -> int:
        """How many positions it sees."""
        return int(self.seen.sum())

    @property
    def back(self) -> int:
        """How far back it sees."""
        places = self.seen.nonzero()
        return max(0, self.position - int(places.min())) if len(places) else 0

    @property
    def ahead(self) -> int:
        """How far ahead it sees."""
        places = self.seen.nonzero()
        return max(0, int(places.max()) - self.position) if len(places) else 0

    @property
    def has_gaps(self) -> bool:
        """Whether it misses positions between the first and the last that it sees."""
        return self.count not in (0, self.back + self.ahead + 1)

    @property
    def is_open_ahead(self) -> bool:
        """Whether it sees all that came before and a part of what follows, as through a causal mask that leaks.

        A window that covers everything before the middle covers everything after it.
        """
        return 0 < self.ahead < self.length - 1 - self.position and self.back == self.position


def fields(exam: Examination) -> list[Field]:
    """What an output in the middle and the last one see, at a long length if the patient takes it; measured once."""
    if "fields" not in exam.known:
        exam.known["fields"] = _fields(exam)
    return exam.known["fields"]


def _fields(exam: Examination) -> list[Field]:
    convention = exam.convention
    longest = min(_LONG, convention.longest or _LONG) if convention.any_length else convention.length
    for length in dict.fromkeys((longest, convention.length)):
        try:
            return _fields_at(exam, length)
        except (ModuleError, RuntimeError):  # too long, or its backward pass raises
            continue
    return []


def _fields_at(exam: Examination, length: int) -> list[Field]:
    """What outputs see by the gradient and, where that is zero, by replacing positions."""
    x = exam.inputs(batch=_PAIR, length=length, seed=_LONG_SEED)
    output, leaf = exam.run_from_embeddings(x)
    if not output.requires_grad or not output.isfinite().all():
        return []
    generator = torch.Generator().manual_seed(_LONG_SEED + 1)
    weights = torch.randn(output.shape[-1], generator=generator, dtype=torch.float64).to(output.dtype)
    found = []
    for position in (length // 2, length - 1):
        picked = (
            output[-1] if exam.convention.pooled else output[-1, position]
        )  # the last sample: time runs through it last
        gradient = torch.autograd.grad((picked * weights).sum(), leaf, retain_graph=True)[0]
        if not gradient.isfinite().all():
            break
        seen = _by_position(gradient, length)
        meets_others = bool(seen[:-1].any())
        by_hand = seen[-1] if meets_others else seen[-1] | _moved_by(exam, x[-1:], position, ~seen[-1])
        found.append(Field(length, position, by_hand, meets_others))
    return found


def _by_position(gradient: Tensor, length: int) -> Bool[Tensor, "batch length"]:
    """Where a gradient is not zero; the leaf may be sequence first."""
    moved = (gradient.abs().sum(-1) > 0) if gradient.dim() == 3 else gradient != 0
    return moved.T if moved.shape[0] == length and moved.shape[1] != length else moved


def _moved_by(exam: Examination, x: Tensor, position: int, asked: Bool[Tensor, " length"]) -> Bool[Tensor, " length"]:
    """Which of the positions asked for change an output when they are replaced: first all, then each."""
    places = asked.nonzero()[:, 0]
    moved = torch.zeros_like(asked)
    if len(places) and bool(_changes(exam, x, exam.change(x, places), position).any()):
        rows = torch.arange(len(places))
        each = exam.change(x.repeat(len(places), *(1 for _ in x.shape[1:])), places, samples=rows)
        moved[places] = _changes(exam, x, each, position)
    return moved


def _changes(exam: Examination, x: Tensor, others: Tensor, position: int) -> Bool[Tensor, " others"]:
    """For which of some inputs an output differs from that of one input by more than rounding."""
    before, after = exam.run(x), exam.run(others)
    if not exam.convention.pooled:
        before, after = before[:, position], after[:, position]
    return (after - before).abs().amax(-1) > exam.tolerance * float(before.abs().max())
