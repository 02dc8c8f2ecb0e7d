"""Ways to fill the parameters of a ``forward``, from the plainest on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnlab.strangers.calling.masking import LENGTHS, ONE_LENGTH_EACH, PADDING_SHAPES, Masking
from attnlab.strangers.calling.roles import Parameter
from attnlab.strangers.calling.sources import Argument
from attnlab.strangers.conventions import ENCODINGS, SHAPES
from attnlab.strangers.signatures import NAMELESS

_MOST_PLANS = 120  # a failing call takes some 0.1 ms, and there are widths, lengths and layouts to try each in

Choice = tuple[Argument | Masking | None, ...]
"""What one parameter can be given; None: it is left out."""


@dataclass(frozen=True)
class Plan:
    """Say what every parameter of one call is given.

    Parameters
    ----------
    arguments : tuple of Argument
        Everything but masks.
    masks : tuple of Masking
        Masks that a call must give.
    flag : str or None
        The parameter that asks whether to be causal, if it must be given.
    """

    arguments: tuple[Argument, ...]
    masks: tuple[Masking, ...] = ()
    flag: str | None = None


@dataclass(frozen=True)
class _Known:
    """Hold what decides between the choices: whether helpers and masks are given, and sizes."""

    helping: bool
    masked: bool
    d_head: int | None
    vocab_size: int | None


def plans_for(parameters: Sequence[Parameter], d_head: int | None, vocab_size: int | None) -> list[Plan]:
    """Ways to fill the parameters."""
    plans: dict[Plan, None] = {}
    for helping, masked in ((False, False), (True, False), (False, True), (True, True)):
        known = _Known(helping, masked, d_head, vocab_size)
        choices = [_choice(one, index, known) for index, one in enumerate(parameters)]
        for combination in _together(choices):
            plans[_plan(parameters, combination)] = None
    return list(plans)[:_MOST_PLANS]


def _together(choices: list[Choice]) -> Iterator[tuple[Argument | Masking | None, ...]]:
    """Every combination in which all masks speak alike."""
    for combination in itertools.islice(itertools.product(*choices), 4 * _MOST_PLANS):
        encodings = {each.encoding for each in combination if isinstance(each, Masking) and each.encoding != LENGTHS}
        if len(encodings) <= 1:
            yield combination


def _plan(parameters: Sequence[Parameter], combination: Sequence[Argument | Masking | None]) -> Plan:
    flags = [one.name for one in parameters if one.role == "flag" and one.required]
    return Plan(
        arguments=tuple(each for each in combination if isinstance(each, Argument)),
        masks=tuple(each for each in combination if isinstance(each, Masking)),
        flag=flags[0] if flags else None,
    )


def _choice(one: Parameter, index: int, known: _Known) -> Choice:
    """What a parameter can be given."""
    by_name, d_head = one.by_name or index > 0, known.d_head

    def given(source: str, value: object = None) -> Argument:
        return Argument(one.name, source, by_name, value)

    if one.role in ("mask", "key mask", "memory mask"):
        return _mask_choice(one, known.masked)
    if one.name == "need_weights":
        return (given("constant", False),)
    choices: dict[str, Choice] = {
        "input": (given("x"),),
        "query": (given("x"),),
        "key or value": (given("x"),),
        "memory": (given("memory"), given("memory tokens", known.vocab_size), given("x")),
        "target": (given("x"),),
        "source": (given("x"),),
        "targets": (given("x"),),
        "lengths": (Masking(one.name, "keys", LENGTHS, ONE_LENGTH_EACH, required=True),),
        "length": (given("length"),),
        "cache": (given("constant", None),),
        "off": (given("constant", False),),
        "flag": (None,),
        "positions": (given("positions"), given("positions of each")),
        "rotary": (given("cos and sin", d_head), given("turns", d_head)) if d_head else (None,),
        "cos": (given("cos", d_head), given("half cos", d_head)) if d_head else (None,),
        "sin": (given("sin", d_head), given("half sin", d_head)) if d_head else (None,),
        "start": (given("constant", 0),),
        "zeros": (given("zeros"),),
        "open": (given("x"), given("memory")) if NAMELESS.fullmatch(one.name.lower()) else (given("constant", None),),
    }
    if one.required or one.role in ("input", "query"):
        return choices[one.role]
    helps = known.helping and one.role in ("rotary", "cos", "sin", "positions", "key or value", "memory", "zeros")
    return (*choices[one.role], None) if helps else (None,)


def _mask_choice(one: Parameter, masked: bool) -> Choice:
    """How a required mask can be given before anything is known about it."""
    if not one.required:
        return (None,)
    nothing = Argument(one.name, "constant", by_name=True, value=None)
    if not masked or one.role == "memory mask":
        return (nothing,)
    pairs = [Masking(one.name, "pairs", encoding, shape, required=True) for encoding in ENCODINGS for shape in SHAPES]
    keys = [
        Masking(one.name, "keys", encoding, shape, required=True) for encoding in ENCODINGS for shape in PADDING_SHAPES
    ]
    return tuple([*keys, *pairs] if one.role == "key mask" else [*pairs, *keys])
