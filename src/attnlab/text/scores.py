"""How good translations are, judged by other people's: BLEU and chrF of a whole text, with sacrebleu's signatures."""

from __future__ import annotations

import importlib.util
import unicodedata
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

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


References = Sequence[str] | Sequence[Sequence[str]]
"""The translations of people: a sentence for each, or several such texts. Where one has none, an empty sentence."""

USUAL = "13a"
"""How sacrebleu cuts languages that have blanks between their words."""
CHINESE = ("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh")
JAPANESE, KOREAN = ("ja", "jpn"), ("ko", "kor")
WITHOUT_BLANKS = ("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur", "bo", "bod", "tib", "dz", "dzo")
CUT_AS: Mapping[str, str] = {
    **dict.fromkeys(CHINESE, "zh"),
    **dict.fromkeys(JAPANESE, "ja-mecab"),
    **dict.fromkeys(KOREAN, "ko-mecab"),
    **dict.fromkeys(WITHOUT_BLANKS, "char"),
}
"""By code of a language what sacrebleu cuts it with, where that is not the usual."""
NEEDED = {"ja-mecab": ("MeCab", "ja"), "ko-mecab": ("mecab_ko", "ko")}
"""What must be installed to cut so: a module, and the extra of sacrebleu that brings it."""


LONGEST_PIECE = 4  # tokens of the longest sequence that GLEU counts


def gleu(written: Sequence[int], reference: Sequence[int]) -> float:
    """How much a sentence has in common with a reference, from 0 to 1, by sequences of up to four tokens.

    Examples
    --------
    >>> gleu([1, 2, 3], [1, 2, 3]), gleu([1, 2], [1, 2, 3, 4]), gleu([], [1])
    (1.0, 0.3, 0.0)

    References
    ----------
    .. [1] Wu et al., 2016, arXiv:1609.08144, section 5.
    """
    pieces = [
        Counter(
            tuple(one[start : start + size])
            for size in range(1, LONGEST_PIECE + 1)
            for start in range(len(one) - size + 1)
        )
        for one in (written, reference)
    ]
    most = max(piece.total() for piece in pieces)
    return (pieces[0] & pieces[1]).total() / most if most else 1.0


def tokenizer_for(language: str) -> str:
    """What sacrebleu should cut a language with, by its code; a region or script may follow (``zh-TW``).

    Warns
    -----
    UserWarning
        If what cuts words is not installed; characters are compared then, which gives other numbers.
    """
    named = CUT_AS.get(language.replace("_", "-").partition("-")[0].lower(), USUAL)
    if named not in NEEDED or importlib.util.find_spec(NEEDED[named][0]):
        return named
    warnings.warn(
        f"BLEU of '{language}' is that of characters (tok:char): to cut words as {named} does, install "
        f"sacrebleu[{NEEDED[named][1]}]",
        stacklevel=2,
    )
    return "char"


def bleu(translations: Sequence[str], references: References, language: str = "", *, lowercase: bool = False) -> Score:
    """BLEU of a text as sacrebleu computes it, from plain sentences, cut as their language is.

    References
    ----------
    .. [1] Papineni et al., 2002, "BLEU: a method for automatic evaluation of machine translation".
    .. [2] Post, 2018, arXiv:1804.08771.
    """
    from sacrebleu.metrics.bleu import BLEU

    return _score("BLEU", BLEU(lowercase=lowercase, tokenize=tokenizer_for(language)), translations, references)


def chrf(translations: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """The F-score of character n-grams of a text, as sacrebleu computes it.

    References
    ----------
    .. [1] Popovic, 2015, "chrF: character n-gram F-score for automatic MT evaluation".
    """
    from sacrebleu.metrics.chrf import CHRF

    return _score("chrF", CHRF(lowercase=lowercase), translations, references)


def tokenised_bleu(
    translations: Sequence[str], references: References, language: str, *, lowercase: bool = False
) -> Score:
    """BLEU of a text that both sides are cut into tokens for, as papers before sacrebleu report it."""
    import sacremoses
    from sacrebleu.metrics.bleu import BLEU

    normalizer, tokenizer = sacremoses.MosesPunctNormalizer(language), sacremoses.MosesTokenizer(language)

    def cut(sentence: str) -> str:
        return " ".join(tokenizer.tokenize(normalizer.normalize(sentence), escape=False))

    metric = BLEU(tokenize="none", lowercase=lowercase, force=True)  # else it warns of text that is cut already
    written, texts = _compared(translations, references)
    found = _score("tokenised BLEU", metric, list(map(cut, written)), [list(map(cut, text)) for text in texts])
    tokens = f"tok:moses-{language}-sacremoses-{sacremoses.__version__}"
    return Score(found.name, found.value, found.details, found.signature.replace("tok:none", tokens))


def differences(
    translations: Sequence[str],
    others: Sequence[str],
    references: References,
    language: str = "",
    *,
    lowercase: bool = False,
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

    (ours, texts), (theirs, _) = _compared(translations, references), _compared(others, references)
    count = len(ours)
    resamples = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    draws = np.concatenate([np.ones((1, count), dtype=int), resamples])  # how often each sentence stands in each
    found = []
    metrics = {"BLEU": BLEU(lowercase=lowercase, tokenize=tokenizer_for(language)), "chrF": CHRF(lowercase=lowercase)}
    for name, metric in metrics.items():
        above = _scores_of(metric, ours, texts, draws) - _scores_of(metric, theirs, texts, draws)
        whole, *resampled = above.tolist()
        low, high = np.quantile(resampled, (0.025, 0.975)).tolist()
        found.append(Difference(name, whole, low, high))
    return found


def _scores_of(
    metric: Any, translations: list[str], references: list[list[str]], draws: Int64[np.ndarray, "draws sentences"]
) -> Float64[np.ndarray, " draws"]:
    """The scores of texts that hold each sentence so many times, by the counts that sacrebleu takes of each."""
    counted = np.array(metric._extract_corpus_statistics(translations, references))
    return np.array([metric._compute_score_from_stats(sums).score for sums in (draws @ counted).tolist()])


def _compared(translations: Sequence[str], references: References) -> tuple[list[str], list[list[str]]]:
    """Translations and texts of references, one sentence for each, with their characters composed alike."""
    alone = not references or isinstance(references[0], str)
    texts = cast("Sequence[Sequence[str]]", [references] if alone else references)
    for text in texts:
        if len(translations) != len(text):
            raise DataError(f"{len(translations)} translations and {len(text)} references: one of each is needed")
    if not translations:
        raise DataError("there is no sentence to score")
    composed = [[unicodedata.normalize("NFC", one) for one in text] for text in (translations, *texts)]
    return composed[0], composed[1:]


def _score(name: str, metric: Any, translations: Sequence[str], references: References) -> Score:
    found = metric.corpus_score(*_compared(translations, references))
    details = found.format(score_only=False, signature="").partition(" = ")[2].partition(" ")[2]
    return Score(name, float(found.score), details, str(metric.get_signature()))
