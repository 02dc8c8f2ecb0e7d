"""What failing calls tell: which others would fail alike, and which width a sequence had to have."""

from __future__ import annotations

import collections
import itertools
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.layouts import SPLIT
from attnlab.strangers.calling.sources import AS_LONG
from attnlab.strangers.calling.widths import MISFITS
from attnlab.strangers.trying.guided import FOREIGN, WANTS_WHOLE_NUMBERS

NUMBER = re.compile(r"(?<![\w.])\d{1,6}(?!\w|\.\d)", re.ASCII)
_OF_ANY_WIDTH = {"x": (AS_LONG,), "memory": ("memory", AS_LONG)}
_OWN_WIDTH = ("vector", "position vectors", AS_LONG, "points", "vectors of pairs")
_MOST_NUMBERLESS = 60
_MOST_FITTED = 60  # calls that are made anew with such a width
MOST_WIDE = 1024
_SAME_FAILURES = 3  # of a type, at several sizes; a fourth size would fail alike


@final
class Failures:
    """Remember how calls failed, so that none is made that would fail alike.

    Parameters
    ----------
    kind : type
        The class that is called.
    sequence : str
        The name of its input.
    """

    def __init__(self, kind: type, sequence: str) -> None:
        self.fitting: list[Convention] = []  # the call that failed last, with another width for one of its sequences
        self.unlike: Convention | None = None  # the first call that ran, if it returned something else than it must
        self._calls: dict[Any, tuple[tuple[int, ...], Convention, str]] = {}  # how far each came, and what it raised
        self._changed: set[Any] = set()
        self._input = sequence
        self._furthest = 0
        self._forward: Any = getattr(kind.forward, "__code__", None)
        self._of_type: collections.Counter[Any] = collections.Counter()  # by what was given, whatever its size
        self._reached: dict[Any, int] = {}  # lines of ``forward`` by sizes, in calls without masks
        self._said: dict[Any, str] = {}  # what was raised by sizes, in calls without masks
        self._alike: collections.Counter[Any] = collections.Counter()  # calls with masks that raised that all the same
        self._ranked: list[tuple[int, ModuleError]] = []
        self._fitted: set[Any] = set()
        self._no_numbers = 0  # calls in a row that failed as tokens must be whole numbers

    @property
    def telling(self) -> list[ModuleError]:
        """The failures, those that came furthest first."""
        return [error for _, error in sorted(self._ranked, key=lambda each: -each[0])]

    def note(self, attempt: Convention, error: ModuleError) -> None:
        """Remember one failure."""
        cause = error.__cause__
        self.unlike = attempt if self.unlike is None and cause is None else self.unlike
        self._of_type[self._given(attempt)] += isinstance(cause, TypeError | AttributeError)
        frames = [] if cause is None else traceback.walk_tb(cause.__traceback__)
        reached = [
            (line, frame.f_code is self._forward)
            for frame, line in frames
            if not FOREIGN.search(frame.f_code.co_filename)
        ]
        line = max((line for line, own in reached if own), default=0)
        self._calls[self._key(attempt)] = tuple(line for line, _ in reached), attempt, str(cause)
        self._ranked.append((line, error))
        if not attempt.masks:
            self._reached[self._sizes(attempt)] = max(self._reached.get(self._sizes(attempt), 0), line)
            self._furthest = max(self._furthest, line)
            self._said[self._sizes(attempt)] = str(cause)
        elif self._said.get(self._sizes(attempt)) == str(cause):
            self._alike[self._sizes(attempt)] += 1
        if attempt.takes == "embeddings":
            self._no_numbers = self._no_numbers + 1 if WANTS_WHOLE_NUMBERS in str(cause) else 0
        found = (match for match in (each.search(str(cause)) for each in MISFITS) if match)
        misfits = [(int(match["got"]), int(match["wanted"])) for match in found]
        fitting = {self._key(each): each for each in refitted(attempt, self._input, misfits)}
        fitting = {key: each for key, each in fitting.items() if key not in self._fitted}
        self.fitting = list(fitting.values()) if len(self._fitted) < _MOST_FITTED else []
        self._fitted |= set(fitting)

    def knows(self, attempt: Convention) -> bool:
        """Whether a call was made."""
        return self._key(attempt) in self._calls

    def next_to_change(self) -> tuple[Convention, str] | None:
        """The call that came furthest and what it raised, but for those that failed like one that was changed."""
        failed = [
            (reached, (NUMBER.sub("", raised), attempt.takes, attempt.layout), attempt, raised)
            for reached, attempt, raised in self._calls.values()
        ]
        best = max((one for one in failed if one[:2] not in self._changed), key=lambda one: one[0], default=None)
        if best is None:
            return None
        self._changed.add(best[:2])
        return best[2:]

    def leaves_open(self, attempt: Convention) -> bool:
        """Whether a call may run: nothing in it is of a wrong type, and no other size came further without masks."""
        too_short = attempt.masks and self._reached.get(self._sizes(attempt), self._furthest) < self._furthest
        too_short = too_short or (attempt.masks and self._alike[self._sizes(attempt)] >= _SAME_FAILURES)
        numberless = attempt.takes == "embeddings" and self._no_numbers >= _MOST_NUMBERLESS
        return not (too_short or numberless) and self._of_type[self._given(attempt)] < _SAME_FAILURES

    def _key(self, attempt: Convention) -> Any:
        return self._given(attempt), self._sizes(attempt)

    def _given(self, attempt: Convention) -> Any:
        return attempt.takes, attempt.arguments, attempt.masks

    def _sizes(self, attempt: Convention) -> Any:
        return attempt.takes, attempt.layout, attempt.d_in, attempt.vocab_size, attempt.length


def refitted(attempt: Convention, sequence: str, misfits: Sequence[tuple[int, int]]) -> Iterator[Convention]:
    """Yield a call with a sequence as wide as is wanted, for each beside the input that is as wide as it got."""
    before = attempt.d_in or attempt.length  # of what is made from the input, if it has no width of its own
    alone = sum(one.source == "x" for one in attempt.arguments) == 1  # what holds the input must go on to hold it
    for got, wanted in misfits:
        part = 1 < got < attempt.d_in and attempt.d_in % got == 0 and attempt.layout not in SPLIT
        if part and attempt.d_in // got * wanted <= MOST_WIDE:
            yield replace(attempt, d_in=attempt.d_in // got * wanted)
    for (index, one), (got, wanted) in itertools.product(enumerate(attempt.arguments), misfits):
        if one.parameter == sequence or (one.source == "x" and alone) or (one.value or before) != got:
            continue
        for source in _OF_ANY_WIDTH.get(one.source, (one.source,) if one.source in _OWN_WIDTH else ()):
            other = replace(one, source=source, value=min(wanted, MOST_WIDE))
            yield replace(attempt, arguments=(*attempt.arguments[:index], other, *attempt.arguments[index + 1 :]))
