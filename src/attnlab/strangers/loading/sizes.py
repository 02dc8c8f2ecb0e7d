"""Sizes a constructor is offered: small enough for seconds, and different enough that axes cannot be mistaken."""

from __future__ import annotations

import enum
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, final, get_args, get_origin

import torch
from torch import nn

from attnlab.core.constructors import glossary_word, hints_of, is_required, named, signature_of
from attnlab.strangers.loading.mentions import Setting, divides, handed_on_as, setting_of
from attnlab.strangers.said.source import source_of

D_MODEL = 64  # a usual width, small enough for milliseconds
N_HEADS = 4  # unlike the batch of 3
D_HEAD = 16  # width over heads
"""Of a query where the number of heads does not divide `D_MODEL`."""

SMALL: dict[str, Any] = {
    "d_model": D_MODEL,
    "n_heads": N_HEADS,
    "n_kv_heads": 2,
    "d_ff": 128,
    "mlp_ratio": 4,
    "n_layers": 2,
    "vocab_size": 53,
    "max_length": 48,  # unlike d_model, so that a fixed length cannot be mistaken for a width
    "n_classes": 5,
    "dropout": 0.1,
}
"""Sizes by glossary word."""

_BY_PIECE: tuple[tuple[str, Any], ...] = (
    ("bias", True),
    ("drop dropout pdrop", 0.1),
    ("layers blocks", 2),
    ("activation act nonlinearity", "gelu"),
    ("eps epsilon", 1e-5),
    ("idx index id pad", 0),
    ("stride strides dilation halo", 1),
    ("kernel kernels ks", 3),
    ("window windows local", 4),
    ("len length horizon", 12),  # unlike the number of heads
    ("patch patches tube tubelet tublet", 4),
    ("image img im resolution fmap", 16),
    ("experts expert", 4),
    ("topk top", 2),
    ("rank", 8),
    ("theta base", 10000.0),
    ("temperature temp scale gamma init", 1.0),
    ("context cond memory mem enc encoder kv cross", D_MODEL),
    ("channels chans channel chan", D_MODEL),
    ("device", "cpu"),
    ("dtype", torch.float32),
    ("log verbose debug return output save checkpoint checkpointing", False),
    ("bands", 4),
    ("freq frequency", 10.0),
    ("factor reduction groups chunks", 2),
    ("rate prob proba probability ratio", 0.1),
    ("first pre norm residual rotary rope mask masked learnable trainable scaling", True),
    ("norm", nn.LayerNorm),
    ("num number count heads depth", 4),
    ("max maximum", SMALL["max_length"]),
    ("n", 4),
)
"""Other arguments that constructors ask for, by pieces of their names; the first row that knows a piece counts."""

_ACTIVATIONS = frozenset(["activation", "act", "nonlinearity"])
_QUIET = logging.getLogger("attnlab.strangers.quiet")  # one with a name can be copied
_QUIET.setLevel(logging.CRITICAL + 1)

_OF_WIDTHS = frozenset(["dim", "dims", "width", "features", "units"])
_OF_SIZES = _OF_WIDTHS | {"size"}
"""Last pieces of names of whole numbers: `act_dim` is no activation."""

_BY_TYPE: dict[Any, Any] = {bool: False, int: 4, float: 0.1}
"""What is given where a name says nothing, by its annotation."""


def supposed(name: str, source: str) -> tuple[Any, ...]:
    """What may be meant by an argument that neither its name nor its annotation tells, the likeliest first."""
    kind = setting_of(name, source)
    one = SMALL.get(glossary_word(name), usual(name) or D_MODEL)
    choices: dict[Setting, tuple[Any, ...]] = {
        "tensor": (torch.zeros(SMALL["max_length"], D_MODEL), torch.zeros(1, SMALL["max_length"], D_MODEL)),
        "list": ((one, one), (one, one, one, one), one),
        "log": (_QUIET,),
        "container": ([],),
        "object": (),
        "count": (2, N_HEADS, D_MODEL),
        "switch": (False, True),
        "size": (D_MODEL, N_HEADS, nn.Linear(D_MODEL, D_MODEL)),
    }
    return choices[kind]


@final
class TableOfWords(dict[str, int]):
    """Stand for a table of words and their numbers: every word has one.

    Parameters
    ----------
    size : int
        How many words there are.
    """

    def __init__(self, size: int) -> None:
        super().__init__({f"word {number}": number for number in range(size)})

    def __missing__(self, word: str) -> int:
        return sum(str(word).encode()) % len(self)

    def __repr__(self) -> str:
        return f"a table of {len(self)} words"


OF_SIDES = frozenset(["image", "img", "im", "resolution", "fmap"])
"""Pieces of names that say how wide an image is."""

_OF_IMAGES = frozenset(["patch", "patches", "image", "img", "im", "tube", "tubelet", "tublet"])
_COLORS = frozenset(["channels", "channel", "chans", "chan"])
"""Pieces of sizes that are colors where there is an image."""

PAIRED = OF_SIDES | {"window", "windows", "patch", "patches", "kernel", "size"}
"""Pieces of sizes that may be wanted as height and width."""


