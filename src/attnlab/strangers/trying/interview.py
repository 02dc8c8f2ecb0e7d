"""Find out how a module is called: what its signature says, what its class says, and what calling it shows.

What can be seen by calling is seen by calling. What looks the same from outside, batch and length above all, is as the
class says, and as most people have it where it says nothing. `interview` learns everything about a module that is to
be examined; `learn` learns how to call one in the place of a mixer, where more is known beforehand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from attnlab.core.errors import AttnlabError, ModuleError
from attnlab.strangers.anatomy import is_block, is_stack
from attnlab.strangers.calling.convention import Convention, Kind, Label, wrong_output
from attnlab.strangers.calling.layouts import IMAGES, SPLIT
from attnlab.strangers.calling.masking import ENCODINGS, SHAPES, Masking
from attnlab.strangers.calling.roles import (
    Filling,
    Parameter,
    asks_to_be_causal,
    calls_for,
    input_of,
    roles_of,
    seems_over_pairs,
    with_a_vector,
)
from attnlab.strangers.calling.sources import (
    ALL_OF_MEMORY,
    AS_LONG,
    HANDED_ON,
    MEMORY_LENGTH,
    NUMBERS,
    OTHER_MEMORIES,
    Argument,
)
from attnlab.strangers.calling.widths import size_named
from attnlab.strangers.containment import quiet, wake
from attnlab.strangers.patient import Patient, in_mode
from attnlab.strangers.said.causality import CausalClaim, causal_said, keeps_triangle
from attnlab.strangers.said.layout import layout_said
from attnlab.strangers.said.source import names_read_otherwise
from attnlab.strangers.texts import classes_of, text_of
from attnlab.strangers.trying.first_call import most_telling
from attnlab.strangers.trying.in_use import call_of
from attnlab.strangers.trying.masks_learned import with_masks, with_pad_token
from attnlab.strangers.trying.outputs import find_output, with_output
from attnlab.strangers.trying.trial import NOTHING, Sight, Trial, influences, sight_of
from attnlab.strangers.trying.wording import assumptions_of, layout_against

_PROBED = 130  # a length at which nearly every layer can be called in milliseconds
_TABLE = 2048  # longest table whose end is looked for
_SWAPPED = {"x": "memory", "memory": "x"}
_SWAPPED_TOKENS = {"x": "memory tokens", "memory tokens": "x"}


def interview(patient: Patient) -> Convention:
    """Find out how a patient is called; what its person declares is taken as it is."""
    declared = patient.declared
    module = in_mode(patient.copy())
    with quiet():
        wake(module)
        trial = Trial(module)
        found = call_of(trial, patient)
        unread = names_read_otherwise(trial.module)
        convention = _in_both_modes(_with_samples_apart(trial, found.convention), unread)
        if found.layout is None:
            convention = _in_clean_layout(trial, _in_seeing_layout(trial, convention), found.parameters)
        elif found.layout.in_passing and found.layout.what == convention.layout == "sequence-first":
            convention = _the_one_apart(trial, convention, replace(convention, layout="batch-first"))
        convention = _of_numbers(trial, _asked_by_a_vector(trial, convention))
        convention = _with_targets(trial, convention, found.parameters)
        convention = _with_candidates(trial, convention, found.parameters)
        convention = _with_optional_memories(trial, convention, found.parameters, size_named("d_model", patient))
        convention = _with_lengths(trial, _counted(trial, _with_memory(trial, convention)), patient)
        itself = _is_its_own_memory(convention, found.parameters)
        own = tuple(_of_own_memory(found.parameters)) if itself else found.parameters
        handed_on = {
            one.parameter for one in convention.arguments if one.source == HANDED_ON
        }  # with others that it fits
        own = tuple(one for one in own if one.name not in handed_on | unread)
        convention = with_masks(trial, convention, own, declared.mask)
        convention = with_pad_token(trial, convention, patient)
        convention = _with_causality(trial, convention, patient, found.parameters)
        over_memory = _over_memory(trial, convention, found.parameters)
        convention = _as_learned(convention, over_memory)
        said = found.layout if found.layout is not None and found.layout.what == convention.layout else None
        convention = replace(
            convention,
            kind=_kind_of(patient.module, convention),
            over_memory=over_memory,
            layout_by="" if said is None else said.by,
            layout_against=layout_against(patient, convention, found),
        )
        return replace(convention, assumptions=assumptions_of(patient, convention, found))


def _in_both_modes(convention: Convention, of_training: set[str]) -> Convention:
    """The convention with a one for masks, or nothing, that training alone reads: dropout multiplies by them."""
    absent = {one.parameter for one in convention.arguments if one.source == "constant" and one.value is None}
    absent = (absent | {mask.parameter for mask in convention.masks}) & of_training
    masks = tuple(mask for mask in convention.masks if mask.parameter not in absent)
    given = (one for one in convention.arguments if one.parameter not in absent)
    ones = (Argument(name, "constant", value=1.0) for name in sorted(absent))
    return replace(convention, masks=masks, arguments=(*given, *ones))


def _with_samples_apart(trial: Trial, convention: Convention) -> Convention:
    """The convention with the input in place of another sequence of its length, if samples meet in that call.

    Another sequence is the same for all samples: what reads the batch as time finds nothing to tell them apart in it.
    """
    itself = tuple(replace(one, source="x") if one.source == AS_LONG else one for one in convention.arguments)
    own = replace(convention, arguments=itself)
    meets = own != convention and trial.runs(own) and _mixes_samples(trial, own)
    return own if meets else convention


# Layout


def _in_seeing_layout(trial: Trial, convention: Convention) -> Convention:
    """The convention with heads and length the other way round, if only so positions see each other, and not heads."""
    if convention.layout not in SPLIT or sight_of(trial, convention) != "itself":
        return convention
    other = replace(convention, layout=SPLIT[1 - SPLIT.index(convention.layout)])
    return other if trial.runs(other) and sight_of(trial, other) != "itself" else convention


def _in_clean_layout(trial: Trial, convention: Convention, parameters: Sequence[Parameter]) -> Convention:
    """The convention in the layout in which samples do not see each other, where nobody says which is meant."""
    other = replace(convention, layout="sequence-first")
    if _is_its_own_memory(other, parameters):  # perhaps only since a memory of another length was taken for a batch
        memories = {one.name for one in parameters if one.role == "memory"}
        given = (replace(one, source="memory") if one.parameter in memories else one for one in other.arguments)
        apart = replace(other, arguments=tuple(given))
        other = apart if trial.runs(apart) else other
    if convention.layout != "batch-first" or convention.flat:
        return convention
    return _the_one_apart(trial, convention, other)


def _the_one_apart(trial: Trial, convention: Convention, other: Convention) -> Convention:
    """The other of two conventions, if in it alone samples do not see each other."""
    apart = trial.runs(other) and _mixes_samples(trial, convention) and not _mixes_samples(trial, other)
    return other if apart else convention


def _asked_by_a_vector(trial: Trial, convention: Convention) -> Convention:
    """The convention with one of its sequences as a vector per sample, if only so it is over the positions of one.

    Where what asks has no positions, one that is given some lays them along the batch, or takes positions for samples.
    """
    flat = convention.layout == "unbatched" and sight_of(trial, convention) == "itself"
    if not flat and (convention.layout != "batch-first" or not _mixes_samples(trial, convention)):
        return convention
    if not flat and _answers_each(trial, convention):
        return convention
    for call in with_a_vector(Filling(convention.arguments), convention.d_in):
        other = replace(convention, layout="batch-first", arguments=call.arguments, masks=())
        with contextlib.suppress(ModuleError):
            found = with_output(trial, other)
            if not _mixes_samples(trial, found) and trial.reaction(found, slice(None)).max() > NOTHING:
                return found
    return convention


def _of_numbers(trial: Trial, convention: Convention) -> Convention:
    """The convention with one number per position where no position of one sequence sees others: they are samples.

    What gives vectors as wide as it takes is a layer, and may be wrong.
    """
    if convention.layout != "unbatched" or sight_of(trial, convention) != "itself":
        return convention
    with contextlib.suppress(ModuleError):
        if trial.run(convention, trial.inputs(convention)).shape[-1] == convention.d_in:
            return convention
    arguments = tuple(replace(one, source=NUMBERS) if one.source == "x" else one for one in convention.arguments)
    other = replace(convention, layout="batch-first", d_in=1, length=convention.d_in, arguments=arguments, masks=())
    with contextlib.suppress(ModuleError):
        return with_output(trial, other)
    return convention


def _answers_each(trial: Trial, convention: Convention) -> bool:
    """Whether it gives one vector for each position of the sequence that asks, however long the others are."""
    asking, *others = convention.arguments or (None,)
    if asking is None or asking.source != "x" or not any(one.source == "x" for one in others):
        return False
    told = (replace(one, source="memory") if one.source == "x" else one for one in others)
    return trial.runs(replace(convention, arguments=(asking, *told), masks=()))


def _with_targets(trial: Trial, convention: Convention, parameters: Sequence[Parameter]) -> Convention:
    """The convention with targets, if only with them a model of tokens answers at every position, not for the last."""
    targets = [one for one in parameters if one.role == "targets" and not one.required]
    for one in targets if convention.pooled and convention.takes == "tokens" else ():
        other = replace(convention, arguments=(*convention.arguments, Argument(one.name, "x")), pooled=False)
        if trial.runs(other):
            return other
    return convention


def _with_candidates(trial: Trial, convention: Convention, parameters: Sequence[Parameter]) -> Convention:
    """The convention with a sequence of their own for targets that the output is made of, as of items it ranks.

    Were they the input, every position would reach the output through them, whatever is hidden.
    """
    targets = {one.name for one in parameters if one.role == "targets"}
    memory = "memory tokens" if convention.takes == "tokens" else "memory"
    for one in convention.arguments:
        if one.parameter in targets and one.source == "x":
            own = [
                replace(one, source=source, value=convention.vocab_size) for source in (memory, OTHER_MEMORIES[memory])
            ]
            arguments = [tuple(each if other is one else other for other in convention.arguments) for each in own]
            with contextlib.suppress(ModuleError):
                found, other = (with_output(trial, replace(convention, arguments=each)) for each in arguments)
                x = trial.inputs(found)
                convention = convention if torch.equal(trial.run(found, x), trial.run(other, x)) else found
    return convention


def _counted(trial: Trial, convention: Convention) -> Convention:
    """The convention with positions counted from 1, where nobody sees the first if they are counted from 0: padding."""
    given = [one for one in convention.arguments if one.source.startswith("positions")]
    if not given or convention.pooled or convention.length < 3 or trial.reaction(convention, 0)[:, 1:].max() > NOTHING:
        return convention
    arguments = (replace(one, value=1) if one in given else one for one in convention.arguments)
    other = replace(convention, arguments=tuple(arguments))
    return other if trial.runs(other) and trial.reaction(other, 0)[:, 1:].max() > NOTHING else convention


# Lengths


def _with_lengths(trial: Trial, convention: Convention, patient: Patient) -> Convention:
    """The convention with the lengths the module takes; images keep theirs."""
    others = [convention.length - 1, convention.length + 1] if convention.length > 1 else [2]
    one = not convention.any_length or convention.layout in IMAGES
    if one or not any(trial.runs(convention, length=length) for length in others):
        return replace(convention, any_length=False, longest=convention.length)
    return replace(convention, any_length=True, longest=_longest(trial, convention, patient))


def _longest(trial: Trial, convention: Convention, patient: Patient) -> int | None:
    """The longest length that runs, None where no limit is met."""
    if trial.runs(convention, length=_PROBED):
        return _end_of_a_table(trial, convention, patient)
    low, high = convention.length, _PROBED
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if trial.runs(convention, length=middle) else (low, middle)
    return low


def _end_of_a_table(trial: Trial, convention: Convention, patient: Patient) -> int | None:
    """The size of a table that no longer sequence fits into."""
    tensors = [*patient.module.parameters(), *patient.module.buffers()]
    sizes = {size for tensor in tensors for size in tensor.shape if _PROBED < size <= _TABLE}
    for size in sorted(sizes):
        if trial.runs(convention, length=size, batch=1) and not trial.runs(convention, length=size + 1, batch=1):
            return size
    return None


# A second sequence: a memory of its own for a decoder, the input itself for bare cross-attention


def _with_memory(trial: Trial, convention: Convention) -> Convention:
    """The convention in which the input is its own memory, where the module mixes nothing but the memory."""
    if not any(one.source == "memory" for one in convention.arguments) or sight_of(trial, convention) != "itself":
        return convention
    arguments = tuple(replace(one, source="x") if one.source == "memory" else one for one in convention.arguments)
    itself = replace(convention, arguments=arguments)
    return itself if trial.runs(itself) else convention


def _with_optional_memories(
    trial: Trial, convention: Convention, parameters: Sequence[Parameter], d_model: int | None
) -> Convention:
    """The convention with the memories that may be left out, where positions see each other with them as without.

    Where they do not, the input is its own memory unless it is given one.
    """
    given = {one.parameter for one in convention.arguments}
    left_out = [one.name for one in parameters if one.role == "memory" and not one.required and one.name not in given]
    sight = sight_of(trial, convention) if left_out else "itself"
    widths = {"memory": d_model if convention.takes == "tokens" else None, "memory tokens": convention.vocab_size}
    for name in left_out if sight in ("all", "past") else ():
        for sources in OTHER_MEMORIES.items():
            arguments = [Argument(name, each, value=widths[sources[0]]) for each in sources]
            one, another = (replace(convention, arguments=(*convention.arguments, each)) for each in arguments)
            with contextlib.suppress(ModuleError):
                x = trial.inputs(convention)
                if not torch.equal(trial.run(one, x), trial.run(another, x)) and sight_of(trial, one) == sight:
                    convention = one
                    break
    return convention


def _is_its_own_memory(convention: Convention, parameters: Sequence[Parameter]) -> bool:
    """Whether the input is given as the memory too, by the names of what is given."""
    memories = {one.name for one in parameters if one.role == "memory"}
    return any(one.parameter in memories and one.source == "x" for one in convention.arguments)


def _of_own_memory(parameters: Sequence[Parameter]) -> Iterator[Parameter]:
    """The parameters with masks over the memory as masks over the input, for an input that is its own memory."""
    for one in parameters:
        over_input = "mask" if seems_over_pairs(one.name) else "key mask"
        yield replace(one, role=over_input) if one.role == "memory mask" else one


def _over_memory(trial: Trial, convention: Convention, parameters: Sequence[Parameter]) -> Convention | None:
    """How the module is called with the memory as its input, beside a fixed sequence that asks."""
    swapped = _SWAPPED if convention.takes == "embeddings" else _SWAPPED_TOKENS
    masks = [replace(one, role="key mask") for one in parameters if one.role == "memory mask"]
    given = {mask.parameter for mask in convention.masks}  # what is left out may be over the memory as it is encoded
    masks += [one for one in parameters if masks and one.role in ("mask", "key mask") and one.name not in given]
    told = {one.parameter: one.value for one in convention.arguments if one.source == ALL_OF_MEMORY}
    if not masks or not {one.source for one in convention.arguments} >= set(swapped):
        return None
    others = (one for one in convention.arguments if one.parameter not in told)
    arguments = tuple(replace(one, source=swapped.get(one.source, one.source)) for one in others)
    needed = {mask.parameter for mask in convention.masks if mask.required}
    view = replace(
        convention,
        arguments=(*arguments, *(Argument(name, "constant") for name in sorted(needed))),
        masks=tuple(
            Masking(name, "pairs" if form[1] in SHAPES else "keys", *form, required=True) for name, form in told.items()
        ),
        pooled=True,
        slots=MEMORY_LENGTH,
        d_out=MEMORY_LENGTH * convention.d_out,
        causal=False,
        causal_by="",
        causal_means="nothing",
    )
    learned = with_masks(trial, view, masks) if trial.runs(view) else view
    return learned if learned.key_mask is not None else None


def _as_learned(convention: Convention, over_memory: Convention | None) -> Convention:
    """The convention in which masks over the memory hide nothing by what was learned of them."""
    learned = {
        mask.parameter: (mask.encoding, mask.shape) for mask in (() if over_memory is None else over_memory.masks)
    }
    given = (
        replace(one, value=learned.get(one.parameter, one.value)) if one.source == ALL_OF_MEMORY else one
        for one in convention.arguments
    )
    return replace(convention, arguments=tuple(given))


# Causality and kind


def _with_causality(
    trial: Trial, convention: Convention, patient: Patient, parameters: Sequence[Parameter]
) -> Convention:
    """The convention with what the module is meant to see, and how it is made to see no more."""
    sight, asked = sight_of(trial, convention), patient.declared.causal
    claim = causal_said(patient.module, patient.text, patient.arguments)
    behaves = {"past": True, "all": False}.get(sight)
    # separate queries and keys: who calls decides, and words of a class are about one of its uses
    by_use = _is_its_own_memory(convention, parameters) or any(one.role == "key or value" for one in parameters)
    means, flag = _means(trial, convention, sight, parameters)
    if claim is not None and claim.causal and means == "nothing" and sight != "past":
        claim = claim if _tries_to_be(trial, convention, claim) else None
        claim = _with_its_switch(patient, convention, claim)
    if asked is not None:
        meant, by = asked, "--causal" if asked else "--not-causal"
    elif claim is not None and not (claim.likely and ((claim.causal is False and behaves) or by_use)):
        meant, by = claim.causal, claim.by
    elif means == "flag" and flag is not None and asks_to_be_causal(flag):
        meant, by = True, f"the name of `{flag}`"
    else:
        meant, by = behaves, "" if behaves is None else "its behaviour"
    return replace(convention, causal=meant, causal_by=by, causal_means=means, flag=flag)


def _tries_to_be(trial: Trial, convention: Convention, claim: CausalClaim) -> bool:
    """Whether what makes causal likely is borne out: said in so many words, by tokens, or by a triangle that is made.

    A decoder may predict all positions at once, and a triangle in the source may be for other calls.
    """
    if convention.takes == "tokens" or not (claim.likely or claim.by == "its source"):
        return True
    with _Triangles() as made:
        trial.run(convention, trial.inputs(convention))
    return made.any or keeps_triangle(trial.module)


def _with_its_switch(patient: Patient, convention: Convention, claim: CausalClaim | None) -> CausalClaim | None:
    """The claim, or that of an argument which is off: turned on, it makes causal what its class says is causal."""
    if claim is None or patient.build is None:
        return claim
    for name in (name for name, value in patient.arguments.items() if value is False):
        with contextlib.suppress(AttnlabError):
            if sight_of(Trial(in_mode(patient.build({name: True}))), convention) == "past":
                return CausalClaim(causal=False, by=f"its argument {name}=False")
    return claim


@final
class _Triangles(TorchFunctionMode):
    """Notice whether triangles are made."""

    any = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.any |= getattr(func, "__name__", "").rstrip("_") in ("tril", "triu")
        return func(*args, **(kwargs or {}))


def _means(
    trial: Trial, convention: Convention, sight: Sight, parameters: Sequence[Parameter]
) -> tuple[Literal["always", "mask", "flag", "nothing"], str | None]:
    """How the module can be made causal, and by which flag."""
    for flag in (one.name for one in parameters if one.role == "flag"):
        off, on = (sight_of(trial, replace(convention, flag=flag), causal=value) for value in (False, True))
        if on == "past" and off != "past":
            return "flag", flag
    if sight == "past":
        return "always", convention.flag
    if convention.pair_mask is not None:
        return "mask", convention.flag
    asking = (one.name for one in parameters if one.role == "flag" and asks_to_be_causal(one.name))
    hiding = next((flag for flag in asking if _hides(trial, replace(convention, flag=flag))), None)
    return ("nothing", convention.flag) if hiding is None else ("flag", hiding)


def _hides(trial: Trial, convention: Convention) -> bool:
    """Whether its flag takes positions out of sight, though not those that follow, or not all of them."""
    if convention.pooled or convention.length < 2:
        return False
    try:
        off, on = (influences(trial, convention, causal=value) for value in (False, True))
    except ModuleError:
        return False
    return bool(((off > NOTHING) & (on <= NOTHING)).any())


def _kind_of(module: nn.Module, convention: Convention) -> Kind:
    """Whether it is a layer, a block or a model."""
    if convention.takes == "tokens" or any(is_stack(part) for part in module.modules()):
        return "model"
    return "block" if is_block(module) else "layer"


# In the place of a mixer

_LENGTHS = (5, 7)  # short, and unlike d_model, so that axes cannot be mistaken for each other
_LONGEST = 2048  # a module that insists on its full length is called at that length up to here
_SEEN = 1e-5  # of the largest output: far above float32 rounding, far below what one position weighs
_FUTURE = "sees the future: it has no mask argument, and its output depends on later positions"
_NO_PADDING = "padding is not told to it: it has no mask argument that hides single positions"


def learn(module: nn.Module, *, d_model: int, causal: bool, label: Label, max_length: int | None = None) -> Convention:
    """Learn how to call a module in the place of a mixer, from an instance that is used for nothing else."""
    module.eval()
    parameters = roles_of(module)
    text = text_of(classes_of(module))
    patient = Patient(name=label.name, module=module, build=None, arguments={}, text=text, file=label.file)
    failure: ModuleError | None = None
    with quiet():
        wake(module)
        trial = Trial(module)
        for length in _lengths(d_model, max_length):
            try:
                opening = _opening(trial, patient, parameters, d_model, length)
                convention = replace(with_masks(trial, opening, parameters), padded_see_themselves=True)
                convention = (
                    _made_causal(trial, convention, parameters, label)
                    if causal
                    else _left_open(trial, convention, parameters)
                )
                return _told_padding(trial, convention)
            except ModuleError as error:
                failure = failure or error
    raise failure or ModuleError(f"{label.name}: max_length must be at least 1; got {max_length}")


def _lengths(d_model: int, max_length: int | None) -> list[int]:
    """The lengths to call at: a short one, then the full one for modules that take no other."""
    short = [length for length in (*_LENGTHS, 3, 2) if length != d_model and length <= (max_length or length)]
    full = [max_length] if max_length is not None and 0 < max_length <= _LONGEST else []
    return [*short[:1], *(length for length in full if length not in short[:1])]


def _opening(trial: Trial, patient: Patient, parameters: Sequence[Parameter], d_model: int, length: int) -> Convention:
    """The first way to call the module that runs, in the layout in which samples do not see each other."""
    said = layout_said(trial.module, input_of(parameters, patient), patient.text)
    layouts = sorted(
        ("batch-first", "channels-first", "sequence-first"), key=lambda one: said is None or one != said.what
    )
    failures: list[ModuleError] = []
    for call in calls_for(parameters, size_named("d_head", patient), None):
        arguments = tuple(_with_place_for_memory(call.arguments, parameters))
        running: list[Convention] = []
        for layout in layouts:
            start = Convention("layer", "embeddings", d_model, d_model, length=length, layout=layout)
            start = replace(start, arguments=arguments, masks=call.masks, flag=call.flag)
            try:
                running.append(_tried(trial, start, patient))
            except ModuleError as error:
                failures.append(error)
        if running:
            return _cleanest(trial, running)
    raise most_telling(failures, parameters, patient)


def _with_place_for_memory(arguments: Sequence[Argument], parameters: Sequence[Parameter]) -> Iterator[Argument]:
    """What a call gives, with the other sequence where a layer of a decoder has one."""
    roles = {one.name: one.role for one in parameters}
    given = {one.parameter for one in arguments}
    for index, one in enumerate(arguments):
        memory = roles[one.parameter] in ("key or value", "memory", "open") and one.source in ("x", "memory")
        yield replace(one, source="memory or x") if memory and index > 0 else one
    for one in parameters:
        if one.role == "memory" and one.name not in given:
            yield Argument(one.name, "memory if given")


def _tried(trial: Trial, convention: Convention, patient: Patient) -> Convention:
    """Call the module, find the output in what it returns, and reject NaN."""
    label = Label(patient.name, patient.file)
    x = trial.inputs(convention)
    returned = trial.returned(convention, x, label=label)
    found = find_output(returned, convention, x)
    convention = replace(convention, output=None if found is None else found[0])
    if found is None or found[1] or convention.output_in(returned, x).shape != x.shape:
        raise wrong_output(returned, x, convention, label=label)
    if not convention.output_in(returned, x).isfinite().all():
        raise ModuleError(
            f"{label.name}: forward returned NaN or infinite values for ordinary input {tuple(x.shape)}"
            " (hint: a row of scores where all is masked, a division by zero, or torch.empty left uninitialized)"
        )
    return convention


def _cleanest(trial: Trial, running: list[Convention]) -> Convention:
    """The first layout in which samples do not see each other, or the first of all with a note."""
    clean = next((one for one in running if not _mixes_samples(trial, one)), None)
    if clean is None:
        return _noted(running[0], "samples of a batch see each other, in every layout in which it runs")
    if clean is not running[0]:
        note = f"taken as {clean.layout}: samples would see each other {running[0].layout}"
        return _noted(clean, note)
    return clean


def _mixes_samples(trial: Trial, convention: Convention) -> bool:
    """Whether the first or the last sample changes the output of another."""
    x, other = trial.inputs(convention), trial.inputs(convention, seed=1)
    before = trial.run(convention, x)
    for sample in (0, x.size(0) - 1):
        change = (trial.run(convention, convention.replaced(x, other, sample)) - before).abs()
        change[sample] = 0
        if change.max() > _SEEN * before.abs().max():
            return True
    return False


def _sees_future(trial: Trial, convention: Convention, *, causal: bool) -> bool:
    return bool(influences(trial, convention, causal=causal).nan_to_num(0.0).triu(1).max() > _SEEN)


def _made_causal(trial: Trial, convention: Convention, parameters: Sequence[Parameter], label: Label) -> Convention:
    """A way to call the module in which no position sees a later one, or a note that there is none."""
    convention = replace(convention, causal=True)
    if not _sees_future(trial, convention, causal=True):
        return replace(convention, causal_means="always")
    flags = [one.name for one in parameters if one.role == "flag"]
    masks = [one.name for one in parameters if one.role == "mask"]
    ways = [replace(convention, causal_means="mask")] if convention.pair_mask is not None else []
    for flag in flags:
        ways.append(replace(convention, causal_means="flag", flag=flag))
        ways += [replace(convention, causal_means="mask", flag=flag)] if convention.pair_mask is not None else []
    problems = []
    for way in ways:
        problems.append(_problem_of(trial, way))
        if not problems[-1]:
            return way
    if not flags and not masks:
        return replace(_noted(convention, _FUTURE), causal_means="nothing")
    tried = f"Tried {len(ENCODINGS)} meanings of its values in {len(SHAPES)} shapes; " if masks else ""
    given, problem = next(zip(ways, problems, strict=True), (convention, "none over pairs of positions runs"))
    names = "', '".join([*masks, *flags])
    raise ModuleError(
        f"{label.name}: forward takes '{names}', but nothing given there makes it causal. {tried}"
        f"at best, called as {given.in_words}: {problem}"
        " (hint: apply the mask to the scores before the softmax, so that blocked positions weigh nothing)"
    )


def _problem_of(trial: Trial, convention: Convention) -> str:
    """What is wrong with the output under a causal mask, or nothing."""
    try:
        if _sees_future(trial, convention, causal=True):
            return "the output depends on later positions"
        if not influences(trial, convention, causal=True)[0, 0] > _SEEN:
            return "the first position does not see itself"
    except ModuleError as error:
        return str(error)
    return ""


def _left_open(trial: Trial, convention: Convention, parameters: Sequence[Parameter]) -> Convention:
    """The way to call the module where all may be seen."""
    flag = next((one.name for one in parameters if one.role == "flag"), None)
    convention = replace(convention, causal=False, flag=flag)
    if sight_of(trial, convention) == "past" and not _sees_future(trial, convention, causal=False):
        return _noted(convention, "causal by itself: it sees no later position, though its place would let it")
    return convention


def _told_padding(trial: Trial, convention: Convention) -> Convention:
    """The convention with its way to tell padding, or a note that there is none."""
    if convention.key_mask is not None and _hides_padding(trial, convention):
        return convention
    kept = tuple(mask for mask in convention.masks if mask.over == "pairs" or mask.required)
    return _noted(replace(convention, masks=kept), _NO_PADDING)


def _hides_padding(trial: Trial, convention: Convention) -> bool:
    """Whether a padded position is seen by itself alone, and all-real padding changes nothing."""
    if convention.length < 2:
        return False
    x, other = trial.inputs(convention), trial.inputs(convention, seed=1)
    real = torch.ones(x.shape[:2], dtype=torch.bool)
    try:
        plain, told = trial.run(convention, x), trial.run(convention, x, padding=real)
        real[0, 1] = False
        before = trial.run(convention, x, padding=real)
        changes = [
            (trial.run(convention, convention.replaced(x, other, (0, position)), padding=real) - before)[0]
            .abs()
            .amax(-1)
            for position in (0, 1)
        ]
    except ModuleError:
        return False
    visible, hidden = changes
    hidden[1] = 0
    size = before[0].abs().max()
    same = torch.allclose(plain, told, atol=_SEEN, rtol=1e-3)
    return bool(same and visible[0] > _SEEN * size and hidden.max() <= _SEEN * size)


def _noted(convention: Convention, note: str) -> Convention:
    return replace(convention, notes=(*convention.notes, note))
