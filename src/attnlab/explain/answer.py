"""What explaining ends with: how far what was seen lies from what was expected, and what carries how much of it."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, final

from attnlab.core.files import finite
from attnlab.explain.causes.cause import ANOTHER_SOURCE, GAINS, LEAKING, OWN, TOO_FEW_STEPS, Nature
from attnlab.explain.causes.own_code import Examined
from attnlab.explain.overfit import Memory
from attnlab.explain.possible import Allowed, Impossible
from attnlab.explain.trials.effects import Estimate

Word = Literal["bug", "known effect", "own code", "set-up", "noise", "cannot be", "unexplained", "not again"]
CARRIES = 0.25
"""Part of the distance that what gives the answer its word carries; else the word is "unexplained"."""
HALF = 0.5
"""Part of the distance that is most of it."""
LEAST = 0.1
"""Part of what runs with all steps leave that shorter ones must have, so that their shares are shares of it; and part
of the distance within which a single run is as what was seen."""
NOT_IN_CASE = "not in the case"
"""What the step is called from what was seen to what runs of the case give, outside of their noise."""
SHORT = 0.25
"""Part of the steps below which runs say little of what a bug carries in the end."""
OF_DATA = "what these data allow"
"""What the step is called that is of the data of a case, whatever the network."""
SPOILING = frozenset({LEAKING, ANOTHER_SOURCE})
"""What makes numbers of held-out items tell nothing, however much."""
NEARLY = 1 / 3
"""Part of an amount by which its interval may reach beyond zero where it is nearly decided."""
MOST = 2.0
"""Part of the distance above which no number is said: a short distance makes any large."""


@final
@dataclass(frozen=True)
class Share:
    """Hold what one cause carries, in the order in which causes were removed."""

    name: str  # as of the cause, like all that is not explained here
    nature: Nature  # the cause's
    removed: str  # the cause's
    amount: Estimate  # what its removal changed, those before it being gone: before minus after
    alone: Estimate | None = None  # the same with nothing else of its phase removed
    last: Estimate | None = None  # the same with everything else removed, where there is something else
    evidence: str = ""  # the cause's
    source: str = ""  # the cause's
    remedy: str = ""  # the cause's
    detail: str = ""  # what was chosen, such as the rates that a search ended with
    where: tuple[str, ...] = ()  # of which variants it was removed, where not of all that are compared

    @property
    def interacts(self) -> bool:
        """Whether it carries another amount when it is removed last."""
        last, amount = self.last, self.amount
        return last is not None and (last.high < amount.low or amount.high < last.low)


@final
@dataclass(frozen=True)
class Again:
    """Hold what runs of the set-up as it was gave for one number that was seen."""

    variant: str  # name in the case, or what another set-up is called
    metric: str  # name of the metric
    seen: float  # in its unit
    found: Estimate  # what runs gave
    within: bool | None  # whether what was seen lies within the noise of runs; None where nothing says
    single: tuple[float, float] | None = None  # between which numbers single runs lie; None where there is one


@final
@dataclass(frozen=True)
class Answer:
    """Hold the answer to a case.

    Parameters
    ----------
    name : str
        Name of the case.
    question : str
        What was asked.
    quantity : str
        The number that is explained, in words.
    unit : str
        Its unit.
    seen, expected : float
        What was seen, and the nearest value that would not have surprised.
    fraction : float
        Part of the steps with which runs were made; 1 is the whole of them.
    seeds : int
        Runs of every set-up.
    again : tuple of Again
        What the set-up as it was gave, for every number that was seen; with all of its steps, where there was time.
    start : Estimate or None
        The number that is explained, in runs of the set-up as it was; None where none finished.
    entire : Estimate or None
        The same with all of its steps, where runs were shortened and there was time for it.
    noise : bool or None
        Whether what was seen lies within the noise of runs with all steps; None where nothing says.
    draw : float
        How far another draw of what is held out would move the number; 0 where nothing is drawn, or nothing says.
    behind : bool
        Whether what was seen is worse than what was expected.
    one_sided : bool
        Whether a variant was to be better, or worse, than another, however much.
    shares : tuple of Share
        What carries it.
    end : Estimate or None
        The number with all of these removed.
    without_effect : tuple of str
        What was removed and changed nothing that is decided.
    undecided : mapping
        By cause what it may carry, where that seemed much and was not decided.
    worse : mapping of str to Estimate
        Causes without which runs came further off, and by how much.
    alone : mapping of str to Estimate
        Causes that carry something by themselves, and nothing beside those that were removed before them.
    nearest : (str, Estimate) or None
        Without which cause, alone, runs came nearest to what was expected, and what they gave.
    not_tried : tuple of str
        What was not removed, and why.
    impossible : tuple of Impossible
        Numbers that cannot be what they seem.
    allowed : Allowed or None
        What these data allow: without any network, where that is better than what was expected, or by their labels,
        where that is worse.
    alarms : tuple of str
        What is suspicious about the task's data and their split.
    made : tuple of Again
        What other set-ups gave, tried for numbers that cannot be.
    otherwise : Again or None
        What runs of the case give read otherwise, or with another split, where what was seen is that.
    unmeasured, unshown : tuple of str
        Errors of the doctor in what is explained that no removal reached, and those that shortened runs do not decide.
    examined : tuple of Examined
        What the doctor said of own modules.
    memories : tuple of Memory
        Whether a few items can be learned by heart.
    effects, brought : mapping
        By variant and known effect the evidence that it is at work before training, and after it in one run of each.
    gone : tuple of str
        Effects that are bugs wherever they are measured, and are not at work any more without what was removed.
    error : str
        Why runs of the set-up as it was did not finish.
    notes : tuple of str
        How the case was read.
    variants : tuple of str
        The variants that the number is about.
    cured : tuple of tuple
        Where no run finished: name and nature of every cause without which runs do.
    raised : bool
        Whether no run finished because code raised or ended its process, and no number that was not finite.
    scale : str or None
        The scale at which runs were made; None for what was run by who asked.
    seconds, minutes : float
        How long it took, over all commands, and how long it might take.
    """

    name: str
    question: str
    quantity: str
    unit: str
    seen: float
    expected: float
    fraction: float
    seeds: int
    again: tuple[Again, ...] = ()
    start: Estimate | None = None
    entire: Estimate | None = None
    noise: bool | None = None
    draw: float = 0.0
    behind: bool = False
    one_sided: bool = False
    shares: tuple[Share, ...] = ()
    end: Estimate | None = None
    without_effect: tuple[str, ...] = ()
    undecided: Mapping[str, Estimate] = field(default_factory=dict)
    worse: Mapping[str, Estimate] = field(default_factory=dict)
    alone: Mapping[str, Estimate] = field(default_factory=dict)
    nearest: tuple[str, Estimate] | None = None
    not_tried: tuple[str, ...] = ()
    impossible: tuple[Impossible, ...] = ()
    allowed: Allowed | None = None
    alarms: tuple[str, ...] = ()
    made: tuple[Again, ...] = ()
    otherwise: Again | None = None
    unmeasured: tuple[str, ...] = ()
    unshown: tuple[str, ...] = ()
    examined: tuple[Examined, ...] = ()
    memories: tuple[Memory, ...] = ()
    effects: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    brought: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    error: str = ""
    notes: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    cured: tuple[tuple[str, str], ...] = ()
    raised: bool = False
    scale: str | None = None
    seconds: float = 0.0
    minutes: float = 0.0

    @property
    def expected_words(self) -> str:
        """What was expected, in digits, and whether more or less of it is as good."""
        beyond = (" or more" if self.seen < self.expected else " or less") if self.one_sided else ""
        return f"{self.expected:.4g}{beyond}"

    @property
    def comparable(self) -> bool:
        """Whether runs can be held against what was seen: they have its size and all of its steps."""
        return self.fraction == 1.0 and self.scale is None

    @property
    def usual(self) -> Estimate | None:
        """What runs gave that can be held against what was seen, those with all steps; None where there are none."""
        return self.start if self.comparable else self.entire

    @property
    def distance(self) -> float:
        """What is to be explained: seen minus expected, or of runs of another size alone, their start minus expected.

        It is 0 where these are as expected already, although what was seen is not.
        """
        seen = self.seen - self.expected
        if self.usual is not None or self.start is None:
            return seen
        found = self.start.mean - self.expected
        return found if found * seen > 0 else 0.0

    @property
    def whole(self) -> float:
        """What parts are parts of: the distance, or what runs lie off, where what was seen is nearer than these."""
        return self.distance if self.is_all_noise else self._farthest

    @property
    def _farthest(self) -> float:
        off = 0.0 if self.usual is None else self.usual.mean - self.expected
        return off if off * self.distance > self.distance**2 else self.distance

    @property
    def is_all_noise(self) -> bool:
        """Whether runs of the case cannot tell what was seen from what was expected, and no cause says more of it.

        A set-up or own code without which a number is far better than what was expected, or far worse where it was
        expected to be worse, does so to any number, and tells nothing of the distance; not of one variant that was to
        be better than another, which is as expected however much it is, and open while that is nearly decided.
        """
        if self.usual is None or not self.noise or any(not self._is_of_any(one) for one in self.shares):
            return False
        if self.one_sided and any(map(self._is_nearly_decided, self.undecided.values())):
            return False
        off = self.expected - self.usual.mean
        end = self.usual.high if off > 0 else self.usual.low
        return abs(off) <= math.hypot(end - self.usual.mean, self.draw)

    def _is_of_any(self, share: Share) -> bool:
        """Whether a cause changes any number by far more than there is to explain, and says nothing of this one."""
        of_any = share.nature in ("set-up", OWN) and share.name not in SPOILING and not self.one_sided
        return of_any and share.amount.mean * self.counts / self._farthest > MOST

    def _is_nearly_decided(self, amount: Estimate) -> bool:
        """Whether a cause seems to carry all there is to explain, with an interval of which little lies beyond zero."""
        one = self.carried(amount)
        return one.mean * self.counts >= abs(self._farthest) and one.low > -NEARLY * one.mean

    @property
    def comes_of_data(self) -> Allowed | None:
        """What these data allow, where the number comes again."""
        if self.usual is None or self.otherwise:
            return None
        near = abs(self.seen - self.usual.mean) <= LEAST * abs(self.distance)  # of a single run
        return self.allowed if self.noise or (self.noise is None and near) else None

    @property
    def counts(self) -> float:
        """By what an amount of the runs counts in the distance: those with fewer steps divide up what all steps leave.

        It is 0 where runs with fewer steps have next to nothing of that.
        """
        if self.usual is None or self.start is None:
            return 1.0
        left, here = (one.mean - self.expected for one in (self.usual, self.start))
        return left / here if here and left / here > 0 and abs(here) >= LEAST * abs(left) else float(left == here)

    @property
    def worth_all_steps(self) -> tuple[str, ...]:
        """What seemed to carry something in runs that were shortened."""
        return (*(share.name for share in self.shares), *self.undecided)

    @property
    def _tried(self) -> set[str]:
        """What was removed, whatever came of it."""
        return {*self.worth_all_steps, *self.without_effect, *self.worse, *self.alone}

    def after(self, shortened: Answer, wanted: Container[str]) -> Answer:
        """It with what runs of fewer steps told before of causes that were not tried once more, wanted or not."""
        before = shortened._tried - self._tried
        lost = (one for one in shortened.not_tried if "(runs are shortened)" not in one)
        lacking = [
            *self.not_tried,
            *lost,
            *(f"'{name}' (no time)" for name in shortened.worth_all_steps if name not in wanted),
        ]
        done = {f"'{name}' (no time)" for name in self._tried}
        with_all = {f"'{name}' (no time)": f"'{name}' with all steps (no time)" for name in before}
        not_tried = dict.fromkeys(with_all.get(one, one) for one in lacking if one not in done)
        without = (f"{name} (in shortened runs)" for name in shortened.without_effect if name in before)
        return replace(self, without_effect=(*self.without_effect, *without), not_tried=tuple(not_tried))

    @property
    def steps(self) -> tuple[tuple[str, str, float], ...]:
        """The way from seen to expected: what carries it, its nature, and how much; nothing where no run finished."""
        return tuple(self._steps())

    def _steps(self) -> Iterator[tuple[str, str, float]]:
        if self.start is None or self.end is None or not self.distance:
            return
        if self.is_all_noise:
            yield "noise", "noise", self.distance
            return
        if self.usual is not None:
            off = self.seen - self.usual.mean
            if self.otherwise:
                yield self.otherwise.variant, "set-up", off
            else:
                known = {True: "noise", False: NOT_IN_CASE, None: "noise or not in the case"}
                yield known[self.noise], "noise" if self.noise else "unexplained", off
        for share in self.shares if self.counts else ():
            yield share.name, share.nature, share.amount.mean * self.counts
        whole = (self.usual or self.start).mean - self.expected
        left = (self.end.mean - self.expected) * self.counts if self.counts else whole
        if (data := self.comes_of_data) and left * self.distance > 0:
            of_data = min(abs(left), abs(data.value - self.expected))
            yield OF_DATA, "set-up", math.copysign(of_data, left)
            left -= math.copysign(of_data, left)
        if left * self.distance < 0:
            yield "beyond what was expected", "beyond", left
        else:
            yield "unexplained", "unexplained", left

    @property
    def verdict(self) -> Word:
        """What carries most of the distance, in a word."""
        if any(one.kind == "impossible" and one.variant in self.variants for one in self.impossible):
            return "cannot be"
        if self.distance == 0:
            return "not again"
        if self.start is None:
            cured = [nature for _, nature in self.cured]
            bug = "bug" if self.raised or (self.unmeasured and {*cured} <= {OWN}) else ""
            return next(filter(None, (bug, *cured)), "unexplained")  # pyrefly: ignore
        if self.begins_with_a_bug:
            return "bug"
        if self.largest:
            return self.largest[1]  # pyrefly: ignore
        off = 0.0 if self.usual is None or self.noise is not False else self.seen - self.usual.mean
        return "not again" if off / self.distance >= HALF else "unexplained"

    @property
    def is_unmeasured_bug(self) -> bool:
        """Whether nothing but what any model gains from carries much, beside errors of unknown effect.

        Runs of few steps gain from another set-up, whatever else is wrong.
        """
        helps_any = self.largest is None or self.largest[0] in (*GAINS, TOO_FEW_STEPS)
        set_ups = [one.name for one in self.shares if one.nature == "set-up"]
        helps_short = self.fraction < SHORT and self.largest is not None and self.largest[0] in set_ups
        return (helps_any or helps_short) and bool(self.unmeasured or self.unshown)

    @property
    def begins_with_a_bug(self) -> bool:
        """Whether the answer begins with an error of the doctor that no removal reached."""
        return self.is_unmeasured_bug or self.is_bug_of_own

    @property
    def is_bug_of_own(self) -> bool:
        """Whether a person's own code carries most, and the doctor finds an error there that no removal reached."""
        return bool(self.unmeasured) and self.largest is not None and self.largest[1] == OWN

    @property
    def largest(self) -> tuple[str, str, float] | None:
        """The step that carries most of the distance, the unexplained one left out; None where none carries much.

        A step counts as far as something was left to explain when it was removed, noise as far as something is left in
        the end; and what any model gains from, such as more steps, stands behind a bug or an effect that carries a part
        of it.
        """
        sign = math.copysign(1.0, self.distance)
        left, named = abs(self.whole), []
        for name, nature, amount in sorted(self.steps, key=lambda step: step[1] == "noise"):
            if nature not in {"unexplained", "beyond"}:
                named.append((name, nature, sign * max(min(amount * sign, left), 0.0)))
            left -= amount * sign
        others = [step for step in named if step[1] in ("bug", "known effect")]
        if any(abs(step[2]) >= CARRIES * abs(self.whole) for step in others):  # before what helps any model
            named = [step for step in named if step[0] not in (*GAINS, TOO_FEW_STEPS)]
        most = max(named, key=lambda step: abs(step[2]), default=None)
        if most and most[1] == "noise" and abs(most[2]) < HALF * abs(self.whole):
            return None
        return most if most and abs(most[2]) >= CARRIES * abs(self.whole) else None

    def carried(self, amount: Estimate) -> Estimate:
        """What a cause changes, positive where it carries a part of the distance: that of an accuracy is negative."""
        return -amount if self.distance < 0 else amount

    def part(self, amount: float) -> str:
        """An amount as a part of the whole, in words; nothing where there is none."""
        if not self.distance:
            return ""
        part = amount / self.whole
        if abs(part) <= MOST:
            return f"{part:.0%}"
        return f"more than {MOST:.0%}" if part > 0 else ""

    def to_json(self) -> dict[str, Any]:
        """The answer as plain data, with the verdict and the paragraph."""
        from attnlab.explain.words import paragraph, what_next

        data = asdict(self) | {"verdict": self.verdict, "answer": paragraph(self), "next": what_next(self)}
        data["steps"] = [dict(zip(("name", "nature", "amount"), step, strict=True)) for step in self.steps]
        return finite(data)