def pieces_of(name: str) -> list[str]:
    """The words of a parameter's name."""
    return [piece.lower() for piece in re.split(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])", name) if piece]


def usual(name: str, hint: Any = None) -> Any:
    """What a constructor is offered under a name that is no size of the glossary, None where nothing is usual.

    Examples
    --------
    >>> [usual(name) for name in ("proj_kernel", "kv_proj_stride", "img_size", "anything")]
    [3, 1, 16, None]
    """
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    if hint is torch.device:
        return torch.device("cpu")
    if any(get_origin(each) is Callable for each in (hint, *get_args(hint))) and _ACTIVATIONS & set(pieces_of(name)):
        return nn.functional.gelu
    *_, last = pieces = ["", *pieces_of(name)]
    known = {*pieces, *(piece.removesuffix("s") for piece in pieces)}
    rows = (value for words, value in _BY_PIECE if known & set(words.split()))
    rows = (value for value in rows if type(value) is int or last not in _OF_SIZES)
    if hint is bool and glossary_word(name) == name:
        return next((value for value in rows if isinstance(value, bool)), False)
    return next(rows, D_MODEL if hint is int and last in _OF_WIDTHS else _BY_TYPE.get(hint))


def may_be_none(hint: Any) -> bool:
    """Whether an annotation allows None."""
    return type(None) in get_args(hint)


def is_module(hint: Any) -> bool:
    """Whether an annotation is a class of modules."""
    return isinstance(hint, type) and issubclass(hint, nn.Module)


def offered_for(factory: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a constructor is offered, so that the width is a multiple of the number of heads."""
    wanted, hints = signature_of(factory), hints_of(factory)
    offered = dict(SMALL)
    n_heads = _value("n_heads", wanted, given)
    d_model = _value("d_model", wanted, given)
    if d_model is not None and n_heads is None:
        offered["n_heads"] = next(n for n in (N_HEADS, 2, 3, 5, 1) if d_model % n == 0)
    if n_heads is not None and d_model is None and n_heads > 0 and D_MODEL % n_heads:
        offered["d_model"] = n_heads * D_HEAD
    offered |= {"d_model": d_model} if d_model is not None else {}
    n_heads = n_heads if n_heads is not None else offered["n_heads"]
    offered["n_kv_heads"] = 2 if n_heads % 2 == 0 else 1
    offered |= dict.fromkeys((name for name in colors_of(wanted) if is_required(wanted[name])), 3)
    if not named("n_heads", wanted):  # how many there are comes of their size
        sizes = (name for name in named("d_head", wanted) if is_required(wanted[name]))
        offered |= dict.fromkeys((name for name in sizes if divides(name, source_of(factory))), D_HEAD)
    open_names = [name for name, one in wanted.items() if is_required(one) and glossary_word(name) not in offered]
    others = {name: usual(name, hints.get(name)) for name in open_names if not is_module(hints.get(name))}
    others |= {name: size for name in others if (size := _size_handed_on(factory, name, offered)) is not None}
    others = {name: value for name, value in others.items() if value is not None}
    rates = (name for name, value in others.items() if type(value) is float)
    others |= {name: (others[name],) * 2 for name in rates if setting_of(name, source_of(factory)) == "list"}
    meant = _second_meanings(wanted).items()
    second = {name: offered[word] if isinstance(word, str) else word for name, word in meant}
    return second | offered | others


def _size_handed_on(factory: Callable[..., Any], name: str, offered: Mapping[str, Any]) -> Any:
    """The size under whose name a class hands on what its own name does not tell, None where it is none."""
    words = map(glossary_word, handed_on_as(name, source_of(factory)) if usual(name) is None else ())
    return next((offered[word] for word in words if word in SMALL), None)


_COLUMNS = 24  # of a table or a series: unlike widths, so that neither can be mistaken for the other
_SECOND_MEANINGS: dict[str, tuple[str, str | int]] = {
    "vocab_size": ("embeddings", "d_model"),
    "n_layers": ("n", "max_length"),
    "d_model": ("features", _COLUMNS),
}
"""The last piece of names that say a size of the glossary unless another name does, and what they mean beside one."""


def _second_meanings(wanted: Mapping[str, inspect.Parameter]) -> dict[str, str | int]:
    """The required arguments whose name means another size, as a plainer name beside it means what it would."""
    found: dict[str, str | int] = {}
    for word, (piece, other) in _SECOND_MEANINGS.items():
        names = named(word, wanted)
        doubtful = [name for name in names if pieces_of(name)[-1:] == [piece] and is_required(wanted[name])]
        found |= dict.fromkeys(doubtful if len(doubtful) < len(names) else (), other)
    return found


def colors_of(wanted: Iterable[str]) -> list[str]:
    """The arguments that are numbers of colors: channels where there is an image."""
    names = list(wanted)
    of_images = any(_OF_IMAGES & set(pieces_of(name)) for name in names)
    return [name for name in names if of_images and _COLORS & set(pieces_of(name))]


def _value(word: str, wanted: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> int | None:
    """A size that is given or has a default, None where it is to be chosen."""
    names = [name for name in named(word, {**wanted, **given}) if name not in colors_of(wanted)]
    values = [given.get(name, wanted[name].default if name in wanted else None) for name in names]
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)
