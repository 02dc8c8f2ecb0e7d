"""Learn what a module's mask arguments mean: hide a position in every way there is, and see whether it is hidden."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.masking import (
    BATCHED_SHAPES,
    ENCODINGS,
    KEY_SHAPES,
    KEYS_BEFORE_BATCH,
    LENGTH_SHAPES,
    LENGTHS,
    PAD_TOKEN,
    SHAPES,
    Masking,
)
from attnlab.strangers.calling.roles import Parameter, seems_over_pairs
from attnlab.strangers.calling.sources import Argument
from attnlab.strangers.patient import MASKS_DECLARED, Patient
from attnlab.strangers.said.masks import mask_said, over_said
from attnlab.strangers.said.source import Said, nodes_of, source_of_forward
from attnlab.strangers.trying.trial import BATCH, NOTHING, Trial, replaced

Place = Literal["within", "end"]
"""Where positions are hidden: one near the beginning, or the last ones."""

_WITNESS = 0  # sees everything under a mask over pairs and is seen by none: a square mask read by its first row shows
_WITHIN = 1  # the hidden position
_VISIBLE = 2  # one that is not hidden
_SAME = 1e-3  # of the size of an output: more than rounding of another path through the code
_AT_END = 2  # positions hidden at the end
_ALIKE = 2.0  # times as much as another position that a position weighs, where nothing is told of either
_OBEYED = 0.02  # of what a visible position weighs: a hidden one that weighs less counts as hidden
_TOLD = 0.7  # a hidden position that weighs less than this tells which values hide
_LEANS = 0.5  # of what is left under the contrary meaning; values that do nothing leave the same
_SURELY_NO_SUM = 0.2  # a 1 added to a score leaves 1/e = 0.37; what leaves less does more than add
_SMALL = 0.1  # standard deviations of inputs whose scores leave every position some weight
_SHORTEST = 4  # length below which nothing can be hidden and something still be seen

_WITHOUT_SUMS = tuple(
    sorted((e for e in ENCODINGS if "added" not in e), key=lambda e: ("bool" not in e, "int" not in e))
)
_SUMS = tuple(encoding for encoding in ENCODINGS if "added" in encoding)
PAD_WORDS = (
    *("pad_idx", "padding_idx", "pad_id", "pad_token_id", "pad_token", "pad_index", "src_pad_idx", "trg_pad_idx"),
    *("tgt_pad_idx", "pad", "pad_value", "padding_id", "pad_tok"),
)
"""Names under which constructors ask for the token that means padding."""

_INPUT = r"\b(idx|tokens?|x|src|trg|tgt|seq|ids|\w*input_ids|inputs?|text|words|sentences?|batch)"
_WITH_NAMED = re.compile(_INPUT + r"\s*(!=|==|\.ne\(|\.eq\()\s*(\w+\.)*\w*pad\w*", re.I)
_WITH_ZERO = re.compile(_INPUT + r"\s*(!=|==|>|\.ne\(|\.eq\()\s*0\b", re.I)
_PADDED = 3  # tokens of padding put behind the others


@final
class Hiding:
    """Hide positions of one patient by one mask or another, and measure.

    Parameters
    ----------
    trial : Trial
        A copy of the patient.
    convention : Convention
        A call that runs.
    size : float
        Of the inputs, in standard deviations.
    """

    def __init__(self, trial: Trial, convention: Convention, *, size: float = 1.0) -> None:
        self.trial = trial
        self.convention = convention
        self.size = size
        self.x = self._sized(trial.inputs(convention))

    def left(self, masking: Masking, place: Place = "within") -> float | None:
        """What hidden positions weigh in the outputs of the others, relative to visible ones."""
        told = self.told(masking)
        length = self.convention.length
        at_end = place == "end" or masking.encoding == LENGTHS
        hidden = list(range(length - _AT_END, length)) if at_end else [_WITHIN]
        late = hidden[0] - 1 if at_end else length - 1
        how = self._how(masking, hidden)
        aside = [_WITNESS, *hidden] if masking.over == "pairs" else hidden
        try:
            before = self.trial.run(told, self.x, **how)
            weight = self._weight(told, before, hidden, aside, how)
            first = self._weight(told, before, [_VISIBLE], [_VISIBLE, *aside], how)
            last = self._weight(told, before, [late], [late, *aside] if self._sees_later else aside, how)
        except ModuleError:
            return None
        visible = min(first, last)
        return weight / visible if math.isfinite(weight + visible) and visible > NOTHING else math.inf

    def changes_nothing(self, masking: Masking | None) -> bool:
        """Whether a mask that hides nothing leaves the output as it is without a mask; None: no mask does.

        Of one that is always given: whether it leaves something of the input to see.
        """
        told = self.convention if masking is None else self.told(replace(masking, required=True))
        try:
            output = self.trial.run(told, self.x)
        except ModuleError:
            return False
        if masking is not None and masking.required:
            return bool(output.isfinite().all()) and float(self.trial.reaction(told, slice(None)).max()) > NOTHING
        return bool((output - self._plain).abs().max() <= _SAME * self._plain.abs().max())

    def tells_places(self, masking: Masking) -> bool:
        """Whether with it some positions weigh more, or less, than without, beside others: unlike a time step."""
        told, last = self.told(masking), self.convention.length - 1
        how = self._how(masking, range(last + 1 - _AT_END, last + 1))
        try:
            given, plain = (self.trial.run(told, self.x, **each) for each in (how, {}))
            each = [
                (self._weight(told, given, [place], [place], how), self._weight(told, plain, [place], [place], {}))
                for place in (_WITNESS, _VISIBLE, last - _AT_END, last - 1, last)
            ]
        except ModuleError:
            return True
        ratios = [with_it / without for with_it, without in each if without > NOTHING]
        return bool(ratios) and not max(ratios) <= _ALIKE * min(ratios)

    def told(self, masking: Masking) -> Convention:
        """The convention with one mask given in one way."""
        others = (mask for mask in self.convention.masks if mask.parameter != masking.parameter)
        return replace(self.convention, masks=(*others, masking))

    @property
    def gentle(self) -> Hiding | None:
        """The same with small inputs: scores so large that each position sees one other hide what a mask does."""
        small = self.size == 1.0 and self.convention.takes == "embeddings"
        return Hiding(self.trial, self.convention, size=_SMALL) if small else None

    def _sized(self, x: Tensor) -> Tensor:
        return x if self.size == 1.0 else x * self.size

    @functools.cached_property
    def _plain(self) -> Tensor:
        """The output with nothing hidden."""
        return self.trial.run(self.convention, self.x)

    @functools.cached_property
    def _sees_later(self) -> bool:
        """Whether, with nothing hidden, a position sees later ones."""
        last = [self.convention.length - 1]
        return self._weight(self.convention, self._plain, last, last, {}) > NOTHING

    def _weight(
        self, convention: Convention, before: Tensor, moved: Sequence[int], aside: Sequence[int], how: dict[str, Any]
    ) -> float:
        """The largest change of an output when some inputs are replaced, some outputs left aside."""
        other = self._sized(self.trial.inputs(convention, length=self.x.size(1), batch=self.x.size(0), seed=1))
        after = self.trial.run(convention, convention.replaced(self.x, other, (slice(None), list(moved))), **how)
        if not convention.pooled:
            kept = torch.ones(before.size(1), dtype=torch.bool)
            kept[list(aside)] = False
            before, after = before[:, kept], after[:, kept]
        return float((after - before).abs().max() / before.abs().max().clamp_min(1e-30))

    def _how(self, masking: Masking, hidden: Sequence[int]) -> dict[str, Any]:
        """What tells a call that positions are hidden."""
        length = self.convention.length
        real = torch.ones(BATCH, length, dtype=torch.bool)
        real[:, hidden] = False
        if masking.over == "keys":
            return {"padding": real}
        allowed = real[:, None].repeat(1, length, 1)
        allowed[:, :, _WITNESS] = False
        allowed[:, _WITNESS] = True
        return {"allowed": allowed | torch.eye(length, dtype=torch.bool)}


@final
@dataclass(frozen=True)
class _Tried:
    """Hold a way to give a mask, and how much of a hidden position's weight is left under it."""

    masking: Masking
    left: float


