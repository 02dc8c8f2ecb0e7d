"""Decode a sequence in steps with a module's own cache, by the protocols that are usual.

A step gets the slices of what one call on the whole sequence gets (inputs, positions, masks), and the cache that the
step before returned, filled, or kept inside.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.constructors import glossary_word, is_required, signature_of
from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.strangers.calling.convention import elements
from attnlab.strangers.calling.masking import Masking
from attnlab.strangers.calling.roles import role_of
from attnlab.strangers.calling.widths import size_named
from attnlab.strangers.loading.sizes import pieces_of
from attnlab.strangers.patient import Patient
from attnlab.strangers.said.source import source_of_forward

FLAGS = frozenset({"use_cache", "use_kv_cache", "using_cache", "return_cache", "return_kv", "cache_enabled"})
"""Names of arguments that ask for a cache."""

_OF_CACHES = frozenset({"cache", "caches", "cached", "kvcache", "past", "kv", "kvs"})
"""Pieces of the names of arguments that take keys and values; other state need not be theirs."""
_OF_BATCH = frozenset({"batch", "bsz", "bs", "b"})
_KEPT_WORDS = ("cache", "past", "present", "kv", "state")


Key = int | str | None | tuple[int | str | None, ...]


@dataclass(frozen=True)
@final
class CacheProtocol:
    """Say how a cache is handed from step to step."""

    parameter: str | None  # the argument that takes it; None: the module keeps it
    start: Callable[[], Any]  # makes what the first step is given
    returned: Key
    """Key of the element of what is returned that holds it, or of each piece; None: what was given is filled, or it is
    kept inside."""
    masked: bool  # whether steps are given slices of the masks of the whole call; else none
    asked: bool = True  # whether a step of one position, which has no later one beside it, is asked to be causal too


def names_of(module: nn.Module) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """Which arguments of a module have to do with a cache."""
    names = list(inspect.signature(module.forward).parameters)
    flags = tuple(name for name in names if name.lower() in FLAGS)
    kept = (name for name in names if role_of(name) == "cache" and name not in flags)
    cache = next((name for name in kept if _OF_CACHES & set(pieces_of(name))), None)
    offsets = (name for name in names if role_of(name) == "start" and "layer" not in name.lower())
    return cache, flags, tuple(offsets)


def keeps_cache_inside(module: nn.Module) -> bool:
    """Whether a module without an argument for a cache has one inside."""
    cache, flags, offsets = names_of(module)
    held = any("cache" in name.lower() for part in module.modules() for name in {**vars(part), **part._buffers})
    return cache is None and bool(flags or (offsets and held))


@final
class CachedDecoding:
    """Decode one sequence in steps.

    Parameters
    ----------
    exam : Examination
        The patient.
    x : Tensor
        The whole sequence, (batch, length, ...).
    """

    def __init__(self, exam: Examination, x: Tensor) -> None:
        self.exam = exam
        self.x = x
        self.cache, self.flags, self.offsets = names_of(exam.patient.module)
        recorder = _Recorder(exam.fresh())
        self.whole = exam.run(x, module=recorder, causal=True)
        self.recorder = recorder
        self.masks = {mask.parameter: mask for mask in exam.convention.masks}

    def protocols(self) -> Iterator[CacheProtocol]:
        """The ways in which the cache could be handed on, the usual ones first."""
        masked = [True, False] if any(name in self.recorder.named for name in self.masks) else [True]
        asked = [True, False] if self.exam.convention.flag in self.recorder.named else [True]
        for start in self._starts():
            for returned, each, one in itertools.product(self._keys_returned(start), masked, asked):
                yield CacheProtocol(self.cache, start, returned, each, one)

    def _starts(self) -> list[Callable[[], Any]]:
        """What the first step could be given."""
        if self.cache is None:
            return [_nothing]
        module = self.exam.patient.module
        classes = dict.fromkeys([*_annotated(module, self.cache), *_asked_alike(module, self.cache)])
        return [_nothing, *(_constructor(one, self.exam.patient, self.whole) for one in classes), dict, list]

    def _keys_returned(self, start: Callable[[], Any]) -> list[Key]:
        """Where the cache could be in what a first step returns; None last: what was given was filled."""
        if self.cache is None:
            return [None]
        player = _Player(self.exam.fresh(), self)
        try:
            given = start()
            self._step(player, slice(0, 2), given, CacheProtocol(self.cache, start, None, masked=True))
        except ModuleError:
            return []
        found = elements(player.returned)
        others = [key for key, value in found.items() if not _is(value, player.output_of(found)) and _holds(value)]
        others.sort(key=lambda key: (not _is_named(key), isinstance(found[key], Tensor)))
        return [*others, *([tuple(others)] if len(others) > 1 else []), *([None] if _is_filled(given) else [])]

    def decode(self, protocol: CacheProtocol, steps: Sequence[int]) -> Tensor:
        """The outputs of all steps, one after the other.

        Parameters
        ----------
        protocol : CacheProtocol
            How the cache is handed on.
        steps : sequence of int
            Positions of each step.

        Returns
        -------
        Tensor
            (batch, length, d_out).

        Raises
        ------
        ModuleError
            If a step raises or returns another shape.
        """
        player, cache, outputs, done = _Player(self.exam.fresh(), self), protocol.start(), [], 0
        for size in steps:
            outputs.append(self._step(player, slice(done, done + size), cache, protocol))
            if protocol.returned is not None:
                cache = _held(elements(player.returned), protocol.returned)
            done += size
        return torch.cat(outputs, 1)

    def _step(self, player: _Player, at: slice, cache: Any, protocol: CacheProtocol) -> Tensor:
        """The outputs of one step."""
        named = {} if self.cache is None else {self.cache: cache}
        flag = self.exam.convention.flag
        if flag is not None and not protocol.asked and at.stop - at.start == 1:
            named[flag] = False
        player.prepare(at, named, masked=protocol.masked)
        return self.exam.run(self.x[:, at].contiguous(), module=player, causal=False)


@final
class _Recorder(nn.Module):
    """Hand a call on and keep its arguments."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.positional: tuple[Any, ...] = ()
        self.named: Mapping[str, Any] = {}

    def forward(self, *positional: Any, **named: Any) -> Any:
        """Call the inner module."""
        self.positional, self.named = positional, named
        return self.inner(*positional, **named)


