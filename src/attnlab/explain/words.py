"""The answer in words: one paragraph, and what to try next."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attnlab.explain.answer import HALF, NOT_IN_CASE, OF_DATA, Again, Answer, Share
from attnlab.explain.causes.cause import ANOTHER_SOURCE, OWN
from attnlab.explain.causes.own_code import Examined
from attnlab.explain.causes.removals import BUGS, CHANCE
from attnlab.explain.trials.effects import Estimate

SMALL = 0.1
"""Part of the distance below which nothing is said of what is left."""

MOST_ALONE = 2
"""How many causes are told of that would have done by themselves."""
WHOLLY = 0.995
"""Part of the distance from which on it is all of it."""

FROM_ANOTHER_SOURCE = "Train on items of the source that is held out, too, or expect of it what runs gave."
"""What to do where held-out items are of another source, which no other model or recipe removes."""
MORE_HELD_OUT = "Hold more out: of so few answers no number of seeds tells what was seen from what was expected."
BY_PARTS = "Find what of it does that: put its parts into what stood in its place one at a time, and run each."
"""What to do where few answers are noise by themselves, and where a person's own code carries most."""


def paragraph(answer: Answer) -> str:
    """The answer to a case in plain words."""
    return " ".join(_sentences(answer))


def _sentences(answer: Answer) -> Iterator[str]:
    distance = f"{answer.seen:.4g} was seen and {answer.expected_words} expected: {answer.quantity}, {answer.unit}."
    yield f"{_verdict(answer)} {distance}"
    asked = answer.variants if answer.otherwise else ()  # in another unit it says nothing of what was learned
    yield from (f"{one.words}." for one in answer.impossible if one.kind != "unlearned" or one.variant not in asked)
    at_once = answer.verdict == "cannot be"  # else what is suspicious stands behind what was measured
    yield from (f"{alarm}." for alarm in answer.alarms if at_once)
    yield from _made(answer)
    yield from _again(answer)
    yield from (_share(answer, share) for share in answer.shares)
    if answer.comes_of_data and any(name == OF_DATA for name, _, _ in answer.steps):
        yield f"The number comes again, and its data are like that. {answer.comes_of_data.words}."
    yield from _bugs(answer)
    yield from (f"{alarm}." for alarm in answer.alarms if not at_once)
    yield from _rest(answer)


def _verdict(answer: Answer) -> str:
    """What the answer is, as it begins."""
    largest = answer.largest
    if answer.verdict == "cannot be":
        return "The number cannot be what it seems."
    if answer.verdict == "not again":
        where = "in runs of another size" if answer.distance == 0 else "in runs of the case as it is said"
        return f"What surprised does not come again {where}."
    if answer.start is None:
        cured = " or ".join(f"without '{name}'" for name, _ in answer.cured)
        does = f"; {cured} it does" if cured else ""
        bug = f" It has a bug: {ended(answer.unmeasured[0])}" if answer.verdict == "bug" and answer.unmeasured else ""
        fails = ": its code fails" if answer.raised else ""
        return f"It does not train{fails}{does}.{bug}"
    if answer.is_unmeasured_bug:
        return _bug_of_unknown_effect(answer)
    return "Nothing that was tried carries much of it." if largest is None else _of_largest(answer, *largest)


def _bug_of_unknown_effect(answer: Answer) -> str:
    """The first error of the doctor that no removal showed to carry anything."""
    if answer.unmeasured:
        return f"A bug that could not be removed, so what it carries is not known: {ended(answer.unmeasured[0])}"
    return f"A bug whose effect these runs, {_how(answer)}, do not show: {ended(answer.unshown[0])}"


