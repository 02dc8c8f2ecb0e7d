"""How far one output position sees, at a long length: by the gradient, and by replacing what has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination

_LONG = 100  # more than any stack of a few small convolutions sees
_BATCH = 2  # tells a sample's own positions from those of others
_SEED = 50  # of the inputs; any


@dataclass(frozen=True)
class Reach:
    """Say what one output position sees of its own sample, and whether it sees other samples.

    Parameters
    ----------
    length : int
        Length of the input.
    position : int
        The output position; of a pooled output, the one it stands for.
    seen : Tensor
        Which input positions it depends on.
    meets_others : bool
        Whether it depends on other samples of the batch.
    """

    length: int
    position: int
    seen: Bool[Tensor, " length"]
    meets_others: bool

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


def reaches(exam: Examination) -> list[Reach]:
    """What an output in the middle and the last one see, at a long length if the patient takes it."""
    usage = exam.usage
    longest = min(_LONG, usage.longest or _LONG) if usage.any_length else usage.length
    for length in dict.fromkeys((longest, usage.length)):
        try:
            return list(_reaches_at(exam, length))
        except (ModuleError, RuntimeError):  # too long, or its backward pass raises
            continue
    return []


def _reaches_at(exam: Examination, length: int) -> Iterator[Reach]:
    """What outputs see by the gradient and, where that is zero, by replacing positions."""
    x = exam.inputs(batch=_BATCH, length=length, seed=_SEED)
    output, leaf = exam.run_from_embeddings(x)
    if not output.requires_grad or not output.isfinite().all():
        return
    generator = torch.Generator().manual_seed(_SEED + 1)
    weights = torch.randn(output.shape[-1], generator=generator, dtype=torch.float64).to(output.dtype)
    for position in (length // 2, length - 1):
        picked = output[-1] if exam.usage.pooled else output[-1, position]  # the last sample: time runs through it last
        gradient = torch.autograd.grad((picked * weights).sum(), leaf, retain_graph=True)[0]
        if not gradient.isfinite().all():
            return
        seen = _by_position(gradient, length)
        meets_others = bool(seen[:-1].any())
        by_hand = seen[-1] if meets_others else seen[-1] | _moved_by(exam, x[-1:], position, ~seen[-1])
        yield Reach(length, position, by_hand, meets_others)


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
    if not exam.usage.pooled:
        before, after = before[:, position], after[:, position]
    floor = exam.tolerance * float(before.abs().max())
    return (after - before).abs().amax(-1) > floor
