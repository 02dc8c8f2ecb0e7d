"""The parts of a text as tokens: of one that memory holds, and of one that stays on disk, where a sample must do."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int, Int32, Int64

from attnlab.core.errors import DataError
from attnlab.core.generators import generator_for
from attnlab.tasks.char_lm.splits import HowSplit, Predicted, SplitText, split_by
from attnlab.tasks.datasets import TextFiles
from attnlab.text.characters import Vocabulary, split_places, split_text
from attnlab.text.overlap import GRAM, overlap, without_copies
from attnlab.text.sources import read_whole
from attnlab.text.text_store import StoredPart, TextStore, open_text

IN_MEMORY = 2**25
"""Bytes of a text up to which it is held in memory and nothing is sampled."""
LARGEST_WHOLE = 2**30  # bytes of a text that has to be in memory: it takes 26 times as much
JUDGED, PIECE = 2_000_000, 2**12 + 1
"""Characters of a held-out part of a larger text that are judged, and how many stand in a row where it is sampled."""
COUNTED, GRAMS_PIECE = 5_000_000, 1000
"""Characters of the training part of a larger text that n-grams are counted on, and how many of them stand in a row."""
BLOCK, OPEN = 2**18, 256
"""Windows of a larger text begin in blocks of so many characters, of which so many are drawn from at a time: 64 MB that
the system's cache holds."""
KEPT_STRETCHES = 4  # of which the blocks are remembered: runs that train together are in the same one or the next


@final
@dataclass(frozen=True)
class Cut:
    """Say how a text is cut into parts; the fields are arguments of `CharLM`."""

    split: HowSplit  # before windows are taken, after, or not at all
    context: int  # characters a model is given at most
    stride: int  # characters from the beginning of one window to that of the next, with the split "windows"
    predict: Predicted  # what is predicted of a window
    test: bool  # whether there is a test part
    seed: int | None  # of where the held-out tenth stands
    drop_copies: bool  # whether training does without passages that are held out

    def require_fit(self, sizes: Mapping[str, int], name: str) -> None:
        """Raise unless one window fits the training part and something can be predicted in the others."""
        needed = 2 if self.predict == "each" else self.context + 1
        train, shortest = sizes["train"], min(sizes.values())
        if train <= self.context:
            raise DataError(
                f"{name} is too short: its training part (90 % of {sum(sizes.values())} characters) must have more "
                f"characters than the context; got {train} for a context of {self.context}; take a longer text or a "
                "smaller context"
            )
        if shortest < needed:
            raise DataError(
                f"{name} is too short: every held-out part needs at least {needed} characters; got {shortest}"
            )


Pieces = Int32[np.ndarray, "count length"]
"""Tokens of a held-out part; what stands in different rows does not follow each other in the text."""


class AbstractTextData(ABC):
    """Give the tokens of a text's parts.

    Parameters
    ----------
    sha256 : str
        Identifies the text: of its bytes, or of the hashes of their stretches where it is on disk.
    size_bytes : int
        Bytes of the text, uncompressed.
    vocabulary : Vocabulary
        Of the training part.
    sizes : mapping
        Characters of every part.
    held_out : mapping
        What is judged of every held-out part.
    """

    shared: Mapping[str, float]
    """As in `SplitText`."""

    def __init__(
        self,
        sha256: str,
        size_bytes: int,
        vocabulary: Vocabulary,
        *,
        sizes: Mapping[str, int],
        held_out: Mapping[str, Pieces],
    ) -> None:
        self.sha256, self.size_bytes, self.vocabulary = sha256, size_bytes, vocabulary
        self.sizes, self.held_out = sizes, held_out

    @property
    @abstractmethod
    def sampled(self) -> Mapping[str, Any]:
        """What was not looked at whole, in numbers; empty if nothing."""

    @abstractmethod
    def windows(self, step: int, seed: int, *, count: int, length: int) -> Int[torch.Tensor, "count length"]:
        """Windows to train on, drawn at random: a pure function of step and seed."""

    @abstractmethod
    def epoch(self, context: int, predict: Predicted) -> float:
        """The windows in which each character is predicted once, or each allowed window is seen once."""

    @abstractmethod
    def for_floors(self, part: str) -> tuple[Int32[np.ndarray, " train"], Int32[np.ndarray, " held_out"]]:
        """Tokens that n-grams are counted on, and those of a held-out part that they are judged on."""

    @abstractmethod
    def overlap(self, part: str) -> float | None:
        """How much of a held-out part's passages stands in the training part; None of a part without passages."""