def _of_largest(answer: Answer, name: str, nature: str, amount: float) -> str:
    """What carries most."""
    named = name if name.startswith(nature) else f"{nature}, {name},"
    called = {"bug": f"A {named}", "known effect": f"A {named}", "set-up": f"The {named}", OWN: f"Your {name}"}
    alone = next((step for named, _, step in answer.steps if named == name), amount)
    carried = min(1.0, alone / answer.whole)  # as it stands in the chart, beside whatever else
    most = f"{'most' if carried >= HALF else 'a part'} of it ({carried:.0%})" if carried < WHOLLY else "all of it"
    where = ""
    if not answer.comparable and any(share.name == name for share in answer.shares):
        where = f", as runs {_how(answer)} tell" if answer.usual else f" in these runs, {_how(answer)}"
    if answer.is_bug_of_own:
        return f"A bug: {ended(answer.unmeasured[0].rstrip('.'))} With it, your {name} carries {most}{where}."
    return f"{called.get(nature, 'Noise')} carries {most}{where}."


def _made(answer: Answer) -> Iterator[str]:
    """What other set-ups gave for numbers that cannot be, where they were made."""
    if answer.made and not answer.noise:  # what comes again needs no other set-up
        told = (f"{one.variant}: {one.metric} {one.found.mean:.4g} (seen {one.seen:.4g})" for one in answer.made)
        yield f"Made on purpose, one run each: {'; '.join(told)}."


def _again(answer: Answer) -> Iterator[str]:
    if answer.error:
        yield f"Runs of the set-up as it was do not finish: {answer.error}."
    if answer.start is None:
        return
    runs = f"{answer.start.runs} run{'' if answer.start.runs == 1 else 's'}"
    found = f"{runs} with fresh seeds gave {answer.start.mean:.4g}{interval(answer.start)}"
    also = ", and so does what was expected: these runs cannot tell one from the other" if answer.is_all_noise else ""
    whose = (
        "their noise" if len(answer.variants) < 2 else "their noise (that of single runs)"
    )  # the interval is a mean's
    meaning = {
        True: f"what was seen lies within {whose}{also}",
        False: f"what was seen lies outside {whose}{_otherwise(answer)}",
        None: "which says nothing about their noise",
    }
    if answer.entire:
        whole = f"{answer.entire.mean:.4g}{interval(answer.entire)}"
        gave = f"they gave {whole}: {meaning[answer.noise]}"
        once = f"one run gave {whole}, where {answer.seen:.4g} was seen"
        yield f"{found}, {_how(answer)}. With all steps {once if answer.entire.runs == 1 else gave}."
    elif not answer.comparable:
        yield f"{found}, {_how(answer)}, so that what was seen cannot be held against it."
        return
    else:
        yield f"{found}: {meaning[answer.noise]}."
    for one in answer.again if answer.is_all_noise else ():
        if one.single and one.single[1] - one.single[0] > abs(answer.distance) and _is_explained(answer, one):
            lowest, highest = one.single
            yield f"Single runs of '{one.variant}' gave {one.metric} from {lowest:.4g} to {highest:.4g}."
    outside = {f"{one.metric} of '{one.variant}'": one for one in answer.again if one.within is False}
    others = [
        f"{name} (seen {one.seen:.4g}, found {one.found.mean:.4g}{interval(one.found)})"
        for name, one in outside.items()
        if name != answer.quantity
    ]
    if others:
        yield f"Outside the noise of runs are also: {'; '.join(others)}."


def _is_explained(answer: Answer, one: Again) -> bool:
    """Whether a number that was seen belongs to the one that is explained."""
    return one.variant in answer.variants and answer.quantity.startswith(f"{one.metric} of ")


def _otherwise(answer: Answer) -> str:
    """What a number is within the noise of, where it is not within that of runs."""
    if answer.otherwise is None:
        return ": something differs that the case does not say"
    one, found = answer.otherwise, answer.otherwise.found
    gave = f"{found.mean:.4g}{interval(found)}"
    if len(answer.variants) > 1:
        return f"; its {one.seen:.4g} is what runs give as {one.variant}: {gave}"
    return f", and within that of {one.variant}: {gave}"


