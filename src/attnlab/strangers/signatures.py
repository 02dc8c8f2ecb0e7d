"""Read what a person's ``forward`` asks for from the names of its parameters.

Words for query, key, value, memory, mask, padding and causal flags are in the tables below; the first
parameter may have any name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from attnlab.core.errors import ModuleError
from attnlab.strangers.conventions import ENCODINGS, LAYOUTS, SHAPES, Convention, Label, MaskForm, Slot, Source

QUERIES = frozenset({"q", "query", "queries", "q_x", "x_q", "xq", "q_input", "query_states"})
KEYS_VALUES = frozenset(
    {
        *("k", "key", "keys", "k_x", "x_k", "xk", "k_input", "key_states"),
        *("v", "value", "values", "v_x", "x_v", "xv", "v_input", "value_states"),
    }
)
MEMORIES = frozenset(
    {"memory", "mem", "context", "kv", "x_kv", "key_value", "encoder_output", "enc_out", "encoder_out", "cond", "y"}
    | {"encoder_hidden_states", "encoder_outputs", "x_context", "source"}
)
_MASK_WORDS = frozenset({"m", "attn_bias", "attention_bias", "bias"})  # beside all that have "mask" in them
_FLAGS = frozenset({"is_causal", "causal", "use_causal_mask", "causal_mask_flag"})
_OFF = frozenset({"need_weights"})  # weights nobody reads; torch's own layer is several times slower with them
_OFF_IF_REQUIRED = frozenset(
    {"return_attention", "return_weights", "return_attn", "output_attentions", "return_attention_weights"}
)
NAMELESS = re.compile(r"[a-z]\d?|x_?\w?|in(put|puts)?_?\w?|src|tgt|seq\d?")  # says nothing: can only be a sequence


@dataclass(frozen=True)
class Reading:
    """Hold what the signature of a ``forward`` tells.

    Parameters
    ----------
    slots : tuple of Slot
        Arguments that are sequences.
    mask : str or None
        The parameter for a mask over pairs of positions.
    padding : tuple of str
        Parameters for a mask over positions.
    flags : tuple of str
        Parameters that ask whether to be causal.
    constants : tuple of (str, bool or None)
        What has to be given whatever the input.
    mask_required : bool
        Whether the mask has no default.
    """

    slots: tuple[Slot, ...]
    mask: str | None
    padding: tuple[str, ...]
    flags: tuple[str, ...]
    constants: tuple[tuple[str, bool | None], ...]
    mask_required: bool

    def openings(self) -> Iterator[Convention]:
        """Ways to call the module when nothing else is known: without a mask, then with masks that hide nothing."""
        plain = Convention(self.slots, self.constants)
        if self.mask is None or not self.mask_required:
            yield plain
        else:
            yield replace(plain, constants=(*self.constants, (self.mask, None)))
        if self.mask is not None:
            for encoding in ENCODINGS:
                yield from (replace(plain, mask=MaskForm(self.mask, encoding, shape)) for shape in SHAPES)


def read_forward(module: nn.Module, label: Label) -> Reading:
    """Read the signature of a module's ``forward``."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    kinds = {parameter.name: _kind(parameter.name) for parameter in parameters}
    required = {p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    masks = _of_kind(kinds, "mask")
    padding = _of_kind(kinds, "padding")
    flags = _of_kind(kinds, "flag")
    constants = [(name, None) for name in (*masks[1:], *padding) if name in required]
    constants += [(name, False) for name in kinds if name in _OFF or (name in required and name in _OFF_IF_REQUIRED)]
    constants += [(name, False) for name in flags if name in required]
    return Reading(
        slots=_slots(parameters, kinds, required, label),
        mask=masks[0] if masks else None,
        padding=padding,
        flags=flags,
        constants=tuple(constants),
        mask_required=bool(masks) and masks[0] in required,
    )


def _kind(name: str) -> str:
    """What a parameter is for, as far as its name tells."""
    word = name.lower()
    if word in _FLAGS:
        return "flag"
    if "mask" in word:
        return "padding" if "pad" in word else "mask"
    tables = {"mask": _MASK_WORDS, "query": QUERIES, "key or value": KEYS_VALUES, "memory": MEMORIES}
    tables["off"] = _OFF | _OFF_IF_REQUIRED
    return next((kind for kind, words in tables.items() if word in words), "open")


def _of_kind(kinds: dict[str, str], kind: str) -> tuple[str, ...]:
    return tuple(name for name, its_kind in kinds.items() if its_kind == kind)


def _slots(
    parameters: list[inspect.Parameter], kinds: dict[str, str], required: set[str], label: Label
) -> tuple[Slot, ...]:
    """What each sequence argument is given; optional ones of unknown purpose are left to their defaults."""
    slots: list[Slot] = []
    for index, parameter in enumerate(parameters):
        source = _source(parameter, kinds[parameter.name], first=index == 0, required=required, label=label)
        if source is not None:
            by_name = len(slots) < index or parameter.kind is parameter.KEYWORD_ONLY or source == "memory"
            slots.append(Slot(parameter.name, source, by_name))
    if not slots:
        raise ModuleError(f"{label.name}: forward takes no input; it must take (batch, length, d_model)")
    return tuple(slots)


def _source(parameter: inspect.Parameter, kind: str, *, first: bool, required: set[str], label: Label) -> Source | None:
    """What a parameter is given, None for one that is no sequence or left to its default."""
    needed = parameter.name in required
    by_kind: dict[str, Source] = {"query": "x", "key or value": "memory or x"}
    if kind in by_kind:
        return "x" if first and kind == "key or value" and not needed else by_kind[kind]
    if kind == "memory":
        return "x" if first else "memory or x" if needed else "memory"
    if kind != "open" or parameter.kind is parameter.VAR_KEYWORD:
        return None
    if first:
        return "x"
    if needed and not NAMELESS.fullmatch(parameter.name.lower()):
        raise ModuleError(
            f"{label.name}: forward requires '{parameter.name}', which its place cannot give; it may take x or q, k, v,"
            " a memory, a mask and a padding mask (hint: give the parameter a default, or compute it inside)"
        )
    return "memory or x" if needed else None


def declared_layout(module: nn.Module) -> list[str]:
    """The layouts to try, the one that a class declares before the others."""
    text = (type(module).__doc__ or "").lower().replace(" ", "-")
    layouts = list(LAYOUTS)
    declared = [layout for layout in layouts if layout in text]
    if getattr(module, "batch_first", None) is False:
        declared.append("sequence-first")
    return sorted(layouts, key=lambda layout: layout not in declared[:1])
