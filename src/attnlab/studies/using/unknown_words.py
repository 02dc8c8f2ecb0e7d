"""Unknown words of translations, replaced by the translation of the source word that each stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from attnlab.core.errors import SpecError
from attnlab.studies.using.alignment import alignment
from attnlab.tasks.codecs import SentenceCodec

AT_ONCE = 64  # sentences whose attention is looked at together


def check_replaces(codec: SentenceCodec) -> None:
    """Check that a run knows what unknown words are and how words are translated."""
    if codec.tokenizer.unknown is None:
        raise SpecError(
            "unknown words can be replaced where tokens are words (tokenizer: words); this run's know any word"
        )
    if codec.dictionary is None:
        raise SpecError("this run keeps no dictionary of words, as an earlier version made it; train it again for one")


def with_known_words(
    models: Sequence[nn.Module], codec: SentenceCodec, sources: Sequence[str], translations: Sequence[Sequence[int]]
) -> list[str]:
    """Write translations, given by their tokens without begin and end, with every unknown word replaced.

    It becomes what the dictionary has for the word of the source that it stands for, or else that word itself.

    Notes
    -----
    It stands for the word that the models look at most when they write it, by the mean over models, layers and heads
    of attention over the source. Where no model has such attention it stands for the word at the nearest place of
    those whose translation in the dictionary is not written. Differs from [1]_: the alignment is read off attention.

    References
    ----------
    .. [1] Luong et al., 2015, arXiv:1410.8206, section 3.
    """
    tokenizer, dictionary = codec.tokenizer, codec.dictionary or {}
    words = [one[: codec.max_length] for one in tokenizer.words([source.strip() for source in sources])]
    pieces = [tokenizer.pieces(tokens) for tokens in translations]
    numbers = [n for n, tokens in enumerate(translations) if tokenizer.unknown in tokens and words[n]]
    for first in range(0, len(numbers), AT_ONCE):
        some = numbers[first : first + AT_ONCE]
        read = codec.encode([sources[n] for n in some])
        looks = alignment(models, codec, [one[: codec.max_length] for one in read], [translations[n] for n in some])
        for row, n in enumerate(some):
            written = {piece.strip() for piece in pieces[n]}
            for place in [place for place, token in enumerate(translations[n]) if token == tokenizer.unknown]:
                if looks is None:
                    at = _not_translated(words[n], written, dictionary, place / len(pieces[n]))
                else:
                    at = int(looks[row, min(place, looks.shape[1] - 1), : len(words[n])].argmax())
                pieces[n][place] = dictionary.get(words[n][at], words[n][at])
    kept = (
        [piece for piece, token in zip(*one, strict=True) if token not in codec.marks]
        for one in zip(pieces, translations, strict=True)
    )
    return ["".join(one).removeprefix(" ") for one in kept]


def _not_translated(words: Sequence[str], written: set[str], dictionary: Mapping[str, str], place: float) -> int:
    """The word nearest to a place, as a share of the length, of those whose translation is not written, or of all."""
    left = [n for n, word in enumerate(words) if dictionary.get(word, word).strip() not in written]
    return min(left or range(len(words)), key=lambda n: abs(n / len(words) - place))
