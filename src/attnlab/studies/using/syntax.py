"""How often heads look from a word to the one it hangs on, or to one that hangs on it, relation by relation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from attnlab.core.errors import DataError, ModuleError, SpecError
from attnlab.inspection.behaviour import most_looked_at
from attnlab.inspection.capture import capture
from attnlab.models.decoding.writers import device_of
from attnlab.studies.using.measured import MeasuredModel
from attnlab.studies.using.translating import sides_of_maps
from attnlab.tasks.codecs import CharacterCodec, ClassCodec, SentenceCodec, TextCodec, codec_of
from attnlab.tasks.parsing.dependencies import ParsedSentence

Towards = Literal["head", "dependent"]
LEAST_PAIRS = 30
"""Pairs of a relation, in each half of the sentences, below which nothing is said of it."""
TextReading = SentenceCodec | TextCodec | CharacterCodec | ClassCodec
"""What says how a text becomes tokens, each of which stands for some of its characters."""
Pair = tuple[int, int, int]
"""Number of a sentence, of the word from which is looked, and of that which is right."""


@final
@dataclass(frozen=True)
class RelationFollowed:
    """Hold how well one model follows one relation between words in one direction."""

    relation: str
    towards: Towards
    """To what is looked: the word on which another hangs, or that which hangs on it."""
    pairs: int  # on which was judged
    place: str  # of the head that is right most often in the other half of the sentences
    distance: int  # in words, that is right most often there; positive: to a later word
    by_head: Mapping[int, float]  # by sentence, how often the head is right
    by_distance: Mapping[int, float]  # likewise, how often the word at that distance is
    rate: float  # over all pairs, how often the head is right
    distance_rate: float  # likewise, the word at that distance
    untrained: float  # the head of an untrained model, chosen alike


@final
@dataclass(frozen=True)
class _Looks:
    """Hold which word each head looks at most from each word of each sentence."""

    places: tuple[str, ...]  # of the heads
    found: Mapping[int, Int[Tensor, "heads words"]]  # by number of the sentence

    @property
    def ahead(self) -> bool:
        """Whether any head looks at a later word."""
        return any(bool((looks > torch.arange(looks.shape[1])).any()) for looks in self.found.values())


def measure_syntax(subject: MeasuredModel, sentences: Sequence[ParsedSentence]) -> tuple[RelationFollowed, ...]:
    """Measure how well heads of a model follow the relations of parsed sentences.

    Of a translator the encoder's heads are measured. Sentences are at best held out; those that the model cannot read,
    as they are too long, are left out. What is found is by relation and direction, where each half of the sentences has
    30 such pairs that the model can look at.

    Raises
    ------
    SpecError
        If its task reads no text.
    ModuleError
        If none of its attention over the words can be seen.
    DataError
        If no sentence can be read, or no relation is frequent enough.

    Notes
    -----
    A head is right where the other word that it looks at most is the one that the relation names [1]_, [2]_. The head
    is chosen on every other sentence, beginning with the first, and judged on the others, and so are the distance that
    it must beat, as relations are mostly to near words [1]_, and the head of an untrained model.

    References
    ----------
    .. [1] Voita et al., 2019, arXiv:1905.09418, section 5.2.
    .. [2] Clark et al., 2019, arXiv:1906.04341, section 4.2.
    """
    codec = codec_of(subject.task)
    if codec is None or codec.kind in ("trees", "numbers"):
        raise SpecError(f"models of the task '{subject.task.name}' read no text, in whose words there is syntax")
    looks = _looks(subject.model, codec, sentences)
    before = _looks(subject.built_untrained(), codec, sentences)
    ahead = looks.ahead or before.ahead
    found = []
    for direction, pairs in _pairs(sentences, looks.found).items():
        seen = [pair for pair in pairs if ahead or pair[2] < pair[1]]
        halves = [[pair for pair in seen if pair[0] % 2 == half] for half in (0, 1)]
        if min(map(len, halves)) >= LEAST_PAIRS:
            found.append(_followed(direction, halves, looks, before))
    if not found:
        raise DataError(f"no relation between words stands {LEAST_PAIRS} times in each half of the sentences")
    return tuple(found)


def _pairs(sentences: Sequence[ParsedSentence], read: Mapping[int, Tensor]) -> Mapping[tuple[str, Towards], list[Pair]]:
    pairs: dict[tuple[str, Towards], list[Pair]] = defaultdict(list)
    for number in read:
        for one in sentences[number].dependencies:
            pairs[one.relation, "head"].append((number, one.dependent, one.head))
            pairs[one.relation, "dependent"].append((number, one.head, one.dependent))
    return dict(sorted(pairs.items()))


def _followed(
    direction: tuple[str, Towards], halves: Sequence[Sequence[Pair]], looks: _Looks, untrained: _Looks
) -> RelationFollowed:
    """Choose on one half of the pairs, and judge on the other."""
    choose, judge = halves
    distance, _ = Counter(right - word for _, word, right in choose).most_common(1)[0]
    best, beside = _best(looks, choose), _best(untrained, choose)
    by_head = [_right(looks, pair, best) for pair in judge]
    by_distance = [right - word == distance for _, word, right in judge]
    return RelationFollowed(
        *direction,
        pairs=len(judge),
        place=looks.places[best],
        distance=distance,
        by_head=_by_sentence(judge, by_head),
        by_distance=_by_sentence(judge, by_distance),
        rate=fmean(by_head),
        distance_rate=fmean(by_distance),
        untrained=fmean(_right(untrained, pair, beside) for pair in judge),
    )


def _by_sentence(pairs: Sequence[Pair], hits: Sequence[bool]) -> dict[int, float]:
    found: dict[int, list[bool]] = defaultdict(list)
    for (number, _, _), hit in zip(pairs, hits, strict=True):
        found[number].append(hit)
    return {number: fmean(of_one) for number, of_one in found.items()}


def _right(looks: _Looks, pair: Pair, head: int) -> bool:
    number, word, right = pair
    return int(looks.found[number][head, word]) == right


def _best(looks: _Looks, pairs: Sequence[Pair]) -> int:
    """The head that is right most often."""
    hits = sum((looks.found[number][:, word] == right).int() for number, word, right in pairs)
    return int(torch.as_tensor(hits).argmax())


@torch.no_grad()
def _looks(model: nn.Module, codec: TextReading, sentences: Sequence[ParsedSentence]) -> _Looks:
    found, places, device = {}, (), device_of(model)
    for number, sentence in enumerate(sentences):
        tokens, spans = _read(codec, sentence.text)
        words = [list(_tokens_at(word, spans)) for word in sentence.spans]
        if not all(words):
            continue
        with capture(model) as trace:
            begun = [[codec.marks.begin]] if codec.kind == "sentences" else []  # of the translation
            model(*(torch.tensor([one], device=device) for one in (tokens, *begun)))
        sides = sides_of_maps(model, trace)
        over = (len(tokens), len(tokens))
        own = {
            name: one
            for name, one in trace.items()
            if one.weights is not None
            and (sides.get(name, (0, 0)), tuple(one.weights.shape[2:])) == ((0, 0), over)
            and "#" not in name
        }
        looks = most_looked_at(own, words)
        if not looks:
            raise ModuleError("its model has no attention over the words of a sentence that can be seen")
        places = tuple(f"{name}:{head}" for name, one in looks.items() for head in range(len(one)))
        found[number] = torch.cat(list(looks.values()))
    if not found:
        raise DataError(
            f"none of the {len(sentences)} sentences can be read: they are too long, or have characters that were not "
            "in training"
        )
    return _Looks(places, found)


def _read(codec: TextReading, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The tokens of a text as far as they are read, and which characters each stands for; nothing of unknown ones."""
    if codec.kind == "characters":
        try:
            tokens = codec.encode(text)[: codec.context]
        except DataError:
            return [], []
        return tokens, [(place, place + 1) for place in range(len(tokens))]
    cut = codec.tokenizer.wrapped.encode(text, add_special_tokens=False)
    tokens, spans = list(cut.ids), list(cut.offsets)
    if codec.kind == "classes":
        return codec.filled(tokens), spans[: codec.max_length]
    if codec.kind == "sentences":
        return tokens[: codec.max_length], spans[: codec.max_length]
    ends = [] if codec.end is None else [codec.end]
    return [*ends, *tokens][: codec.context], [*((0, 0) for _ in ends), *spans][: codec.context]


def _tokens_at(word: tuple[int, int], spans: Sequence[tuple[int, int]]) -> Iterator[int]:
    """The tokens that share a character with a word."""
    return (token for token, (start, end) in enumerate(spans) if start < word[1] and end > word[0])
