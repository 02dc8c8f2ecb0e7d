"""Say in words what was assumed about a patient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnlab.strangers.calling.first_call import Call
from attnlab.strangers.calling.masking import PAD_TOKEN, Masking
from attnlab.strangers.calling.sources import IN_WORDS
from attnlab.strangers.patient import Patient
from attnlab.strangers.usage import Usage

_MEANS = {
    "always": "by itself",
    "mask": "by the mask that is given",
    "flag": "by its flag",
    "nothing": "it has nothing that makes it so",
}


def assumptions_of(patient: Patient, usage: Usage, call: Call) -> dict[str, str]:
    """What was assumed, in words, the call first."""
    said = {
        "called as": _call(usage, call),
        "input": _input(usage),
        "layout": _layout(usage, call),
        "causal": _causal(usage),
        "output": _output(usage),
        "kind": usage.kind,
        "sizes": "; ".join(filter(None, (_sizes(patient.arguments), *patient.notes))),
        "lengths": _lengths(usage),
    }
    return {topic: words for topic, words in said.items() if words}


def _call(usage: Usage, call: Call) -> str:
    """The call with the names of its arguments."""
    words = []
    for one in usage.arguments:
        value = f"{one.value}" if one.source == "constant" else IN_WORDS.get(one.source, "")
        words.append(f"{one.parameter or 'x'}={value}" if value else one.parameter or "x")
    masks: dict[str, list[Masking]] = {}
    for mask in usage.masks:
        masks.setdefault(mask.parameter, []).append(mask)
    of_memory = {} if usage.over_memory is None else {mask.parameter: mask for mask in usage.over_memory.masks}
    given = [word for word in words if word.partition("=")[0] not in masks | of_memory]
    given += [_mask(usage, each) for each in masks.values()]
    given += [f"{usage.flag}: asks to be causal"] if usage.flag and usage.causal_means == "flag" else []
    given += [f"{_mask(usage, [mask])} of the memory" for mask in of_memory.values()]
    left_out = [one.name for one in call.parameters if one.role in ("mask", "key mask") and one.name not in masks]
    unused = f"; left out, as it takes no mask given there: {', '.join(left_out)}" if left_out else ""
    return f"forward({'; '.join(given)}){unused}"


def _mask(usage: Usage, masks: list[Masking]) -> str:
    """How one mask argument is given."""
    first = masks[0]
    doubt = "" if first.obeyed else ", but it does not hide"
    if first.encoding == PAD_TOKEN:
        return f"{first.parameter}, padded with token {usage.pad_token}{doubt}"
    shapes: dict[tuple[str, str], list[str]] = {}
    for mask in masks:
        shapes.setdefault((mask.encoding, mask.shape), []).append(mask.over)
    ways: dict[str, list[str]] = {}
    for (encoding, shape), over in shapes.items():
        ways.setdefault(encoding, []).append(f"{shape} over {' and '.join(over)}")
    words = "; or ".join(f"{encoding}, {' or '.join(places)}" for encoding, places in ways.items())
    return f"{first.parameter}: {words}{doubt}"


def _input(usage: Usage) -> str:
    return f"tokens below {usage.vocab_size}" if usage.takes == "tokens" else f"embeddings of width {usage.d_in}"


def _layout(usage: Usage, call: Call) -> str:
    words = usage.layout.replace("-", " ")
    if call.layout is None:
        by_running = usage.layout != "batch-first"
        return f"{words} ({'it runs in no other' if by_running else 'undeclared: assumed'})"
    if call.layout.what == usage.layout:
        return f"{words}, by {call.layout.by}"
    return f"{words}, though {call.layout.by} says {call.layout.what}, which does not run"


def _causal(usage: Usage) -> str:
    if usage.causal is None:
        return "unknown: nobody says, and its behaviour does not tell"
    how = f" ({_MEANS[usage.causal_means]})" if usage.causal else ""
    return f"{'yes' if usage.causal else 'no'}, by {usage.causal_by}{how}"


def _output(usage: Usage) -> str:
    if usage.slots is not None:
        return f"{usage.slots} vectors of width {usage.d_out // usage.slots}, whatever the length"
    shape = "(batch, d_out)" if usage.pooled else "one vector per position"
    where = "" if usage.output is None else f", element {usage.output!r} of what is returned"
    return f"{shape} of width {usage.d_out}{where}"


def _sizes(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in arguments.items())


def _short(value: Any) -> str:
    return repr(value) if isinstance(value, int | float | str | bool | None) else type(value).__name__


def _lengths(usage: Usage) -> str:
    if not usage.any_length:
        return f"{usage.length} only"
    return f"up to {usage.longest}" if usage.longest is not None else "any"