@final
class TextInMemory(AbstractTextData):
    """Hold all tokens of a text.

    Parameters
    ----------
    split : SplitText
        Its parts.
    sha256, size_bytes
        As in `AbstractTextData`.
    """

    def __init__(self, split: SplitText, sha256: str, size_bytes: int) -> None:
        vocabulary = Vocabulary(list(split.parts.values()))
        tokens = {part: vocabulary.tokens(content) for part, content in split.parts.items()}
        self._train = tokens.pop("train")
        self._starts, self.shared = split.starts, split.shared
        held_out = {part: some.reshape(-1, split.piece or len(some)) for part, some in tokens.items()}
        sizes = {part: len(text) for part, text in split.parts.items()}
        super().__init__(sha256, size_bytes, vocabulary, sizes=sizes, held_out=held_out)

    @property
    def sampled(self) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    def windows(self, step: int, seed: int, *, count: int, length: int) -> Int[torch.Tensor, "count length"]:
        """Windows that begin wherever one may."""
        allowed = self._starts
        places = len(self._train) - length + 1 if allowed is None else len(allowed)
        starts = torch.randint(places, (count, 1), generator=generator_for(seed, step)).numpy()
        if allowed is not None:
            starts = allowed[starts]
        return torch.from_numpy(self._train[starts + np.arange(length)]).long()

    def epoch(self, context: int, predict: Predicted) -> float:
        """The windows of one epoch."""
        if self._starts is not None:
            return len(self._starts)
        return _windows(len(self._train), context, predict)

    def for_floors(self, part: str) -> tuple[Int32[np.ndarray, " train"], Int32[np.ndarray, " held_out"]]:
        """Both parts."""
        return self._train, self.held_out[part].reshape(-1)

    def overlap(self, part: str) -> float | None:
        """The fraction of the pieces' passages that stand in the training part; no passage spans two pieces."""
        pieces = self.held_out[part]
        count, length = pieces.shape
        joined = np.pad(pieces, ((0, 0), (0, 1)), constant_values=-1).reshape(-1)[:-1]  # -1 is no token: matches none
        share = overlap(self._train, joined)
        if share is None or length < GRAM:
            return None
        return share * ((len(joined) - GRAM + 1) / (count * (length - GRAM + 1)))


