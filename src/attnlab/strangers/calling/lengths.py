"""Which lengths the patient takes."""

from __future__ import annotations

from dataclasses import replace

from attnlab.strangers.calling.trial import Trial
from attnlab.strangers.patient import Patient
from attnlab.strangers.usage import Usage

_PROBED = 130  # a length at which nearly every layer can be called in milliseconds
_TABLE = 2048  # longest table whose end is looked for


def with_lengths(trial: Trial, usage: Usage, patient: Patient) -> Usage:
    """The usage with the lengths the module takes."""
    others = [usage.length - 1, usage.length + 1] if usage.length > 1 else [2]
    shorter = [length for length in others if trial.runs(usage, length=length)]
    if not shorter:
        return replace(usage, any_length=False, longest=usage.length)
    longest = _longest(trial, usage, patient)
    return replace(usage, any_length=True, longest=longest)


def _longest(trial: Trial, usage: Usage, patient: Patient) -> int | None:
    """The longest length that runs, None where no limit is met."""
    if trial.runs(usage, length=_PROBED):
        return _end_of_a_table(trial, usage, patient)
    low, high = usage.length, _PROBED
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if trial.runs(usage, length=middle) else (low, middle)
    return low


def _end_of_a_table(trial: Trial, usage: Usage, patient: Patient) -> int | None:
    """The size of a table that no longer sequence fits into."""
    tensors = [*patient.module.parameters(), *patient.module.buffers()]
    sizes = {size for tensor in tensors for size in tensor.shape if _PROBED < size <= _TABLE}
    for size in sorted(sizes):
        if trial.runs(usage, length=size, batch=1) and not trial.runs(usage, length=size + 1, batch=1):
            return size
    return None
