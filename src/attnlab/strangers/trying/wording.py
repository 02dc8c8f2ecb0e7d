"""Say in words what was assumed about a patient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.layouts import LAYOUTS, SPLIT
from attnlab.strangers.calling.sources import HANDED_ON
from attnlab.strangers.calling.widths import size_named
from attnlab.strangers.patient import LAYOUTS_DECLARED, Patient
from attnlab.strangers.said.source import Said
from attnlab.strangers.trying.first_call import Found

_MEANS = {
    "always": "by itself",
    "mask": "by the mask that is given",
    "flag": "by its flag",
    "nothing": "it has nothing that makes it so",
}


def assumptions_of(patient: Patient, convention: Convention, found: Found) -> dict[str, str]:
    """What was assumed, in words, the call first."""
    said = {
        "called as": _call(convention, found),
        "input": _input(convention),
        "layout": _layout(convention, found),
        "causal": _causal(convention),
        "output": _output(convention),
        "kind": convention.kind,
        "sizes": "; ".join(filter(None, (_sizes(patient.arguments), *patient.notes))),
        "lengths": _lengths(convention),
    }
    return {topic: words for topic, words in said.items() if words}


def _call(convention: Convention, found: Found) -> str:
    """The call, and the masks that are left out."""
    of_memory = () if convention.over_memory is None else convention.over_memory.masks
    given = {mask.parameter for mask in (*convention.masks, *of_memory)}
    told = (one.parameter for one in convention.arguments if one.source == HANDED_ON or one.value is not None)
    given |= {*told}
    left_out = [one.name for one in found.parameters if one.role in ("mask", "key mask") and one.name not in given]
    unused = f"; left out, as it takes no mask given there: {', '.join(left_out)}" if left_out else ""
    return f"{convention.in_words}{unused}"


def _input(convention: Convention) -> str:
    return (
        f"tokens below {convention.vocab_size}"
        if convention.takes == "tokens"
        else f"embeddings of width {convention.d_in}"
    )


def _layout(convention: Convention, found: Found) -> str:
    usual = convention.layout in LAYOUTS_DECLARED.values()
    words = convention.layout.replace("-", " ") if usual else f"{convention.layout}, {LAYOUTS[convention.layout].axes}"
    if found.layout is None:
        before = found.convention.layout
        if convention.layout != before and (convention.layout in SPLIT or before == "unbatched"):
            return f"{words} (undeclared: {before}, no position would see another)"
        if convention.layout != before:
            return f"{words} (undeclared: {before.replace('-', ' ')} samples would see each other)"
        by_running = convention.layout != "batch-first"
        return f"{words} ({'it runs in no other' if by_running else 'undeclared: assumed'})"
    if found.layout.what == convention.layout:
        return f"{words}, by {found.layout.by}"
    why = "in which samples see each other" if found.layout.in_passing else "which does not run"
    return f"{words}, though {_told(found.layout)}, {why}"


def layout_against(patient: Patient, convention: Convention, found: Found) -> str:
    """What speaks for another order of the three axes, in which no call was found; nothing where nothing does."""
    said, orders = found.layout, LAYOUTS_DECLARED.values()
    if convention.layout not in orders:
        return ""
    if said is None:
        as_wide = not convention.any_length and convention.length == size_named("d_model", patient)
        return "it runs at a length alone that is its width" if as_wide and convention.layout != "batch-first" else ""
    elsewhere = said.what in orders and said.what != convention.layout and not said.in_passing
    return f"{_told(said)}, and no call was found that runs so" if elsewhere else ""


def _told(said: Said) -> str:
    """Who says which layout, in words."""
    return f"{said.by} says {said.what.replace('-', ' ')}"


def _causal(convention: Convention) -> str:
    if convention.causal is None:
        return "unknown: nobody says, and its behaviour does not tell"
    how = f" ({_MEANS[convention.causal_means]})" if convention.causal else ""
    return f"{'yes' if convention.causal else 'no'}, by {convention.causal_by}{how}"


def _output(convention: Convention) -> str:
    if convention.slots is not None:
        when = "whatever the length" if convention.any_length else f"at length {convention.length}"
        return f"{convention.slots} vectors of width {convention.d_out // convention.slots}, {when}"
    shape = "(batch, d_out)" if convention.pooled else "one vector per position"
    axes = "" if convention.returned_in is None else f", {LAYOUTS[convention.returned_in].axes}"
    where = axes if convention.output is None else f"{axes}, element {convention.output!r} of what is returned"
    if convention.of_loss:
        where = f"{axes}, {convention.output}"
    return f"{shape} of width {convention.d_out}{where}"


def _sizes(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in arguments.items())


def _short(value: Any) -> str:
    return repr(value) if isinstance(value, int | float | str | bool | None) else type(value).__name__


def _lengths(convention: Convention) -> str:
    if not convention.any_length:
        return f"{convention.length} only"
    return f"up to {convention.longest}" if convention.longest is not None else "any"
