"""Padding that is told by the tokens themselves, where ``forward`` has no argument for it."""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.masking import PAD_TOKEN, Masking
from attnlab.strangers.calling.trial import NOTHING, Trial, replaced
from attnlab.strangers.patient import Patient
from attnlab.strangers.usage import Usage

PAD_WORDS = (
    *("pad_idx", "padding_idx", "pad_id", "pad_token_id", "pad_token", "pad_index", "src_pad_idx", "trg_pad_idx"),
    *("tgt_pad_idx", "pad", "pad_value", "padding_id", "pad_tok"),
)
"""Names under which constructors ask for the token that means padding."""

_INPUT = r"\b(idx|tokens?|x|src|trg|tgt|seq|ids|\w*input_ids|inputs?|text|words|sentences?|batch)"
_WITH_NAMED = re.compile(_INPUT + r"\s*(!=|==|\.ne\(|\.eq\()\s*(\w+\.)*\w*pad\w*", re.I)
_WITH_ZERO = re.compile(_INPUT + r"\s*(!=|==|>|\.ne\(|\.eq\()\s*0\b", re.I)
_PADDED = 3  # tokens of padding put behind the others
_OBEYED = 0.02  # of what a visible token weighs
_SHORTEST = 4  # length below which nothing can be hidden and something still be seen


def with_pad_token(trial: Trial, usage: Usage, patient: Patient) -> Usage:
    """The usage with the token that means padding, where the module looks for one."""
    if usage.takes != "tokens" or usage.vocab_size is None:
        return usage
    token = _pad_token(patient)
    if token is None or not 0 <= token < usage.vocab_size:
        return usage
    usage = replace(usage, pad_token=token)
    if usage.key_mask is not None or not usage.any_length or usage.length < _SHORTEST:
        return usage
    name = next((one.parameter for one in usage.arguments if one.source == "x"), "x")
    masking = Masking(name, "keys", PAD_TOKEN, "(batch, length)", at_end=True)
    padded = replace(usage, masks=(*usage.masks, masking))
    return replace(usage, masks=(*usage.masks, replace(masking, obeyed=_hides(trial, padded))))


def _hides(trial: Trial, usage: Usage) -> bool:
    """Whether padding put behind the tokens changes (nearly) nothing in what they give."""
    x = trial.inputs(usage)
    short = x[:, :-_PADDED]
    real = torch.ones(x.shape, dtype=torch.bool)
    real[:, -_PADDED:] = False
    try:
        before, after = trial.run(usage, short), trial.run(usage, x, padding=real)
        moved = trial.run(usage, replaced(trial, usage, short, [0]))
    except ModuleError:
        return False
    if not usage.pooled:
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
