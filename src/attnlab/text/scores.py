"""How good translations are, judged by other people's: BLEU and chrF of a whole text, with sacrebleu's signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float64, Int64

from attnlab.core.errors import DataError


@final
@dataclass(frozen=True)
class Score:
    """Hold one score of a text."""

    name: str  # which score
    value: float  # from 0 to 100; more is better
    details: str  # what it is made of: precisions, brevity penalty
    signature: str  # how it was computed: numbers of unlike signatures do not compare


@final
@dataclass(frozen=True)
class Difference:
    """Hold how much one text scores above another, and between what that lies for other sentences of its kind."""

    name: str  # which score
    value: float  # points of 100 that the first has more
    low: float  # lower end of the 95 % bootstrap interval
    high: float  # upper end


RESAMPLES = 1000
"""Texts drawn from the sentences of a text, for `differences`."""


def bleu(translations: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """BLEU of a text as sacrebleu computes it, from plain sentences.

    References
    ----------
    .. [1] Papineni et al., 2002, "BLEU: a method for automatic evaluation of machine translation".
    .. [2] Post, 2018, arXiv:1804.08771.
    """
    from sacrebleu.metrics.bleu import BLEU

    _check(translations, references)
    return _score("BLEU", BLEU(lowercase=lowercase), translations, references)


def chrf(translations: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """The F-score of character n-grams of a text, as sacrebleu computes it.

    References
    ----------
    .. [1] Popovic, 2015, "chrF: character n-gram F-score for automatic MT evaluation".
    """
    from sacrebleu.metrics.chrf import CHRF

    _check(translations, references)
    return _score("chrF", CHRF(lowercase=lowercase), translations, references)


def tokenised_bleu(
    translations: Sequence[str], references: Sequence[str], language: str, *, lowercase: bool = False
) -> Score:
    """BLEU of a text that both sides are cut into tokens for, as papers before sacrebleu report it."""
    import sacremoses
    from sacrebleu.metrics.bleu import BLEU

    _check(translations, references)
    normalizer, tokenizer = sacremoses.MosesPunctNormalizer(language), sacremoses.MosesTokenizer(language)

    def cut(sentence: str) -> str:
        return " ".join(tokenizer.tokenize(normalizer.normalize(sentence), escape=False))

    metric = BLEU(tokenize="none", lowercase=lowercase, force=True)  # else it warns of text that is cut already
    found = _score("tokenised BLEU", metric, list(map(cut, translations)), list(map(cut, references)))
    tokens = f"tok:moses-{language}-sacremoses-{sacremoses.__version__}"
    return Score(found.name, found.value, found.details, found.signature.replace("tok:none", tokens))


def differences(
    translations: Sequence[str], others: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> list[Difference]:
    """How much BLEU and chrF of two translations of a text differ, with a paired bootstrap over its sentences.

    Notes
    -----
    Each resample draws as many sentences as there are, with replacement, the same for both texts; the interval holds
    95 % of the resampled differences. The draws are the same each time.

    References
    ----------
    .. [1] Koehn, 2004, "Statistical significance tests for machine translation evaluation".
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    _check(translations, references)
    _check(others, references)
    count = len(references)
    resamples = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    texts = np.concatenate([np.ones((1, count), dtype=int), resamples])  # how often each sentence stands in each
    found = []
    for name, metric in (("BLEU", BLEU(lowercase=lowercase)), ("chrF", CHRF(lowercase=lowercase))):
        ours, theirs = (_scores_of(metric, each, references, texts) for each in (translations, others))
        whole, *resampled = (ours - theirs).tolist()
        low, high = np.quantile(resampled, (0.025, 0.975)).tolist()
        found.append(Difference(name, whole, low, high))
    return found


def _scores_of(
    metric: Any, translations: Sequence[str], references: Sequence[str], texts: Int64[np.ndarray, "texts sentences"]
) -> Float64[np.ndarray, " texts"]:
    """The scores of texts that hold each sentence so many times, by the counts that sacrebleu takes of each."""
    counted = np.array(metric._extract_corpus_statistics(list(translations), [list(references)]))
    return np.array([metric._compute_score_from_stats(sums).score for sums in (texts @ counted).tolist()])


def _check(translations: Sequence[str], references: Sequence[str]) -> None:
    if len(translations) != len(references):
        raise DataError(f"{len(translations)} translations and {len(references)} references: one of each is needed")
    if not translations:
        raise DataError("there is no sentence to score")


def _score(name: str, metric: Any, translations: Sequence[str], references: Sequence[str]) -> Score:
    found = metric.corpus_score(list(translations), [list(references)])
    details = found.format(score_only=False, signature="").partition(" = ")[2].partition(" ")[2]
    return Score(name, float(found.score), details, str(metric.get_signature()))
