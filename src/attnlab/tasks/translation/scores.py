"""What is measured of the translations of a held-out part: two scores as metrics of a study, more for a person."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.core.contracts import Metric
from attnlab.text.scores import Difference, Score, bleu, chrf, differences, tokenised_bleu

BLEU, CHRF = "bleu", "chrf"


def judged_metrics(prefix: str) -> tuple[Metric, ...]:
    """What is measured of the translations of one held-out part."""
    return (
        Metric(f"{prefix}_{BLEU}", "of 100", "higher", "BLEU"),
        Metric(f"{prefix}_{CHRF}", "of 100", "higher", "chrF"),
    )


def judged_scores(
    prefix: str, translations: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> dict[str, float]:
    """The values of `judged_metrics`."""
    return {
        f"{prefix}_{BLEU}": bleu(translations, references, lowercase=lowercase).value,
        f"{prefix}_{CHRF}": chrf(translations, references, lowercase=lowercase).value,
    }


def signatures(*, lowercase: bool = False) -> dict[str, str]:
    """How `judged_scores` computes what it returns."""
    some = ["a sentence"]
    return {name: score(some, some, lowercase=lowercase).signature for name, score in ((BLEU, bleu), (CHRF, chrf))}


def all_scores(
    translations: Sequence[str], references: Sequence[str], language: str, *, lowercase: bool = False
) -> list[Score]:
    """Everything by which papers judge translations of a text."""
    cut = [
        tokenised_bleu(translations, references, language, lowercase=low)
        for low in ((True,) if lowercase else (False, True))
    ]
    plain = (score(translations, references, lowercase=lowercase) for score in (bleu, chrf))
    return [*plain, *cut]


def judged_differences(
    translations: Sequence[str], others: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> list[Difference]:
    """How much more of what is judged translations have than others, whatever the sentences."""
    return differences(translations, others, references, lowercase=lowercase)
