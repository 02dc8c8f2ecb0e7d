"""Tokenizers: from sentences to numbers and back. Every entry is one of Hugging Face's, trained on the spot.

All of them number three tokens alike: padding, begin and end. None of them fails on a character that it was not
trained on: "bpe" and "characters" fall back to bytes, "words" has a token for what it does not know.
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from attnlab.core.errors import DataError, SpecError
from attnlab.text.bpe_dropout import SampledBpe

PAD, BEGIN, END = "<pad>", "<begin>", "<end>"
BLANK = "\u2581"  # how Hugging Face's Metaspace writes the blank before a word
UNKNOWN = f"{BLANK}<unknown>"
WORD = rf"{BLANK}?(\w+|[^\w\s{BLANK}]+)|{BLANK}"
SPECIAL = (PAD, BEGIN, END)
PAD_TOKEN, BEGIN_TOKEN, END_TOKEN = range(len(SPECIAL))
BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
"""How Hugging Face's byte fallback names the bytes."""
_PRINTED = frozenset(pre_tokenizers.ByteLevel.alphabet())
_OTHERS = [byte for byte in range(256) if chr(byte) not in _PRINTED]


@final
class MarkTokens(NamedTuple):
    """Number the tokens that are no text.

    Parameters
    ----------
    pad : int
        What fills up a short sequence.
    begin : int
        What a sequence starts from.
    end : int
        What ends it.
    """

    pad: int = PAD_TOKEN
    begin: int = BEGIN_TOKEN
    end: int = END_TOKEN


class AbstractTokenizer(ABC):
    """Say how a tokenizer is trained.

    Parameters
    ----------
    lowercase : bool
        Whether capitals are read as small letters; then nothing that it decodes has a capital.

    Notes
    -----
    A tokenizer is made by `train` and is then a `Tokenizer`.
    """

    def __init__(self, *, lowercase: bool = False) -> None:
        self.lowercase = lowercase

    @abstractmethod
    def train(self, sentences: Iterable[str]) -> Tokenizer:
        """A tokenizer for sentences like these."""

    def sampler(self, tokenizer: Tokenizer, seed: int = 0) -> SampledBpe | None:  # noqa: ARG002
        """What cuts the training part in place of the tokenizer, in several ways."""
        return None

    def _normalizer(self, *others: normalizers.Normalizer) -> normalizers.Normalizer | None:
        """What is done to a text before it is cut; None if nothing is."""
        steps = [*others, *([normalizers.Lowercase()] if self.lowercase else [])]
        return normalizers.Sequence(steps) if len(steps) > 1 else next(iter(steps), None)


