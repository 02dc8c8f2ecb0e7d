"""Whether padding changes what real positions give: by what stands there, or by how much of it there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.findings import Finding, FindingText
from attnlab.doctor.influence.differences import Leakage, deviation, difference, largest, size_of
from attnlab.doctor.influence.influence import of_samples
from attnlab.doctor.influence.logits import HUGE_LOGIT, LARGE_LOGIT, enlarging
from attnlab.doctor.influence.masks import as_declared, has_effect
from attnlab.doctor.influence.padded import (
    FILLED,
    HowToPad,
    Side,
    lengths_of,
    pairs_tell_too,
    real_positions,
    telling,
    telling_both,
)
from attnlab.doctor.influence.steady import is_steady
from attnlab.inspection.tape.attentions import attentions
from attnlab.strangers.calling.masking import PAD_TOKEN
from attnlab.strangers.calling.roles import roles_of
from attnlab.strangers.calling.sources import MEMORY_LENGTH, OF_PAIRS, Argument, laid_out, without_pairs
from attnlab.strangers.said.topics import declared

_ID = "padding"
_LARGE = 100.0  # standard deviations of what stands at padded positions: a weight that is small, not zero, shows
_SOURCE = "pytorch/pytorch#90534 and huggingface/transformers#278: padding that changes the outputs of real tokens"
_PAD_NAMES = ("pad_id", "pad_idx", "padding_idx", "pad_token_id", "pad_token", "pad_index")
_HIDE = (
    "let padded keys weigh nothing in every layer: `scores.masked_fill(~real[:, None, None, :], float('-inf'))`"
    " before the softmax over keys, and zero padded positions before convolutions and sums over positions"
)
_CONTENT = "{subject} what stands at padded positions, although {told} tells what is padding."

TEXTS: Mapping[str, FindingText] = {
    "content": FindingText("error", _CONTENT, _HIDE, _SOURCE),
    "content at huge logits": FindingText("warning", _CONTENT, _HIDE, _SOURCE),
    "content on the left of a state": FindingText("warning", _CONTENT, _HIDE, _SOURCE, "set-up"),
    "behind the last position": FindingText(
        "warning",
        "{subject} what stands at padded positions on the right, not on the left: the last position answers.",
        "pad on the left, or take the last real position, `h[rows, real.sum(1) - 1]`; say which is meant",
        _SOURCE,
        "set-up",
    ),
    "amount": FindingText(
        "error",
        "{subject} the amount of padding, although {told} tells what is padding.",
        "divide by the number of real positions, not by the length, and count positions from the first real one",
        _SOURCE,
    ),
    "amount told once": FindingText(
        "warning",
        "{subject} the amount of padding where {told} alone tells it, and not where the mask over pairs does, too.",
        "tell both masks what is padding, or let {told} hide padded keys in every attention",
        _SOURCE,
        "set-up",
    ),
    "amount ahead": FindingText(
        "warning",
        "{subject} the amount of padding, although {told} tells what is padding, unless no position sees a later one.",
        "is it meant for causal masks alone? Then say so (--causal); else count distances to later positions too",
        "Huang 2019 (Music Transformer), arXiv:1809.04281, section 3.4.1: distances are skewed",
        "set-up",
    ),
}
"""What -> its text; braces are filled with what was measured."""

_POOL = "pool over real positions alone: `(h * real[..., None]).sum(1) / real.sum(1, keepdim=True)`"


def check_padding(exam: Examination) -> Iterator[Finding]:
    """Change what stands at padded positions, and how many there are, and look at the outputs of real ones."""
    yield from _judged(exam)
    if exam.of_memory is not None:
        yield from _judged(exam.of_memory)


def _judged(exam: Examination) -> Iterator[Finding]:
    """What is wrong with the padding of one input: of what asks, or of the memory."""
    if exam.convention.length <= FILLED + 1 or not is_steady(exam):
        return
    exam = as_declared(exam)
    if exam.convention.key_mask is not None:
        found = list(_told_by_mask(exam, f"`{exam.convention.key_mask.parameter}`"))
        mixes = found and not attentions(exam.usual_tape, exam.convention)
        if mixes and not has_effect(exam, exam.convention.key_mask):  # it may take a mask to look like an attention
            found = [replace(one, severity="warning", nature="set-up") for one in found]
        yield from _beside_pairs(exam, found, f"`{exam.convention.key_mask.parameter}`")
        pad = exam.convention.pad_token
        if not found and pad is not None and exam.convention.key_mask.encoding == PAD_TOKEN:
            yield from _said(exam, list(_by_pad_tokens_looked_at(exam, pad)), f"the padding token {pad}")
    elif exam.convention.takes == "tokens" and exam.convention.any_length:
        pad = _pad_token(exam)
        if pad is not None:
            changes = [*_by_pad_tokens(exam, pad), *_by_pad_tokens_looked_at(exam, pad)]
            yield from _said(exam, changes, f"the padding token {pad}")


def _beside_pairs(exam: Examination, found: Sequence[Finding], told: str) -> Iterator[Finding]:
    """Errors as questions where padding comes in with what is given for pairs of positions alone.

    A person may have zeroed that at padding.
    """
    named = next((one.parameter for one in exam.convention.arguments if one.source in OF_PAIRS), "")
    if not (named and found):
        yield from found
        return
    zeroed = replace(exam.convention, arguments=tuple(map(without_pairs, exam.convention.arguments)))
    left = {one.message for one in _told_by_mask(exam.relying_on(zeroed), told)}
    for one in found:
        evidence = f"{one.evidence}; `{named}` was given numbers for padded positions, too, and with zeros it is clean"
        question = replace(one, severity="warning", nature="set-up", evidence=evidence)
        yield one if one.message in left else question


@final
@dataclass(frozen=True)
class _Change:
    """Say what was done to the padding and how much real positions changed."""

    done: str
    ratio: float
    unit: str
    of_content: bool


# Padding told by a mask


def _told_by_mask(exam: Examination, told: str) -> Iterator[Finding]:
    """An error for padding that reaches real positions; on the left alone it is one for attention alone.

    What carries a state along the sequence is meant for padding on the right.
    """
    amount = list(_by_amount(exam, telling))
    right = [*_by_content(exam, "right"), *_by_content_at_logits_of(exam, LARGE_LOGIT), *amount]
    tells_left = exam.convention.key_mask is not None and exam.convention.key_mask.tells_left_padding
    left = list(_by_content(exam, "left")) if tells_left else []
    if right:
        for_left = tells_left and not left
        kind = "amount ahead" if _only_ahead(exam, right + left) else ""
        if right + left == amount and pairs_tell_too(exam) and not any(_by_amount(exam, telling_both)):
            kind = "amount told once"
        last = for_left and exam.convention.pooled and any(change.of_content for change in right)
        if last and not declared(exam.patient.said, "padding on the right"):
            kind = "behind the last position"
        found = _said(exam, right + left, told, kind)
        yield from exam.as_meant(found, "padding on the left") if for_left else found
        return
    found = []
    if not exam.convention.pooled:
        kind = "content" if attentions(exam.usual_tape, exam.convention) else "content on the left of a state"
        found = list(exam.as_meant(_said(exam, left, told, kind), "padding on the right"))
        yield from found
    if all(finding.accepted for finding in found):
        yield from _said(exam, list(_by_content_at_logits_of(exam, HUGE_LOGIT)), told, "content at huge logits")


def _only_ahead(exam: Examination, changes: list[_Change]) -> bool:
    """Whether the amount alone counts, and not under the causal mask that may be meant as far as anybody says."""
    convention = exam.convention
    open_ = convention.causal_means == "mask" and convention.causal_by in ("", "its behaviour")
    if not open_ or any(change.of_content for change in changes):
        return False
    return not any(_by_amount(exam.relying_on(replace(convention, causal=True)), telling))


def _by_content(exam: Examination, side: Side) -> Iterator[_Change]:
    """What happens when padded positions hold something else."""
    real = real_positions(lengths_of(exam.convention.length, BATCH), exam.convention.length, side)
    told = telling(exam, real)
    for scale in (1.0,) if exam.convention.takes == "tokens" else (1.0, _LARGE):
        ratio = _of_content(exam, lambda x: exam.run(x, **told), real, scale).ratio
        if ratio:
            size = "" if exam.convention.takes == "tokens" else f" of {scale:g} standard deviations"
            done = f"other content{size} at padded positions on the {side}"
            yield _Change(done, ratio, "of what other content everywhere changes", of_content=True)


def _by_content_at_logits_of(exam: Examination, size: float) -> Iterator[_Change]:
    """What padded content does where logits are large: a finite mask lets it in."""
    x = exam.inputs()
    real = real_positions(range(BATCH, 0, -1), x.size(1))  # so few that others are let in if these have low logits
    if "padding" not in telling(exam, real):
        return
    for change in enlarging(exam, exam.tape(x, padding=real), real[:, None, :].expand(-1, x.size(1), -1), size=size):
        ratio = _of_content(exam, lambda x, change=change: exam.tape(x, padding=real, change=change).output, real).ratio
        if ratio:
            done = f"other content at padded positions once logits reach {size:.0e}"
            yield _Change(done, ratio, "of what other content everywhere changes", of_content=True)
            return


def _of_content(exam: Examination, call: Callable[[Tensor], Tensor], real: Tensor, scale: float = 1.0) -> Leakage:
    """Compare what padded content changes with what all content changes, at real positions."""
    x = exam.inputs()
    other = exam.change(x, slice(None))
    larger = other if exam.convention.takes == "tokens" else other * scale
    moved = torch.where(real.unsqueeze(-1) if x.dim() == 3 else real, x, larger)
    before = call(x)
    apart = [difference(before, call(each)) for each in (moved, other)]
    leak, signal = (
        largest(each if exam.convention.pooled else each[real]) for each in apart
    )  # a pooled output is real
    return Leakage(leak, signal, exam.tolerance * size_of(before))


def _by_amount(exam: Examination, tell: Callable[[Examination, Tensor], HowToPad]) -> Iterator[_Change]:
    """What happens when there is more padding, or none because a sample stands alone."""
    if not exam.convention.any_length:
        return
    x = exam.inputs()
    short = x.size(1) - FILLED
    lengths = lengths_of(short, BATCH)
    filled = exam.run(x[:, :short].contiguous(), **tell(exam, real_positions(lengths, short)))
    more = exam.run(x, **tell(exam, real_positions(lengths, x.size(1))))
    apart = max(_apart(exam, filled[row], more[row], size) for row, size in enumerate(lengths))
    if apart:
        yield _Change(f"{FILLED} more padded positions", apart, "of the largest output", of_content=False)
    singles = [
        exam.run(x[row : row + 1, :size].contiguous(), **tell(exam, torch.ones(1, size, dtype=torch.bool)))[0]
        for row, size in enumerate(lengths)
    ]
    alone = max(_apart(exam, single, filled[row], lengths[row]) for row, single in enumerate(singles))
    if alone and not of_samples(exam).ratio:  # where samples meet, how many there are counts, not the padding
        done = "a batch of one, without padding, instead of a filled batch"
        yield _Change(done, alone, "of the largest output", of_content=False)


def _apart(exam: Examination, one: Tensor, other: Tensor, length: int) -> float:
    """How far two outputs of one sample differ at its real positions."""
    return deviation(one, other) if exam.convention.pooled else deviation(one[:length], other[:length])


# Padding told by a token


def _pad_token(exam: Examination) -> int | None:
    """The token that means padding, if the patient has one."""
    vocab_size = exam.convention.vocab_size or 0
    embeddings = [part for part in exam.patient.module.modules() if isinstance(part, nn.Embedding)]
    of_tokens = [part.padding_idx for part in embeddings if part.num_embeddings >= vocab_size]
    said = [getattr(exam.patient.module, name, exam.patient.arguments.get(name)) for name in _PAD_NAMES]
    return next((pad for pad in (*of_tokens, *said) if type(pad) is int and 0 <= pad < vocab_size), None)


def _by_pad_tokens(exam: Examination, pad: int) -> Iterator[_Change]:
    """What happens when padding tokens are added at the end."""
    x = _without(exam, pad)
    short = x.size(1) - FILLED
    plain, filled = exam.run(x[:, :short].contiguous()), x.clone()
    filled[:, short:] = pad
    output = exam.run(filled)
    apart = _apart(exam, plain, output, short) if exam.convention.pooled else deviation(plain, output[:, :short])
    if apart and not (exam.convention.pooled and _hidden_in_front(exam, pad)):
        yield _Change(f"{FILLED} padding tokens at the end", apart, "of the largest output", of_content=False)


def _by_pad_tokens_looked_at(exam: Examination, pad: int) -> Iterator[_Change]:
    """What happens when padding tokens are added to tokens that are looked at, and no mask can tell of them."""
    if any(one.role.endswith("mask") or one.role == "lengths" for one in roles_of(exam.patient.module)):
        return
    for looked_at in (one for one in exam.convention.arguments if one.source == "memory tokens"):
        real = (pad + 1 + torch.arange(MEMORY_LENGTH) % max(1, (looked_at.value or 2) - 1)) % (looked_at.value or 2)
        padded = torch.cat([real, torch.full((FILLED,), pad)])
        try:
            if {table.padding_idx is None for table in _tables_given(exam, looked_at, real)} != {False}:
                continue
            apart = deviation(*(_looking_at(exam, looked_at, tokens) for tokens in (real, padded)))
        except ModuleError:  # it wants so many
            continue
        if apart:
            done = f"{FILLED} padding tokens at the end of `{looked_at.parameter}`"
            yield _Change(done, apart, "of the largest output", of_content=False)


def _tables_given(exam: Examination, looked_at: Argument, tokens: Tensor) -> list[nn.Embedding]:
    """The tables that are asked for some tokens where these are looked at, and for no others."""
    module, found = exam.fresh(), []

    def note(part: nn.Embedding, given: tuple[Tensor, ...], _output: Tensor) -> None:
        found.extend([part] if torch.equal(given[0].unique(), tokens.unique()) else [])

    for part in module.modules():
        if isinstance(part, nn.Embedding):
            part.register_forward_hook(note)
    _looking_at(exam, looked_at, tokens, module)
    return found


def _looking_at(exam: Examination, changed: Argument, tokens: Tensor, module: nn.Module | None = None) -> Tensor:
    """The output with tokens of one's choice in the place of one argument, the same for every sample."""
    value = laid_out(tokens.expand(BATCH, -1), exam.convention.layout)
    constant = replace(changed, source="constant", value=value)
    arguments = tuple(constant if one is changed else one for one in exam.convention.arguments)
    return exam.relying_on(replace(exam.convention, arguments=arguments)).run(exam.inputs(), module=module)