def _how(answer: Answer) -> str:
    """In what runs differ from those that were seen."""
    scale = f"at scale '{answer.scale}'" if answer.scale else ""
    steps = f"with {answer.fraction:.2g} of the steps" if answer.fraction < 1 else ""
    return " and ".join(filter(None, (scale, steps)))


def _share(answer: Answer, share: Share) -> str:
    part, amount = answer.part(share.amount.mean * answer.counts), answer.carried(share.amount)
    if answer.is_all_noise:
        how = f"{'better' if answer.behind else 'worse'} by {amount.mean:.3g}{interval(amount)}"
        far = "far more than there is to explain"
        return f"Without '{share.name}' ({_how_removed(share)}) any such number is {how}, {far}."
    beyond = answer.counts * share.amount.mean / (answer.whole or 1.0) > 1 + SMALL
    beyond = " and so more than there was to explain" if beyond and not answer.one_sided else ""
    here = abs(answer.start.mean - answer.expected) if answer.start else 0.0
    off, of_these = answer.whole != answer.distance, ""
    whole = f"the {abs(answer.whole):.3g} that runs lie off" if off else "the distance"
    if answer.counts not in (0.0, 1.0):
        of_these = "" if off else f" of the {here:.3g} in these runs"
        whole = f"the {here:.3g} that these runs lie off" if off else whole  # the same part of what all steps leave
    of_whole = f", {part} of {whole}{beyond}" if part else ""
    carries = f"carries {amount.mean:+.3g}{interval(amount)}{of_these}{of_whole}"
    detail = f" ({share.detail})" if share.detail else ""
    last = answer.carried(share.last) if share.interacts and share.last else None
    order = f" Removed last it carries {last.mean:+.3g}: it interacts." if last else ""
    told = share.evidence
    of_class = told.partition(": ")[0].isidentifier()
    why = f" {ended(told if of_class else _begun(told))}" if told else ""
    source = f" See {share.source}." if share.source else ""
    name = share.name if ": " in share.name else _begun(share.name)  # a setting keeps its letters
    where = f" of {' and '.join(map(repr, share.where))}" if share.where else ""
    return f"{name} ({share.nature}{where}; removed here: {share.removed}{detail}) {carries}.{order}{why}{source}"


def _begun(text: str) -> str:
    """A sentence with its first letter."""
    return text[0].upper() + text[1:]


def ended(text: str) -> str:
    """A sentence with its end."""
    return text if text.endswith("?") else f"{text}."


def _bugs(answer: Answer) -> Iterator[str]:
    """Errors of the doctor and measured bugs that no removal showed to carry anything, and where it finds none."""
    right = [one.class_name for one in answer.examined if not (one.errors or one.error)]
    if right and answer.verdict != "bug":
        yield f"The doctor finds no error in {' and '.join(right)}."
    has_bug = answer.begins_with_a_bug or any(share.nature == "bug" for share in answer.shares)
    finds = "also finds" if has_bug else "finds"
    for one in answer.examined:
        for first, *more in _besides(answer, one):
            words = f"{first} (and {len(more)} more of this kind)" if more else first
            yield f"The doctor {finds} an error in {one.class_name}: {ended(words)}"
            finds = "also finds"
        if one.error:
            yield f"{one.class_name} could not be examined: {one.error}."
    for variant, effects in answer.effects.items():
        for name in effects.keys() & BUGS - {*answer.gone, *(share.name for share in answer.shares)}:
            yield f"'{variant}' has a bug, whatever that carries here: {name}: {effects[name]}."


def _besides(answer: Answer, one: Examined) -> list[list[str]]:
    """Errors of the doctor by kind, but those that were told of a cause or as the answer begins."""
    begun = (*answer.unmeasured, *answer.unshown)[:1] if answer.begins_with_a_bug else ()
    said = " ".join([*begun, *(share.evidence for share in answer.shares)])
    told: dict[str, list[str]] = {}
    chance = any(share.name == CHANCE for share in answer.shares)  # told in other words than the doctor's
    for finding in (each for each in one.errors_here if not (chance and each["check"] == "determinism")):
        if finding["message"].rstrip(".") not in said:
            told.setdefault(finding["check"], []).append(finding["message"].rstrip("."))
    return list(told.values())


