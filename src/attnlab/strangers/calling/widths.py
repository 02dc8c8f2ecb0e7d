"""Sizes a module may want its input to have, from its constructor's arguments and from its own parameters."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import nn

from attnlab.core.constructors import named, signature_of
from attnlab.strangers.loading.sizes import D_MODEL, OF_SIDES, pieces_of
from attnlab.strangers.patient import Patient

MISFITS = tuple(
    re.compile(text)
    for text in (
        r"cannot be multiplied \(\d+x(?P<got>\d+) and (?P<wanted>\d+)x\d+\)",
        r"normalized_shape=\[(?P<wanted>\d+)\].* input of size\[(\d+, )*(?P<got>\d+)\]",
        r"to have (?P<wanted>\d+) channels, but got (?P<got>\d+) channels",
    )
)
"""What torch says of an input that is not as wide as a linear map, a norm or a convolution wants it."""
LENGTH = 11  # prime, and unlike the usual batch, widths and numbers of heads
_MOST_WIDTHS = 6  # tried; more take longer than a person waits for a refusal
_MOST_LATER = 1024  # of a part behind the first: a wider one may read many positions laid end to end
_MOST_LENGTHS = 5  # tried at each width
_OF_WINDOWS = (12, 16)  # for what wants a multiple of the size of a window
_SHORT = (7, 5)  # for what takes no more than a few positions
BY_CHANCE = 4  # positions up to which nearly all embeddings fit
_LONGEST = 512  # of a module that insists on one length
_SIDES = (8, 6, 12, 16, 32, 14, 7)  # of images: what most patches and windows divide, then those of famous networks
_LEAST_PATCHES = 2  # along a side: a single one has nothing to attend to
_COLORS = (3, 1)
_WIDEST = 64  # pixels; a wider image takes longer than a person waits
_WIDEST_OF_ALL = 256  # where nothing else runs
_MOST_SIDES = 8  # tried
_SAYS_CHANNELS = frozenset(["channels", "chans", "mel", "mels", "bins", "bands"])
"""Pieces of names of what a spectrogram or a series has several of."""
_SAYS_OUT = ("out", "hidden_dim", "hidden", "n_units", "units")
_WIDTH_ATTRIBUTES = ("in_features", "in_channels", "input_size", "embed_dim", "embedding_dim")


def size_named(word: str, patient: Patient) -> int | None:
    """A size the patient was constructed with."""
    found = next(_sizes(word, patient), None)
    if found is None and word == "d_head":
        d_model, n_heads = size_named("d_model", patient), size_named("n_heads", patient)
        return d_model // n_heads if d_model and n_heads and d_model % n_heads == 0 else None
    return found


def _sizes(word: str, patient: Patient, *, without: tuple[str, ...] = ()) -> Iterator[int]:
    """Values of a size under all its names but those that begin in certain ways."""
    for holder in _holders(patient):
        for name in named(word, holder):
            value = holder[name]
            if name.startswith(without):
                continue
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                yield value


def _holders(patient: Patient) -> list[Mapping[str, Any]]:
    """What may hold sizes: arguments, what they hold themselves, attributes, what arguments are by default."""
    inner = [
        vars(value)
        for value in patient.arguments.values()
        if hasattr(value, "__dict__") and not isinstance(value, type)
    ]
    inner += [value for value in patient.arguments.values() if isinstance(value, Mapping)]
    parts = [vars(part) for part in patient.module.modules() if not type(part).__module__.startswith("torch.")]
    unsaid = {name: one.default for name, one in signature_of(type(patient.module)).items()}
    return [patient.arguments, *inner, *parts, unsaid]


def widths_to_try(module: nn.Module, patient: Patient) -> list[int]:
    """Widths the input may have, the most plausible first."""
    said = [*_sizes("d_model", patient, without=_SAYS_OUT), *_sizes("d_model", patient)]
    parts = list(_widths_of_parts(module))
    sizes = [(name, value) for holder in _holders(patient) for name, value in holder.items() if type(value) is int]
    parts[1:1] = [value for name, value in sizes if _SAYS_CHANNELS & set(pieces_of(name)) and value > 0]
    parts = [*parts[:1], *(width for width in parts[1:] if width <= _MOST_LATER)]
    found = dict.fromkeys([*said[:2], *parts, *said[2:]] or [D_MODEL])
    return [*list(found)[:_MOST_WIDTHS], *([] if 1 in found else [1])]


def _widths_of_parts(module: nn.Module) -> Iterator[int]:
    """The input widths of the module's parts, then the sizes of its own parameters."""
    for part in module.modules():
        for name in _WIDTH_ATTRIBUTES:
            value = getattr(part, name, None)
            if isinstance(value, int) and value > 0:
                yield value
        shape = getattr(part, "normalized_shape", ())
        yield from shape[-1:]
    sizes = collections.Counter(size for parameter in module.parameters() for size in set(parameter.shape))
    yield from (size for size, _ in sizes.most_common())


