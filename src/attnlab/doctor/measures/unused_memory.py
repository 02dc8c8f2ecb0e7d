"""Part of `dead-parts`: a second sequence that is asked for and never looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination, accepted_by
from attnlab.doctor.findings import Finding
from attnlab.doctor.influence.differences import relative_change
from attnlab.doctor.measures.gradients import results
from attnlab.strangers.calling.sources import OTHER_MEMORIES
from attnlab.strangers.words import said_unused

_CALLS = 2  # inputs on which a memory must not matter


def unused_memory(exam: Examination) -> Iterator[Finding]:
    """Yield whether another memory leaves everything as it is."""
    asked = [one.parameter for one in exam.convention.arguments if one.source in OTHER_MEMORIES]
    asked = [name for name in asked if not name.startswith("_")]
    if not asked:
        return
    change = max(_change(exam, seed) for seed in range(_CALLS))
    if change <= exam.tolerance:
        name = asked[0] or "the memory"
        finding = Finding(
            "dead-parts",
            "error",
            f"`{name}` has no influence: it is asked for, and every result is the same with another one.",
            f"{_CALLS} calls with a memory of other numbers: results change by {change:.2g} of their size",
            f"make keys and values of it, attention(x, {name}, {name}), or drop the argument",
            "Vaswani 2017, arXiv:1706.03762, section 3.2.3: keys and values come from the output of the encoder",
        )
        words = said_unused(exam.patient.said, exam.patient.text, (asked[0], "memory", "context"))
        yield from accepted_by([finding], words)


def _change(exam: Examination, seed: int) -> float:
    """How much the results change when the memory alone is another."""
    arguments = tuple(
        replace(one, source=OTHER_MEMORIES.get(one.source, one.source)) for one in exam.convention.arguments
    )
    other = exam.relying_on(replace(exam.convention, arguments=arguments))
    x = exam.inputs(seed=30 + seed)
    with torch.no_grad():
        try:
            pairs = [
                (before.detach(), after.detach())
                for before, after in zip(
                    results(exam, exam.eval_module, x, {}), results(other, exam.eval_module, x, {}), strict=True
                )
            ]
        except (ModuleError, ValueError):  # it raises, or returns something else: that is an influence
            return 1.0
    return max((relative_change(before, after) for before, after in pairs), default=1.0)