def _hidden_in_front(exam: Examination, pad: int) -> bool:
    """Whether what padding tokens are embedded as reaches no pooled output where they stand in front.

    So it is in what takes the last position for the answer.
    """
    x = _without(exam, pad)
    x[:, :FILLED] = pad
    usual = exam.run(x)
    of_padding, of_all = (
        deviation(usual, exam.run(x, module=_embedding_otherwise(exam, each))) for each in ([pad], range(x.max() + 1))
    )
    return of_all > 0 and not of_padding


def _without(exam: Examination, pad: int) -> Tensor:
    """Inputs in which the padding token does not occur."""
    x = exam.inputs()
    return torch.where(x == pad, (x + 1) % (exam.convention.vocab_size or 2), x)


def _embedding_otherwise(exam: Examination, tokens: Iterable[int]) -> nn.Module:
    """A copy of the patient that embeds some tokens as other vectors."""
    changed, module = torch.tensor([*tokens]), exam.fresh()

    def other(part: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        del part
        return output + torch.isin(given[0], changed).unsqueeze(-1) * torch.arange(output.size(-1)).cos()

    for part in module.modules():
        if isinstance(part, nn.Embedding) and part.num_embeddings >= (exam.convention.vocab_size or 0):
            part.register_forward_hook(other)
    return module


def _said(exam: Examination, changes: list[_Change], told: str, kind: str = "") -> Iterator[Finding]:
    """One finding for all that was seen."""
    if not changes:
        return
    kind = kind or ("content" if any(change.of_content for change in changes) else "amount")
    subject = "the outputs of real positions depend on"
    if exam.convention.pooled:
        subject = "the pooled output depends on" if exam.convention.slots is None else "the output depends on"
    text = TEXTS[kind]
    if exam.convention.pooled and exam.convention.slots is None and text.severity == "error":
        text = replace(text, remedy=_POOL)
    evidence = "; ".join(f"{change.ratio:.2g} {change.unit} for {change.done}" for change in changes[:3])
    yield text.finding(_ID, evidence, {"subject": subject, "told": told})
