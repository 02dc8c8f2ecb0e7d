"""Find out how a patient is called: what its signature says, what its class says, and what calling it shows.

What can be seen by calling is seen by calling. What looks the same from outside, batch and length above all,
is as the class says, and as most people have it where it says nothing: nothing is taken to be otherwise only
because the module would look healthier so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from torch import nn

from attnlab.doctor.examination import wake
from attnlab.strangers.calling.claims import causal_said, has_feedforward, has_norm, is_block
from attnlab.strangers.calling.first_call import first_call
from attnlab.strangers.calling.lengths import with_lengths
from attnlab.strangers.calling.masks_learned import with_masks
from attnlab.strangers.calling.memories import is_its_own_memory, of_own_memory, over_memory, with_memory
from attnlab.strangers.calling.pad_tokens import with_pad_token
from attnlab.strangers.calling.roles import Parameter
from attnlab.strangers.calling.seeing import Sight, sight_of
from attnlab.strangers.calling.trial import Trial
from attnlab.strangers.calling.wording import assumptions_of
from attnlab.strangers.loading.loading import twin_of
from attnlab.strangers.patient import Patient
from attnlab.strangers.probing import quiet
from attnlab.strangers.usage import Kind, Usage


def interview(patient: Patient) -> Usage:
    """Find out how a patient is called; what its person declares is taken as it is."""
    declared = patient.declared
    module = twin_of(patient.module).eval()
    with quiet():
        wake(module)
        trial = Trial(module)
        call = first_call(trial, patient)
        usage = with_lengths(trial, with_memory(trial, call.usage), patient)
        own = tuple(of_own_memory(call.parameters)) if is_its_own_memory(usage, call.parameters) else call.parameters
        usage = with_pad_token(trial, with_masks(trial, usage, own, declared.mask), patient)
        usage = _with_causality(trial, usage, patient, asked=declared.causal, parameters=call.parameters)
        usage = replace(usage, kind=_kind_of(patient, usage), over_memory=over_memory(trial, usage, call.parameters))
        said = call.layout if call.layout is not None and call.layout.what == usage.layout else None
        usage = replace(usage, layout_by="" if said is None else said.by)
        return replace(usage, assumptions=assumptions_of(patient, usage, call))


def _with_causality(
    trial: Trial, usage: Usage, patient: Patient, *, asked: bool | None, parameters: Sequence[Parameter]
) -> Usage:
    """The usage with what the module is meant to see, and how it is made to see no more."""
    sight = sight_of(trial, usage)
    claim = causal_said(patient.module, patient.text, patient.arguments)
    behaves = {"past": True, "all": False}.get(sight)
    if asked is not None:
        meant, by = asked, "--causal" if asked else "--not-causal"
    elif claim is not None and not (
        claim.likely and ((claim.causal is False and behaves) or is_its_own_memory(usage, parameters))
    ):
        meant, by = claim.causal, claim.by
    else:
        meant, by = behaves, "" if behaves is None else "its behaviour"
    means, flag = _means(trial, usage, sight, parameters)
    return replace(usage, causal=meant, causal_by=by, causal_means=means, flag=flag)


def _means(
    trial: Trial, usage: Usage, sight: Sight, parameters: Sequence[Parameter]
) -> tuple[Literal["always", "mask", "flag", "nothing"], str | None]:
    """How the module can be made causal, and by which flag."""
    for flag in (one.name for one in parameters if one.role == "flag"):
        off, on = (sight_of(trial, replace(usage, flag=flag), causal=value) for value in (False, True))
        if on == "past" and off != "past":
            return "flag", flag
    if sight == "past":
        return "always", usage.flag
    if usage.pair_mask is not None:
        return "mask", usage.flag
    return "nothing", usage.flag


def _kind_of(patient: Patient, usage: Usage) -> Kind:
    """Whether it is a layer, a block or a model."""
    module = patient.module
    if usage.takes == "tokens" or any(_is_stack(part) for part in module.modules()):
        return "model"
    return "block" if is_block(module) else "layer"


def _is_stack(part: nn.Module) -> bool:
    """Whether a part is a list of several blocks of one class."""
    if not isinstance(part, nn.ModuleList | nn.Sequential) or len(part) < 2:
        return False
    classes = {type(each) for each in part}
    return len(classes) == 1 and all(has_feedforward(each) and has_norm(each) for each in part)