@final
class Tokenizer:
    """Turn sentences into token numbers and back.

    Parameters
    ----------
    wrapped : tokenizers.Tokenizer
        Hugging Face's tokenizer; the first tokens of the lab's own are padding, begin and end.
    """

    def __init__(self, wrapped: hf.Tokenizer) -> None:
        wrapped.encode_special_tokens = True  # a text that contains the name of a mark is text
        self.wrapped = wrapped
        numbers = ((mark, wrapped.token_to_id(mark)) for mark in SPECIAL)
        self._tokens = {mark: number for mark, number in numbers if number is not None}
        self._marks = {number: mark for mark, number in self._tokens.items()}

    @property
    def end(self) -> int:
        """The token that ends a text."""
        return self._tokens[END]

    @property
    def unknown(self) -> int | None:
        """The token of every word that has none; None if there is no such token, as any text can be encoded."""
        return self.wrapped.token_to_id(UNKNOWN)

    @property
    def size(self) -> int:
        """The number of distinct tokens."""
        return self.wrapped.get_vocab_size()

    @property
    def lowercase(self) -> bool:
        """Whether capitals are read as small letters."""
        normalizer = self.wrapped.normalizer
        return normalizer is not None and normalizer.normalize_str("A") == "a"

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The tokens of sentences, without begin and end."""
        return [found.ids for found in self.wrapped.encode_batch_fast(list(sentences), add_special_tokens=False)]

    def decode(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """The sentences of tokens; padding, begin and end are left out, an unknown word is named so."""
        texts = [[token for token in one if token not in self._marks] for one in tokens]
        return self.wrapped.decode_batch(texts, skip_special_tokens=False)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Each token as a person reads it."""
        return [self._marks.get(token) or self._piece(token) for token in tokens]

    def words(self, sentences: Sequence[str]) -> list[list[str]]:
        """What each token of sentences stands for, where tokens are words; also of those that have none."""
        normalizer, cut = self.wrapped.normalizer, self.wrapped.pre_tokenizer
        texts = (normalizer.normalize_str(sentence) for sentence in sentences)
        return [[word.replace(BLANK, " ") for word, _ in cut.pre_tokenize_str(text)] for text in texts]

    def word_starts(self) -> list[int]:
        """The tokens that begin with a blank."""
        return [token for token, piece in enumerate(self.pieces(range(self.size))) if piece.startswith(" ")]

    def _piece(self, token: int) -> str:
        """What a token adds behind another one: some decoders drop the blank before the first word.

        Bytes that are a part of a character are written in hexadecimal digits, as Python escapes them.
        """
        once, twice = (self.wrapped.decode([token] * count, skip_special_tokens=False) for count in (1, 2))
        letters = self.wrapped.id_to_token(token) or ""
        if "\ufffd" in once and _PRINTED.issuperset(letters):
            return bytes(map(_byte_of, letters)).decode(errors="backslashreplace")
        return twice[len(once) :]

    def to_json(self) -> dict[str, Any]:
        """The whole tokenizer in Hugging Face's JSON form."""
        return json.loads(self.wrapped.to_str())

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that was saved."""
        made = cls.adopted(content)
        found = [made.wrapped.id_to_token(number) for number in range(len(SPECIAL))]
        if found != list(SPECIAL):
            raise DataError(f"the first tokens of a tokenizer must be {', '.join(SPECIAL)}; got {found}")
        return made

    @classmethod
    def adopted(cls, content: Mapping[str, Any]) -> Tokenizer:
        """A tokenizer in Hugging Face's JSON form, whoever made it; one without an end gets it as its last token."""
        try:
            wrapped = hf.Tokenizer.from_str(json.dumps(content))
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"this is no tokenizer that can be read: {error}") from error
        wrapped.no_truncation()
        wrapped.no_padding()
        if wrapped.token_to_id(END) is None:
            wrapped.add_special_tokens([END])
        return cls(wrapped)


def _byte_of(letter: str) -> int:
    """The byte that a byte-level tokenizer writes as a letter: itself where it can be printed, else one from 256 on."""
    return ord(letter) if ord(letter) < 256 else _OTHERS[ord(letter) - 256]


@final
class Bpe(AbstractTokenizer):
    """Join the most frequent pairs of bytes, again and again, until there are enough tokens.

    Parameters
    ----------
    vocab_size : int
        Number of tokens, padding, begin and end and the 256 bytes included; fewer where the text has no more pairs.
    lowercase : bool
        As in `AbstractTokenizer`.
    dropout : float
        BPE-dropout: the probability with which a merge is left out while the training part is cut, from 0 to below 1.
    segmentations : int
        How often each pair of the training part is cut, each time in another way; without dropout it is cut once.

    Raises
    ------
    SpecError
        If there is no room for the bytes, or another size is out of its range.

    Notes
    -----
    Any text can be encoded, and comes back in Unicode's form NFC: what was never seen falls apart into bytes. Dropout
    changes neither the tokens nor how held-out text is cut; what it draws is the same for every seed of a study.

    References
    ----------
    .. [1] Sennrich, Haddow, Birch, 2016, arXiv:1508.07909.
    .. [2] Radford et al., 2019, "Language Models are Unsupervised Multitask Learners", section 2.2, for the bytes.
    .. [3] Provilkov, Emelianenko, Voita, 2020, arXiv:1910.13267, for the dropout.
    """

    def __init__(
        self, vocab_size: int = 8000, *, lowercase: bool = False, dropout: float = 0.0, segmentations: int = 8
    ) -> None:
        super().__init__(lowercase=lowercase)
        least = len(SPECIAL) + len(BYTES)
        if vocab_size < least:
            raise SpecError(
                f"vocab_size must be at least {least} (256 bytes and {len(SPECIAL)} marks); got {vocab_size}"
            )
        if not 0 <= dropout < 1:
            raise SpecError(f"dropout of a tokenizer must be from 0 to below 1; got {dropout}")
        if segmentations < 1:
            raise SpecError(f"segmentations must be at least 1; got {segmentations}")
        self.vocab_size, self.dropout, self.segmentations = vocab_size, dropout, segmentations

    def sampler(self, tokenizer: Tokenizer, seed: int = 0) -> SampledBpe | None:
        """What cuts the training part in place of the tokenizer, in several ways."""
        if not self.dropout:
            return None
        return SampledBpe(tokenizer.wrapped, self.dropout, segmentations=self.segmentations, seed=seed)

    def train(self, sentences: Iterable[str]) -> Tokenizer:
        """A tokenizer for sentences like these."""
        wrapped = hf.Tokenizer(models.BPE())
        wrapped.normalizer = self._normalizer(normalizers.NFC())
        wrapped.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        wrapped.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        wrapped.train_from_iterator(_some(sentences), trainer)
        return Tokenizer(wrapped)


