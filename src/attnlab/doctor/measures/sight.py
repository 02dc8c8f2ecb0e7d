"""What each output position sees of each input position."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab.doctor.examination import Examination
from attnlab.doctor.measures.differences import LEAK, influence_map, size_of

_NEARLY = 0.9  # of what is seen on the other side: a finite mask that leaks here and there is no mask that is missing


@dataclass(frozen=True)
class Sight:
    """Hold how much each output position changes with each input position.

    Parameters
    ----------
    sizes : Tensor
        Changes, (batch, q_len, k_len).
    floor : float
        Changes up to this are rounding.
    """

    sizes: Float[Tensor, "batch q_len k_len"]
    floor: float

    @functools.cached_property
    def seen(self) -> Bool[Tensor, "batch q_len k_len"]:
        """Which changes are more than rounding."""
        return self.sizes > max(self.floor, LEAK * float(self.sizes.nan_to_num(posinf=0.0).max()))

    @property
    def ahead(self) -> Bool[Tensor, "batch q_len k_len"]:
        """Which later positions are seen."""
        return self.seen.triu(1)

    @property
    def past(self) -> Bool[Tensor, "batch q_len k_len"]:
        """Which earlier positions are seen."""
        return self.seen.tril(-1)

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


def look(exam: Examination, *, causal: bool | None = None, length: int | None = None, train: bool = False) -> Sight:
    """What the patient sees of ordinary inputs."""
    x = exam.inputs(length=length)
    module = exam.eval_module
    if train:
        module = exam.fresh(train=True)
    sizes = influence_map(exam, x, module=module, causal=causal)
    return Sight(sizes, exam.tolerance * size_of(exam.run(x, module=module, causal=causal)))
