"""Which arguments to build a person's class with, in turn: guessed, as its repository or a larger class calls it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from torch import nn

from attnlab.core.constructors import glossary_word, is_required, named, signature_of
from attnlab.core.errors import AttnlabError
from attnlab.strangers.loading.callers import callers_of, literal_calls
from attnlab.strangers.loading.making import Maker
from attnlab.strangers.loading.sizes import pieces_of

_MOST_CALLS = 3  # in files, that are tried; a fourth would not differ in kind
_MOST_SUPPOSED = 3  # values of what nothing tells
_MOST_CALLERS = 4  # that are built; the fifth would not tell more
_OF_BLOCK = 4  # positions, where a block is a part of what is given
_WIDER_SIDE = 64  # where what is made for so few pixels cannot be called


def ways_to_build(
    factory: Callable[..., Any],
    name: str,
    given: Mapping[str, Any],
    *,
    causal: bool | None = None,
    within: tuple[str, ...] = (),
) -> Generator[tuple[Maker, nn.Module], BaseException | None, None]:
    """Yield makers that build an instance, and the instance: arguments guessed by name, then as its file builds it.

    Those with a module that nothing names come last. `within` are the classes whose callers are being looked for.
    What an instance raised when it was called may be sent; what it asked for is given then. Raises what the first
    maker raises if none builds.
    """
    failure: AttnlabError | None = None
    built, tried = False, ""
    doubtful: list[tuple[Maker, nn.Module]] = []
    for maker in _makers(factory, name, given, causal, within):
        try:
            first = maker.first()
        except AttnlabError as error:
            failure = failure or error
            tried = tried or (f"; tried with {maker.supposed}: {error}" if maker.supposed else "")
            continue
        built = True
        if maker.guesses_parts:
            doubtful.append((maker, first))
        else:
            yield from maker.offered(first)
    for maker, first in doubtful:
        yield from maker.offered(first)
    if failure is not None and not built:
        raise type(failure)(f"{failure}{tried}") from failure.__cause__


def _makers(
    factory: Callable[..., Any],
    name: str,
    given: Mapping[str, Any],
    causal: bool | None,
    within: tuple[str, ...],
) -> Iterator[Maker]:
    """Yield makers of a class that differ in where its arguments come from."""
    plain = Maker(factory, name, given, causal=causal)
    wide = plain.wide_images  # before it makes them smaller
    yield plain
    calls = list(itertools.islice(literal_calls(factory), _MOST_CALLS))
    literal = (Maker(factory, name, given, causal=causal, elsewhere=values) for values in calls)
    for first in itertools.islice(literal, 1):
        wide += first.wide_images
        yield first
    for caller in itertools.islice(callers_of(factory), _MOST_CALLERS):
        wanted = signature_of(caller.factory)
        handed_on = {word: value for word, value in given.items() if named(glossary_word(word), wanted)}
        if caller.factory.__qualname__ not in within:
            inside = (*within, factory.__qualname__)
            with contextlib.suppress(AttnlabError):
                outer = next(ways_to_build(caller.factory, caller.factory.__name__, handed_on, within=inside))[0]
                yield Maker(caller.built, name, given, causal=causal, caller=outer)
    yield from literal
    settings = plain.settings_wanted()
    if settings:
        yield Maker(factory, name, given, causal=causal, elsewhere=settings)
    if wide:
        wider = dict.fromkeys(wide, _WIDER_SIDE) | dict(given)
        yield Maker(factory, name, wider, causal=causal, elsewhere=next(iter(calls), None))
    heads = [name for name in named("n_heads", plain.wanted) if is_required(plain.wanted[name])]
    if heads and not named("n_heads", given):
        of_one = Maker(factory, name, dict.fromkeys(heads, 1) | dict(given), causal=causal)
        of_one.notes += ("with one head, as no call was found that runs with several",)
        yield of_one
    blocks = [name for name in named("max_length", plain.wanted) if is_required(plain.wanted[name])]
    blocks = [name for name in blocks if "block" in pieces_of(name) and name not in given]
    if blocks:
        of_few = Maker(factory, name, dict.fromkeys(blocks, _OF_BLOCK) | dict(given), causal=causal)
        of_few.notes += ("with small blocks, as no call was found that runs with long ones",)
        yield of_few
    for choice in range(_MOST_SUPPOSED) if plain.asks else ():
        yield Maker(factory, name, given, causal=causal, supposing=choice, elsewhere=next(iter(calls), None))
