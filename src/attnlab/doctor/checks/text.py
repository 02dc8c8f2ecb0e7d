"""A short training run on a person's text, placed on the ladder of n-grams: what it uses, and what it should not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch

from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding, Severity
from attnlab.doctor.measures.text_corpus import Corpus, read_corpus
from attnlab.doctor.measures.text_stack import causal_usage, context_of, language_model
from attnlab.doctor.measures.text_training import Course, Measured, measure, train

CHECK = "text"
NAMES = ("unigram", "bigram", "trigram", "4-gram", "5-gram", "6-gram")
ROOM = 0.02  # nats: far above what estimating bigrams from a million characters costs
SAFETY = 10.0  # times the cost of estimating frequencies that a better estimate than Witten-Bell might save
ENOUGH_STEPS = 400  # a right attention layer of two uses what stands further back by then
UNUSED = 0.05  # nats that context is worth at least where it is used; a small attention model soon has 0.3 and more
LEAK = 0.005  # nats that the future is worth; without a leak it is exactly zero, but for rounding
SHARED = 0.05  # of the held-out passages in the training part: far above what one author repeats
LADDER = "interpolated Witten-Bell n-grams; Chen, Goodman 1999, Computer Speech and Language 13(4), section 2"


def check_text(exam: Examination) -> Iterator[Finding]:
    """Yield where a short training run ends on the ladder of n-grams; nothing where no text was given."""
    if exam.options.text is None:
        return
    usage = causal_usage(exam.usage)
    if usage is None or usage.pooled:
        why = (
            "it gives one output for all positions" if exam.usage.pooled else "nothing keeps it from seeing later ones"
        )
        yield Finding(CHECK, "info", f"It was not trained to predict next characters: {why}.", "no --causal, no mask")
        return
    corpus = read_corpus(exam.options.text, context_of(usage))
    torch.manual_seed(0)
    model = language_model(exam, usage, corpus.vocab_size)
    course = train(model.train(), corpus)
    yield judge(Run(corpus, course, measure(model.eval(), corpus)))


@final
@dataclass(frozen=True)
class Run:
    """Hold a training run.

    Parameters
    ----------
    corpus : Corpus
        The text and its ladder.
    course : Course
        How long it was trained.
    measured : Measured
        What it reached.
    """

    corpus: Corpus
    course: Course
    measured: Measured

    @property
    def loss(self) -> float:
        """The held-out loss in nats per character."""
        return self.measured.loss

    @property
    def place(self) -> str:
        """In words between which n-grams the loss lies, such as ``lies between bigram (2.49) and ...``."""
        named = [(name, rung.loss) for name, rung in zip(NAMES, self.corpus.rungs, strict=True)]
        above = [item for item in named if item[1] >= self.loss]
        below = [item for item in named if item[1] < self.loss]
        if not above:
            return f"lies above {_name(named[0])}, which only knows how often characters occur"
        lowest = min(above, key=lambda item: item[1])
        if not below:
            return f"lies below every n-gram; the lowest is {_name(lowest)}"
        return f"lies between {_name(lowest)} and {_name(max(below, key=lambda item: item[1]))}"

    @property
    def cleanest(self) -> float:
        """The loss below which so short a run cannot come without a leak.

        It does not beat the best n-gram, but for what a better estimate of its frequencies would save, which is much
        where the text is short.
        """
        return min(
            rung.loss - ROOM - min(rung.loss - rung.loss_limit, SAFETY * rung.sampling_cost)
            for rung in self.corpus.rungs
        )

    @property
    def evidence(self) -> str:
        """Everything that was measured."""
        corpus, course, measured = self.corpus, self.course, self.measured
        rungs = ", ".join(f"{name} {rung.loss:.3f}" for name, rung in zip(NAMES, corpus.rungs, strict=True))
        return (
            f"{measured.loss:.3f} +- {measured.uncertainty:.3f} nats per character on {corpus.held_out[:, 1:].numel()}"
            f" held-out characters of {corpus.name}, after {course.steps} steps ({course.characters:,} characters,"
            f" {course.seconds:.0f} s); n-grams on the same: {rungs}; exchanging what stands before the current"
            f" character costs {measured.before:.3f} nats, before the last two {measured.long_before:.3f},"
            f" after it {measured.after:.3f}; {corpus.shared:.1%} of the held-out passages stand in the training part"
        )

    def says(self, severity: Severity, message: str, remedy: str = "") -> Finding:
        """A finding; a warning is about the set-up."""
        nature = "set-up" if severity == "warning" else None
        return Finding(CHECK, severity, message, self.evidence, remedy, LADDER, nature)


def _name(item: tuple[str, float]) -> str:
    return f"{item[0]} ({item[1]:.2f})"


def judge(run: Run) -> Finding:
    """What a training run says about a model.

    Parameters
    ----------
    run : Run
        What was measured.

    Returns
    -------
    Finding
        The first that applies of `VERDICTS`, else a fact.
    """
    found = next((finding for verdict in VERDICTS if (finding := verdict(run)) is not None), None)
    return found or run.says("info", f"{run.loss:.2f} nats per character {run.place}, and context is used.")


def _not_finite(run: Run) -> Finding | None:
    if math.isfinite(run.loss):
        return None
    return run.says("error", "Trained on the text its loss is not a number.", "see precision, and clip gradients")


def _leak(run: Run) -> Finding | None:
    if run.measured.after <= LEAK:
        return None
    return run.says(
        "error",
        f"It reads the characters that it is to predict, so its loss of {run.loss:.2f} is worth nothing.",
        "see the findings of causality; until they are gone every loss of this module is too good",
    )


def _too_good(run: Run) -> Finding | None:
    if run.loss >= run.cleanest:
        return None
    if run.corpus.shared >= SHARED:
        return run.says(
            "warning",
            f"{run.loss:.2f} {run.place}; the text repeats itself, so this is partly memory.",
            "take a text whose end does not stand in its beginning",
        )
    return run.says(
        "warning",
        f"{run.loss:.2f} {run.place}, below every clean result of so short a run: look for a leak.",
        "look at causality and batch-independence, and whether held-out passages are trained on",
    )


def _nothing_learned(run: Run) -> Finding | None:
    if run.loss <= run.corpus.rungs[0].loss:
        return None
    if run.course.steps < ENOUGH_STEPS:
        message = f"{run.loss:.2f} {run.place}: {run.course.steps} steps are too few to tell whether it learns."
        return run.says("info", message)
    message = f"It learned nothing from the text: {run.loss:.2f} {run.place}."
    return run.says("warning", message, "overfit, gradient and signal say more")


def _context_not_used(run: Run) -> Finding | None:
    unused = _unused(run.measured)
    if unused is None:
        return None
    if run.course.steps < ENOUGH_STEPS:
        message = f"{run.loss:.2f} {run.place}: {run.course.steps} steps are too few to tell whether context is used."
        return run.says("info", message)
    return run.says(
        "warning",
        f"{run.loss:.2f} {run.place}: {unused}.",
        "look at causality (does it see earlier positions at all?), scale, dead-parts and receptive-field",
    )


def _unused(measured: Measured) -> str | None:
    """Which part of the context makes no difference, in words."""
    if measured.before < UNUSED:
        return "context is not used, for nothing before the current character matters"
    if measured.long_before < UNUSED:
        return "context is hardly used, for nothing before the last two characters matters"
    return None


VERDICTS: tuple[Callable[[Run], Finding | None], ...] = (
    _not_finite,
    _leak,
    _too_good,
    _nothing_learned,
    _context_not_used,
)
"""From gravest to mildest."""