@final
class TextOnDisk(AbstractTextData):
    """Read what is needed of a text on disk.

    Parameters
    ----------
    store : TextStore
        The text.
    places : mapping
        The stretches of every part.
    longest : int
        Characters of the longest window that held-out parts are judged in.
    """

    def __init__(self, store: TextStore, places: Mapping[str, Sequence[tuple[int, int]]], longest: int) -> None:
        self._store, self._places, self.shared = store, places, {}
        vocabulary = Vocabulary([store.characters(stretches) for stretches in places.values()])
        self._parts = {part: store.part(stretches, vocabulary.table) for part, stretches in places.items()}
        self._train = self._parts["train"]
        piece = max(PIECE, longest + 1)
        held_out = {part: _sample(some, JUDGED, piece) for part, some in self._parts.items() if part != "train"}
        sizes = {part: len(some) for part, some in self._parts.items()}
        super().__init__(store.sha256, store.size_bytes, vocabulary, sizes=sizes, held_out=held_out)
        self._blocks = functools.lru_cache(maxsize=KEPT_STRETCHES)(self._blocks_of)

    @functools.cached_property
    def _shared(self) -> Mapping[str, tuple[int, int]]:
        """By held-out part, how many of its sampled passages stand in the training part, and how many there are."""
        return {part: self._store.shared(self._places["train"], self._places[part]) for part in self.held_out}

    @property
    def sampled(self) -> Mapping[str, Any]:
        """The characters that are judged, by part, those that n-grams are counted on, and the passages compared."""
        return {
            "judged": {part: some.size for part, some in self.held_out.items()},
            "n-grams": COUNTED,
            "passages": {part: count for part, (_, count) in self._shared.items()},
        }

    def windows(self, step: int, seed: int, *, count: int, length: int) -> Int[torch.Tensor, "count length"]:
        """Windows that begin in the blocks whose turn it is; within an epoch every block has its turn."""
        places = len(self._train) - length + 1
        blocks = -(-places // BLOCK)
        turns = -(-blocks // OPEN)
        epoch, turn = divmod(step // max(1, places // (count * length * turns)), turns)
        draw = generator_for(seed, step)
        among = self._blocks(seed, epoch, turn, blocks=blocks, turns=turns)
        chosen = among[torch.randint(len(among), (count,), generator=draw).numpy()]
        within = torch.randint(places, (count,), generator=draw).numpy()
        starts = (chosen * places + within) // blocks  # block b begins at b places / blocks
        return torch.from_numpy(self._train.windows(starts, length)).long()

    def _blocks_of(self, seed: int, epoch: int, turn: int, *, blocks: int, turns: int) -> Int64[np.ndarray, " open"]:
        """The blocks whose turn it is; the pages of those before are given back to the system."""
        self._train.release()
        order = torch.randperm(blocks, generator=generator_for(seed, epoch, blocks)).numpy()
        return np.array_split(order, turns)[turn]

    def epoch(self, context: int, predict: Predicted) -> float:
        """The windows of one epoch."""
        return _windows(len(self._train), context, predict)

    def for_floors(self, part: str) -> tuple[Int32[np.ndarray, " train"], Int32[np.ndarray, " held_out"]]:
        """A sample of the training part, and what is judged of the other."""
        return _sample(self._train, COUNTED, GRAMS_PIECE).reshape(-1), self.held_out[part].reshape(-1)

    def overlap(self, part: str) -> float | None:
        """The fraction of the sampled passages that stand in the training part, all of which is looked at."""
        found, count = self._shared[part]
        return found / count if count else None


def _sample(part: StoredPart, most: int, piece: int) -> Pieces:
    """A part, or pieces of it evenly spread where it has more characters than that."""
    if len(part) <= most:
        return part.windows(np.zeros(1, dtype=np.int64), len(part))
    return part.spread(most // piece, piece)


def _windows(characters: int, context: int, predict: Predicted) -> float:
    """The windows in which each character is predicted once."""
    return characters / context if predict == "each" else characters - context


def read_data(text: TextFiles, field: str, cut: Cut, *, longest: int) -> AbstractTextData:
    """A text, cut into its parts: in memory if it is small or has to be, else on disk.

    Parameters
    ----------
    text : TextFiles
        Where it is.
    field : str
        Of files of objects, the one that holds their text.
    cut : Cut
        How it is cut.
    longest : int
        Characters of the longest window that held-out parts are judged in.

    Raises
    ------
    DataError
        If it cannot be read, is empty, too short, or too large for a split that needs it in memory.
    """
    name, whole = str(text.name), cut.split == "windows" or cut.drop_copies
    read = read_whole(text.files, field, LARGEST_WHOLE if whole else IN_MEMORY)
    if read is not None:
        content, sha256, size_bytes = read
        return TextInMemory(_split(content, cut, name), sha256, size_bytes)
    if whole:
        raise DataError(
            f"{name} is too large: the split 'windows' and drop_copies need a text in memory, of at most "
            f"{LARGEST_WHOLE:,} bytes; leave them out, or take a part of the text"
        )
    store = open_text(text.files, field)
    places = split_places(len(store), test=cut.test, seed=cut.seed)
    if cut.split == "inside":
        places["train"] = [(0, len(store))]
    cut.require_fit({part: sum(stop - start for start, stop in some) for part, some in places.items()}, name)
    return TextOnDisk(store, places, longest)


def _split(text: str, cut: Cut, name: str) -> SplitText:
    """The parts of a text in memory."""
    if not text:
        raise DataError(f"{name} is empty; a text to train on is needed")
    contiguous = split_text(text, test=cut.test, seed=cut.seed)
    if cut.drop_copies:
        held_out = [content for part, content in contiguous.items() if part != "train"]
        contiguous["train"] = without_copies(contiguous["train"], held_out)
        if len(contiguous["train"]) <= cut.context:
            raise DataError(
                f"{name}: without what stands in a held-out part too, {len(contiguous['train'])} characters are left "
                f"to train on, not more than the context ({cut.context}); take a longer text or a smaller context"
            )
    cut.require_fit({part: len(content) for part, content in contiguous.items()}, name)
    return split_by(
        cut.split, text, contiguous, context=cut.context, stride=cut.stride, seed=cut.seed, predict=cut.predict
    )
