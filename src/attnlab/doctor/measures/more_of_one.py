"""A patient with several where it has one: groups of features in its input, or what a constructor argument counts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace

from attnlab.core.constructors import signature_of
from attnlab.core.errors import AttnlabError
from attnlab.doctor.examination import Examination
from attnlab.strangers.calling.layouts import STILLS
from attnlab.strangers.loading.sizes import OF_SIDES, pieces_of
from attnlab.strangers.trying.interview import interview

_LONGER = (67, 521)  # positions: of what makes one key of many there are several
_SEVERAL = 3
_COUNTED = 2  # a window of two divides the usual sides of images


def of_more(exam: Examination) -> Iterator[tuple[str, Examination]]:
    """Yield examinations with several of something, and the argument that is 1 otherwise; nothing for the input.

    The input is made longer, as where one key stands for many positions, and several times as wide, as where its last
    axis holds groups of features.
    """
    convention = exam.convention
    lengths = sorted({min(length, convention.longest or length) for length in _LONGER})
    for length in lengths if convention.any_length else ():
        if length > convention.length:
            yield "", exam.relying_on(replace(convention, length=length))
    yield from _of_wider_images(exam)
    if convention.takes == "embeddings":
        yield "", exam.relying_on(replace(convention, d_in=_SEVERAL * convention.d_in))
    given = {name: one.default for name, one in signature_of(type(exam.patient.module)).items()}
    given |= {name: value for name, value in exam.patient.arguments.items() if name in given}
    for name in (name for name, value in given.items() if type(value) is int and value == 1):
        with contextlib.suppress(AttnlabError):
            module, arguments = exam.another({name: _COUNTED}), {**exam.patient.arguments, name: _COUNTED}
            if module is not None:
                patient = replace(exam.patient, module=module, arguments=arguments)
                yield f"{name}=1", Examination(patient, interview(patient), exam.options)


def _of_wider_images(exam: Examination) -> Iterator[tuple[str, Examination]]:
    """Yield the examination of images twice as wide and high: of small ones a deep layer may have one patch left."""
    convention, arguments = exam.convention, exam.patient.arguments
    side = math.isqrt(convention.length)
    sides = [name for name, value in arguments.items() if value == side and OF_SIDES & set(pieces_of(name))]
    module = exam.another(dict.fromkeys(sides, 2 * side)) if sides else exam.patient.module
    if convention.layout in STILLS and convention.length == side**2 and module is not None:
        four = replace(convention, length=4 * side**2, longest=4 * side**2)
        yield "", Examination(replace(exam.patient, module=module), four, exam.options)
