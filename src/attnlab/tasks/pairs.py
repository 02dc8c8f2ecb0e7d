"""Batches of pairs of token sequences, one to read and one to write, those of like length together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from attnlab.core.contracts import Batch
from attnlab.tasks.next_tokens import IGNORED
from attnlab.text.tokenizers import BEGIN_TOKEN, END_TOKEN, PAD_TOKEN

Tokens = Int64[np.ndarray, " length"]


def cuts(lengths: Int64[np.ndarray, " pairs"], batch_tokens: int) -> list[int]:
    """Where batches end, for pairs in the order of their lengths."""
    changes = (np.flatnonzero(np.diff(lengths)) + 1).tolist()
    ends, start = [], 0
    for first, last in itertools.pairwise([0, *changes, len(lengths)]):
        most = max(batch_tokens // int(lengths[first]), 1) if last > first else 0  # pairs of this length in a batch
        while (end := max(start + most, first)) < last:
            ends.append(end)
            start = end
    return [*ends, len(lengths)] if len(lengths) else []


def in_order(lengths: Int64[np.ndarray, " pairs"], batch_tokens: int) -> list[Int64[np.ndarray, " some"]]:
    """The pairs of every batch, the short ones first, those of one length as they stand."""
    ordered = np.argsort(lengths, kind="stable")
    return np.split(ordered, cuts(lengths[ordered], batch_tokens)[:-1])


def meeting_anew(
    lengths: Int64[np.ndarray, " pairs"], ends: Sequence[int], generator: torch.Generator
) -> list[Int64[np.ndarray, " some"]]:
    """The pairs of every batch, the short ones first; which pairs of one length meet is drawn."""
    ties = torch.rand(len(lengths), generator=generator).numpy()
    return np.split(np.lexsort((ties, lengths)), ends[:-1])


def pair_batch(sources: Sequence[Tokens], targets: Sequence[Tokens]) -> Batch:
    """Pairs without marks as one batch, filled up on the right."""
    begun = [np.concatenate(([BEGIN_TOKEN], tokens)) for tokens in targets]
    ended = [np.concatenate((tokens, [END_TOKEN])) for tokens in targets]
    return Batch((padded(sources, PAD_TOKEN), padded(begun, PAD_TOKEN)), padded(ended, IGNORED))


def padded(rows: Sequence[Tokens], filler: int) -> Int[Tensor, "rows longest"]:
    """Rows of tokens as one tensor."""
    found = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return torch.from_numpy(found)