def _rest(answer: Answer) -> Iterator[str]:
    if answer.end is None or not answer.distance or answer.is_all_noise:
        return
    for name, one in _most_alone(answer):
        by_itself, part = answer.carried(one), answer.part(one.mean * answer.counts)
        of_whole = f" ({part})" if part else ""
        gone = "and nothing that matters beside what is named above"
        yield f"By itself '{name}' carries {by_itself.mean:+.3g}{interval(by_itself)}{of_whole}, {gone}."
    for name, one in answer.undecided.items():
        may = answer.carried(one)
        yield f"'{name}' may carry {may.mean:+.3g}{interval(may)}, which {may.runs} runs do not decide."
    unexplained = {name: amount for name, nature, amount in answer.steps if nature == "unexplained"}
    off, left = unexplained.pop(NOT_IN_CASE, 0.0), sum(unexplained.values())
    matters = SMALL * abs(answer.whole)
    noise = sum(amount for _, nature, amount in answer.steps if nature == "noise")
    if answer.shares and noise * math.copysign(1.0, answer.distance) > matters:
        yield f"{abs(noise):+.3g} ({answer.part(noise)}) are noise."
    if off * math.copysign(1.0, answer.distance) > matters:
        yield f"{abs(off):+.3g} ({answer.part(off)}) do not come again: nothing that the case says carries them."
    if left * math.copysign(1.0, answer.distance) > matters:
        yield f"{abs(left):+.3g} ({answer.part(left)}) stay unexplained: no cause that was removed carries them."
        yield from _nearest(answer)
    elif answer.shares and abs(off) <= matters:
        beyond = 0.0 if answer.one_sided else sum(abs(step) for _, nature, step in answer.steps if nature == "beyond")
        further = f", and runs end {beyond:.3g} beyond what was expected" if beyond > matters else ""
        yield f"Nothing that matters is left{further}."


def _most_alone(answer: Answer) -> list[tuple[str, Estimate]]:
    """The causes that carry most by themselves, and nothing beside those that were removed."""
    ordered = sorted(answer.alone.items(), key=lambda one: -answer.carried(one[1]).mean)
    told = [amount for share in answer.shares for amount in (share.amount, share.alone)]  # of the same runs, if equal
    matter = [one for one in ordered if one[1].mean * answer.counts / (answer.whole or 1.0) >= SMALL]
    matter = [one for one in matter if one[1] not in told]
    return matter[:MOST_ALONE] if answer.counts else []


def _nearest(answer: Answer) -> Iterator[str]:
    """Without which cause runs came nearest to what was expected, where none carries anything."""
    off = math.inf if answer.start is None else abs(answer.start.mean - answer.expected)
    if answer.nearest and not answer.shares and abs(answer.nearest[1].mean - answer.expected) < off:
        name, found = answer.nearest
        came = f"{found.mean:.4g} without it{how_sure(found)}"
        yield f"Of all that was removed '{name}' came nearest to what was expected: {came}."


def what_next(answer: Answer) -> str:
    """The next experiment worth doing."""
    named = [share for share in answer.shares if answer.largest and share.name == answer.largest[0]]
    first = next(iter([*named, *answer.shares]), None)
    if answer.verdict == "cannot be":
        return "Check how the data were split and what the model around these modules sees, before comparing anything."
    if answer.raised:
        return "Mend what ends its runs, and run the case again."
    if answer.begins_with_a_bug:
        return "Mend what the doctor found, and run the case again."
    if first and first.nature == "bug" and answer.verdict == "bug":
        if first.remedy:
            return f"Mend '{first.name}': {first.remedy.rstrip('.')}. Then run the case again."
        return f"Mend '{first.name}' (here: {_how_removed(first)}), and run the case again."
    then = _next_of_runs(answer, first)
    wrong = any(_besides(answer, one) for one in answer.examined)  # whatever it carries, no number tells much beside it
    return f"Mend what the doctor found. Then: {then[0].lower()}{then[1:]}" if wrong else then


