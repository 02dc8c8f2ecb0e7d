"""What is measured of the translations of a held-out part: two scores as metrics of a study, more for a person."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.core.contracts import Metric
from attnlab.text.scores import Score, bleu, chrf, tokenised_bleu

BLEU, CHRF = "bleu", "chrf"


def judged_metrics(prefix: str) -> tuple[Metric, ...]:
    """Return what is measured of the translations of one held-out part.

    Parameters
    ----------
    prefix : str
        ``val`` or ``test``.

    Returns
    -------
    tuple of Metric
        Scores of sacrebleu, from 0 to 100.
    """
    return (
        Metric(f"{prefix}_{BLEU}", "of 100", "higher", "BLEU"),
        Metric(f"{prefix}_{CHRF}", "of 100", "higher", "chrF"),
    )


def judged_scores(
    prefix: str, translations: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> dict[str, float]:
    """Return the values of `judged_metrics`.

    Parameters
    ----------
    prefix : str
        ``val`` or ``test``.
    translations, references : sequence of str
        Sentences as people write them, one of each.
    lowercase : bool
        Whether upper and lower case are the same, as they must be for a tokenizer that knows no capitals.

    Returns
    -------
    dict of str to float
        By name of the metric.
    """
    return {
        f"{prefix}_{BLEU}": bleu(translations, references, lowercase=lowercase).value,
        f"{prefix}_{CHRF}": chrf(translations, references, lowercase=lowercase).value,
    }


def signatures(*, lowercase: bool = False) -> dict[str, str]:
    """Return how `judged_scores` computes what it returns.

    Parameters
    ----------
    lowercase : bool
        As in `judged_scores`.

    Returns
    -------
    dict of str to str
        For BLEU and chrF the signature of sacrebleu; numbers of unlike signatures do not compare.
    """
    some = ["a sentence"]
    return {name: score(some, some, lowercase=lowercase).signature for name, score in ((BLEU, bleu), (CHRF, chrf))}


def all_scores(
    translations: Sequence[str], references: Sequence[str], language: str, *, lowercase: bool = False
) -> list[Score]:
    """Return everything by which papers judge translations of a text.

    Parameters
    ----------
    translations, references : sequence of str
        Sentences as people write them, one of each.
    language : str
        Code of their language.
    lowercase : bool
        As in `judged_scores`.

    Returns
    -------
    list of Score
        BLEU and chrF of sacrebleu; BLEU of Moses' tokens, with case (unless `lowercase`) and without.

    Raises
    ------
    DataError
        If there are none, or not one of each.
    """
    cut = [
        tokenised_bleu(translations, references, language, lowercase=low)
        for low in ((True,) if lowercase else (False, True))
    ]
    plain = (score(translations, references, lowercase=lowercase) for score in (bleu, chrf))
    return [*plain, *cut]
