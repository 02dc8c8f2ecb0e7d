"""What a model's tokens mean: kept with every run, so that it can write where the data it was trained on are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from attnlab.core.contracts import ReportedTask
from attnlab.text.characters import Vocabulary
from attnlab.text.tokenizers import MarkTokens, Tokenizer


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

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {"kind": self.kind, "characters": "".join(self.vocabulary.symbols), "context": self.context}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> CharacterCodec:
        """What was kept."""
        return cls(Vocabulary([content["characters"]]), content["context"])


Codec = SentenceCodec | CharacterCodec
KINDS: Mapping[str, type[Codec]] = {kind.kind: kind for kind in (SentenceCodec, CharacterCodec)}


def codec_of(task: ReportedTask) -> Codec | None:
    """What the tokens of a task mean, where its models write; it says so by an attribute ``codec``."""
    return getattr(task, "codec", None)


def codec_from_json(content: Mapping[str, Any]) -> Codec:
    """A codec that was kept."""
    return KINDS[content["kind"]].from_json(content)
