"""Trained translation models judged: on a held-out part of their task, or on a text of a person's own."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from attnlab.core.errors import DataError, RunError, SpecError
from attnlab.studies.using.trained import Trained, sentence_codec, translate
from attnlab.studies.using.translating import BATCH
from attnlab.tasks.translation.data import held_out_pairs, held_out_targets
from attnlab.tasks.translation.scores import Difference, Score, all_scores, judged_differences

CODE = re.compile(r"[a-z]{2,3}([-_]\w+)*")


@final
@dataclass(frozen=True)
class Scored:
    """Hold the translations of a held-out part and what they are worth."""

    translations: list[str]  # in the order of the part
    seconds: float  # what translating took
    scores: list[Score]  # BLEU, chrF and others, with signatures
    above: Mapping[str, list[Difference]]
    """By folder of a run that it was held against, how much more BLEU and chrF have."""


@final
@dataclass(frozen=True)
class OwnText:
    """Hold sentences of a person's own, and what people made of them.

    Parameters
    ----------
    sources : sequence of str
        One sentence each.
    references : sequence of sequence of str
        Translations of all of them, by one person each.
    language : str, optional
        Code of what is translated into, such as ``de``; as the run's task has it, unless given.
    """

    sources: Sequence[str]
    references: Sequence[Sequence[str]]
    language: str | None = None


def score(
    trained: Sequence[Trained],
    part: str = "",
    *,
    own: OwnText | None = None,
    against: Sequence[Trained] = (),
    beam: int | None = None,
    alpha: float | None = None,
    coverage: float | None = None,
    replace_unknown: bool | None = None,
    batch: int = BATCH,
    cached: bool = True,
) -> Scored:
    """Translate a held-out part, or a text of one's own, and compare with the translations of people.

    Parameters
    ----------
    trained : sequence of Trained
        As `translate` takes them.
    part : str
        ``validation`` or ``test``; the last that the first run's task has, unless given.
    own : OwnText, optional
        What is translated in place of a part; a checkpoint needs it.
    against : sequence of Trained
        Runs that translate the same sentences, each by itself, for a paired bootstrap over them.
    beam, alpha, coverage, replace_unknown, batch, cached
        As `translate` takes them.

    Returns
    -------
    Scored
        Translations, time, scores.

    Raises
    ------
    RunError
        As in `translate`; or if a run that is held against has other sentences in that part, or another case.
    SpecError
        If the task has no such part, or nobody says into which language a checkpoint translates.
    DataError
        If the part is missing, or has changed since the run was made; if references are missing.
    """
    codec, first = sentence_codec(trained), trained[0]
    asked = _held_out(first, part, against) if own is None else _checked(own, first)
    lowercase = codec.tokenizer.lowercase
    for other in against:
        if sentence_codec([other]).tokenizer.lowercase != lowercase:
            raise _unlike(other, first)
    how: dict[str, Any] = {"beam": beam, "alpha": alpha, "coverage": coverage, "batch": batch, "cached": cached}
    how["replace_unknown"] = replace_unknown
    references, language = asked.references, asked.language or codec.languages[1]
    began = time.perf_counter()
    found = translate(trained, asked.sources, **how)
    seconds = time.perf_counter() - began
    above = {
        str(other.folder): judged_differences(
            found, translate([other], asked.sources, **how), references, language, lowercase=lowercase
        )
        for other in against
    }
    return Scored(found, seconds, all_scores(found, references, language, lowercase=lowercase), above)


def _held_out(first: Trained, part: str, against: Sequence[Trained]) -> OwnText:
    """A part of the first run's task, which must be that of the runs that are held against it."""
    data = first.task.data
    if "parts" not in data:
        raise SpecError(f"{first.folder} has no held-out part: give a text and references")
    part = part or list(data["parts"])[-1]
    pairs = held_out_pairs(data, part)
    for other in against:
        if "parts" not in other.task.data or held_out_pairs(other.task.data, part) != pairs:
            raise _unlike(other, first)
    return OwnText([pair.source for pair in pairs], held_out_targets(data, part))


def _unlike(other: Trained, first: Trained) -> RunError:
    return RunError(f"{other.folder} translates other sentences than {first.folder}, or in another case")


def _checked(own: OwnText, first: Trained) -> OwnText:
    """A text with as many references as sentences, whose language is known."""
    if not own.sources:
        raise DataError("there is no sentence to translate")
    if not own.references:
        raise DataError("a text is scored by references, of which there are none")
    for lines in own.references:
        if len(lines) != len(own.sources):
            raise DataError(f"there are {len(own.sources):,} sentences and {len(lines):,} references: one for each")
    if own.language is not None and not CODE.fullmatch(own.language):
        raise SpecError(f"a language is given by its code, such as de or zh-TW; got '{own.language}'")
    if own.language is None and "parts" not in first.task.data:
        raise SpecError(f"{first.folder} does not say into which language it translates: give it, such as de")
    return own
