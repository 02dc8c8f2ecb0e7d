"""Build a person's module, any number of times, from its constructor: arguments nobody gave are guessed by name."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import linecache
import re
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final, get_args, get_origin

from torch import nn

from attnlab.core.build import Order
from attnlab.core.constructors import (
    ITSELF,
    Settings,
    UnsetError,
    check_arguments,
    config_class_of,
    config_of,
    fill_in,
    fits,
    glossary_word,
    heard_by,
    hints_of,
    is_required,
    named,
    settings,
    signature_of,
    takes_any,
)
from attnlab.core.errors import AttnlabError, SpecError
from attnlab.core.own_files import constants_of_script
from attnlab.strangers.loading.callers import watched
from attnlab.strangers.loading.mentions import handed_on_as, handed_to, setting_of, tables_asked, words_compared_with
from attnlab.strangers.loading.parts import (
    OF_TORCH,
    class_like,
    class_named,
    is_called,
    is_listed,
    is_module_of,
    methods_that_set,
    namespace_of,
)
from attnlab.strangers.loading.sizes import (
    D_HEAD,
    D_MODEL,
    N_HEADS,
    OF_SIDES,
    PAIRED,
    SMALL,
    TableOfWords,
    colors_of,
    is_module,
    may_be_none,
    offered_for,
    pieces_of,
    supposed,
    usual,
)
from attnlab.strangers.loading.starts import fill_lazy_layers, initialize, start_as_library_does, uninitialized
from attnlab.strangers.loading.values import settings_of
from attnlab.strangers.said.source import source_of
from attnlab.strangers.texts import file_of, text_of

_WANTS_PAIRS = re.compile(r"not subscriptable|not iterable|cannot unpack|has no len")
_LACKS = re.compile(r"missing \d+ required")
_HOW_TO_ATTEND = "_attn_implementation"  # of a Hugging Face config, which leaves it open; eager: every step is seen
_LARGE = 500_000  # parameters, of a layer 256 wide; of more, a hundred calls take longer than a person waits
_WIDE = 256  # a number of at least that is a width, whatever it is called
_SHALLOW = {word: SMALL[word] for word in ("n_layers", "vocab_size")}
"""What changes nothing in what a layer computes."""

_LACKS_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'$")
_LACKS_SIDE = re.compile(r"'(\w+)' object has no attribute '([hHwW]|[hH]eight|[wW]idth)'$")
_SIDE_UNSET = 4  # of 16 positions, which are always tried
_SIDE = 32  # pixels
_PLACES_OF_GRID = 64  # of what is as high and as wide, and perhaps as deep, whatever it is called
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
    caller : Maker or None
        What builds the class as a part of itself, and so tells what its arguments are.
    supposing : int or None
        Which of the values that its source allows is taken for what nothing tells; None: it is asked for.
    elsewhere : mapping of str to object, optional
        Arguments as another place of the repository gives them: where they are large, smaller ones do.
    """

    def __init__(
        self,
        factory: Callable[..., Any],
        name: str,
        given: Mapping[str, Any],
        *,
        causal: bool | None = None,
        caller: Maker | None = None,
        supposing: int | None = None,
        elsewhere: Mapping[str, Any] | None = None,
    ) -> None:
        self.factory = factory
        self._supposing = supposing
        self.name = name
        self.wanted = signature_of(factory)
        told = {} if causal is None else dict.fromkeys(named("causal", self.wanted), causal)
        self.notes: tuple[str, ...] = () if caller is None else (f"as {caller.name} builds it",)
        self._set_names(constants_of_script(Path(file_of(factory))) if file_of(factory) else {})
        settled, told = self._settled_in_its_file(), told | self._own_words(given)
        there = {n: value for n, value in (elsewhere or {}).items() if n != self._config or isinstance(value, Mapping)}
        self.given = settled | self._own_words(there) | told
        self._fixed = {*settled, *told}
        self.uninitialized: tuple[str, ...] = ()
        self.asks = False  # whether something is missing that nothing tells
        self.supposed = ""  # what was taken for what nothing tells, in words
        self.guesses_parts = False  # whether a module that nothing names was put in
        self._any_config = False
        self._taken_apart: dict[str, int] = {}  # what its annotation calls a number, and its code takes apart
        self._inside: dict[str, int] = {}  # smaller sizes of a config that takes none
        self._sides: set[tuple[str, str]] = set()  # classes and attributes of theirs that only a larger module sets
        self._second_steps: list[tuple[str, str]] = []  # classes and methods of theirs that set what is lacking
        self.caller = caller

    def first(self) -> nn.Module:
        """A first instance, and settle how all later ones are built."""
        module = self.begun()
        module = self._smaller(module) if self.caller is None else module  # whose other parts it must fit
        self.uninitialized = uninitialized(lambda: self.build({}))
        return self.build({}) if self.uninitialized else module

    def begun(self) -> nn.Module:
        """An instance of the size that was asked for."""
        try:
            return self._guessing()
        except AttnlabError as error:
            if self._config is None or self._config in self.given:
                raise
            return self._with_any_config(error)

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
            if glossary_word(word) in ("d_head", "d_v"):
                return {} if word in self.given else {word: D_HEAD}
            size = self._meant(word)
            size = ITSELF if setting_of(word, self._text) == "object" or self._is_config_of_a_part(word) else size
            self.asks |= size is None
            return {} if word in self.given else {word: size}
        if not isinstance(cause, TypeError | AssertionError | ValueError | KeyError):
            return {}
        lacks = _LACKS.search(str(cause)) or (isinstance(cause, KeyError) and takes_any(self.wanted))
        missing = re.findall(r"'(\w+)'", str(cause)) if lacks else []
        if self._config is None and not takes_any(self.wanted):  # what a part lacks nobody can give
            missing = [name for name in missing if name in self.wanted]
        if missing:  # from ``**kwargs``, by the constructor or by a part that it hands them on to
            guessed = {name: self._meant(name) for name in missing}
            return {name: value for name, value in guessed.items() if value is not None and name not in self.given}
        if not _WANTS_PAIRS.search(str(cause)):
            none = [name for name, one in self.wanted.items() if one.default is None and name not in self.given]
            sizes = {name: SMALL[glossary_word(name)] for name in none if glossary_word(name) in SMALL}
            return sizes or self._refused(cause, none)
        return self._structured()

    def _structured(self) -> dict[str, Any]:
        """Whole numbers that are taken apart, as what may be meant: a table of words, or a height and a width."""
        sizes = {name: value for name, value in {**self.arguments, **self.given}.items() if type(value) is int}
        words = {name: TableOfWords(sizes[name]) for name in sizes if glossary_word(name) == "vocab_size"}
        listed = [name for name in sizes if setting_of(name, self._text) == "list"]
        listed = listed or [name for name in sizes if PAIRED & set(pieces_of(name))]
        self._taken_apart |= {name: sizes[name] for name in (*words, *listed)}
        told = {name: self._settings.get(name) for name in listed}
        return words or {name: one if isinstance(one, list) else (sizes[name],) * 2 for name, one in told.items()}

    def _is_config_of_a_part(self, word: str) -> bool:
        """Whether a setting is handed to a class of the file that reads settings from it."""
        for callee, place in handed_to(word, self._text):
            kind: Any = self._namespace.get(callee)
            names = [*signature_of(kind)] if is_module(kind) else []
            name = place if isinstance(place, str) else next(iter(names[place:]), "")
            if name in names and setting_of(name, source_of(kind)) == "object":
                return True
        return False

    def _refused(self, cause: BaseException, none: Sequence[str]) -> dict[str, Any]:
        """What the statements that led to an error name of the arguments that were left at None."""
        raised = [one for one in traceback.extract_tb(cause.__traceback__) if one.filename == file_of(self.factory)]
        named_there = {word for frame in raised for word in re.findall(r"\w+", _statement(frame))} & {*none}
        guessed = {name: self._meant(name) for name in named_there}
        self.asks |= None in guessed.values()
        return {name: value for name, value in guessed.items() if value is not None}

    def _told(self, word: str) -> Any:
        """The value of a setting that its repository or what it is compared with tells, None where nothing does."""
        if word in self._settings:
            return self._settings[word]
        source = source_of(self.factory)
        if (key := self._key_of_a_table(word)) is not None:
            return key
        compared = (words_compared_with(name, self._text) for name in handed_on_as(word, source))
        return next(itertools.chain(words_compared_with(word, source), *compared), None)

    def _key_of_a_table(self, word: str) -> Any:
        """The first key of the table in which the class looks a setting up, None where there is none."""
        tables = (self._namespace.get(name) for name in tables_asked(word, self._text))
        return next((key for table in tables if isinstance(table, Mapping) for key in table), None)

    def _meant(self, word: str) -> Any:
        """The same, or what its name or its use tells."""
        told = self._told(word)
        return SMALL.get(glossary_word(word)) or usual(word) or self._supposed(word) if told is None else told

    def offered(self, first: nn.Module) -> Generator[tuple[Maker, nn.Module], BaseException | None, None]:
        """Yield itself with an instance, and again while what calling one raised asks for a setting."""
        while (failed := (yield self, first)) is not None:
            cause = _first_cause(failed)
            more = self._wanted_by(cause) if isinstance(cause, KeyError) else {}
            sides = {*_LACKS_SIDE.findall(str(cause))} - self._sides
            steps = [one for one in _steps_to(first, str(cause)) if one not in self._second_steps]
            if not (more or sides or steps):
                return
            self.given |= more
            self._sides |= sides
            self._second_steps += steps
            self.notes += tuple(f"{name}() of {kind} called, as it sets what is used" for kind, name in steps)
            self.notes += tuple(f"{name} of {kind} set to {_SIDE_UNSET}, as nothing sets it" for kind, name in sides)
            first = self.first()

    @property
    def _settings(self) -> Mapping[str, Any]:
        """The values that the repository gives to settings."""
        file = file_of(self.factory)
        return settings_of(Path(file)) if file else {}

    def settings_wanted(self) -> dict[str, Any]:
        """The repository's values of the required arguments, and of all settings where a config holds them."""
        return {
            name: value
            for name, value in self._settings.items()
            if (is_required(self.wanted[name]) if name in self.wanted else self._config is not None)
        }

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments of the constructor, by its own words."""
        return dict(self._order({}).arguments)

    def build(self, changes: Mapping[str, Any]) -> nn.Module:
        """Another instance, with changed constructor arguments."""
        order = self._order(changes)
        module = self._made(order)
        self._insist_on_effect(order, changes)
        for part, (kind, name) in itertools.product(module.modules(), self._sides):
            if type(part).__name__ == kind:
                setattr(part, name, _SIDE_UNSET)
        for part, (kind, name) in itertools.product([*module.modules()], self._second_steps):
            if type(part).__name__ == kind:
                with contextlib.suppress(Exception):  # which leaves it without
                    getattr(part, name)()
        width = next((order.arguments.get(name) for name in named("d_model", self.wanted)), None)
        fill_lazy_layers(module, width if type(width) is int else D_MODEL)
        start_as_library_does(module)
        initialize(module, self.uninitialized)
        return module

    def _set_names(self, values: Mapping[str, Any]) -> bool:
        """Give names of the file, which nothing else gives a value, what they would have where the file is run."""
        missing = {name: value for name, value in values.items() if name not in self._namespace}
        self._namespace.update(missing)
        if missing:
            words = ", ".join(f"{name}={value}" for name, value in missing.items())
            self.notes += (f"{words} set for the whole file, which sets them as a script or nowhere",)
        return bool(missing)

    def _settled_in_its_file(self) -> dict[str, Any]:
        """Sizes that stand under the name of a required argument in the file, which its parts may rely on."""
        required = [name for name, one in self.wanted.items() if is_required(one)]
        return {name: self._namespace[name] for name in required if type(self._namespace.get(name)) in (int, float)}

    def _order(self, changes: Mapping[str, Any]) -> Order:
        """The constructor with all its arguments."""
        given = self._handed(changes) | self.given | (self._own_words(changes) if self.caller is None else {})
        offered = offered_for(self.factory, given)
        if self._config is not None and config_class_of(self.factory, self._config) is None:
            words = {name: value for name, value in self._settings.items() if type(value) in (bool, str)}
            given = {name: value for name, value in words.items() if glossary_word(name) == name} | given
        if self._any_config and self._config is not None:
            own = {name: value for name, value in given.items() if name in self.wanted}
            rest = {name: value for name, value in given.items() if name not in self.wanted}
            given = own | {self._config: settings(offered, rest)}
        filled = fill_in(self.factory, given, offered=offered, foreign=True, keep_defaults=True)
        filled = {name: value for name, value in filled.items() if name in given or self._fits(name, value)}
        guessed = {name: value for name, value in filled.items() if name in given or not self._is_part(name, value)}
        filled = filled | self._parts_wanted(guessed, given)
        filled |= {name: value for name in self._missing(filled) if (value := self._told(name)) is not None}
        filled |= {name: None for name in self._missing(filled) if may_be_none(hints_of(self.factory).get(name))}
        supposed = {name: value for name in self._missing(filled) if (value := self._supposed(name)) is not None}
        self.supposed = ", ".join(f"{name}={_in_short(value)}" for name, value in supposed.items())
        filled |= supposed
        for name, hint in hints_of(self.factory).items():
            kind, axes = get_origin(hint), max(2, len(get_args(hint)))
            if kind in (list, tuple) and name in filled and name not in given and type(filled[name]) is int:
                side = min(filled[name], round(_PLACES_OF_GRID ** (1 / axes))) if kind is tuple else filled[name]
                filled[name] = kind([side] * axes)
        if self._inside and self._config in filled:
            filled[self._config] = copy.copy(filled[self._config])
            vars(filled[self._config]).update(self._inside)
        for value in filled.values():
            if hasattr(value, _HOW_TO_ATTEND):
                setattr(value, _HOW_TO_ATTEND, "eager")
        return Order(self.factory, self._checked(filled), self.name, foreign=True)

    def _handed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """What the caller, built with the same changes, gives the first of the instances that it builds."""
        if self.caller is None or not isinstance(self.factory, type):
            return {}
        with watched(self.factory) as seen:
            self.caller.build(changes)
        if not seen:
            raise SpecError(f"{self.caller.name} builds no {self.name}")
        return seen[0]

    def _parts_wanted(self, filled: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Modules for required arguments, and lists of them."""
        wanted = self._missing(filled)
        parts = {name: self._part(name, {word: given[word] for word in given if word in SMALL}) for name in wanted}
        return {name: part for name, part in parts.items() if part is not None}

    def _part(self, name: str, sizes: Mapping[str, Any]) -> nn.Module | list[nn.Module] | None:
        """What is built for one argument, None where nothing says that it is a module.

        Of the class that it is annotated with or named after; a list of layers of the class that is named as the class
        itself, and ``Layer``; for what is called, attention where it gets three tensors, else a linear map.
        """
        kind: Any = hints_of(self.factory).get(name) or class_named(self.factory, name)
        if is_module(kind) and kind is not nn.Module:
            return Maker(kind, f"{self.name}({name})", sizes).begun()
        layer = class_named(self.factory, f"{self.factory.__name__}Layer")
        if layer is not None and is_listed(self.factory, name):
            return [Maker(layer, f"{self.name}({name})", sizes).begun() for _ in range(SMALL["n_layers"])]
        kind = class_like(self.factory, name)
        builds = re.search(rf"(?<!\.)\b{name}\(", source_of(getattr(self.factory, "__init__", None)))
        if kind is not None and self._told(name) is None and not builds:
            layout = {"batch_first": True} if kind in OF_TORCH.values() else {}
            return Maker(kind, f"{self.name}({name})", {**sizes, **layout}).begun()
        if not is_called(self.factory, name):
            return None
        self.guesses_parts = True
        attends = is_called(self.factory, name, tensors=3)
        return nn.MultiheadAttention(D_MODEL, N_HEADS, batch_first=True) if attends else nn.Linear(D_MODEL, D_MODEL)

    def _fits(self, name: str, guess: Any) -> bool:
        """Whether a guess is what the annotation of an argument allows, once or twice."""
        hint = hints_of(self.factory).get(name)
        return get_origin(hint) in (list, tuple) or fits(guess, hint)

    def _is_part(self, name: str, guess: Any) -> bool:
        """Whether a required argument for which a number was guessed is a module after all."""
        is_number = isinstance(guess, int | float) and is_required(self.wanted[name])
        return is_number and is_module_of(self.factory, name)

    def _supposed(self, name: str) -> Any:
        """A value that what the class does with an argument allows, None where nothing is supposed."""
        choices = () if self._supposing is None else supposed(name, self._text)
        return next(iter(choices[self._supposing or 0 :] or choices[-1:]), None)

    def _checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check the arguments, and ask by name for those that nobody can guess."""
        missing = self._missing(arguments)
        if missing:
            self.asks = True
            likely = {name: next(iter(supposed(name, self._text)), ...) for name in missing}
            written = {name: value if isinstance(value, int | str) else "..." for name, value in likely.items()}
            asked = " ".join(f"--arg {name}={value}" for name, value in written.items())
            raise SpecError(
                f"{self.name} needs {', '.join(map(repr, missing))}, which nothing tells: what is meant? Give {asked}"
                " (or name a function that builds it)"
            )
        apart = {name: arguments[name] for name in self._taken_apart if name in arguments}
        whole = {name: self._taken_apart[name] for name in apart}
        return check_arguments(self.factory, {**arguments, **whole}, self.name) | apart

    def _missing(self, arguments: Mapping[str, Any]) -> list[str]:
        """The required arguments that are not there."""
        return [name for name, one in self.wanted.items() if name not in arguments and is_required(one)]

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
                raise SpecError(
                    f"{self.name} reads '{word}' from its config: what is meant? Give --arg {word}=..."
                ) from error
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
    def _namespace(self) -> dict[str, Any]:
        """The names of the factory's file."""
        return namespace_of(self.factory)

    @functools.cached_property
    def _text(self) -> str:
        """What is written of the class and of those of its file that it uses."""
        return text_of([self.factory])

    @functools.cached_property
    def _config(self) -> str | None:
        """The name of the parameter that holds all others."""
        return config_of(self.factory)

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
        module = self._made_smaller(dict.fromkeys(self.wide_images, _SIDE)) or module
        if sum(parameter.numel() for parameter in module.parameters()) <= _LARGE:
            return module
        usual_ones = {name: self._usually(name) for name in self.wanted}
        wide = {name: D_MODEL for name, value in usual_ones.items() if type(value) is int and value >= _WIDE}
        counts = [name for name, value in usual_ones.items() if type(value) is int]
        deep = {name: SMALL["n_layers"] for name in counts if pieces_of(name)[-1:] in (["layers"], ["blocks"])}
        narrow = self._own_words(_NARROW)
        smaller = (
            self._made_smaller(sizes) for sizes in (narrow | wide | deep | narrow, narrow, self._own_words(_SHALLOW))
        )
        return next((each for each in smaller if each is not None), module)

    @property
    def wide_images(self) -> list[str]:
        """The arguments that say how wide an image is: by default more than is needed, or else than it is high."""
        sides = {name: self._usually(name) for name in self.wanted if OF_SIDES & set(pieces_of(name))}
        sides = {name: wide for name, wide in sides.items() if type(wide) is int}
        uneven = {name: sides[name] for name in sides if {"height", "width", "h", "w"} & set(pieces_of(name))}
        uneven = uneven if len(set(uneven.values())) > 1 else {}
        return [name for name, wide in sides.items() if wide > 2 * _SIDE or name in uneven]

    def _usually(self, name: str) -> Any:
        """The value of an argument where no person says another one."""
        return self.given.get(name, self.wanted[name].default)

    def _made_smaller(self, sizes: Mapping[str, Any]) -> nn.Module | None:
        """An instance with those of some sizes that the constructor has and nobody gave, None where it takes none."""
        before, inside = self.given, self._inside
        fixed = {*self._fixed, *colors_of(self.wanted)}
        small = {name: value for name, value in sizes.items() if name in self.wanted and name not in fixed}
        small = {name: value for name, value in small.items() if not self._is_less(name, value)}
        held = {name: sizes[glossary_word(name)] for name in self._held if glossary_word(name) in sizes}
        try:
            self.given, self._inside = before | small, inside | held
            module = self.build({}) if small or held else None
        except AttnlabError:
            self.given, self._inside = before, inside
            return None
        made = {name: value for name, value in small.items() if value != before.get(name, self.wanted[name].default)}
        self.notes += tuple(f"{name} made {value}, to be quick" for name, value in {**made, **held}.items())
        return module

    def _is_less(self, name: str, value: Any) -> bool:
        """Whether an argument that is no number of heads is usually less than a value."""
        usually = self._usually(name)
        return type(usually) is type(value) is int and usually < value and glossary_word(name) != "n_heads"

    @property
    def _held(self) -> list[str]:
        """The sizes that a config of the person's own class sets by itself."""
        name = self._config
        kind = None if name is None or name in self.given else config_class_of(self.factory, name)
        config = None if name is None or kind is None else self.arguments.get(name)
        if kind is None or type(config) is not kind or not hasattr(config, "__dict__"):
            return []
        return [name for name, value in vars(config).items() if type(value) is int and name not in signature_of(kind)]


def _in_short(value: Any) -> str:
    return repr(value) if isinstance(value, int | float | str | tuple | list) else type(value).__name__


def _statement(frame: traceback.FrameSummary) -> str:
    """All lines of what a frame was computing."""
    first = frame.lineno or 0
    return "".join(linecache.getline(frame.filename, line) for line in range(first, (frame.end_lineno or first) + 1))


def _steps_to(module: nn.Module, error: str) -> Iterator[tuple[str, str]]:
    """Yield the classes of a module that lack an attribute by an error, and their methods that set it when called."""
    for kind, attribute in _LACKS_ATTRIBUTE.findall(error):
        lacking = {type(part) for part in module.modules() if type(part).__name__ == kind}
        yield from ((kind, name) for each in lacking for name in methods_that_set(each, attribute))


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _size_without_a_value(error: BaseException) -> dict[str, Any]:
    """The size that an error misses among the names of its file, with what is usual there."""
    name = error.name if isinstance(error, NameError) else None
    size = SMALL.get(glossary_word(name or ""))
    return {} if name is None or size is None else {name: size}
