"""What a model's tokens mean: kept with every run, so that it can write where the data it was trained on are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np

from attnlab.core.contracts import ReportedTask
from attnlab.core.errors import DataError
from attnlab.tasks.scale import Scale, featured, in_units
from attnlab.text.characters import Vocabulary
from attnlab.text.scores import gleu
from attnlab.text.sources import clean
from attnlab.text.tokenizers import PAD_TOKEN, MarkTokens, Tokenizer
from attnlab.text.trees import read_trees
from attnlab.text.trees.bracketing import beside
from attnlab.text.trees.linear import CLOSE, TagDictionary, TreeVocabulary
from attnlab.text.trees.tree import without_repeats
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
    dictionary: Mapping[str, str] | None = None  # the best translation of words; None where no word is unknown
    replace_unknown: bool = False  # whether unknown words of a translation are replaced
    coverage: float = 0.0  # weight of the penalty for passing over some of the source
    kind: ClassVar[Literal["sentences"]] = "sentences"  # by which it is found again
    pads: ClassVar[bool] = True  # whether what is shorter than the rest of its batch is filled up
    marks: ClassVar[MarkTokens] = MarkTokens()  # the same for every tokenizer
    banned: ClassVar[tuple[int, ...]] = ()  # tokens that are never written

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The tokens of sentences as a corpus is read: without blanks around them."""
        return self.tokenizer.encode([sentence.strip() for sentence in sentences])

    @staticmethod
    def reward(written: Sequence[int], right: Sequence[int]) -> float:
        """How good a sentence of the model's own is in training, from 0 to 1: GLEU of tokens."""
        return gleu(written, right)

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
            **({} if self.dictionary is None else {"dictionary": dict(self.dictionary)}),
            **({"replace_unknown": True} if self.replace_unknown else {}),
            **({"coverage": self.coverage} if self.coverage else {}),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> SentenceCodec:
        """What was kept."""
        source, target = content["languages"]
        tokenizer = Tokenizer.from_json(content["tokenizer"])
        more = {key: content[key] for key in ("dictionary", "replace_unknown", "coverage") if key in content}
        return cls(tokenizer, (source, target), content["max_length"], content["beam"], content["alpha"], **more)


@final
@dataclass(frozen=True)
class CharacterCodec:
    """Say how characters become tokens for a model that continues texts."""

    vocabulary: Vocabulary  # of the training text
    context: int  # characters the model is given at most
    kind: ClassVar[Literal["characters"]] = "characters"  # as in `SentenceCodec`, like what follows
    pads: ClassVar[bool] = False  # windows of one length
    end: ClassVar[None] = None  # a text does not end

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, cleaned as in training."""
        return self.vocabulary.encode(clean(text)).tolist()

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return "".join(self.pieces(tokens))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Characters."""
        return [self.vocabulary.symbols[token] for token in tokens]

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {"kind": self.kind, "characters": "".join(self.vocabulary.symbols), "context": self.context}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> CharacterCodec:
        """What was kept."""
        return cls(Vocabulary([content["characters"]]), content["context"])


@final
@dataclass(frozen=True)
class TextCodec:
    """Say how a text becomes tokens for a model that continues it, and where what it writes ends."""

    tokenizer: Tokenizer  # of the lab's own or adopted
    context: int  # tokens the model is given at most
    marked: bool  # whether documents have ends, from which the next begins
    kind: ClassVar[Literal["text"]] = "text"  # as in `SentenceCodec`, like what follows
    pads: ClassVar[bool] = False  # what fills up a window stands behind its text

    @property
    def end(self) -> int | None:
        """The token that ends a text and begins the next; None if there is none."""
        return self.tokenizer.end if self.marked else None

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, cleaned as in training, behind the end of the one before."""
        return [*([self.tokenizer.end] if self.marked else []), *self.tokenizer.encode([clean(text)])[0]]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; ends are left out."""
        return self.tokenizer.decode([tokens])[0]

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Words, or parts of words."""
        return self.tokenizer.pieces(tokens)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        known = {"context": self.context, "marked": self.marked}
        return {"kind": self.kind, "tokenizer": self.tokenizer.to_json(), **known}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TextCodec:
        """What was kept."""
        return cls(Tokenizer.adopted(content["tokenizer"]), content["context"], content["marked"])


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
        """The tree of tokens that were written over some words, in brackets; none is all that is in one like it."""
        return str(without_repeats(self.vocabulary.decode(tokens, words)))

    def read(self, bracketed: str) -> tuple[list[str], list[int]]:
        """The words of a tree in brackets, and the tokens that it is written with."""
        tree = next(read_trees([bracketed]))
        return list(tree.words()), self.vocabulary.encode(tree)

    @staticmethod
    def beside(written: str, gold: str) -> list[tuple[str, bool]]:
        """A tree that was written in pieces, each with whether the right tree has it; nothing of no tree."""
        tree, right = (next(read_trees([line]), None) for line in (written, gold))
        return [] if tree is None or right is None else beside(tree, right)

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


@final
@dataclass(frozen=True)
class ClassCodec:
    """Say how a text becomes tokens for a model that names its class."""

    tokenizer: Tokenizer  # of the training texts
    classes: tuple[str, ...]  # in the order of what the model answers
    max_length: int  # tokens that are read: a longer text is cut, a shorter one filled up
    kind: ClassVar[Literal["classes"]] = "classes"  # as in `SentenceCodec`, like what follows
    pads: ClassVar[bool] = False  # items of one length

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of texts, cleaned as in training, all of them."""
        return self.tokenizer.encode([clean(text) for text in texts])

    def filled(self, tokens: Sequence[int]) -> list[int]:
        """Tokens as a model is given them."""
        return [*tokens[: self.max_length], *[PAD_TOKEN] * (self.max_length - len(tokens))]

    def writes_with(self, other: ClassCodec) -> bool:
        """Whether models of both can name one class together."""
        return self.classes == other.classes and self.tokenizer.to_json() == other.tokenizer.to_json()

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        known = {"classes": list(self.classes), "max_length": self.max_length}
        return {"kind": self.kind, "tokenizer": self.tokenizer.to_json(), **known}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ClassCodec:
        """What was kept."""
        return cls(Tokenizer.from_json(content["tokenizer"]), tuple(content["classes"]), content["max_length"])


