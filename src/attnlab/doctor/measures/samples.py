"""Whether samples of a batch see each other, told by replacing one of them."""

from __future__ import annotations

from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.measures.differences import Reach, difference, largest, size_of
from attnlab.doctor.measures.steady import call_seeded

_SEED = 1  # of what samples are replaced by; any


def meeting(exam: Examination, *, train: bool = False) -> Reach:
    """What replacing the first and what replacing the last sample does to the others."""
    x = exam.inputs()
    before = call_seeded(exam, exam.fresh(train=train), x, _SEED)
    leak = signal = 0.0
    for sample in (0, BATCH - 1):
        moved = exam.change(x, slice(None), samples=sample)
        apart = difference(before, call_seeded(exam, exam.fresh(train=train), moved, _SEED))
        others = [other for other in range(BATCH) if other != sample]
        leak, signal = max(leak, largest(apart[others])), max(signal, largest(apart[sample]))
    return Reach(leak, signal, size_of(before), exam.tolerance)
