"""Masks that nothing can be given: their code names what does not exist, or wants numbers here and True there."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.strangers.calling.masking import KEY_SHAPES, SHAPES, Masking
from attnlab.strangers.calling.roles import roles_of

_ENCODING = "bool, True = may attend"
_OF_NUMBERS = "int, 1 = may attend"
_NO_BOOL = "with a bool tensor is not supported"
_ONLY_BOOL = "only supports boolean masks"
"""What torch says of `1 - mask`, and of `scores.masked_fill(mask, value)`, where a mask is of the other type."""

_ALIKE = 0.8  # of two names: mask_fill and masked_fill have 0.9, mask and masked_fill 0.53


@final
@dataclass(frozen=True)
class Slip:
    """Hold a mask argument, and what its code names wrongly."""

    mask: str  # the argument
    name: str  # what does not exist; nothing where one type is wanted here and another there
    raised: str  # what a call with a mask raises, in words


def slips(exam: Examination) -> Iterator[Slip]:
    """Yield the mask arguments that were left out as no call with them runs, where a wrong name is the reason."""
    given = {mask.parameter for mask in exam.convention.masks}
    for one in roles_of(exam.eval_module):
        if one.role in ("mask", "key mask") and one.name not in given:
            pairs = [Masking(one.name, "pairs", _ENCODING, shape, required=True) for shape in SHAPES]
            keys = [Masking(one.name, "keys", _ENCODING, shape, required=True) for shape in KEY_SHAPES]
            tried = (_slip(exam, masking) for masking in (*pairs, *keys))
            yield from [slip for slip in tried if slip is not None][:1]


def _slip(exam: Examination, masking: Masking) -> Slip | None:
    """What a call with a mask names wrongly, or wants of two types; None where it is neither."""
    error = _raised_with(exam, masking)
    cause, raised = None if error is None else error.__cause__, _in_words(error)
    if isinstance(cause, NameError) or (isinstance(cause, AttributeError) and _is_misspelled(cause)):
        return Slip(masking.parameter, str(cause.name), raised)
    if _NO_BOOL in raised:
        of_numbers = _in_words(_raised_with(exam, replace(masking, encoding=_OF_NUMBERS)))
        if _ONLY_BOOL in of_numbers:
            return Slip(masking.parameter, "", f"{raised}; of a mask of numbers {of_numbers}")
    return None


def _raised_with(exam: Examination, masking: Masking) -> ModuleError | None:
    """What a call with a mask raises, None where it runs."""
    told = exam.relying_on(replace(exam.convention, masks=(*exam.convention.masks, masking)))
    try:
        told.run(told.inputs(), module=told.fresh())
    except ModuleError as error:
        return error
    return None


def _in_words(error: ModuleError | None) -> str:
    return str(error).partition(" raised ")[2]


def _is_misspelled(error: AttributeError) -> bool:
    """Whether a tensor or a library has nothing of a name, but something of nearly that name."""
    known = dir(error.obj) if isinstance(error.obj, Tensor | types.ModuleType) else ()
    return bool(difflib.get_close_matches(str(error.name), known, cutoff=_ALIKE))