def _how_removed(share: Share) -> str:
    return "; ".join(filter(None, (share.removed, share.detail)))


def _next_of_runs(answer: Answer, first: Share | None) -> str:
    """What to run next, or to compare, where no bug is to be mended first."""
    if answer.otherwise:
        text = f"Look whether what was seen is {answer.otherwise.variant}, and compare like with like then."
    elif answer.noise is False:
        text = "Give the run whose number this is as a case of its own, with its data and its split."
    elif answer.allowed and answer.largest and answer.largest[0] == OF_DATA:
        text = answer.allowed.what_next
    elif answer.largest and answer.largest[0] == ANOTHER_SOURCE:
        text = FROM_ANOTHER_SOURCE
    elif answer.fraction < 1 and not answer.is_all_noise:
        minutes = math.ceil(max(answer.seconds / 60, answer.minutes) / answer.fraction)
        run = f"Remove '{first.name}' ({first.remedy.rstrip('.')}). Then run" if first and first.remedy else "Run"
        text = f"{run} it with all of its steps: --minutes {minutes} would be about enough."
    elif answer.undecided and not answer.shares and not answer.is_all_noise:
        name = max(answer.undecided, key=lambda one: answer.carried(answer.undecided[one]).mean)
        minutes = math.ceil(2 * answer.minutes)
        text = f"Decide whether '{name}' carries it: --minutes {minutes} gives time for more runs."
    elif answer.verdict == "noise":
        few = answer.is_all_noise and answer.draw > abs(answer.distance)
        text = MORE_HELD_OUT if few else _of_noise(answer)
    elif first:
        again = "run it again" if len(answer.variants) < 2 else "compare again"
        how = first.remedy.rstrip(".") or f"here: {_how_removed(first)}"
        text = f"Remove '{first.name}' ({how}) and {again}, with three seeds and more."
        text = BY_PARTS if first.nature == OWN else text
    elif answer.not_tried:
        text = f"Try what was not tried here: {'; '.join(answer.not_tried)}."
    else:
        text = _question_to_ask(answer)
    return text


def _of_noise(answer: Answer) -> str:
    """What to do where what was seen is one of the numbers that runs give by chance."""
    runs = answer.usual or answer.start
    if runs is None or runs.runs == 1:
        return "Run it with more seeds before anything is concluded from one."
    if len(answer.variants) < 2:
        return f"Tell the mean of several runs, here {runs.mean:.4g}{interval(runs)}, in place of one number."
    most = max(abs(runs.low), abs(runs.high))
    if most < abs(answer.seen):
        return f"Compare means of several seeds: over these {runs.runs} runs they differ by {most:.2g} at most."
    return "Compare with more seeds: attnlab run adds them until a difference is decided."


def _question_to_ask(answer: Answer) -> str:
    """What to ask where there is nothing to run."""
    if answer.nearest and not answer.behind:
        return (
            f"Look how what is held out came about: nothing that was removed brings it near {answer.expected:.4g}. "
            "Hold out what was made apart from all that is trained on, before anything is copied, balanced or scaled."
        )
    if answer.nearest:
        return (
            f"Ask how good an answer these data allow: nothing that was removed brings it near {answer.expected:.4g}. "
            "Answer some held-out items yourself of which it is furthest off, and look whether their targets are right."
        )
    return "Ask a smaller question: attnlab run with one part changed at a time."


def interval(estimate: Estimate) -> str:
    """An interval in brackets; nothing where there is none."""
    return f" [{estimate.low:.4g}, {estimate.high:.4g}]" if math.isfinite(estimate.low) else ""


def how_sure(estimate: Estimate) -> str:
    """An interval in brackets, or that there was one run."""
    return ", in one run" if estimate.runs == 1 else interval(estimate)
