"""Segmentations of words drawn at random: a byte-pair encoding of which some merges are left out."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping
from typing import final

import tokenizers as hf

POOL = 32  # segmentations of one word that are drawn; once it has so many, it gets one of these
WORDS = 20_000  # whose segmentations are remembered; beyond that the oldest is forgotten


@final
class SampledBpe:
    """Encode sentences with byte-pair merges left out at random.

    Parameters
    ----------
    wrapped : tokenizers.Tokenizer
        Hugging Face's tokenizer, a byte-pair encoding with a normalizer and a pre-tokenizer.
    dropout : float
        The probability with which each merge is left out, each time it could be made: between 0 and 1.
    segmentations : int
        How often each sentence is cut.
    seed : int
        What is drawn follows from it and from the sentences alone.

    Notes
    -----
    Hugging Face's own dropout cannot be given a seed. With dropout 0, every segmentation is theirs.

    References
    ----------
    .. [1] Provilkov, Emelianenko, Voita, 2020, "BPE-Dropout: Simple and Effective Subword Regularization",
       arXiv:1910.13267, algorithm 1.
    """

    def __init__(self, wrapped: hf.Tokenizer, dropout: float, *, segmentations: int, seed: int = 0) -> None:
        model = json.loads(wrapped.to_str())["model"]
        self._wrapped, self._dropout, self.segmentations = wrapped, dropout, segmentations
        self._numbers: Mapping[str, int] = model["vocab"]
        self._ranks = {tuple(merge): rank for rank, merge in enumerate(model["merges"])}
        self._random = random.Random(seed)
        self._pools: dict[str, list[tuple[int, ...]]] = {}

    def encode(self, sentence: str) -> list[list[int]]:
        """Segmentations of a sentence, drawn anew at every call."""
        normal = self._wrapped.normalizer.normalize_str(sentence)
        words = [word for word, _ in self._wrapped.pre_tokenizer.pre_tokenize_str(normal)]
        return [
            list(itertools.chain.from_iterable(self._drawn(word) for word in words)) for _ in range(self.segmentations)
        ]

    def _drawn(self, word: str) -> tuple[int, ...]:
        """The token numbers of a word in one of its segmentations."""
        pool = self._pools.get(word)
        if pool is None:
            if len(self._pools) == WORDS:
                self._pools.pop(next(iter(self._pools)))
            pool = self._pools[word] = []
        if len(pool) == POOL:
            return self._random.choice(pool)
        pool.append(tuple(self._numbers[piece] for piece in self._pieces(word)))
        return pool[-1]

    def _pieces(self, word: str) -> list[str]:
        """The pieces of a word: the merge of the lowest rank among those not dropped, until none is left."""
        pieces = list(word)
        while True:
            merges = [
                (self._ranks[pair], place)
                for place, pair in enumerate(itertools.pairwise(pieces))
                if pair in self._ranks and self._random.random() >= self._dropout
            ]
            if not merges:
                return pieces
            _, place = min(merges)
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
