"""Give masks the values that are declared, where they do a part of what is said, or nothing at all.

A module that adds ``(1 - mask) * -4`` hides everything under a mask of minus infinities, and little under the
ones and zeros that its docstring asks for; only the latter is what people will give it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.doctor.measures.differences import difference, largest
from attnlab.strangers.calling.masking import Masking

_ENCODINGS = {"True keeps": "float, 1 = may attend", "True blocks": "float, 1 = blocked"}
_HIDES = 0.1
"""Part of the influence that is left of a hidden position.

A mask of ones and zeros that is added to scores as it is leaves exp(-1) of the weight; -4 leaves exp(-4).
"""


def as_declared(exam: Examination) -> Examination:
    """An examination that gives masks as declared, where so given they hide most of what they must."""
    masks = exam.usage.masks
    for mask in masks:
        other = _declared(mask)
        if other is not None:
            trial = exam.relying_on(masks=tuple(other if each is mask else each for each in masks))
            masks = trial.usage.masks if _does_as_said(trial, other) else masks
            exam = trial if masks is trial.usage.masks else exam
    return exam


def _declared(mask: Masking) -> Masking | None:
    """The mask with ones and zeros as declared, None where nothing is, or where it has such values."""
    if mask.declared is None or mask.keeps is not None or "added" not in mask.encoding:
        return None
    return replace(mask, encoding=_ENCODINGS[mask.declared])


def _does_as_said(exam: Examination, mask: Masking) -> bool:
    """Whether a hidden last third loses most of its influence on the first position.

    A docstring is believed too where the values that it names do nothing at all.
    """
    x = exam.inputs()
    cut = 2 * x.size(1) // 3
    moved = exam.change(x, slice(cut, None))
    try:
        open_, hidden = (_influence(exam, mask, x, moved, cut=each) for each in (x.size(1), cut))
    except ModuleError:
        return False
    idle = mask.declared_by == "docstring" and abs(hidden - open_) <= exam.tolerance * open_
    return open_ > 0 and (hidden < _HIDES * open_ or idle)


def _influence(exam: Examination, mask: Masking, x: Tensor, moved: Tensor, *, cut: int) -> float:
    """What the last third does to the first output (or the pooled one) while all from `cut` on is hidden."""
    real = torch.arange(x.size(1)) < cut
    if mask.over == "pairs":
        allowed = real.expand(x.size(0), x.size(1), -1)
        apart = difference(exam.run(x, allowed=allowed), exam.run(moved, allowed=allowed))
    else:
        padding = real.expand(x.size(0), -1)
        apart = difference(exam.run(x, padding=padding), exam.run(moved, padding=padding))
    return largest(apart if exam.usage.pooled else apart[:, 0])