def with_masks(
    trial: Trial, convention: Convention, parameters: Sequence[Parameter], declared: str | None = None
) -> Convention:
    """The convention with all mask arguments that can be given, their values as declared where that is done."""
    if convention.length < _SHORTEST:
        return convention
    convention = _without_lengths_by_chance(trial, convention, parameters)
    hiding = Hiding(trial, convention)
    learned: list[Masking] = []
    for one in parameters:
        if one.role == "lengths":
            learned += _lengths(hiding, one)
        elif one.role in ("mask", "key mask"):
            found = _learn(hiding, one, declared)
            learned += found
            if found and one.required:  # the others are learned beside what it means, not beside a first guess
                hiding = Hiding(trial, hiding.told(found[0]))
    convention, learned = _learned_together(trial, convention, parameters, learned) or (convention, learned)
    of_keys = {one.name for one in parameters if one.role in ("key mask", "lengths")}
    given = {mask.parameter for mask in convention.masks}  # without which nothing ran
    chosen = [mask for over in ("pairs", "keys") for mask in _best(learned, over, of_keys)]
    chosen = [replace(mask, required=mask.required or mask.parameter in given) for mask in chosen]
    rest = tuple(mask for mask in convention.masks if mask.parameter not in {each.parameter for each in chosen})
    return replace(convention, masks=(*chosen, *rest))