@final
@dataclass(frozen=True)
class NumbersCodec:
    """Say in which units a model is given sequences of numbers, or of tokens as numbers, and what its answers mean."""

    max_length: int  # positions of a sequence, no more and no fewer; of tokens no more
    features: int  # numbers at each of them
    each: bool  # whether there is an answer at every position, else one a sequence
    classes: tuple[str, ...] = ()  # in the order of what the model answers; empty: its answers are numbers
    inputs: Scale | None = None  # units of what it is given; None: as they are
    answers: Scale | None = None  # of its answers, where these are numbers
    flat: bool = False  # whether the numbers of its answers have no axis of outputs, as the targets had none
    tokens: int = 0  # how many a model of tokens knows, with padding; 0: it is given numbers
    kind: ClassVar[Literal["numbers"]] = "numbers"  # as in `SentenceCodec`, like what follows
    pads: ClassVar[bool] = False  # items of one length

    def encode(self, items: np.ndarray) -> np.ndarray:
        """Sequences as a model is given them, float32 (items, length, features), or tokens int64 (items, length).

        Raises
        ------
        DataError
            If they have another shape, or a model of tokens does not know one.
        """
        if self.tokens:
            return self._shifted(items)
        given = featured(items) if items.ndim in (2, 3) else items
        if given.shape[1:] != (self.max_length, self.features):
            without = f" or (items, {self.max_length})" if self.features == 1 else ""
            raise DataError(
                f"inputs must have the shape (items, {self.max_length}, {self.features}){without}; got {items.shape}"
            )
        return in_units(given, self.inputs)

    def _shifted(self, items: np.ndarray) -> np.ndarray:
        """Tokens as a model is given them: 0 is padding, up to the length that it reads."""
        if items.ndim != 2 or items.shape[1] > self.max_length or items.dtype.kind not in "biu":
            raise DataError(
                f"inputs must be tokens, whole numbers of the shape (items, at most {self.max_length}); got "
                f"{items.shape}, {items.dtype}"
            )
        unknown = items[(items < 0) | (items >= self.tokens - 1)]
        if unknown.size:
            raise DataError(f"tokens must be from 0 to {self.tokens - 2}, as in training; got {unknown[0]}")
        room = self.max_length - items.shape[1]
        return np.pad(items.astype(np.int64) + 1, ((0, 0), (0, room)), constant_values=PAD_TOKEN)

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """Answers in their own units, or the probability of each class: (items, length, ...) or (items, ...)."""
        if not self.each and outputs.ndim == 3:
            outputs = outputs.mean(axis=1)
        if self.classes:
            from scipy import special  # which takes a while to import

            return special.softmax(outputs, axis=-1)
        numbers = self.answers.undo(outputs) if self.answers else outputs
        return numbers[..., 0] if self.flat else numbers

    def writes_with(self, other: NumbersCodec) -> bool:
        """Whether answers of models of both can be averaged."""
        return self.to_json() == other.to_json()

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        sizes = {"max_length": self.max_length, "features": self.features, "each": self.each, "flat": self.flat}
        units = {"inputs": self.inputs and self.inputs.to_json(), "answers": self.answers and self.answers.to_json()}
        tokens = {"tokens": self.tokens} if self.tokens else {}
        return {"kind": self.kind, **sizes, "classes": list(self.classes), **units, **tokens}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> NumbersCodec:
        """What was kept."""
        units = [content[name] and Scale.from_json(content[name]) for name in ("inputs", "answers")]
        sizes = content["max_length"], content["features"], content["each"]
        return cls(*sizes, tuple(content["classes"]), *units, flat=content["flat"], tokens=content.get("tokens", 0))


Codec = SentenceCodec | CharacterCodec | TextCodec | TreeCodec | ClassCodec | NumbersCodec
KINDS: Mapping[str, type[Codec]] = {
    kind.kind: kind for kind in (SentenceCodec, CharacterCodec, TextCodec, TreeCodec, ClassCodec, NumbersCodec)
}


def codec_of(task: ReportedTask) -> Codec | None:
    """What the tokens of a task mean, where its models write; it says so by an attribute ``codec``."""
    return getattr(task, "codec", None)


def codec_from_json(content: Mapping[str, Any]) -> Codec:
    """A codec that was kept."""
    return KINDS[content["kind"]].from_json(content)