@final
class _Player(nn.Module):
    """Give the inner module a step's part of what the whole call was given, whatever it is called with."""

    def __init__(self, inner: nn.Module, decoder: CachedDecoding) -> None:
        super().__init__()
        self.inner = inner
        self.decoder = [decoder]  # in a list: it is no part of the module
        self.positional: list[Any] = []
        self.named: dict[str, Any] = {}
        self.returned: Any = None

    def prepare(self, at: slice, others: Mapping[str, Any], *, masked: bool) -> None:
        """Cut the arguments of the next call."""
        decoder = self.decoder[0]
        length = decoder.x.size(1)
        recorder = decoder.recorder
        self.positional = [_part(value, at, length, None) for value in recorder.positional]
        self.named = {
            name: _part(value, at, length, decoder.masks.get(name))
            for name, value in recorder.named.items()
            if masked or name not in decoder.masks
        }
        self.named.update(dict.fromkeys(decoder.flags, True), **dict.fromkeys(decoder.offsets, at.start), **others)

    def output_of(self, found: Mapping[Any, Any]) -> Any:
        """The element that is the output."""
        usual = next((value for value in found.values() if isinstance(value, Tensor)), None)
        return found.get(self.decoder[0].exam.convention.output, usual)

    def forward(self, *_positional: Any, **_named: Any) -> Any:
        """Call the inner module with what was prepared."""
        self.returned = self.inner(*self.positional, **self.named)
        return self.returned


