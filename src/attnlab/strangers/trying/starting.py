"""Let a first call in training mode fill the parameters that a constructor leaves to it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.containment import quiet
from attnlab.strangers.patient import Patient, in_mode, twin_of
from attnlab.strangers.trying.trial import Trial


def started_by_a_call(patient: Patient, convention: Convention) -> Patient:
    """The patient with what its first call in training mode fills, as where numbers are learned from the first batch.

    Nothing changes where that fills nothing: what stays NaN is never initialized.
    """
    module, build = _started(patient.module, convention, patient.uninitialized), patient.build
    parameters = dict(module.named_parameters())
    left = tuple(name for name in patient.uninitialized if bool(parameters[name].isnan().any()))
    if build is None or left:
        return patient

    def built(changes: Mapping[str, Any]) -> nn.Module:
        other = build(changes)
        started = _started(other, convention, patient.uninitialized)
        return other if any(bool(one.isnan().any()) for one in started.parameters()) else started

    notes = (*patient.notes, "started by a call in training mode, which fills parameters")
    return replace(patient, module=module, build=built, uninitialized=(), notes=notes)


def _started(module: nn.Module, convention: Convention, names: Sequence[str]) -> nn.Module:
    """A copy that was called once in training mode, some parameters NaN before."""
    twin = in_mode(twin_of(module), train=True)
    with torch.no_grad(), contextlib.suppress(ModuleError), quiet():
        for name, parameter in twin.named_parameters():
            if name in names:
                parameter.fill_(float("nan"))
        convention.call(twin, Trial(twin).inputs(convention))
    return in_mode(twin, train=module.training)
