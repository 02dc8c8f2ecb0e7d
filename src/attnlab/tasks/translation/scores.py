"""What is measured of the translations of a held-out part: two scores as metrics of a study, more for a person."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.core.contracts import Metric
from attnlab.text.scores import USUAL, Difference, References, Score, bleu, chrf, differences, tokenised_bleu

BLEU, CHRF = "bleu", "chrf"


def judged_metrics(prefix: str) -> tuple[Metric, ...]:
    """What is measured of the translations of one held-out part."""
    return (
        Metric(f"{prefix}_{BLEU}", "of 100", "higher", "BLEU"),
        Metric(f"{prefix}_{CHRF}", "of 100", "higher", "chrF"),
    )


def judged_scores(
    prefix: str, translations: Sequence[str], references: References, language: str, *, lowercase: bool = False
) -> dict[str, float]:
    """The values of `judged_metrics`, in a language by its code."""
    return {
        f"{prefix}_{BLEU}": bleu(translations, references, language, lowercase=lowercase).value,
        f"{prefix}_{CHRF}": chrf(translations, references, lowercase=lowercase).value,
    }


def signatures(language: str, references: int = 1, *, lowercase: bool = False) -> dict[str, str]:
    """How `judged_scores` computes what it returns, with so many references."""
    some, texts = ["a sentence"], [["a sentence"]] * references
    return {
        BLEU: bleu(some, texts, language, lowercase=lowercase).signature,
        CHRF: chrf(some, texts, lowercase=lowercase).signature,
    }


def all_scores(
    translations: Sequence[str], references: References, language: str, *, lowercase: bool = False
) -> list[Score]:
    """Everything by which papers judge translations of a text; Moses' tokens only where words have blanks between."""
    plain = [bleu(translations, references, language, lowercase=lowercase)]
    plain.append(chrf(translations, references, lowercase=lowercase))
    if f"tok:{USUAL}" not in plain[0].signature:
        return plain
    cases = (True,) if lowercase else (False, True)
    return [*plain, *(tokenised_bleu(translations, references, language, lowercase=low) for low in cases)]


def judged_differences(
    translations: Sequence[str],
    others: Sequence[str],
    references: References,
    language: str,
    *,
    lowercase: bool = False,
) -> list[Difference]:
    """How much more of what is judged translations have than others, whatever the sentences."""
    return differences(translations, others, references, language, lowercase=lowercase)