def _part(value: Any, at: slice, length: int, mask: Masking | None) -> Any:
    """A step's part of an argument: its positions; of a mask, the rows of its positions and all keys so far."""
    if isinstance(value, list | tuple):
        return type(value)(_part(element, at, length, mask) for element in value)
    if not isinstance(value, Tensor):
        return value
    axes = [axis for axis, size in enumerate(value.shape) if size == length]
    if not axes:
        return value
    so_far = slice(0, at.stop)
    if mask is None:
        return _cut(value, axes[0], at)
    if len(axes) > 1:
        value = _cut(value, axes[-2], at)
    return _cut(value, axes[-1], so_far)


def _cut(value: Tensor, axis: int, at: slice) -> Tensor:
    return value.narrow(axis, at.start or 0, at.stop - (at.start or 0)).contiguous() if value.size(axis) > 1 else value


# What a cache looks like


def _nothing() -> None:
    """None: the first step is given no cache."""


def _annotated(module: nn.Module, parameter: str) -> list[type]:
    """The classes that a cache argument is annotated with."""
    try:
        hint = typing.get_type_hints(type(module).forward).get(parameter)
    except (NameError, TypeError, AttributeError):  # an annotation that cannot be resolved
        hint = None
    classes = [each for each in (hint, *typing.get_args(hint)) if inspect.isclass(each)]
    return [each for each in classes if each not in (type(None), Tensor, dict, list, tuple, bool)]


def _asked_alike(module: nn.Module, parameter: str) -> list[type]:
    """The classes of caches in the module's file that can do what its code asks of the argument."""
    namespace = vars(sys.modules.get(type(module).__module__, types.ModuleType("")))
    asked = set(re.findall(rf"\b{parameter}\.(\w+)\(", source_of_forward(module)))
    classes = [one for name, one in namespace.items() if inspect.isclass(one) and "cache" in name.lower()]
    return [one for one in classes if asked and all(hasattr(one, name) for name in asked)]


def _constructor(cache: type, patient: Patient, whole: Tensor) -> Callable[[], Any]:
    """How to make an empty cache of a class for a sequence, or of the growing kind of the library that defines it."""
    library = sys.modules.get(cache.__module__.partition(".")[0])
    growing = getattr(library, "DynamicCache", cache) if "." in cache.__module__ else cache

    def make() -> Any:
        try:
            made = growing(**_sizes_of_cache(growing, patient, whole))
            for name, value in dict(getattr(made, "__dict__", {})).items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    setattr(made, name, value.to(whole.dtype))
            return made
        except Exception as error:  # foreign code
            raise ModuleError(f"{growing.__name__}() raised {error}") from error

    return make


def _sizes_of_cache(cache: type, patient: Patient, whole: Tensor) -> dict[str, Any]:
    """What a cache for a sequence asks for: how many samples and positions, sizes and configs of the patient."""
    known = {**patient.arguments, "device": whole.device, "dtype": whole.dtype}
    found: dict[str, Any] = {}
    for name, one in signature_of(cache).items():
        word = glossary_word(name)
        if name in ("device", "dtype") or (is_required(one) and name in known and word != "max_length"):
            found[name] = known[name]
        elif is_required(one) and (word == "max_length" or _OF_BATCH & set(pieces_of(name))):
            found[name] = whole.size(int(word == "max_length"))
        elif is_required(one):
            found[name] = size_named(word, patient) or size_named(word.replace("n_kv_", "n_"), patient)
    return found


def _held(found: Mapping[Any, Any], key: Key) -> Any:
    """What is returned under a key, or the pieces under several."""
    return tuple(found.get(one) for one in key) if isinstance(key, tuple) else found.get(key)


def _is(one: Any, other: Any) -> bool:
    return one is other


def _is_named(key: int | str | None) -> bool:
    return isinstance(key, str) and any(word in key.lower() for word in _KEPT_WORDS)


def _holds(value: Any) -> bool:
    """Whether something could be a cache: a tensor, a collection that holds one, an object of some class."""
    if isinstance(value, Tensor):
        return value.dim() > 1
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return any(_holds(element) for element in value)
    return value is not None and not isinstance(value, str | int | float | bool)


def _is_filled(given: Any) -> bool:
    """Whether what was given was filled: a collection that is no longer empty, or an object of some class."""
    if isinstance(given, dict | list):
        return len(given) > 0
    return given is not None