def _without_lengths_by_chance(trial: Trial, convention: Convention, parameters: Sequence[Parameter]) -> Convention:
    """The convention without masks by lengths that nothing calls so and that tell no places: numbers as a time step."""
    named = {one.name for one in parameters if one.role == "lengths"}
    for mask in (one for one in convention.masks if one.encoding == LENGTHS and one.parameter not in named):
        number = Argument(mask.parameter, "the length each")
        masks = tuple(one for one in convention.masks if one is not mask)
        other = replace(convention, masks=masks, arguments=(*convention.arguments, number))
        if not Hiding(trial, convention).tells_places(mask) and trial.runs(other):
            convention = other
    return convention


def _learned_together(
    trial: Trial, convention: Convention, parameters: Sequence[Parameter], alone: Sequence[Masking]
) -> tuple[Convention, list[Masking]] | None:
    """A mask that hides only where the others are given too, with those, and the call that gives them; None: no such.

    Others over pairs that hide alone are given as boolean ones, hide beside it too, and stand among what is learned.
    """
    masks = [one for one in parameters if one.role in ("mask", "key mask")]
    hiding_alone = {mask.parameter: mask.over for mask in reversed(alone) if mask.obeyed}  # over pairs before keys
    silent = [one for one in masks if len(masks) > 1 and one.name not in hiding_alone]
    for one, encoding, of_keys in itertools.product(silent, _WITHOUT_SUMS[:2], KEY_SHAPES):
        shapes = {"pairs": "(q_len, k_len)", "keys": of_keys}
        over = {other.name: hiding_alone.get(other.name, "keys") for other in masks if other is not one}
        others = [Masking(name, each, encoding, shapes[each], required=True) for name, each in over.items()]
        own = Masking(one.name, "keys", encoding, of_keys, required=True)  # where all of them are wanted, or none
        ways = (replace(convention, masks=masks) for masks in ((*others,), (*others, own)))
        together = next(filter(trial.runs, ways), None)
        if together is None:
            continue
        hiding = Hiding(trial, together)
        found = _learn(hiding, one, None)
        if not any(mask.obeyed for mask in found) or _any_hides(Hiding(trial, convention), others, "keys"):
            continue
        pairs = [other for other in others if other.over == "pairs"]
        beside = Hiding(trial, hiding.told(replace(found[0], required=True)))
        if all(_any_hides(beside, [other], "pairs") for other in pairs):
            return together, [*(replace(mask, required=mask.required or bool(pairs)) for mask in found), *pairs]
    return None


def _any_hides(hiding: Hiding, masks: Sequence[Masking], over: str) -> bool:
    """Whether one of some masks over keys, or pairs, hides what it is to hide."""
    lefts = (hiding.left(mask) for mask in masks if mask.over == over)
    return any(left is not None and left < _OBEYED for left in lefts)


def _best(learned: Sequence[Masking], over: str, of_keys: set[str]) -> list[Masking]:
    """The one mask of its kind: obeyed before others, then by what names say, then by shape."""
    candidates = [mask for mask in learned if mask.over == over]

    def rank(mask: Masking) -> tuple[bool, bool, bool]:
        named_otherwise = (mask.parameter in of_keys) is not (over == "keys")
        return not mask.obeyed, named_otherwise, over == "keys" and mask.shape in SHAPES

    return sorted(candidates, key=rank)[:1]


def _lengths(hiding: Hiding, one: Parameter) -> list[Masking]:
    """Lengths as a mask over keys, if the module takes them."""
    for shape in LENGTH_SHAPES:
        masking = Masking(one.name, "keys", LENGTHS, shape, required=one.required, at_end=True)
        left = hiding.left(masking)
        if left is not None:
            return [replace(masking, obeyed=left < _OBEYED)]
    return []


