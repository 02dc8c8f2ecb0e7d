"""Build a person's module, any number of times, from its constructor: arguments nobody gave are guessed by name."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from torch import nn

from attnlab.core.build import Order
from attnlab.core.constructors import (
    Settings,
    UnsetError,
    check_arguments,
    fill_in,
    glossary_word,
    heard_by,
    hints_of,
    is_config_name,
    is_required,
    named,
    settings,
    signature_of,
)
from attnlab.core.errors import AttnlabError, SpecError
from attnlab.core.own_files import constants_of_script
from attnlab.strangers.loading.mentions import words_compared_with
from attnlab.strangers.loading.sizes import D_HEAD, PAIRED, SMALL, offered_for, pieces_of, usual
from attnlab.strangers.loading.starts import initialize, start_as_library_does, uninitialized
from attnlab.strangers.texts import file_of
from attnlab.strangers.words import source_of

_WANTS_PAIRS = re.compile(r"not subscriptable|not iterable|cannot unpack|has no len")
_HOW_TO_ATTEND = "_attn_implementation"  # of a Hugging Face config, which leaves it open; eager: every step is seen
_LARGE = 500_000  # parameters, of a layer 256 wide; of more, a hundred calls take longer than a person waits
_SHALLOW = {word: SMALL[word] for word in ("n_layers", "vocab_size")}
"""What changes nothing in what a layer computes."""

_SIDE = 32  # pixels
_OF_SIDES = frozenset(["img", "image", "resolution"])
"""Pieces of names that say how wide an image is."""

_NARROW = {word: SMALL[word] for word in ("d_model", "n_heads", "n_kv_heads", "d_ff", "n_layers", "vocab_size")}
_NARROW |= {"d_head": D_HEAD, "d_v": D_HEAD}


@final
class Maker:
    """Build instances with one constructor.

    Parameters
    ----------
    factory : callable
        A class of modules, or a function returning one.
    name : str
        What the person called it.
    given : mapping of str to object
        Arguments the person gave.
    causal : bool or None
        What a constructor that asks whether to be causal is told.
    """

    def __init__(
        self, factory: Callable[..., Any], name: str, given: Mapping[str, Any], *, causal: bool | None = None
    ) -> None:
        self.factory = factory
        self.name = name
        self.wanted = signature_of(factory)
        told = {} if causal is None else dict.fromkeys(named("causal", self.wanted), causal)
        self.notes: tuple[str, ...] = ()
        self._set_names(constants_of_script(Path(file_of(factory))) if file_of(factory) else {})
        self.given = told | self._settled_in_its_file() | self._own_words(given)
        self.uninitialized: tuple[str, ...] = ()
        self._any_config = False

    def first(self) -> nn.Module:
        """A first instance, and settle how all later ones are built."""
        try:
            module = self._guessing()
        except AttnlabError as error:
            if self._config is None or self._config in self.given:
                raise
            module = self._with_any_config(error)
        module = self._smaller(module)
        self.uninitialized = uninitialized(lambda: self.build({}))
        return self.build({}) if self.uninitialized else module

    def _guessing(self) -> nn.Module:
        """An instance; what the constructor turns out to want is added as long as that is known."""
        telling: AttnlabError | None = None
        before = self.given
        while True:
            try:
                return self.build({})
            except AttnlabError as error:
                cause = _first_cause(error)
                if self._set_names(_size_without_a_value(cause)):
                    continue
                more = self._wanted_by(cause)
                if not more:
                    self.given = before
                    raise telling or error from (telling or error).__cause__
                telling = error if None in more.values() and telling is None else telling
                self.given = self.given | more

    def _wanted_by(self, cause: BaseException) -> dict[str, Any]:
        """What an error asks for: a setting that the config lacks, sizes as height and width, sizes left at None."""
        if isinstance(cause, UnsetError):
            word = str(cause)
            size = D_HEAD if glossary_word(word) in ("d_head", "d_v") else usual(word) or self._choice(word)
            return {} if word in self.given else {word: size}
        if not isinstance(cause, TypeError | AssertionError | ValueError):
            return {}
        if not _WANTS_PAIRS.search(str(cause)):
            none = {name: glossary_word(name) for name, one in self.wanted.items() if one.default is None}
            return {name: SMALL[word] for name, word in none.items() if word in SMALL and name not in self.given}
        sizes = {name: value for name, value in self.arguments.items() if type(value) is int}
        return {name: (value, value) for name, value in sizes.items() if PAIRED & set(pieces_of(name))}

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments of the constructor, by its own words."""
        return dict(self._order({}).arguments)

    def build(self, changes: Mapping[str, Any]) -> nn.Module:
        """Another instance, with changed constructor arguments."""
        order = self._order(changes)
        module = self._made(order)
        self._insist_on_effect(order, changes)
        start_as_library_does(module)
        initialize(module, self.uninitialized)
        return module

    def _set_names(self, values: Mapping[str, Any]) -> bool:
        """Give names of the file, which nothing else gives a value, what they would have where the file is run."""
        namespace = vars(sys.modules.get(self.factory.__module__, self))
        missing = {name: value for name, value in values.items() if name not in namespace}
        namespace.update(missing)
        if missing:
            words = ", ".join(f"{name}={value}" for name, value in missing.items())
            self.notes += (f"{words} set for the whole file, which sets them as a script or nowhere",)
        return bool(missing)

    def _settled_in_its_file(self) -> dict[str, Any]:
        """Sizes that stand under the name of a required argument in the file, which its parts may rely on."""
        names = vars(sys.modules.get(self.factory.__module__, self))
        required = [name for name, one in self.wanted.items() if is_required(one)]
        return {name: names[name] for name in required if type(names.get(name)) in (int, float)}

    def _order(self, changes: Mapping[str, Any]) -> Order:
        """The constructor with all its arguments."""
        given = self.given | self._own_words(changes)
        offered = offered_for(self.factory, given)
        if self._any_config and self._config is not None:
            own = {name: value for name, value in given.items() if name in self.wanted}
            rest = {name: value for name, value in given.items() if name not in self.wanted}
            given = own | {self._config: settings(offered, rest)}
        filled = fill_in(self.factory, given, offered=offered, foreign=True, keep_defaults=True)
        filled = self._parts_wanted(filled, given) | self._choices_wanted(filled) | filled
        for value in filled.values():
            if hasattr(value, _HOW_TO_ATTEND):
                setattr(value, _HOW_TO_ATTEND, "eager")
        return Order(self.factory, self._checked(filled), self.name, foreign=True)

    def _parts_wanted(self, filled: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, nn.Module]:
        """Modules for required arguments that are annotated with a class of them."""
        hints = hints_of(self.factory)
        wanted = [name for name, one in self.wanted.items() if is_required(one) and name not in filled]
        kinds: dict[str, Any] = {name: hints.get(name) for name in wanted}
        sizes = {name: value for name, value in given.items() if name in SMALL}
        return {
            name: Maker(kind, f"{self.name}({name})", sizes).build({})
            for name, kind in kinds.items()
            if isinstance(kind, type) and issubclass(kind, nn.Module) and kind is not nn.Module
        }

    def _choices_wanted(self, filled: Mapping[str, Any]) -> dict[str, str]:
        """Words for required arguments that the source compares with words: the first of them."""
        wanted = [name for name, one in self.wanted.items() if is_required(one) and name not in filled]
        return {name: word for name in wanted if (word := self._choice(name)) is not None}

    def _choice(self, name: str) -> str | None:
        return next(words_compared_with(name, source_of(self.factory)), None)

    def _checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check the arguments, and ask by name for those that nobody can guess."""
        missing = [n for n, parameter in self.wanted.items() if n not in arguments and is_required(parameter)]
        if missing:
            asked = " ".join(f"--arg {name}=..." for name in missing)
            raise SpecError(
                f"{self.name} needs {', '.join(map(repr, missing))}; give {asked} (or name a function that builds it)"
            )
        return check_arguments(self.factory, arguments, self.name)

    def _own_words(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by the constructor's own words; a glossary word it knows by several goes to all of them."""
        own: dict[str, Any] = {}
        for name, value in given.items():
            words = named(glossary_word(name), self.wanted)
            own |= {name: value} if name in self.wanted or not words else dict.fromkeys(words, value)
        return own

    def _made(self, order: Order) -> nn.Module:
        """Call the constructor and insist on a module."""
        try:
            module = order.make()
        except SpecError as error:
            if isinstance(error.__cause__, UnsetError):
                word = str(error.__cause__)
                raise SpecError(f"{self.name} reads '{word}' from its config; give --arg {word}=...") from error
            raise
        if not isinstance(module, nn.Module):
            raise SpecError(f"{self.name} returned {type(module).__name__}; it must return a torch.nn.Module")
        return module

    def _insist_on_effect(self, order: Order, changes: Mapping[str, Any]) -> None:
        """Refuse changes of settings that the constructor never read."""
        read = [heard_by(value) for value in order.arguments.values() if isinstance(value, Settings)]
        for word in changes:
            names = {*self.wanted, *(name for heard in read for name in heard)}
            if read and word not in names and not named(glossary_word(word), names):
                raise SpecError(f"{self.name} does not read '{word}' from its config")

    @property
    def _config(self) -> str | None:
        """The name of the parameter that holds all others."""
        return next((n for n, one in self.wanted.items() if is_config_name(n) and is_required(one)), None)

    def _with_any_config(self, failure: AttnlabError) -> nn.Module:
        """An instance built from a config that answers to all words, where the class found for it fails."""
        self._any_config = True
        try:
            return self._guessing()
        except AttnlabError as error:
            self._any_config = False
            raise (error if isinstance(failure, SpecError) else failure) from failure.__cause__

    def _smaller(self, module: nn.Module) -> nn.Module:
        """An instance of smaller sizes, where one is large by default: of smaller images, narrower, of fewer layers."""
        module = self._made_smaller(dict.fromkeys(self._wide_images, _SIDE)) or module
        if sum(parameter.numel() for parameter in module.parameters()) <= _LARGE:
            return module
        smaller = (self._made_smaller(self._own_words(words)) for words in (_NARROW, _SHALLOW))
        return next((each for each in smaller if each is not None), module)

    @property
    def _wide_images(self) -> list[str]:
        """The arguments that say how wide an image is, and by default more than is needed."""
        sides = [name for name in self.wanted if _OF_SIDES & set(pieces_of(name))]
        return [name for name in sides if type(wide := self.wanted[name].default) is int and wide > 2 * _SIDE]

    def _made_smaller(self, sizes: Mapping[str, Any]) -> nn.Module | None:
        """An instance with those of some sizes that the constructor has and nobody gave, None where it takes none."""
        before = self.given
        small = {name: value for name, value in sizes.items() if name in self.wanted and name not in before}
        try:
            self.given = small | before
            module = self.build({}) if small else None
        except AttnlabError:
            self.given = before
            return None
        made = {name: value for name, value in small.items() if value != self.wanted[name].default}
        self.notes += tuple(f"{name} made {value}, to be quick" for name, value in made.items())
        return module


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _size_without_a_value(error: BaseException) -> dict[str, Any]:
    """The size that an error misses among the names of its file, with what is usual there."""
    name = error.name if isinstance(error, NameError) else None
    size = SMALL.get(glossary_word(name or ""))
    return {} if name is None or size is None else {name: size}
