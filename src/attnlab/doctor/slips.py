"""Masks that nothing can be given, as the code that is for them names what does not exist."""

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
_ALIKE = 0.8  # of two names: mask_fill and masked_fill have 0.9, mask and masked_fill 0.53


@final
@dataclass(frozen=True)
class Slip:
    """Hold a mask argument, and what its code names wrongly."""

    mask: str  # the argument
    name: str  # what does not exist
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
    """What a call with a mask names wrongly, None where it names nothing wrongly."""
    told = exam.relying_on(replace(exam.convention, masks=(*exam.convention.masks, masking)))
    try:
        told.run(told.inputs(), module=told.fresh())
    except ModuleError as error:
        cause, raised = error.__cause__, str(error).partition(" raised ")[2]
        if isinstance(cause, NameError) or (isinstance(cause, AttributeError) and _is_misspelled(cause)):
            return Slip(masking.parameter, str(cause.name), raised)
    return None


def _is_misspelled(error: AttributeError) -> bool:
    """Whether a tensor or a library has nothing of a name, but something of nearly that name."""
    known = dir(error.obj) if isinstance(error.obj, Tensor | types.ModuleType) else ()
    return bool(difflib.get_close_matches(str(error.name), known, cutoff=_ALIKE))