def lengths_to_try(patient: Patient) -> list[int]:
    """Lengths the input may need to have: a short one, then those a module may insist on."""
    said = [value for value in _sizes("max_length", patient) if value <= _LONGEST]
    grids = [value for holder in _holders(patient) for value in holder.values() if _is_grid(value)]
    areas = [*(side**2 for side in _sides(patient)), *(math.prod(grid) for grid in grids)]
    said += [area for area in areas if BY_CHANCE < area <= _LONGEST]  # pixels or patches one after the other
    shapes = [size for one in patient.module.parameters() for size in one.shape if BY_CHANCE < size <= _LONGEST]
    insisted_on = list(dict.fromkeys([*said, *shapes]))[:_MOST_LENGTHS]
    few = [size for size in insisted_on if size < LENGTH]  # often a limit, and the size of something else as well
    return list(
        dict.fromkeys([LENGTH, *_OF_WINDOWS, *(size for size in insisted_on if size not in few), *_SHORT, *few])
    )


def vocabulary_of(module: nn.Module, patient: Patient) -> list[int]:
    """Numbers of tokens the input may be drawn from."""
    tables = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]
    return list(dict.fromkeys([*_sizes("vocab_size", patient), *tables]))[:3]


@final
@dataclass(frozen=True)
class Grids:
    """Hold what an image may be like."""

    channels: list[int]  # numbers of channels
    lengths: list[int]  # numbers of pixels, all of them squares


def grids_to_try(patient: Patient) -> Grids:
    """Images the input may be: as a constructor or a convolution names size and channels, of several patches."""
    parts = [part for part in patient.module.modules() if isinstance(part, nn.Conv2d | nn.Conv3d)]
    convolutions = [part.in_channels for part in parts]
    patch = max((part.stride[-1] for part in parts if part.stride == part.kernel_size), default=1)
    sides = dict.fromkeys([*_sides(patient), *sorted(_SIDES, key=lambda side: side < _LEAST_PATCHES * patch)])
    usual = [side**2 for side in sides if side <= _WIDEST][:_MOST_SIDES]
    return Grids(
        [*convolutions[:1], *_COLORS], [*usual, *(side**2 for side in sides if _WIDEST < side <= _WIDEST_OF_ALL)]
    )


def _sides(patient: Patient) -> list[int]:
    """How wide the images are that a patient was constructed for."""
    found = [value for holder in _holders(patient) for name, value in holder.items() if _is_side(name, value)]
    return [side[0] if isinstance(side, tuple | list) else side for side in found]


def _is_grid(value: Any) -> bool:
    """Whether an attribute may be a height and a width, with a depth or without."""
    return isinstance(value, tuple | list) and {type(one) for one in value} == {int} and len(value) in (2, 3)


def _is_side(name: str, value: Any) -> bool:
    """Whether an attribute says how wide an image is."""
    first = value[0] if _is_grid(value) else value
    words = name.lower().split("_")
    return type(first) is int and bool(OF_SIDES & set(words)) and first > 1
