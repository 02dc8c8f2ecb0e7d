"""What the values of a mask argument do: which of them keeps, whether they do anything, against what is declared."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import torch
from torch import Tensor

from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.measures.differences import difference, largest, size_of
from attnlab.doctor.measures.words import unused_on_purpose
from attnlab.inspection.tape.attentions import attentions
from attnlab.strangers.calling.masking import Masking

_ID = "mask-polarity"
_SOURCE = (
    "PyTorch documentation, nn.MultiheadAttention (key_padding_mask, bool attn_mask: True = ignored) against"
    " scaled_dot_product_attention (True = takes part); lucidrains/x-transformers#164"
)


def check_mask_polarity(exam: Examination) -> Iterator[Finding]:
    """Hide a position by each mask argument, and compare what its values do with what they are said to do."""
    undeclared = yield from _judged(exam, exam)
    if exam.of_memory is not None:
        undeclared += yield from _judged(exam, exam.of_memory)
    if undeclared:
        yield _reported(undeclared)


def _judged(patient: Examination, exam: Examination) -> Generator[Finding, None, list[str]]:
    """What is wrong with the masks over one input, and return what those do of which nothing is said."""
    undeclared: list[str] = []
    for parameter in dict.fromkeys(mask.parameter for mask in exam.usage.masks):
        mask = _telling(exam, parameter)
        if not _has_effect(exam, mask):
            yield _no_effect(patient, mask)
        elif not mask.obeyed and mask.over == "pairs" and not exam.usage.causal:
            yield _hides_nothing(patient, mask)
        elif mask.declared is not None and mask.keeps is not None:
            if (mask.declared == "True keeps") is not mask.keeps:
                yield _inverted(mask)
        elif mask.keeps is not None or "added" in mask.encoding:
            undeclared.append(f"`{mask.parameter}`: {mask.encoding}")
    return undeclared


def _telling(exam: Examination, parameter: str) -> Masking:
    """What is known about a mask argument; one that says both things stands twice among the masks."""
    return next(mask for mask in exam.usage.masks if mask.parameter == parameter)


def _has_effect(exam: Examination, mask: Masking) -> bool:
    """Whether hiding something changes what fresh copies give, under either meaning of the mask's values."""
    x = exam.inputs()
    if mask.over == "pairs":
        before, after = (exam.run(x, module=exam.fresh(), allowed=_pairs(x, hidden)) for hidden in (False, True))
    else:
        before, after = (exam.run(x, module=exam.fresh(), padding=_keys(x, hidden)) for hidden in (False, True))
    if not before.isfinite().all():
        return True  # where outputs are NaN nothing can be seen to move them
    return largest(difference(before, after)) > exam.tolerance * size_of(before)


def _pairs(x: Tensor, hidden: bool) -> Tensor:
    """A causal mask over pairs, which may hide the second position from later ones beside."""
    allowed = torch.ones(x.size(0), x.size(1), x.size(1), dtype=torch.bool).tril()
    if hidden:
        allowed[:, 2:, 1] = False
    return allowed


def _keys(x: Tensor, hidden: bool) -> Tensor:
    """Which positions are real: all, or all but the last third."""
    real = torch.ones(x.shape[:2], dtype=torch.bool)
    if hidden:
        real[:, 2 * x.size(1) // 3 :] = False
    return real


def _no_effect(exam: Examination, mask: Masking) -> Finding:
    """The finding on a mask that is accepted and ignored; a mixer may take one to look like an attention."""
    words = unused_on_purpose(exam, mask.parameter, "mask")
    judged = bool(attentions(exam.usual_tape, exam.usage)) and not words
    return Finding(
        _ID,
        "error" if judged else "warning",
        f"the mask argument `{mask.parameter}` is accepted and has no effect.",
        f"hiding positions by it changes no output (given as {mask.encoding}, {mask.shape}; batch {BATCH},"
        f" length {exam.usage.length})" + (f'; declared: "{words}"' if words else ""),
        f"apply `{mask.parameter}` to the scores before the softmax, or remove the argument",
        _SOURCE,
        nature=None if judged else "set-up",
    )


def _hides_nothing(exam: Examination, mask: Masking) -> Finding:
    """The finding on a mask that does something, but hides no position from others with any value."""
    judged = bool(attentions(exam.usual_tape, exam.usage))
    return Finding(
        _ID,
        "error" if judged else "warning",
        f"`{mask.parameter}` hides no key from the queries, whichever value is taken for hidden.",
        "positions that it should hide keep their influence on others under every meaning and shape that was tried"
        f" (judged as {mask.encoding}, {mask.shape})",
        f"lay `{mask.parameter}` along the keys, the last axis of the scores (`[:, None, None, :]` of (batch, k_len)),"
        " and set hidden scores to minus infinity before the softmax",
        _SOURCE,
        nature=None if judged else "set-up",
    )


def _inverted(mask: Masking) -> Finding:
    said = "keep" if mask.declared == "True keeps" else "ignore"
    keeping, losing = ("True (1)", "False (0)") if mask.keeps else ("False (0)", "True (1)")
    return Finding(
        _ID,
        "error",
        f"`{mask.parameter}` works the other way round: by {mask.declared_by or 'its name'}, True (1) means {said}.",
        f"positions whose value is {losing} lose their influence, those with {keeping} keep it",
        f"invert it inside (`~{mask.parameter}`), or say its true meaning in name and docstring",
        _SOURCE,
    )


def _reported(undeclared: list[str]) -> Finding:
    return Finding(
        _ID,
        "info",
        "what the values of its masks mean, as measured, not judged: " + "; ".join(undeclared) + ".",
        "a position that is hidden so loses its influence",
        "",
        _SOURCE,
    )