def _learn(hiding: Hiding, one: Parameter, declared: str | None) -> list[Masking]:
    """The ways one mask argument is to be given: over pairs, over keys, or both.

    Ways in which a mask that hides nothing changes the output come in only where there are no others: a wrong shape
    may run and scramble, a wrong meaning hides everything.
    """
    said = Said(MASKS_DECLARED[declared], "--mask") if declared else mask_said(hiding.trial.module, one.name)
    forms = {over: _forms(one, over, said) for over in ("pairs", "keys")}
    harmless = {over: [form for form in forms[over] if hiding.changes_nothing(form)] for over in forms}
    tried = [_tried(hiding, each) for each in (harmless if any(harmless.values()) else forms).values()]
    decided = [_judged_at_end(hiding, _decided(each, said, one)) for each in tried if each]
    obeyed = [mask for mask in decided if mask.obeyed]
    if obeyed:
        return _with_padding(obeyed)
    found = [] if hiding.gentle is None or not decided else _learn(hiding.gentle, one, declared)
    if any(mask.obeyed for mask in found):
        return found
    if _is_switched_off(hiding, one) or any(_speaks_by_presence(hiding, each) for each in decided):
        return []
    if hiding.convention.layout == "batch-first":  # what runs in this shape and hides nothing, runs by chance
        decided = [mask for mask in decided if mask.shape != KEYS_BEFORE_BATCH]
    likely = over_said(hiding.trial.module, one.name) or ("keys" if one.role == "key mask" else "pairs")
    return _with_padding(sorted(decided, key=lambda mask: mask.over != likely)[:1])


def _speaks_by_presence(hiding: Hiding, mask: Masking) -> bool:
    """Whether a mask changes the output, and what stands in it nothing: given, it asks to be causal."""
    told = hiding.told(replace(mask, required=True))
    try:
        empty, hides = (hiding.trial.run(told, hiding.x, **how) for how in ({}, hiding._how(mask, [_WITHIN])))
    except ModuleError:
        return False
    return torch.equal(empty, hides) and not hiding.changes_nothing(mask)


def _is_switched_off(hiding: Hiding, one: Parameter) -> bool:
    """Whether `forward` drops a mask under a condition, or a setting does, with which a call differs or fails."""
    nodes = nodes_of(source_of_forward(hiding.trial.module))
    inside = (ast.unparse(each) for node in nodes if isinstance(node, ast.If) for each in (*node.body, *node.orelse))
    if f"{one.name} = None" in inside:
        return True
    parts = hiding.trial.module.modules()
    switches = [
        (part, name) for part in parts for name, value in vars(part).items() if "mask" in name and value is False
    ]
    for part, name in switches:
        setattr(part, name, True)
    try:
        return bool(switches) and not hiding.changes_nothing(None)
    finally:
        for part, name in switches:
            setattr(part, name, False)


def _with_padding(masks: list[Masking]) -> list[Masking]:
    """Add that a mask over pairs can tell padding, where it can differ between samples."""
    if len(masks) == 1 and masks[0].over == "pairs" and masks[0].shape in BATCHED_SHAPES:
        return [masks[0], replace(masks[0], over="keys")]
    return masks


def _judged_at_end(hiding: Hiding, mask: Masking) -> Masking:
    """A mask over keys that hides nothing within the sequence judged by whether it hides the end of it.

    The state of a recurrence goes through every position, and what is taken at the last real one depends on all
    before: there padding stands at the end.
    """
    if mask.obeyed or mask.over == "pairs":
        return mask
    module = hiding.trial.module
    recurrent = any(isinstance(part, nn.RNNBase | nn.RNNCellBase) for part in module.modules())
    candidates = [replace(mask, encoding=encoding) for encoding in (*_WITHOUT_SUMS, *_SUMS)]
    for candidate in sorted(candidates, key=lambda each: _unlikeliness(each, mask.declared)):
        left = hiding.left(candidate, "end")
        if left is not None and left < _OBEYED and (recurrent or hiding.convention.pooled):
            return replace(candidate, obeyed=True, at_end=True)
    return mask


def _tried(hiding: Hiding, forms: Sequence[Masking]) -> list[_Tried]:
    """Every way to give a mask that runs, up to the first that hides perfectly."""
    tried: list[_Tried] = []
    for masking in forms:
        left = hiding.left(masking)
        if left is not None:
            tried.append(_Tried(masking, left))
        if left is not None and left <= NOTHING:
            break
    return tried


def _forms(one: Parameter, over: Literal["pairs", "keys"], said: Said | None) -> list[Masking]:
    """Every shape with every meaning, first the one that is said, last those that add to the scores."""
    if over == "pairs" and one.role == "key mask" and not seems_over_pairs(one.name):
        return []
    declared = None if said is None else said.what
    encodings = (*_WITHOUT_SUMS, *_SUMS)
    without_batch = [shape for shape in SHAPES if shape not in BATCHED_SHAPES]
    forms: list[Masking] = []
    for shape in [*BATCHED_SHAPES, *without_batch] if over == "pairs" else KEY_SHAPES:
        own = [Masking(one.name, over, encoding, shape, required=one.required) for encoding in encodings]
        forms += sorted(own, key=lambda each: _unlikeliness(each, declared))
    return forms


