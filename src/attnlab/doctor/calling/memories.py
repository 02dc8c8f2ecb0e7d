"""What a second sequence is: a memory of its own for a decoder, the input itself for bare cross-attention."""

from __future__ import annotations

from dataclasses import replace

from attnlab.doctor.calling.seeing import sight_of
from attnlab.doctor.calling.trial import Trial
from attnlab.doctor.usage import Usage


def with_memory(trial: Trial, usage: Usage) -> Usage:
    """Return the usage in which the input is its own memory, where the module mixes nothing but the memory.

    Parameters
    ----------
    trial : Trial
        A copy of the patient.
    usage : Usage
        A call that runs, with a fixed memory where one is required.

    Returns
    -------
    Usage
        A decoder keeps the fixed memory: the input in its place would let every position see all others.
    """
    if not any(one.source == "memory" for one in usage.arguments) or sight_of(trial, usage) != "itself":
        return usage
    arguments = tuple(replace(one, source="x") if one.source == "memory" else one for one in usage.arguments)
    itself = replace(usage, arguments=arguments)
    return itself if trial.runs(itself) else usage
