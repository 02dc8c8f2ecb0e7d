"""What a model's tokens mean: kept with every run, so that it can write where the data it was trained on are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from attnlab.core.contracts import ReportedTask
from attnlab.text.characters import Vocabulary
from attnlab.text.sources import clean
from attnlab.text.tokenizers import MarkTokens, Tokenizer
from attnlab.text.trees.linear import CLOSE, TagDictionary, TreeVocabulary
from attnlab.text.trees.words import given_words, words_of


@final
@dataclass(frozen=True)
class SentenceCodec:
    """Say how sentences become tokens for a model that translates, and how it searches unless told otherwise."""

    tokenizer: Tokenizer  # of both languages
    languages: tuple[str, str]  # codes, from and to
    max_length: int  # tokens of the longest sentence
    beam: int  # beginnings that are kept of each translation
    alpha: float  # exponent of the length penalty
    kind: ClassVar[Literal["sentences"]] = "sentences"  # by which it is found again
    pads: ClassVar[bool] = True  # whether what is shorter than the rest of its batch is filled up
    marks: ClassVar[MarkTokens] = MarkTokens()  # the same for every tokenizer

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The tokens of sentences as a corpus is read: without blanks around them."""
        return self.tokenizer.encode([sentence.strip() for sentence in sentences])

    def writes_with(self, other: SentenceCodec) -> bool:
        """Whether models of both can write one translation together."""
        return self.languages == other.languages and self.tokenizer.to_json() == other.tokenizer.to_json()

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {
            "kind": self.kind,
            "tokenizer": self.tokenizer.to_json(),
            "languages": list(self.languages),
            "max_length": self.max_length,
            "beam": self.beam,
            "alpha": self.alpha,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> SentenceCodec:
        """What was kept."""
        source, target = content["languages"]
        tokenizer = Tokenizer.from_json(content["tokenizer"])
        return cls(tokenizer, (source, target), content["max_length"], content["beam"], content["alpha"])


@final
@dataclass(frozen=True)
class CharacterCodec:
    """Say how characters become tokens for a model that continues texts."""

    vocabulary: Vocabulary  # of the training text
    context: int  # characters the model is given at most
    kind: ClassVar[Literal["characters"]] = "characters"  # as in `SentenceCodec`, like what follows
    pads: ClassVar[bool] = False  # windows of one length

    def read(self, text: str) -> str:
        """A text in the one form in which texts are trained on: LF at the end of lines, characters composed."""
        return clean(text)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {"kind": self.kind, "characters": "".join(self.vocabulary.symbols), "context": self.context}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> CharacterCodec:
        """What was kept."""
        return cls(Vocabulary([content["characters"]]), content["context"])


@final
@dataclass(frozen=True)
class TreeCodec:
    """Say how sentences become tokens for a model that writes trees over them, and how it searches."""

    tokenizer: Tokenizer  # of the words, with blanks between them
    vocabulary: TreeVocabulary  # of what is written
    dictionary: TagDictionary  # which tags a word may have
    max_length: int  # tokens of the longest tree, its end included, and of the longest sentence
    beam: int  # beginnings that are kept of each tree
    kind: ClassVar[Literal["trees"]] = "trees"  # as in `SentenceCodec`, like what follows
    close: ClassVar[int] = CLOSE  # the token that closes a bracket
    pads: ClassVar[bool] = True  # likewise
    marks: ClassVar[MarkTokens] = MarkTokens()  # likewise

    @staticmethod
    def words_of(sentence: str, *, given: bool) -> list[str]:
        """The words of a sentence: those that blanks divide, if they are given, else as the Penn Treebank cuts them."""
        return given_words(sentence) if given else words_of(sentence)

    def encode(self, sentences: Sequence[Sequence[str]]) -> list[list[int]]:
        """The tokens that are read of sentences, each of which is given by its words."""
        return self.tokenizer.encode([" ".join(words) for words in sentences])

    def bracketed(self, tokens: Sequence[int], words: Sequence[str]) -> str:
        """The tree of tokens that were written over some words, in brackets."""
        return str(self.vocabulary.decode(tokens, words))

    def may_be(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """The tokens that may stand for each word."""
        return [self.dictionary.allowed(word) for word in words]

    def writes_with(self, other: TreeCodec) -> bool:
        """Whether models of both can write one tree together."""
        return self.vocabulary == other.vocabulary and self.tokenizer.to_json() == other.tokenizer.to_json()

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {
            "kind": self.kind,
            "tokenizer": self.tokenizer.to_json(),
            "labels": list(self.vocabulary.labels),
            "tags": list(self.vocabulary.tags),
            "dictionary": self.dictionary.to_json(),
            "max_length": self.max_length,
            "beam": self.beam,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TreeCodec:
        """What was kept."""
        return cls(
            Tokenizer.from_json(content["tokenizer"]),
            TreeVocabulary(tuple(content["labels"]), tuple(content["tags"])),
            TagDictionary.from_json(content["dictionary"]),
            content["max_length"],
            content["beam"],
        )


Codec = SentenceCodec | CharacterCodec | TreeCodec
KINDS: Mapping[str, type[Codec]] = {kind.kind: kind for kind in (SentenceCodec, CharacterCodec, TreeCodec)}


def codec_of(task: ReportedTask) -> Codec | None:
    """What the tokens of a task mean, where its models write; it says so by an attribute ``codec``."""
    return getattr(task, "codec", None)


def codec_from_json(content: Mapping[str, Any]) -> Codec:
    """A codec that was kept."""
    return KINDS[content["kind"]].from_json(content)