@final
class Characters(AbstractTokenizer):
    """Take every character for a token.

    Parameters
    ----------
    lowercase : bool
        As in `AbstractTokenizer`.

    Notes
    -----
    A character that was never seen becomes its bytes in UTF-8.
    """

    def train(self, sentences: Iterable[str]) -> Tokenizer:
        """A tokenizer for sentences like these."""
        normalizer = self._normalizer()
        read = _some(sentences) if normalizer is None else map(normalizer.normalize_str, _some(sentences))
        seen = sorted({character for sentence in read for character in sentence})
        vocabulary = {token: number for number, token in enumerate([*SPECIAL, *BYTES, *seen])}
        wrapped = hf.Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
        if normalizer is not None:
            wrapped.normalizer = normalizer
        wrapped.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        wrapped.add_special_tokens(list(SPECIAL))
        return Tokenizer(wrapped)


@final
class Words(AbstractTokenizer):
    """Take every word and every run of punctuation marks for a token, with the blank before it if there is one.

    Parameters
    ----------
    vocab_size : int
        Number of tokens at most: the most frequent ones.
    lowercase : bool
        As in `AbstractTokenizer`.

    Raises
    ------
    SpecError
        If there is no room for a word.

    Notes
    -----
    A word that was never seen becomes the unknown token. All else comes back as it was, in Unicode's form NFC. A word
    with a blank before it and the same word without one (after a hyphen, say) are two tokens.
    """

    def __init__(self, vocab_size: int = 20000, *, lowercase: bool = False) -> None:
        super().__init__(lowercase=lowercase)
        if vocab_size <= len(SPECIAL) + 1:
            raise SpecError(f"vocab_size must leave room for a word beside {len(SPECIAL) + 1} marks; got {vocab_size}")
        self.vocab_size = vocab_size

    def train(self, sentences: Iterable[str]) -> Tokenizer:
        """A tokenizer for sentences like these."""
        wrapped = hf.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
        wrapped.normalizer = self._normalizer(normalizers.NFC())
        wrapped.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme="always", split=False),
                pre_tokenizers.Split(hf.Regex(WORD), behavior="isolated"),
            ]
        )
        wrapped.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
        trainer = trainers.WordLevelTrainer(
            vocab_size=self.vocab_size, special_tokens=[*SPECIAL, UNKNOWN], show_progress=False
        )
        wrapped.train_from_iterator(_some(sentences), trainer)
        return Tokenizer(wrapped)


def _some(sentences: Iterable[str]) -> Iterable[str]:
    """The sentences, and refuse none at all."""
    iterator = iter(sentences)
    first = next(iterator, None)
    if first is None:
        raise DataError("a tokenizer needs at least one sentence to be trained on")
    return itertools.chain((first,), iterator)


TOKENIZERS: Mapping[str, type[AbstractTokenizer]] = {
    "characters": Characters,
    "words": Words,
    "bpe": Bpe,
}
