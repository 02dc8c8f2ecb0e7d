"""Attention over a second sequence, made to look at the first: then every question about positions can be asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.strangers.calling.sources import OTHER_MEMORIES


def with_own_memory(exam: Examination) -> Iterator[Examination]:
    """The examination, and one in which the input is its own memory, where it takes a memory and that runs."""
    yield exam
    arguments = tuple(replace(one, source="x") if one.source in OTHER_MEMORIES else one for one in exam.usage.arguments)
    if arguments == exam.usage.arguments:
        return
    itself = exam.relying_on(arguments=arguments)
    try:
        itself.run(itself.inputs())
    except ModuleError:  # a memory of another width, or of a fixed length
        return
    yield itself
