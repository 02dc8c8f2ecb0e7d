"""Whether decoding in steps with a cache gives what one call on the whole sequence gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import torch

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding, FindingText
from attnlab.doctor.influence.decoding import CachedDecoding, CacheProtocol, keeps_cache_inside, names_of
from attnlab.doctor.influence.differences import deviation, difference, size_of
from attnlab.doctor.influence.influence import of_future

_ID = "cache"
_SOURCE = "pytorch/torchtune#959: a key-value cache that changes the output"

TEXTS: Mapping[str, FindingText] = {
    "differs": FindingText(
        "error",
        "with `{name}`, decoding in steps gives something else than one call on the whole sequence.",
        "add new keys and values after the cached ones along the length, count positions on from the cached length, let"
        " a single new position see everything cached, and cache keys after (or always before) their rotation",
        _SOURCE,
    ),
    "several": FindingText(
        "warning",
        "with `{name}`, steps of one position are right and steps of several are not.",
        "let a new position see all that is cached and no later new one: a mask of (new, cached + new) positions,"
        " `tril(diagonal=cached)`",
        _SOURCE,
    ),
    "not examined": FindingText("info", "decoding with `{name}` could not be examined.", "", _SOURCE),
}
"""What -> its text; braces are filled with what was measured."""

_FIRST = 4  # positions of the first step; the others follow one by one
_DIFFERENT = 1e-4  # of the largest output: outputs of a step and of a whole call are rounded differently


def check_cache(exam: Examination) -> Iterator[Finding]:
    """Decode in steps of one position, after a first step and from the start, and in larger steps."""
    module = exam.patient.module
    cache, flags, _ = names_of(module)
    if (cache is None and not keeps_cache_inside(module)) or exam.convention.pooled or not exam.convention.any_length:
        return
    name = cache or (flags or ("cache",))[0]
    x = exam.inputs()
    if of_future(exam, lambda x: exam.run(x, causal=True), x, (1, x.size(1) - 1)).ratio:
        yield TEXTS["not examined"].finding(
            _ID, "positions see later ones, so steps cannot give what the whole gives", {"name": name}
        )
        return
    for finding in _examined(CachedDecoding(exam, x), name):
        if (
            finding.severity != "info" or exam.convention.causal is not False
        ):  # encoders often take one that nobody uses
            yield finding


@final
@dataclass(frozen=True)
class _Trial:
    """Hold how far decoding in steps is from the whole, or why it failed."""

    steps: str
    apart: float
    first: int
    error: str = ""

    @property
    def words(self) -> str:
        """It for evidence."""
        if self.error:
            return f"{self.steps}: {self.error}"
        return f"{self.steps}: outputs differ by {self.apart:.2g} of the largest one, first at position {self.first}"


def _examined(decoder: CachedDecoding, name: str) -> Iterator[Finding]:
    """What the protocol that works best shows."""
    length = decoder.x.size(1)
    usual = [_FIRST] + [1] * (length - _FIRST)
    tried = [(protocol, _decode(decoder, protocol, usual, "in steps of one")) for protocol in decoder.protocols()]
    ran = [pair for pair in tried if not pair[1].error]
    if not ran:
        why = tried[0][1].error.partition(": ")[2] if tried else "no way to give and get a cache was found"
        yield TEXTS["not examined"].finding(_ID, why, {"name": name})
        return
    protocol, best = min(ran, key=lambda pair: pair[1].apart)
    if best.apart:
        yield TEXTS["differs"].finding(_ID, best.words, {"name": name})
    else:
        yield from _other_steps(decoder, protocol, name)


def _other_steps(decoder: CachedDecoding, protocol: CacheProtocol, name: str) -> Iterator[Finding]:
    """What other sizes of steps show: from the first position on, and several positions at once."""
    length = decoder.x.size(1)
    single = _decode(decoder, protocol, [1] * length, "one by one from the start")
    if single.apart or single.error:
        yield TEXTS["differs"].finding(_ID, single.words, {"name": name})
        return
    chunks = _decode(decoder, protocol, [_FIRST, 3, length - _FIRST - 3], "in steps of several positions")
    if chunks.apart:
        yield TEXTS["several"].finding(_ID, chunks.words, {"name": name})


def _decode(decoder: CachedDecoding, protocol: CacheProtocol, steps: list[int], words: str) -> _Trial:
    """Compare decoding in steps with the whole."""
    try:
        output = decoder.decode(protocol, steps)
    except ModuleError as error:
        return _Trial(words, 0.0, 0, str(error))
    apart = deviation(decoder.whole, output)
    if apart <= _DIFFERENT:
        return _Trial(words, 0.0, 0)
    moved = difference(decoder.whole, output).amax(0)  # (length)
    first = int(torch.argmax((moved > _DIFFERENT * size_of(decoder.whole)).int()))
    return _Trial(words, apart, first)