def _unlikeliness(masking: Masking, declared: str | None) -> tuple[bool, bool]:
    """A rank: what adds to the scores last, before it what is contrary to what is declared."""
    contrary = declared is not None and masking.keeps is (declared == "True blocks")
    return masking.keeps is None, contrary


def _decided(tried: Sequence[_Tried], said: Said | None, one: Parameter) -> Masking:
    """The form under which a hidden position weighs least; where none hides it, the one that is said or usual.

    What adds to the scores is taken only where nothing else tells: ``(1 - mask) * -4`` too hides perfectly if it is
    given minus infinity, and is no sum.
    """
    declared, by = (None, "") if said is None else (said.what, said.by)
    plain = min((each for each in tried if each.masking.keeps is not None), key=lambda each: each.left, default=None)
    summed = min((each for each in tried if each.masking.keeps is None), key=lambda each: each.left, default=None)
    agrees = declared is not None and plain is not None and plain.masking.keeps is (declared == "True keeps")
    trusted = agrees and (by != "its name" or "q_len" not in tried[0].masking.shape)
    enough = _TOLD if trusted else _SURELY_NO_SUM
    chosen = None
    if plain is not None and (plain.left < enough or (agrees and by == "docstring" and _leans(tried, plain))):
        chosen = plain
    elif summed is not None and summed.left < _TOLD:
        chosen = summed
    elif plain is not None and plain.left < _TOLD:
        chosen = plain
    obeyed = chosen is not None and chosen.left < _OBEYED
    masking = (chosen or min(tried, key=lambda each: _unlikeliness(each.masking, declared))).masking
    return replace(masking, obeyed=obeyed, declared=declared, declared_by=by, required=one.required)


def _leans(tried: Sequence[_Tried], plain: _Tried) -> bool:
    """Whether the contrary of a meaning leaves much more of a hidden position.

    A 1 added to a score leaves exp(-1) of a weight, and a 0 in place of all others exp(1), whatever the weights are.
    """
    contrary = [each.left for each in tried if each.masking.keeps is (not plain.masking.keeps)]
    contrary = [left for left in contrary if math.isfinite(left)]
    return bool(contrary) and plain.left < _LEANS * min(contrary)


# Padding that is told by the tokens themselves


def with_pad_token(trial: Trial, convention: Convention, patient: Patient) -> Convention:
    """The convention with the token that means padding, where the module looks for one."""
    if convention.takes != "tokens" or convention.vocab_size is None:
        return convention
    token = _pad_token(patient)
    if token is None or not 0 <= token < convention.vocab_size:
        return convention
    convention = replace(convention, pad_token=token)
    if convention.key_mask is not None or not convention.any_length or convention.length < _SHORTEST:
        return convention
    name = next((one.parameter for one in convention.arguments if one.source == "x"), "x")
    masking = Masking(name, "keys", PAD_TOKEN, "(batch, length)", at_end=True)
    padded = replace(convention, masks=(*convention.masks, masking))
    return replace(convention, masks=(*convention.masks, replace(masking, obeyed=_hides(trial, padded))))


def _hides(trial: Trial, convention: Convention) -> bool:
    """Whether padding put behind the tokens changes (nearly) nothing in what they give."""
    x = trial.inputs(convention)
    short = x[:, :-_PADDED]
    real = torch.ones(x.shape, dtype=torch.bool)
    real[:, -_PADDED:] = False
    try:
        before, after = trial.run(convention, short), trial.run(convention, x, padding=real)
        moved = trial.run(convention, replaced(trial, convention, short, [0]))
    except ModuleError:
        return False
    if not convention.pooled:
        before, after, moved = before[:, 1:], after[:, 1:-_PADDED], moved[:, 1:]
    left, seen = (after - before).abs().max(), (moved - before).abs().max()
    return bool(left <= max(_OBEYED * float(seen), NOTHING * float(before.abs().max())))


def _pad_token(patient: Patient) -> int | None:
    """The token that the source compares its input with."""
    if _WITH_NAMED.search(patient.text):
        holders = [patient.arguments, *(vars(part) for part in patient.module.modules())]
        values = (holder.get(word) for holder in holders for word in PAD_WORDS)
        return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)
    return 0 if _WITH_ZERO.search(patient.text) else None
